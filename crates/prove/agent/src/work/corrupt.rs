//! Spoils memory of a machine from below, to show that its program `integrity` notices.
//!
//! The program's words tell what they are wherever they are, so its pages are found in the memory of
//! the VMM that runs the machine, with no help of the machine's own tables.

use super::address;
use super::integrity::START;
use super::integrity::pattern::{Owner, Pattern};
use super::other::{find, memory};
use super::region::PAGE;
use clap::Args;
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

/// What to spoil.
#[derive(Args, Debug)]
pub(super) struct Corrupt {
    /// Name of the process, as `/proc/PID/comm` has it.
    process: String,
    /// Seed of the program whose pages are looked for.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where that program has its memory.
    #[arg(long, default_value = START, value_parser = address)]
    at: usize,
    /// How many pairs of pages.
    #[arg(long, default_value_t = 16)]
    pairs: usize,
}

/// Exchanges the second halves of pairs of pages, and prints one line of JSON with the addresses of
/// the first words that are wrong now.
pub(super) fn run(choice: &Corrupt) -> Result<(), String> {
    let pid = find(&choice.process)?;
    let (start, end) = memory(pid, &choice.process)?;
    let path = format!("/proc/{pid}/mem");
    let failed = |error| format!("{path}: {error}");
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
    let pattern = Pattern::new(choice.seed, choice.at);
    let found = pages(&file, start, end, &pattern);
    if found.len() < 2 {
        return Err(format!("{} holds no pages of the program with that seed", choice.process));
    }
    // Pairs from all over the memory, half of it apart.
    let half = found.len() / 2;
    let step = half.div_ceil(choice.pairs.max(1));
    let mut spoilt = Vec::new();
    for first in (0..half).step_by(step) {
        let pair = [found[first], found[first + half]];
        // The program may have moved a page, or have something else at its place by now.
        if pair.iter().any(|(place, address)| page(&file, *place, &pattern) != Some(*address)) {
            continue;
        }
        let mut halves = [[0; PAGE / 2]; 2];
        for ((place, _), half) in pair.iter().zip(&mut halves) {
            file.read_exact_at(half, (place + PAGE / 2) as u64).map_err(failed)?;
        }
        halves.reverse();
        for ((place, _), half) in pair.iter().zip(&halves) {
            file.write_all_at(half, (place + PAGE / 2) as u64).map_err(failed)?;
        }
        spoilt.extend(pair.map(|(_, address)| format!("{:#x}", address + PAGE / 2)));
    }
    println!("{}", json!({ "pages": found.len(), "spoilt": spoilt }));
    Ok(())
}

/// The program's pages in a range of the process's memory: where they are there, and where the
/// program has them. Copies of pages that the machine no longer uses are among them.
fn pages(file: &File, start: usize, end: usize, pattern: &Pattern) -> Vec<(usize, usize)> {
    (start..end)
        .step_by(PAGE)
        .filter_map(|place| Some((place, page(file, place, pattern)?)))
        .collect()
}

/// Where the program has the page that is at a place of the process's memory, if it is one of its.
fn page(file: &File, place: usize, pattern: &Pattern) -> Option<usize> {
    let mut word = [0; 8];
    // A place that cannot be read holds nothing.
    file.read_exact_at(&mut word, place as u64).ok()?;
    match pattern.owner(u64::from_ne_bytes(word))? {
        Owner::Address { address, .. } if address.is_multiple_of(PAGE) => Some(address),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::integrity::pattern::Contents;
    use std::hint::black_box;

    #[test]
    fn pages_of_the_program_are_found_by_their_contents() {
        let pattern = Pattern::new(5, 0x6000_0000_0000);
        let mut words = vec![0_u64; 4 * 512];
        let from = (words.as_ptr() as usize).next_multiple_of(PAGE);
        let first = (from - words.as_ptr() as usize) / 8;
        for word in 0..512 {
            let address = 0x6000_0000_0000 + 9 * PAGE + word * 8;
            words[first + 512 + word] = pattern.word(Contents::Own(2), address);
        }
        let words = black_box(words);
        let file = File::open("/proc/self/mem").unwrap();
        let found = pages(&file, from, from + 2 * PAGE, &pattern);
        assert_eq!(found, [(from + PAGE, 0x6000_0000_0000 + 9 * PAGE)]);
        drop(words);
    }
}
