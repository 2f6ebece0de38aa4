//! The intervals of a stream by the memory that they access: nothing is known of the code that a recording, a
//! foreign trace or a generator is of.
//!
//! What stands for a block of code is, for every other access, its page, and for those between them their kind,
//! their size and how far they are from the one before; instructions without an access are one block more. So
//! intervals are alike that use the same memory in the same way.

use strata_addr::PageSize;
use strata_phases::{BUCKETS, Profile, Profiled, bucket};
use strata_stream::{Access, Batch, Fill, Source, SourceError, Step};

/// Reads a stream to its end, in intervals of so many instructions at least. `None` when `stopped` says so before.
///
/// # Errors
/// When it cannot be read.
pub fn profile(
    source: &mut dyn Source,
    interval: u64,
    stopped: &dyn Fn() -> bool,
) -> Result<Option<Profiled>, SourceError> {
    let mut counting = Counting::new(interval);
    let mut batch = Batch::new();
    loop {
        let fill = source.fill(&mut batch)?;
        for step in batch.steps() {
            if let Step::Run { instructions, accesses, .. } = step {
                counting.run(instructions, accesses);
            }
        }
        if stopped() {
            return Ok(None);
        }
        if fill == Fill::End {
            return Ok(Some(counting.end()));
        }
    }
}

/// Set in what stands for where an access is, and not for how it is made.
const PLACE: u64 = 1 << 63;

/// What stands for instructions without an access.
const NONE: u64 = u64::MAX;

/// Where an access is.
fn place(access: &Access) -> usize {
    bucket(PLACE | access.addr().get() >> PageSize::BASE_SHIFT)
}

/// How an access is made after one at another address: to so many bits.
fn manner(access: &Access, before: u64) -> usize {
    let distance = access.addr().get().abs_diff(before);
    let bits = u64::from(u64::BITS - distance.leading_zeros());
    bucket(bits << 16 | u64::from(access.size()) << 1 | u64::from(access.is_store()))
}

struct Counting {
    interval: u64,
    /// Instructions of the present interval that are left.
    left: u64,
    counts: Vec<u64>,
    /// Accesses so far, and the address of the last.
    accesses: u64,
    before: u64,
    profile: Profile,
}

impl Counting {
    fn new(interval: u64) -> Self {
        let interval = interval.max(1);
        let (counts, profile) = (vec![0; BUCKETS], Profile::new(interval));
        Self { interval, left: interval, counts, accesses: 0, before: 0, profile }
    }

    /// A run, cut where intervals end, as if each of its instructions had as many accesses.
    fn run(&mut self, instructions: u64, accesses: &[Access]) {
        let (mut done, mut used) = (0, 0);
        while instructions - done >= self.left {
            done += self.left;
            let until =
                (accesses.len() as u128 * u128::from(done) / u128::from(instructions)) as usize;
            self.count(self.left, &accesses[used..until]);
            used = until;
            self.profile.push(taken(&mut self.counts));
            self.left = self.interval;
        }
        self.count(instructions - done, &accesses[used..]);
        self.left -= instructions - done;
    }

    /// Instructions, each of which counts in one bucket. Foreign traces may have accesses of none.
    fn count(&mut self, instructions: u64, accesses: &[Access]) {
        let mut left = instructions;
        for access in accesses {
            if left == 0 {
                return;
            }
            left -= 1;
            let of_place = self.accesses.is_multiple_of(2);
            let block = if of_place { place(access) } else { manner(access, self.before) };
            self.counts[block] += 1;
            self.accesses += 1;
            self.before = access.addr().get();
        }
        self.counts[bucket(NONE)] += left;
    }

    fn end(mut self) -> Profiled {
        self.profile.end(taken(&mut self.counts))
    }
}

/// What was counted, which is nothing from then on.
fn taken(counts: &mut [u64]) -> impl Iterator<Item = (usize, u64)> {
    let counts = counts.iter_mut().map(std::mem::take).enumerate();
    counts.filter(|(_, count)| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_addr::Gva;

    fn accesses(page: u64, count: usize) -> Vec<Access> {
        vec![Access::load(Gva::new(page << 12), 8); count]
    }

    #[test]
    fn intervals_are_those_of_instructions_however_runs_are_cut() {
        let whole = |runs: &[(u64, usize)]| {
            let mut counting = Counting::new(1000);
            for (instructions, count) in runs {
                counting.run(*instructions, &accesses(5, *count));
            }
            counting.end()
        };
        let once = whole(&[(4500, 900)]);
        assert_eq!((once.intervals.len(), once.instructions()), (4, 4500));
        assert_eq!(whole(&[(1500, 300), (1000, 200), (2000, 400)]), once);
        assert_eq!(whole(&[(500, 100); 9]), once);
        assert_eq!(whole(&[(1000, 10), (1000, 10)]).rest, None);
        assert!(whole(&[(0, 50)]).intervals.is_empty(), "accesses of no instruction");
    }

    #[test]
    fn places_and_manners_of_accesses_tell_intervals_apart() {
        let each = |accesses: &[Access]| {
            let mut counting = Counting::new(100);
            counting.run(100, accesses);
            counting.end().intervals[0]
        };
        let vector = |access: Access| each(&[access; 50]);
        let at = |page: u64| Gva::new(page << 12);
        let load = vector(Access::load(at(7), 8));
        assert_eq!(load, vector(Access::load(Gva::new((7 << 12) + 64), 8)), "the same page");
        for other in [Access::load(at(8), 8), Access::store(at(7), 8), Access::load(at(7), 4)] {
            assert_ne!(load, vector(other), "{other:?}");
        }
        // The same pages, one after another or to and fro.
        let run: Vec<u64> = (0..50).collect();
        let other: Vec<u64> = (0..50).map(|n| if n % 2 == 1 { 50 - n } else { n }).collect();
        let pages = |list: &[u64]| -> Vec<Access> {
            list.iter().map(|page| Access::load(at(*page), 8)).collect()
        };
        assert_ne!(each(&pages(&run)), each(&pages(&other)));
    }
}
