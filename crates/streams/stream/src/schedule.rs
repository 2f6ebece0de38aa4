//! Which parts of a sampled stream are in it.
//!
//! Positions are counts of instructions retired by all threads of all processes together, so that one
//! clock places the windows of them all.
//!
//! ```text
//!  whole     interval            interval            interval
//!  |--------|------[warm|win]---|-[warm|win]--------|----------[warm|win]
//! ```
//!
//! Each interval has one window, at a place drawn anew for each: a program whose behaviour repeats with
//! the period of the intervals is sampled at all its phases.

use crate::event::Edge;

/// How a stream is sampled. Lengths are in instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// From one interval's beginning to the next one's.
    pub interval: u64,
    /// What counts of each.
    pub window: u64,
    /// What comes before a window to warm up what it meets.
    pub warm: u64,
    /// What is traced whole at the beginning, and counts as it is.
    pub whole: u64,
    /// Whether the lengths of intervals and of what warms up are chosen while the stream is read
    /// ([`Placed`]); those given here are the first.
    pub adaptive: bool,
    /// Where in their intervals windows lie.
    pub seed: u64,
}

impl Sampling {
    /// Whether no part of a stream is left out.
    pub fn covers_all(&self) -> bool {
        self.warm.saturating_add(self.window) >= self.interval
    }
}

/// One interval of a sampled stream. Lengths are in instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Intervals before it.
    pub number: u64,
    /// Instructions before it.
    pub start: u64,
    /// Its length.
    pub length: u64,
    /// From its beginning to where its window is warmed up.
    pub gap: u64,
    /// What warms up its window.
    pub warm: u64,
}

impl Placed {
    /// A place for its window that is drawn at random: the gap before what warms it up.
    pub fn drawn(&self, sampling: &Sampling) -> u64 {
        let free = self.length.saturating_sub(self.warm).saturating_sub(sampling.window);
        mixed(sampling.seed, self.number) % (free + 1)
    }
}

/// The edges of a sampled stream, in order, without end.
#[derive(Clone, Debug)]
pub struct Schedule {
    sampling: Sampling,
    /// The present interval, or the one that begins next.
    present: Placed,
    /// The edge of it that comes next.
    next: Edge,
}

impl Schedule {
    /// The edges of a stream that is sampled so.
    pub fn new(sampling: Sampling) -> Self {
        let Sampling { whole, interval, warm, .. } = sampling;
        let start = if sampling.covers_all() { u64::MAX } else { whole };
        let mut present = Placed { number: 0, start, length: interval, gap: 0, warm };
        present.gap = present.drawn(&sampling);
        Self { sampling, present, next: Edge::Interval }
    }

    /// The present interval, or the one that begins next.
    pub fn present(&self) -> Placed {
        self.present
    }

    /// The interval that begins next is this one. No other can be placed, nor one that has begun.
    pub fn place(&mut self, placed: Placed) {
        if self.next == Edge::Interval && placed.number == self.present.number {
            self.present = Placed { start: self.present.start, ..placed };
        }
    }

    /// Goes to an edge of an interval, as one who has not looked for long.
    pub fn jump(&mut self, placed: Placed, next: Edge) {
        (self.present, self.next) = (placed, next);
    }

    /// The next edge and where it is.
    pub fn peek(&self) -> (u64, Edge) {
        let Placed { start, gap, warm, .. } = self.present;
        if start == u64::MAX {
            return (u64::MAX, Edge::Interval);
        }
        let window = self.sampling.window;
        // No program reaches what does not fit into 64 bits.
        let warms = start.saturating_add(gap);
        let counts = warms.saturating_add(warm);
        let at = match self.next {
            Edge::Interval => start,
            Edge::Warm => warms,
            Edge::Window => counts,
            Edge::Gap => counts.saturating_add(window),
        };
        (at, self.next)
    }

    /// The next edge was passed.
    pub fn advance(&mut self) {
        self.next = match self.next {
            // Whoever looks seldom counts on four edges of an interval that was placed.
            Edge::Interval if self.present.warm == 0 && !self.sampling.adaptive => Edge::Window,
            Edge::Interval => Edge::Warm,
            Edge::Warm => Edge::Window,
            Edge::Window => Edge::Gap,
            Edge::Gap => {
                self.present.number += 1;
                self.present.start = self.present.start.saturating_add(self.present.length);
                self.present.gap = self.present.drawn(&self.sampling);
                Edge::Interval
            }
        };
    }
}

/// A number that looks random, always the same for a seed and a position (SplitMix64, Steele et al., OOPSLA
/// 2014).
pub fn mixed(seed: u64, position: u64) -> u64 {
    let gamma = 0x9e37_79b9_7f4a_7c15_u64;
    let mut z = seed
        .wrapping_mul(0xd134_2543_de82_ef95)
        .wrapping_add(gamma.wrapping_mul(position.wrapping_add(1)));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLING: Sampling =
        Sampling { interval: 1000, window: 30, warm: 70, whole: 500, adaptive: false, seed: 1 };

    fn edges(sampling: Sampling, count: usize) -> Vec<(u64, Edge)> {
        let mut schedule = Schedule::new(sampling);
        let mut next = || {
            let edge = schedule.peek();
            schedule.advance();
            edge
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn every_interval_has_a_window_within_it() {
        let all = edges(SAMPLING, 4000);
        assert!(all.is_sorted_by_key(|(at, _)| *at));
        for (number, interval) in all.chunks(4).enumerate() {
            let start = 500 + 1000 * number as u64;
            let [
                (begin, Edge::Interval),
                (warm, Edge::Warm),
                (window, Edge::Window),
                (end, Edge::Gap),
            ] = interval
            else {
                panic!("{interval:?}")
            };
            assert_eq!((*begin, window - warm, end - window), (start, 70, 30));
            assert!(*warm >= start && *end <= start + 1000, "{interval:?}");
        }
    }

    #[test]
    fn windows_lie_anywhere_with_the_same_chance() {
        let mut tenths = [0; 10];
        for seed in 0..100 {
            let of_seed = edges(Sampling { seed, ..SAMPLING }, 400);
            for (number, (at, _)) in of_seed.iter().skip(1).step_by(4).enumerate() {
                tenths[((at - 500 - 1000 * number as u64) * 10 / 901) as usize] += 1;
            }
        }
        // 1000 expected in each; the standard deviation is 30.
        assert!(tenths.iter().all(|count| (850..1150).contains(count)), "{tenths:?}");
    }

    #[test]
    fn nothing_warms_that_needs_no_warming() {
        let cold = edges(Sampling { warm: 0, ..SAMPLING }, 30);
        assert!(cold.iter().all(|(_, edge)| *edge != Edge::Warm));
    }

    #[test]
    fn intervals_are_placed_before_they_begin() {
        let mut schedule = Schedule::new(SAMPLING);
        let placed = Placed { number: 0, start: 7, length: 5000, gap: 4000, warm: 200 };
        schedule.place(Placed { number: 1, ..placed });
        assert_eq!(schedule.present().length, 1000, "that is another one");
        schedule.place(placed);
        assert_eq!(schedule.peek(), (500, Edge::Interval), "where it begins is settled before");
        schedule.advance();
        schedule.place(Placed { length: 9000, ..placed });
        assert_eq!(schedule.peek(), (4500, Edge::Warm));
        let mut late = Schedule::new(SAMPLING);
        late.jump(schedule.present(), Edge::Warm);
        (0..3).for_each(|_| {
            assert_eq!(late.peek(), schedule.peek());
            late.advance();
            schedule.advance();
        });
        assert_eq!(schedule.peek(), (5500, Edge::Interval));
        let next = schedule.present();
        let Placed { number, start, length, warm, .. } = next;
        assert_eq!((number, start, length, warm), (1, 5500, 5000, 200));
        assert_eq!(next.gap, next.drawn(&SAMPLING), "nobody has placed it");
        assert!(next.gap <= 5000 - 230);
    }

    #[test]
    fn an_interval_that_was_placed_has_four_edges_whatever_it_warms() {
        let mut schedule = Schedule::new(Sampling { adaptive: true, ..SAMPLING });
        schedule.place(Placed { number: 0, start: 500, length: 30, gap: 0, warm: 0 });
        let mut next = || {
            let edge = schedule.peek();
            schedule.advance();
            edge
        };
        let at_once = [Edge::Interval, Edge::Warm, Edge::Window].map(|edge| (500, edge));
        assert_eq!([next(), next(), next()], at_once);
        assert_eq!(next(), (530, Edge::Gap));
    }

    #[test]
    fn what_no_program_reaches_has_edges_nevertheless() {
        let last = edges(Sampling { whole: u64::MAX - 1, ..SAMPLING }, 8);
        assert!(last.iter().all(|(at, _)| *at >= u64::MAX - 1), "{last:?}");
    }

    #[test]
    fn windows_that_cover_everything_have_no_edges() {
        let sampling = Sampling { interval: 100, ..SAMPLING };
        assert!(sampling.covers_all());
        assert_eq!(edges(sampling, 1)[0].0, u64::MAX);
    }
}
