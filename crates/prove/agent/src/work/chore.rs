//! The same small thing, again and again, so that what it costs in a layer can be counted by the piece.

use super::region::{self, Region};
use clap::{Args, ValueEnum};
use nix::sys::mman::MmapAdvise;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::execv;
use std::ffi::CString;
use std::hint::black_box;

/// Pages that `faults` maps and takes back at a time: 4 MiB.
const PAGES: usize = 1024;

/// Pages that each process of `processes` maps, stores to and unmaps.
const OF_PROCESS: usize = 64;

/// Numbers up to which `compute` looks for primes, as SysBench's CPU test does by default.
const PRIMES: u32 = 10_000;

/// Bytes that `stores` writes at a time, as SysBench's memory test does by default.
const BLOCK: usize = 1 << 10;

/// What to do.
#[derive(Args, Debug)]
pub(super) struct Chore {
    #[arg(value_enum)]
    what: What,
    /// How often.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    times: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// Page faults: base pages are mapped 1024 at a time, stored to, and unmapped.
    Faults,
    /// Processes: each is forked, maps 64 base pages, stores to them, unmaps them, executes a program and ends.
    Processes,
    /// Primes up to 10,000, by division.
    Compute,
    /// Stores to 1 KiB of memory, over and over.
    Stores,
    /// Nothing at all.
    Nothing,
}

/// Does it.
pub(super) fn run(chore: &Chore) -> Result<(), String> {
    match chore.what {
        What::Faults => {
            let (rounds, rest) = (chore.times / PAGES as u64, chore.times as usize % PAGES);
            (0..rounds).try_for_each(|_| faults(PAGES))?;
            faults(rest)
        }
        What::Processes => (0..chore.times).try_for_each(|_| process()),
        What::Compute => {
            (0..chore.times).for_each(|_| {
                black_box((3..=PRIMES).filter(|number| is_prime(*number)).count());
            });
            Ok(())
        }
        What::Stores => {
            let mut block = vec![0_u64; BLOCK / size_of::<u64>()];
            for time in 0..chore.times {
                block.iter_mut().for_each(|word| *word = time);
                black_box(&mut block);
            }
            Ok(())
        }
        What::Nothing => Ok(()),
    }
}

/// Maps pages, stores to each, and unmaps them.
fn faults(pages: usize) -> Result<(), String> {
    if pages == 0 {
        return Ok(());
    }
    let region = Region::map(0, pages * region::PAGE)?;
    let refused = |error| format!("the kernel refuses base pages: {error}");
    match region.advise(0, pages, MmapAdvise::MADV_NOHUGEPAGE) {
        // A kernel without huge pages does not know the advice.
        Ok(()) | Err(nix::Error::EINVAL) => {}
        Err(error) => return Err(refused(error)),
    }
    (0..pages).for_each(|page| region.write(page, 1));
    region.unmap().map_err(refused)
}

/// Forks, and has the child execute a program that does nothing.
fn process() -> Result<(), String> {
    let program = CString::new("/proc/self/exe").expect("no byte of it is 0");
    let argv = ["strata-agent", "chore", "nothing", "--times=1"]
        .map(|word| CString::new(word).expect("no byte of it is 0"));
    let child = region::child(|| match faults(OF_PROCESS) {
        // Comes back only if the kernel refuses.
        Ok(()) => execv(&program, &argv).map_or(2, |never| match never {}),
        Err(_) => 3,
    });
    let child = child.map_err(|error| format!("cannot fork: {error}"))?;
    match waitpid(child, None) {
        Ok(WaitStatus::Exited(_, 0)) => Ok(()),
        Ok(other) => Err(format!("a process ended otherwise than it should: {other:?}")),
        Err(error) => Err(format!("cannot wait for a process: {error}")),
    }
}

fn is_prime(number: u32) -> bool {
    (2..)
        .take_while(|divisor| divisor * divisor <= number)
        .all(|divisor| !number.is_multiple_of(divisor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primes_are_those_with_no_divisor() {
        let primes: Vec<u32> = (3..30).filter(|number| is_prime(*number)).collect();
        assert_eq!(primes, [3, 5, 7, 11, 13, 17, 19, 23, 29]);
    }

    #[test]
    fn each_store_of_faults_is_a_page_fault() {
        let own = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            strata_protocol::page_faults(&stat).unwrap()
        };
        faults(8).unwrap();
        let before = own();
        (0..4).for_each(|_| faults(PAGES).unwrap());
        let taken = own() - before;
        assert!((4 * PAGES as u64..5 * PAGES as u64).contains(&taken), "{taken}");
    }
}
