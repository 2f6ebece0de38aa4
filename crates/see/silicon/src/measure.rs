//! Which chains are measured, in which order.

use crate::chain::{Chain, MeasureError, Memory};
use crate::curve::{Curve, Curves, Pages, Point, Stride, median};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::fs;
use std::hint::black_box;
use std::time::Instant;

/// Loads before a round is timed, at most: twice the lines of a large last-level cache.
const WARM: u64 = 1 << 20;

/// Loads of a round. A round is shorter than the time for which a scheduler lets a thread run.
const TIMED: std::ops::RangeInclusive<u64> = (1 << 14)..=(1 << 16);

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes of the largest chain; memory of each page size is taken once.
    pub most: u64,
    /// Rounds of each pair.
    pub rounds: usize,
    /// Seed of the chains' order.
    pub seed: u64,
}

impl Plan {
    /// Up to 4 GiB, and to a third of the memory available: it is taken twice.
    ///
    /// # Errors
    /// When the kernel does not say how much there is.
    pub fn of_this_machine() -> Result<Self, MeasureError> {
        let most = available_memory()? / 3;
        Ok(Self { most: most.min(4 << 30), rounds: 7, seed: 1 })
    }

    /// Numbers of lines of a stride: two sizes for each doubling.
    pub fn lines(&self, stride: Stride) -> Vec<u64> {
        // As few lines as the smallest TLB holds huge pages; the same numbers for all strides, to be compared.
        let first = 8;
        // Chains of neighbouring lines tell nothing new above 1 GiB, and take long to make.
        let most = if stride == Stride::Line { self.most.min(1 << 30) } else { self.most };
        let most = (most - stride.bytes()) / stride.bytes();
        let doublings = (0..32).flat_map(|power| [first << power, (first << power) * 3 / 2]);
        doublings.take_while(|lines| *lines <= most).collect()
    }
}

/// Bytes of memory that the kernel can give away without trouble.
fn available_memory() -> Result<u64, MeasureError> {
    let path = "/proc/meminfo";
    let text = fs::read_to_string(path).map_err(|cause| MeasureError::Proc { path, cause })?;
    let available = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = available.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.unwrap_or_default() << 10)
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The curves.
    pub curves: Curves,
    /// The processor it was measured on.
    pub processor: usize,
}

/// Measures; `progress` is told the share that is done.
///
/// # Errors
/// [`MeasureError`], with its remedy.
pub fn measure(plan: Plan, mut progress: impl FnMut(f64)) -> Result<Measured, MeasureError> {
    if plan.most < 64 << 20 {
        return Err(MeasureError::TooSmall(plan.most));
    }
    let available = available_memory()?;
    if plan.most > available / 2 {
        return Err(MeasureError::TooLarge { most: plan.most, available });
    }
    let processor = pin()?;
    let huge = Memory::take(plan.most, Pages::Huge)?;
    let base = Memory::take(plan.most, Pages::Base)?;
    let strides = [Stride::Line, Stride::BasePage, Stride::HugePage];
    let all: usize = strides.iter().map(|stride| plan.lines(*stride).len()).sum();
    let mut done = 0;
    let mut cycles = cycles(plan.rounds);
    let mut curves = Vec::new();
    for stride in strides {
        let [mut by_base, mut by_huge] = [Vec::new(), Vec::new()];
        for lines in plan.lines(stride) {
            let seed = plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ lines;
            let mut pair = [&base, &huge].map(|memory| memory.chain(lines, stride.bytes(), seed));
            let [of_base, of_huge] = rounds(&mut pair, lines, plan.rounds);
            by_base.push(of_base);
            by_huge.push(of_huge);
            done += 1;
            progress(done as f64 / all as f64);
        }
        curves.push(Curve { stride, pages: Pages::Base, points: by_base });
        curves.push(Curve { stride, pages: Pages::Huge, points: by_huge });
        // The processor's speed may change meanwhile; the quickest is what minima go with.
        cycles.extend(self::cycles(plan.rounds));
    }
    let cycle = cycles.iter().copied().fold(f64::INFINITY, f64::min);
    let cycle_spread = median(cycles) / cycle - 1.0;
    Ok(Measured { curves: Curves { cycle, cycle_spread, all: curves }, processor })
}

/// Rounds of a pair in turns, so that what disturbs for a while disturbs both.
fn rounds(pair: &mut [Chain<'_>; 2], lines: u64, rounds: usize) -> [Point; 2] {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (chain, times) in pair.iter_mut().zip(&mut times) {
            chain.follow(lines.clamp(1 << 12, WARM));
            times.push(chain.time(lines.clamp(*TIMED.start(), *TIMED.end())));
        }
    }
    times.map(|times| Point {
        lines,
        least: times.iter().copied().fold(f64::INFINITY, f64::min),
        median: median(times),
    })
}

/// Nanoseconds of a cycle, by round: additions that wait for each other take one each on every x86-64 processor.
fn cycles(rounds: usize) -> Vec<f64> {
    const ADDITIONS: u64 = 1 << 20;
    let round = |_| {
        let start = Instant::now();
        let mut sum = black_box(1_u64);
        for _ in 0..ADDITIONS / 16 {
            // The compiler cannot fold sixteen of them into fewer: each passes through a register it cannot see.
            for _ in 0..16 {
                sum = one_more(sum);
            }
        }
        black_box(sum);
        start.elapsed().as_nanos() as f64 / ADDITIONS as f64
    };
    (0..3 * rounds).map(round).collect()
}

/// One addition, which the compiler leaves as it is.
#[inline(always)]
fn one_more(value: u64) -> u64 {
    let mut sum = value;
    // SAFETY: it changes one register and the flags.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("add {0}, 1", inout(reg) sum, options(nomem, nostack, pure));
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        sum = black_box(sum + 1);
    }
    sum
}

/// Stays on the last processor allowed: the first has most of the interrupts.
fn pin() -> Result<usize, MeasureError> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).map_err(MeasureError::Pin)?;
    let is_allowed = |at: &usize| allowed.is_set(*at).unwrap_or(false);
    let last = (0..CpuSet::count()).rev().find(is_allowed).unwrap_or_default();
    let mut one = CpuSet::new();
    one.set(last).map_err(MeasureError::Pin)?;
    sched_setaffinity(this, &one).map_err(MeasureError::Pin)?;
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_in_two_steps_and_fit_the_memory() {
        let plan = Plan { most: 4 << 30, rounds: 3, seed: 1 };
        let lines = plan.lines(Stride::Line);
        assert_eq!(lines[..4], [8, 12, 16, 24]);
        for stride in [Stride::Line, Stride::BasePage, Stride::HugePage] {
            let lines = plan.lines(stride);
            assert!(lines.is_sorted());
            assert!(lines.last().unwrap() * stride.bytes() <= plan.most);
        }
    }

    #[test]
    fn too_little_memory_is_answered_with_how_much_it_takes() {
        let plan = Plan { most: 1 << 20, rounds: 1, seed: 1 };
        let error = measure(plan, |_| {}).unwrap_err().to_string();
        assert!(error.ends_with("give --most of at least 64M"), "{error}");
    }

    #[test]
    fn more_than_there_is_is_refused_before_any_is_taken() {
        let plan = Plan { most: 1 << 50, rounds: 1, seed: 1 };
        let error = measure(plan, |_| {}).unwrap_err().to_string();
        assert!(error.contains("of both page sizes") && error.contains("give --most"), "{error}");
    }
}
