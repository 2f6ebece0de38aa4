//! The vectors of a whole run, few enough whatever its length.

use crate::sketch::{Vector, direction};

/// Intervals that are kept at most. When there are more, pairs become one.
const MOST: usize = 1 << 11;

/// What was counted of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counted {
    sums: Vector,
    instructions: u64,
}

impl Counted {
    fn add(&mut self, other: &Self) {
        self.sums.iter_mut().zip(other.sums).for_each(|(sum, more)| *sum += more);
        self.instructions += other.instructions;
    }

    fn interval(&self) -> Interval {
        let all = (self.instructions as f64).max(1.0);
        Interval { vector: self.sums.map(|sum| sum / all), instructions: self.instructions }
    }
}

/// A run that is being profiled.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Instructions of the intervals that are pushed.
    shortest: u64,
    /// How many of these make one that is kept.
    each: u64,
    most: usize,
    kept: Vec<Counted>,
    /// The one that is not complete, and how many it has.
    present: Counted,
    has: u64,
}

/// One interval of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub(crate) vector: Vector,
    /// Its instructions.
    pub instructions: u64,
}

/// A run that was profiled.
#[derive(Clone, Debug, PartialEq)]
pub struct Profiled {
    /// Instructions from the beginning of an interval to that of the next.
    pub length: u64,
    /// All intervals of that length, from the first instruction on.
    pub intervals: Vec<Interval>,
    /// What comes after them.
    pub rest: Option<Interval>,
}

impl Profile {
    /// Of a run in intervals of so many instructions, or twice as many, or four times, when it is long.
    pub fn new(shortest: u64) -> Self {
        Self::keeping(shortest, MOST)
    }

    fn keeping(shortest: u64, most: usize) -> Self {
        let (kept, present) = (Vec::new(), Counted::default());
        Self { shortest, each: 1, most, kept, present, has: 0 }
    }

    /// An interval is over, in which so many instructions were counted in these buckets.
    pub fn push(&mut self, counts: impl Iterator<Item = (usize, u64)>) {
        self.count(counts);
        self.has += 1;
        if self.has < self.each {
            return;
        }
        self.kept.push(std::mem::take(&mut self.present));
        self.has = 0;
        if self.kept.len() >= self.most {
            self.halve();
        }
    }

    fn count(&mut self, counts: impl Iterator<Item = (usize, u64)>) {
        for (bucket, count) in counts {
            let sums = direction(bucket).map(|coordinate| coordinate * count as f64);
            self.present.add(&Counted { sums, instructions: count });
        }
    }

    fn halve(&mut self) {
        self.each *= 2;
        let pairs = self.kept.chunks_exact(2).map(|pair| {
            let mut both = pair[0];
            both.add(&pair[1]);
            both
        });
        let kept = pairs.collect();
        if let [last] = self.kept.chunks_exact(2).remainder() {
            (self.present, self.has) = (*last, self.each / 2);
        }
        self.kept = kept;
    }

    /// The run is over, after so many instructions in these buckets since the last interval.
    pub fn end(mut self, counts: impl Iterator<Item = (usize, u64)>) -> Profiled {
        self.count(counts);
        Profiled {
            length: self.shortest * self.each,
            intervals: self.kept.iter().map(Counted::interval).collect(),
            rest: (self.present.instructions > 0).then(|| self.present.interval()),
        }
    }
}

impl Profiled {
    /// Instructions of the whole run.
    pub fn instructions(&self) -> u64 {
        self.intervals.iter().chain(&self.rest).map(|interval| interval.instructions).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketch::DIMENSIONS;

    /// Intervals of ten instructions, each in a bucket of its own.
    fn profile(most: usize, intervals: usize, rest: u64) -> Profiled {
        let mut profile = Profile::keeping(10, most);
        (0..intervals).for_each(|bucket| profile.push([(bucket, 10)].into_iter()));
        profile.end([(500, rest)].into_iter().filter(|(_, count)| *count > 0))
    }

    fn apart(one: &Vector, other: &Vector) -> f64 {
        one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    }

    #[test]
    fn vectors_are_of_shares_and_not_of_lengths() {
        let short = profile(100, 3, 5);
        assert_eq!((short.length, short.intervals.len(), short.instructions()), (10, 3, 35));
        assert_eq!(short.intervals[2].instructions, 10);
        assert!(apart(&short.intervals[2].vector, &direction(2)) < 1e-12);
        let rest = short.rest.unwrap();
        assert_eq!(rest.instructions, 5);
        assert!(apart(&rest.vector, &direction(500)) < 1e-12);
        assert_eq!(profile(100, 3, 0).rest, None);
    }

    #[test]
    fn a_long_run_has_as_few_intervals_as_a_short_one_and_loses_nothing() {
        for (most, intervals, kept, each) in
            [(8, 8, 4, 2), (8, 15, 7, 2), (8, 16, 4, 4), (7, 7, 3, 2)]
        {
            let long = profile(most, intervals, 3);
            assert_eq!((long.length, long.intervals.len()), (10 * each, kept), "{intervals}");
            assert_eq!(long.instructions(), 10 * intervals as u64 + 3);
            for (at, interval) in long.intervals.iter().enumerate() {
                let of = at * each as usize..(at + 1) * each as usize;
                let mut expected = [0.0; DIMENSIONS];
                of.for_each(|bucket| {
                    let parts = expected.iter_mut().zip(direction(bucket));
                    parts.for_each(|(sum, part)| *sum += part / each as f64);
                });
                assert!(apart(&interval.vector, &expected) < 1e-12, "{at}");
            }
            assert!(long.rest.is_some());
        }
    }
}
