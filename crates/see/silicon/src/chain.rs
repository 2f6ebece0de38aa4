//! Loads that wait for each other, in memory of one page size. The unsafe code of the crate is here, but for an addition: memory
//! from the kernel, and loads in it.

use crate::curve::Pages;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::time::Instant;

const HUGE: usize = 2 << 20;

/// Why nothing can be measured. Each names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The kernel gives no memory.
    #[error("no memory of {bytes} to measure in: {cause}; give a smaller --most", bytes = strata_text::number::bytes(*.bytes))]
    Memory {
        /// How much was asked for.
        bytes: u64,
        /// Why not.
        cause: Errno,
    },
    /// The kernel does not do what was advised.
    #[error(
        "{} of the memory to measure in is in huge pages, not {wanted}; {remedy}",
        strata_text::number::percent(*.share)
    )]
    Pages {
        /// Share in huge pages.
        share: f64,
        /// `nearly all` or `none`.
        wanted: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// What the kernel says of the memory cannot be read.
    #[error("cannot read {path}: {cause}; mount /proc")]
    Proc {
        /// The file.
        path: &'static str,
        /// Why not.
        cause: std::io::Error,
    },
    /// The thread cannot stay on a processor.
    #[error("cannot stay on one processor: {0}; run it where sched_setaffinity is allowed")]
    Pin(Errno),
    /// More than there is.
    #[error(
        "{} of both page sizes is more than the {} of memory available; give --most of at most {}",
        strata_text::number::bytes(*.most),
        strata_text::number::bytes(*.available),
        strata_text::number::bytes(*.available / 2)
    )]
    TooLarge {
        /// What was asked for, in bytes.
        most: u64,
        /// What there is, in bytes.
        available: u64,
    },
    /// Too little to see anything.
    #[error("{} is too little to measure in; give --most of at least 64M", strata_text::number::bytes(*.0))]
    TooSmall(u64),
}

/// Memory in pages of one size.
pub struct Memory {
    start: NonNull<c_void>,
    mapped: usize,
    /// Where the first huge page begins.
    first: usize,
    bytes: usize,
}

impl Memory {
    /// Takes memory and touches all of it.
    pub fn take(bytes: u64, pages: Pages) -> Result<Self, MeasureError> {
        let failed = |cause| MeasureError::Memory { bytes, cause };
        let bytes = bytes as usize / HUGE * HUGE;
        let mapped = bytes + HUGE;
        let length = NonZeroUsize::new(mapped).expect("it is more than a huge page");
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: new memory, at no address in particular.
        let start = unsafe { mmap_anonymous(None, length, rights, flags) }.map_err(failed)?;
        let address = start.as_ptr() as usize;
        let memory = Self { start, mapped, first: address.next_multiple_of(HUGE) - address, bytes };
        let advice = match pages {
            Pages::Base => MmapAdvise::MADV_NOHUGEPAGE,
            Pages::Huge => MmapAdvise::MADV_HUGEPAGE,
        };
        // SAFETY: it is our memory, and the advice changes no contents.
        unsafe { madvise(start, mapped, advice) }.map_err(failed)?;
        for at in (0..bytes).step_by(4096) {
            memory.put(at, 0);
        }
        memory.verify(pages)?;
        Ok(memory)
    }

    fn put(&self, at: usize, value: usize) {
        assert!(at + size_of::<usize>() <= self.bytes && at.is_multiple_of(size_of::<usize>()));
        // SAFETY: it is in the mapping and aligned, as just checked, and only this thread has it.
        unsafe { self.start.as_ptr().byte_add(self.first + at).cast::<usize>().write(value) };
    }

    /// The pages are of the size that was advised.
    fn verify(&self, pages: Pages) -> Result<(), MeasureError> {
        let path = "/proc/self/smaps";
        let text = fs::read_to_string(path).map_err(|cause| MeasureError::Proc { path, cause })?;
        let share = huge_bytes(&text, self.start.as_ptr() as u64, self.mapped as u64) as f64
            / self.bytes as f64;
        let (wrong, wanted, remedy) = match pages {
            Pages::Huge => (
                share < 0.9,
                "nearly all",
                "set /sys/kernel/mm/transparent_hugepage/enabled to madvise, or give a smaller --most where \
                 memory is fragmented",
            ),
            Pages::Base => (share > 0.0, "none", "use a kernel that heeds MADV_NOHUGEPAGE"),
        };
        if wrong { Err(MeasureError::Pages { share, wanted, remedy }) } else { Ok(()) }
    }

    /// Makes one random cycle of `lines` lines and stands at its beginning.
    pub fn chain(&self, lines: u64, stride: u64, seed: u64) -> Chain<'_> {
        let mut order: Vec<u32> = (0..lines as u32).collect();
        shuffle_to_cycle(&mut order, seed);
        for (from, to) in order.iter().enumerate() {
            self.put(from * stride as usize, *to as usize * stride as usize);
        }
        Chain { memory: self, at: 0 }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it is our mapping, and chains, which borrow it, are gone.
        let _ = unsafe { munmap(self.start, self.mapped) };
    }
}

/// Turns the identity into a permutation of a single cycle (Sattolo's algorithm).
pub(crate) fn shuffle_to_cycle(order: &mut [u32], seed: u64) {
    let mut state = seed | 1;
    for at in (1..order.len()).rev() {
        // xorshift64: nobody can predict it who is a prefetcher.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(at, (state >> 16) as usize % at);
    }
}

/// Bytes in huge pages of the areas in `smaps` that lie in a range.
fn huge_bytes(smaps: &str, start: u64, bytes: u64) -> u64 {
    let mut inside = false;
    let mut sum = 0;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let Some(word) = words.next() else { continue };
        if let Some((from, to)) = word.split_once('-')
            && let Ok(from) = u64::from_str_radix(from, 16)
            && let Ok(to) = u64::from_str_radix(to, 16)
        {
            inside = from < start + bytes && to > start;
        } else if inside && word == "AnonHugePages:" {
            sum += words.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or_default() << 10;
        }
    }
    sum
}

/// A cycle of lines, each of which says where the next is.
pub struct Chain<'m> {
    memory: &'m Memory,
    at: usize,
}

impl Chain<'_> {
    /// Follows the chain for a number of loads.
    pub fn follow(&mut self, loads: u64) {
        let mut at = self.at;
        // SAFETY: the first line begins here, in the mapping.
        let first = unsafe { self.memory.start.as_ptr().byte_add(self.memory.first) };
        for _ in 0..loads {
            // SAFETY: each line of the cycle holds the place of another, which `put` has checked.
            at = unsafe { first.byte_add(at).cast::<usize>().read_volatile() };
        }
        self.at = black_box(at);
    }

    /// Nanoseconds of a load.
    pub fn time(&mut self, loads: u64) -> f64 {
        let start = Instant::now();
        self.follow(loads);
        start.elapsed().as_nanos() as f64 / loads as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_one_cycle_through_all_lines() {
        for lines in [2, 3, 64, 1000] {
            let mut order: Vec<u32> = (0..lines).collect();
            shuffle_to_cycle(&mut order, 7);
            let (mut at, mut steps) = (0, 0);
            loop {
                at = order[at as usize];
                steps += 1;
                if at == 0 {
                    break;
                }
            }
            assert_eq!(steps, lines);
        }
    }

    #[test]
    fn huge_pages_are_those_of_the_mapping_alone() {
        let smaps = "1000-3000 rw-p 0 0:0 0\nAnonHugePages:      2048 kB\n\
                     8000-9000 rw-p 0 0:0 0\nAnonHugePages:      4096 kB\n";
        assert_eq!(huge_bytes(smaps, 0x8000, 0x1000), 4 << 20);
        assert_eq!(huge_bytes(smaps, 0x1000, 0x8000), 6 << 20);
        assert_eq!(huge_bytes(smaps, 0x4000, 0x1000), 0);
    }

    #[test]
    fn memory_of_base_pages_is_followed_back_to_where_it_began() {
        let memory = Memory::take(4 << 20, Pages::Base).unwrap();
        let mut chain = memory.chain(100, 64, 3);
        chain.follow(99);
        assert_ne!(chain.at, 0);
        chain.follow(1);
        assert_eq!(chain.at, 0);
    }
}
