//! Which intervals of each phase are run in detail.
//!
//! A window is a whole interval of the profile. Of each phase at least two are drawn at random, and more of those
//! that hold more of the program: a stratified sample. A phase of one or two intervals is run whole.

use crate::bic;
use crate::profile::Profiled;
use crate::random::Random;

/// Of a phase at least so many intervals are run: with one nothing would be known of how they differ.
const FEWEST: usize = 2;

/// Of all phases together at least so many: few windows of a phase that has two kinds of intervals may all be
/// of one kind, and would say that there is no other.
const FEWEST_OF_ALL: f64 = 40.0;

/// The program is so many times as long as what is run of it in detail, if phases are long enough.
const SHARE: u64 = 20;

/// How windows are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Instructions of the shortest intervals.
    pub interval: u64,
    /// Instructions before a window that warm up what it meets.
    pub warm: u64,
    /// Most phases.
    pub most: usize,
    /// Which intervals are drawn.
    pub seed: u64,
}

/// Intervals that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Intervals that windows were drawn of.
    pub intervals: u64,
    /// Instructions of them, and of what is like them and no whole interval.
    pub instructions: u64,
}

/// One window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Instructions before it.
    pub start: u64,
    /// Its phase, by number.
    pub phase: usize,
}

/// What is run in detail of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Instructions of a window.
    pub length: u64,
    /// Instructions before a window that warm up what it meets, where there are so many.
    pub warm: u64,
    /// The phases, the longest first.
    pub phases: Vec<Phase>,
    /// The windows, in their order.
    pub windows: Vec<Window>,
}

impl Windows {
    /// The windows of a program. `None` where it is not worth while, as most of it would be run in detail.
    pub fn choose(profiled: &Profiled, settings: &Settings) -> Option<Self> {
        let Profiled { length, intervals, rest } = profiled;
        let points: Vec<_> = intervals.iter().map(|interval| interval.vector).collect();
        if points.len() < FEWEST {
            return None;
        }
        let clusters = bic::clusters(&points, settings.most, settings.seed);
        let mut members: Vec<(Vec<usize>, u64)> = vec![Default::default(); clusters.centres.len()];
        for (at, (of, interval)) in clusters.of.iter().zip(intervals).enumerate() {
            members[*of].0.push(at);
            members[*of].1 += interval.instructions;
        }
        if let Some(rest) = rest {
            members[clusters.nearest(&rest.vector)].1 += rest.instructions;
        }
        members.retain(|(intervals, _)| !intervals.is_empty());
        members.sort_by_key(|(intervals, all)| (std::cmp::Reverse(*all), intervals[0]));
        let all = profiled.instructions() as f64;
        let worth = all / (SHARE * (length + settings.warm)) as f64;
        let worth = worth.max(FEWEST_OF_ALL);
        let mut windows = Vec::new();
        for (phase, (intervals, instructions)) in members.iter().enumerate() {
            let count = (worth * *instructions as f64 / all).round() as usize;
            let mut random = Random::new(settings.seed, (1 << 32) + phase as u64);
            let drawn = random.some_of(intervals, count.max(FEWEST));
            windows.extend(drawn.into_iter().map(|at| Window { start: at as u64 * length, phase }));
        }
        windows.sort_by_key(|window| window.start);
        let phases = members.iter().map(|(intervals, instructions)| Phase {
            intervals: intervals.len() as u64,
            instructions: *instructions,
        });
        let chosen =
            Self { length: *length, warm: settings.warm, phases: phases.collect(), windows };
        (2 * chosen.in_detail() < profiled.instructions()).then_some(chosen)
    }

    /// Where each window ends, and how many instructions before it warm up: none that are another's.
    pub fn warmed(&self) -> impl Iterator<Item = (Window, u64)> {
        let before =
            [0].into_iter().chain(self.windows.iter().map(|window| window.start + self.length));
        self.windows
            .iter()
            .zip(before)
            .map(|(window, end)| (*window, self.warm.min(window.start - end)))
    }

    /// Instructions that are run in detail.
    fn in_detail(&self) -> u64 {
        self.warmed().map(|(_, warm)| warm + self.length).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;
    use proptest::prelude::*;

    const SETTINGS: Settings = Settings { interval: 100, warm: 50, most: 10, seed: 1 };

    /// A program of intervals that run the code of these numbers, each some blocks.
    fn profiled(codes: &[usize], rest: u64) -> Profiled {
        let mut profile = Profile::new(SETTINGS.interval);
        let code = |code: usize, all: u64| (0..4).map(move |block| (code * 4 + block, all / 4));
        codes.iter().for_each(|of| profile.push(code(*of, 100)));
        profile.end(code(codes[0], rest).filter(|(_, count)| *count > 0))
    }

    /// 300 intervals: one of four runs the second code, and one of all the third.
    fn program() -> Vec<usize> {
        let code = |at: usize| if at == 77 { 2 } else { usize::from(at.is_multiple_of(4)) };
        (0..300).map(code).collect()
    }

    #[test]
    fn each_phase_is_found_and_has_two_windows_or_all_of_it() {
        let codes = program();
        let found = Windows::choose(&profiled(&codes, 40), &SETTINGS).unwrap();
        assert_eq!((found.length, found.warm), (100, 50));
        let sizes: Vec<u64> = found.phases.iter().map(|phase| phase.intervals).collect();
        assert_eq!(sizes, [224, 75, 1]);
        let instructions: Vec<u64> = found.phases.iter().map(|phase| phase.instructions).collect();
        assert_eq!(instructions, [22_400, 7540, 100], "the rest is like the first interval");
        let drawn =
            [0, 1, 2].map(|phase| found.windows.iter().filter(|w| w.phase == phase).count());
        assert_eq!(drawn, [30, 10, 1], "shared out by instructions");
        for window in &found.windows {
            let expected = [1, 0, 2][codes[(window.start / 100) as usize]];
            assert_eq!(window.phase, [1, 0, 2][expected], "{window:?}");
        }
    }

    #[test]
    fn seeds_draw_other_windows_of_the_same_phases() {
        let profiled = profiled(&program(), 0);
        let of = |seed| Windows::choose(&profiled, &Settings { seed, ..SETTINGS }).unwrap();
        assert_eq!(of(1), of(1));
        assert_eq!(of(1).phases, of(2).phases);
        assert_ne!(of(1).windows, of(2).windows);
        let mut drawn = std::collections::BTreeSet::new();
        (0..100).for_each(|seed| drawn.extend(of(seed).windows.iter().map(|window| window.start)));
        assert!(drawn.len() > 250, "any interval may be drawn: {}", drawn.len());
    }

    #[test]
    fn what_is_short_is_run_whole() {
        assert_eq!(Windows::choose(&profiled(&[1], 50), &SETTINGS), None);
        assert_eq!(Windows::choose(&profiled(&[1, 2, 1, 2, 3], 50), &SETTINGS), None);
        // Forty windows of 150 each in a program of 10,000 instructions, or 20,000.
        assert_eq!(Windows::choose(&profiled(&[1; 100], 0), &SETTINGS), None);
        assert!(Windows::choose(&profiled(&[1; 200], 0), &SETTINGS).is_some());
        let warmed = Windows::choose(&profiled(&[1; 200], 0), &Settings { warm: 500, ..SETTINGS });
        assert_eq!(warmed, None);
    }

    #[test]
    fn a_long_program_has_a_twentieth_of_it_run_in_detail() {
        let found = Windows::choose(&profiled(&[1; 2000], 0), &SETTINGS).unwrap();
        // 2000 intervals of 100, in windows of 150.
        assert_eq!(found.windows.len(), 67);
    }

    proptest! {
        #[test]
        fn windows_lie_one_after_another_and_phases_hold_everything(
            codes in prop::collection::vec(0..6_usize, 1..400), rest in 0..90_u64, warm in 0..300_u64,
            seed: u64,
        ) {
            let profiled = profiled(&codes, rest);
            let Some(found) = Windows::choose(&profiled, &Settings { warm, seed, ..SETTINGS }) else {
                return Ok(());
            };
            let sum: u64 = found.phases.iter().map(|phase| phase.instructions).sum();
            prop_assert_eq!(sum, profiled.instructions());
            let count: u64 = found.phases.iter().map(|phase| phase.intervals).sum();
            prop_assert_eq!(count, codes.len() as u64);
            let mut end = 0;
            for (window, warm) in found.warmed() {
                prop_assert!(window.start >= end + warm && warm <= found.warm);
                end = window.start + found.length;
            }
            prop_assert!(end <= 100 * codes.len() as u64);
            for (number, phase) in found.phases.iter().enumerate() {
                let drawn = found.windows.iter().filter(|window| window.phase == number).count();
                prop_assert!(drawn as u64 >= phase.intervals.min(2));
            }
        }
    }
}
