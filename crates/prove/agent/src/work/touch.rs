//! Memory touched at known addresses, then read in random order.

use super::region::{PAGE, Region};
use super::{address, size};
use clap::{Args, ValueEnum};
use nix::sys::mman::MmapAdvise;
use serde_json::json;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::thread;
use std::time::{Duration, Instant};

/// Base pages of a huge page.
const HUGE_PAGES: usize = 512;
/// Between two rounds of verifying.
const PAUSE: Duration = Duration::from_millis(100);

/// What to touch.
#[derive(Args, Debug)]
pub(super) struct Touch {
    /// How much memory.
    #[arg(long, default_value = "64M", value_parser = size)]
    size: usize,
    /// Where: an address that no other program of the machine uses.
    #[arg(long, default_value = "0x600000000000", value_parser = address)]
    at: usize,
    /// What to ask of the kernel for it.
    #[arg(long, value_enum, default_value = "default")]
    huge: Huge,
    /// Reads in random order after everything was touched.
    #[arg(long, default_value_t = 0)]
    accesses: u64,
    /// Address to store to before and after these reads, for whoever watches the machine.
    #[arg(long, value_parser = address)]
    mark: Option<usize>,
    /// Give all pages the same contents.
    #[arg(long)]
    same: bool,
    /// Run code from each 2 MiB of it.
    #[arg(long)]
    execute: bool,
    /// Stay until killed, the memory in use.
    #[arg(long)]
    stay: bool,
    /// While it stays, verify all of it ten times a second.
    #[arg(long, requires = "stay")]
    read_on: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Huge {
    /// Nothing: the system's setting decides.
    Default,
    /// Huge pages.
    Yes,
    /// No huge pages.
    No,
}

/// Touches, reads, verifies, and prints one line of JSON.
pub(super) fn run(touch: &Touch) -> Result<(), String> {
    let region = Region::map(touch.at, touch.size)?;
    let advice = match touch.huge {
        Huge::Default => None,
        Huge::Yes => Some(MmapAdvise::MADV_HUGEPAGE),
        Huge::No => Some(MmapAdvise::MADV_NOHUGEPAGE),
    };
    if let Some(advice) = advice {
        region
            .advise(0, region.pages(), advice)
            .map_err(|error| format!("the kernel refuses {advice:?}: {error}"))?;
    }
    // Pages are told apart by their contents, if they are to be.
    let contents = |page| contents(if touch.same { 0 } else { page });
    let begin = Instant::now();
    for page in 0..region.pages() {
        region.write(page, contents(page));
    }
    let touched = begin.elapsed();
    if touch.execute {
        region.allow_code().map_err(|error| format!("the kernel refuses code: {error}"))?;
        for page in (0..region.pages()).step_by(HUGE_PAGES) {
            region.call(page);
        }
    }
    let marks = touch.mark.map(|at| Region::map(at & !(PAGE - 1), PAGE)).transpose()?;
    let mark = || {
        if let Some(marks) = &marks {
            marks.write(0, 1);
        }
    };
    mark();
    let begin = Instant::now();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut wrong = 0_u64;
    for _ in 0..touch.accesses {
        // Marsaglia's xorshift: cheap, and the same every time.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let page = (state % region.pages() as u64) as usize;
        wrong += u64::from(region.read(page) != contents(page));
    }
    let read = begin.elapsed();
    mark();
    let wrong_pages = || {
        let pages = 0..region.pages();
        pages.filter(|&page| region.read(page) != contents(page)).count() as u64
    };
    wrong += wrong_pages();
    println!(
        "{}",
        json!({
            "touched_bytes": region.pages() * PAGE,
            "huge_bytes": huge_bytes(touch.at)?,
            "accesses": touch.accesses,
            "wrong": wrong,
            "touch_seconds": touched.as_secs_f64(),
            "read_seconds": read.as_secs_f64(),
        })
    );
    if wrong > 0 {
        return Err(format!("{wrong} words do not hold what was written"));
    }
    if touch.stay && touch.read_on {
        loop {
            if wrong_pages() > 0 {
                return Err("memory does not hold any more what was written".to_owned());
            }
            thread::sleep(PAUSE);
        }
    } else if touch.stay {
        loop {
            nix::unistd::pause();
        }
    }
    Ok(())
}

/// What a page holds: tells pages apart.
fn contents(page: usize) -> u64 {
    (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Bytes in huge pages of the mapping that starts at `start`, or is part of one that does.
fn huge_bytes(start: usize) -> Result<u64, String> {
    let failed = |error| format!("/proc/self/smaps: {error}");
    // Line by line: how many mappings there are must not decide how much memory the program has.
    let lines = BufReader::with_capacity(PAGE, File::open("/proc/self/smaps").map_err(failed)?);
    let mut here = false;
    for line in lines.lines() {
        let line = line.map_err(failed)?;
        if let Some((range, _)) = line.split_once(' ')
            && let Some((from, to)) = range.split_once('-')
            && let (Ok(from), Ok(to)) =
                (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
        {
            here = (from..to).contains(&start);
        }
        if here && let Some(rest) = line.strip_prefix("AnonHugePages:") {
            let number = rest.trim().trim_end_matches(" kB");
            return number.parse::<u64>().map(|kib| kib << 10).map_err(|error| error.to_string());
        }
    }
    // A kernel without huge pages has no such line.
    Ok(0)
}
