//! Proves that memory keeps what is written to it, whatever the layers below do to it meanwhile.
//!
//! Every word of a region holds a pattern that tells where it belongs ([`pattern`]). Threads write and
//! verify pages, and do to the mapping all that programs do: fork, unmap, protect, move, give back,
//! ask for huge pages and for swap. The first wrong word ends the program with all that is known of it.

mod chunk;
mod memory;
pub(super) mod pattern;
mod shared;
mod tally;
mod thread;

use super::{address, size};
use chunk::{Chunk, PAGES};
use clap::{Args, ValueEnum};
use memory::{HUGE, Letter, Memory};
use nix::sys::mman::MmapAdvise;
use pattern::Pattern;
use serde_json::json;
use shared::Shared;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tally::Tally;

/// Where the region is if nothing else is said: an address that no other program uses.
pub(super) const START: &str = "0x600000000000";
/// Of the chunks filled first, one in so many is filled with pages equal to others.
const EQUAL_EVERY: usize = 8;

/// What to do.
#[derive(Args, Debug)]
pub(super) struct Integrity {
    /// How much memory, in whole 2 MiB.
    #[arg(long, default_value = "256M", value_parser = size)]
    size: usize,
    /// Where.
    #[arg(long, default_value = START, value_parser = address)]
    at: usize,
    /// What to ask of the kernel for it.
    #[arg(long, value_enum, default_value = "yes")]
    huge: Huge,
    /// The share of it that is to have base pages only.
    #[arg(long, default_value_t = 0.25)]
    base: f64,
    /// Lets this kernel's KSM merge pages of it.
    #[arg(long)]
    mergeable: bool,
    /// Threads. The first also changes the mapping.
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// What the pattern and the order of operations follow from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long, once memory is filled; 600 if neither this nor a number of rounds is given.
    #[arg(long)]
    seconds: Option<u64>,
    /// How many operations of each thread.
    #[arg(long)]
    rounds: Option<u64>,
    /// Seconds that memory is left alone at most.
    #[arg(long, default_value_t = 20.0)]
    rest: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Huge {
    /// Nothing: the system's setting decides.
    Default,
    /// Huge pages.
    Yes,
}

/// What all threads share.
#[derive(Debug)]
struct World {
    memory: Memory,
    pattern: Pattern,
    /// All but the first 2 MiB, which are `shared`.
    chunks: Vec<Mutex<Chunk>>,
    shared: Shared,
    letter: Letter,
    /// Chunks that are left alone.
    resting: AtomicUsize,
    /// Longest rest.
    rest: Duration,
    /// A thread found something wrong.
    stop: AtomicBool,
}

impl World {
    fn chunk(&self, number: usize) -> MutexGuard<'_, Chunk> {
        // A thread that panics ends the program.
        self.chunks[number].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fills memory, prints a line of JSON, tortures and verifies it, and prints another line.
pub(super) fn run(choice: &Integrity) -> Result<(), String> {
    let (world, end) = set_up(choice)?;
    println!("{}", json!({ "filled_bytes": choice.size, "start": choice.at }));
    let begin = Instant::now();
    let (tally, found) = torture(choice, &world, end);
    let mut line = tally.json();
    line.insert("seconds".into(), begin.elapsed().as_secs_f64().into());
    line.insert("mismatches".into(), found.len().into());
    println!("{}", serde_json::Value::from(line));
    if found.is_empty() { Ok(()) } else { Err(found.join("\nstrata-agent: ")) }
}

/// When a thread has done enough.
#[derive(Clone, Copy, Debug)]
struct End {
    time: Option<Duration>,
    rounds: u64,
}

/// Maps and fills memory.
fn set_up(choice: &Integrity) -> Result<(World, End), String> {
    if !(0.0..=1.0).contains(&choice.base) || choice.threads == 0 {
        return Err("--base is a share from 0 to 1, and there is at least one --threads".into());
    }
    if choice.size / HUGE < 2 || choice.size / HUGE * PAGES > pattern::PAGES_MAX {
        return Err("--size is to be from 4M to 4G".into());
    }
    let memory = Memory::map(choice.at, choice.size)?;
    let pattern = Pattern::new(choice.seed, choice.at);
    let count = choice.size / HUGE - 1;
    let base = (count as f64 * choice.base).round() as usize;
    let huge = (choice.huge == Huge::Yes).then_some(MmapAdvise::MADV_HUGEPAGE);
    let advice =
        |number| if number + base < count { huge } else { Some(MmapAdvise::MADV_NOHUGEPAGE) };
    let mut tally = Tally::default();
    if choice.mergeable {
        memory
            .advise(choice.at, choice.size, MmapAdvise::MADV_MERGEABLE)
            .map_err(|error| format!("the kernel refuses to merge pages: {error}"))?;
    }
    if let Some(huge) = huge {
        let _ = memory.advise(choice.at, HUGE, huge);
    }
    let shared = Shared::new(&memory, &pattern, choice.at);
    let rest = Duration::try_from_secs_f64(choice.rest)
        .map_err(|error| format!("--rest is a number of seconds: {error}"))?;
    let now = Instant::now();
    let mut resting = 0;
    let chunks = (0..count).map(|number| {
        let mut chunk = Chunk::new(choice.at + (number + 1) * HUGE, advice(number));
        if let Some(advice) = chunk.advice {
            memory
                .advise(chunk.at, HUGE, advice)
                .map_err(|error| format!("the kernel refuses {advice:?}: {error}"))?;
        }
        if number % EQUAL_EVERY == 0 {
            let value = (number / EQUAL_EVERY) as u32 % thread::VALUES;
            chunk.equal(&memory, &pattern, 0..PAGES, value, &mut tally);
            // Long enough for KSM to see them twice.
            chunk.rests = Some(now + rest * 3);
            resting += 1;
        } else {
            chunk.write(&memory, &pattern, 0..PAGES, &mut tally);
        }
        Ok(Mutex::new(chunk))
    });
    let chunks = chunks.collect::<Result<_, String>>()?;
    let resting = AtomicUsize::new(resting);
    let (letter, stop) = (Letter::new()?, AtomicBool::new(false));
    let time = match (choice.seconds, choice.rounds) {
        (None, Some(_)) => None,
        (seconds, _) => Some(Duration::from_secs(seconds.unwrap_or(600))),
    };
    let end = End { time, rounds: choice.rounds.unwrap_or(u64::MAX) };
    Ok((World { memory, pattern, chunks, shared, letter, resting, rest, stop }, end))
}

/// Runs the threads to their end, then verifies everything. Gives what they did, and what is wrong.
fn torture(choice: &Integrity, world: &World, end: End) -> (Tally, Vec<String>) {
    let mut tally = Tally::default();
    let mut found = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..choice.threads)
            .map(|number| scope.spawn(move || thread::run(world, choice.seed, number, end)))
            .collect();
        for thread in threads {
            match thread.join() {
                Ok((of_thread, result)) => {
                    tally += &of_thread;
                    found.extend(result.err());
                }
                Err(_) => found.push("a thread panicked".into()),
            }
        }
    });
    if found.is_empty() {
        for number in 0..world.chunks.len() {
            let chunk = world.chunk(number);
            let all = chunk.verify(&world.memory, &world.pattern, 0..PAGES, &mut tally);
            found.extend(all.err());
        }
        found.extend(thread::verify_shared(world).err());
    }
    (tally, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;
    use tally::Operation;

    /// A region of its own for each test of the process.
    fn choice(place: usize, rounds: u64) -> Integrity {
        Integrity {
            size: 16 << 20,
            at: 0x5000_0000_0000 + (place << 32),
            huge: Huge::Yes,
            base: 0.25,
            mergeable: false,
            threads: 4,
            seed: 3,
            seconds: None,
            rounds: Some(rounds),
            rest: 0.05,
        }
    }

    #[test]
    fn memory_of_this_machine_keeps_its_contents() {
        let choice = Integrity { seconds: Some(1), rounds: None, ..choice(0, 0) };
        let (world, end) = set_up(&choice).unwrap();
        let (tally, found) = torture(&choice, &world, end);
        assert_eq!(found, [] as [String; 0]);
        assert!(tally.verified > 8 * 512, "{tally:?}");
        for (operation, name) in Operation::ALL {
            assert!(tally.of(operation) > 0, "{name} was never done: {tally:?}");
        }
        assert!(tally.rested > 0, "{tally:?}");
    }

    #[test]
    fn each_operation_is_done_however_short_the_time() {
        let choice = choice(6, Operation::ALL.len() as u64);
        let (world, end) = set_up(&choice).unwrap();
        let (tally, found) = torture(&choice, &world, end);
        assert_eq!(found, [] as [String; 0]);
        for (operation, name) in Operation::ALL {
            assert!(tally.of(operation) > 0, "{name} was never done: {tally:?}");
        }
    }

    #[test]
    fn the_same_seed_does_the_same() {
        let operations = |place| {
            let choice = choice(place, 300);
            let (world, end) = set_up(&choice).unwrap();
            let (tally, found) = torture(&choice, &world, end);
            assert_eq!(found, [] as [String; 0]);
            Operation::ALL.map(|(operation, _)| tally.of(operation))
        };
        assert_eq!(operations(1), operations(2));
    }

    #[test]
    fn a_word_changed_behind_its_back_is_found_and_described() {
        let choice = Integrity { seconds: Some(20), rounds: None, ..choice(3, 0) };
        let (world, end) = set_up(&choice).unwrap();
        // Whatever is done to this chunk first looks at it.
        let at = {
            let mut chunk = world.chunk(1);
            chunk.rests = Some(Instant::now());
            chunk.address(5) + 16
        };
        world.resting.fetch_add(1, Relaxed);
        let other = world.memory.word(at + HUGE).load(Relaxed);
        world.memory.word(at).store(other, Relaxed);
        let (_, found) = torture(&choice, &world, end);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("mismatch at {at:#x}: expected ")), "{found:?}");
        let words = format!("(foreign: it belongs to {:#x} in generation 1)", at + HUGE);
        assert!(found[0].contains(&words), "{found:?}");
        assert!(found[0].contains("1 of 512 words"), "{found:?}");
    }

    #[test]
    fn a_page_that_shows_older_contents_is_found() {
        let choice = Integrity { seconds: Some(20), rounds: None, ..choice(4, 0) };
        let (world, end) = set_up(&choice).unwrap();
        let page = {
            let mut chunk = world.chunk(2);
            let page = chunk.address(7);
            let old: Vec<u64> =
                (0..512).map(|word| world.memory.word(page + word * 8).load(Relaxed)).collect();
            chunk.write(&world.memory, &world.pattern, 0..PAGES, &mut Tally::default());
            for (word, old) in old.into_iter().enumerate() {
                world.memory.word(page + word * 8).store(old, Relaxed);
            }
            chunk.rests = Some(Instant::now());
            page
        };
        world.resting.fetch_add(1, Relaxed);
        let (_, found) = torture(&choice, &world, end);
        assert!(found[0].starts_with(&format!("mismatch at {page:#x}: expected ")), "{found:?}");
        assert!(found[0].contains("(stale: generation 1 of the page)"), "{found:?}");
        assert!(found[0].contains("512 of 512 words"), "{found:?}");
    }

    #[test]
    fn a_lost_count_is_found() {
        let choice = choice(5, 10);
        let (world, end) = set_up(&choice).unwrap();
        for _ in 0..3 {
            world.shared.count(&world.memory, &world.pattern, 9).unwrap();
        }
        world.memory.word(choice.at + 72).fetch_sub(1, Relaxed);
        let (_, found) = torture(&choice, &world, end);
        let words = format!("mismatch at {:#x}, where threads count: ", choice.at + 72);
        assert!(found[0].starts_with(&words), "{found:?}");
        assert!(found[0].contains("3 to "), "{found:?}");
    }
}
