//! How much warming is enough, and how far misses are off without more, by the trials there were.

use super::aim::{Aim, Misses};
use super::trial::{Check, New, warming_of};
use std::collections::VecDeque;

/// Checks that are kept. What a program does later is not what it did at first.
const CHECKS: usize = 32;

/// Less warming may change misses by this share of the aim, relative to them.
const TOLERANCE: f64 = 0.5;

/// What the trials of a stream showed.
#[derive(Clone, Debug)]
pub(super) struct Warming {
    /// Instructions of a window.
    window: u64,
    /// The longest warming of a trial so far; of those to come, before there is any.
    longest: u64,
    checks: VecDeque<Check>,
    /// What was new in trials with the longest warming.
    new: Vec<New>,
}

impl Warming {
    /// Nothing yet, of trials that begin with so much warming for such a window.
    pub(super) fn new(longest: u64, window: u64) -> Self {
        Self { window, longest, checks: VecDeque::new(), new: Vec::new() }
    }

    /// A trial is over, that had so much warming.
    pub(super) fn take(&mut self, warm: u64, checks: Vec<Check>, new: Option<New>) {
        if warm > self.longest {
            self.longest = warm;
            self.new.clear();
        }
        self.new.extend(new);
        self.checks.extend(checks);
        self.checks.drain(..self.checks.len().saturating_sub(CHECKS));
    }

    /// Whether no trial was over yet.
    pub(super) fn is_unknown(&self) -> bool {
        self.checks.is_empty()
    }

    /// The longest warming of a trial.
    pub(super) fn longest(&self) -> u64 {
        self.longest
    }

    /// Copies of the check that has most.
    fn copies(&self) -> usize {
        self.checks.iter().map(|check| check.copies.len()).max().unwrap_or(0)
    }

    /// How much warming a copy had.
    fn of(&self, copy: usize) -> u64 {
        warming_of(copy, self.window)
    }

    /// How much is enough, if misses too many or too few may cost this share of all cycles: if half of the longest is not,
    /// all of it.
    pub(super) fn enough(&self, aim: &Aim, tolerated: f64) -> u64 {
        let copies = (0..self.copies()).rev();
        let fits = |copy: &usize| self.spared(*copy, aim, tolerated).is_none();
        copies.take_while(fits).last().map_or(self.longest, |copy| self.of(copy))
    }

    /// The first array whose misses tell that half as much is not enough, and by how much they are off with it. Of half of the
    /// least that is tried nothing is known.
    pub(super) fn needs(
        &self,
        warm: u64,
        aim: &Aim,
        tolerated: f64,
    ) -> Option<(&'static str, f64)> {
        let half = (0..self.copies()).rev().find(|copy| self.of(*copy) < warm)?;
        self.spared(half, aim, tolerated)
    }

    /// The first array whose misses tell that a copy was not warmed up enough, and by how much they are off.
    fn spared(&self, copy: usize, aim: &Aim, tolerated: f64) -> Option<(&'static str, f64)> {
        let of_check = |check: &Check| aim.cycles(check.instructions as f64, &check.misses);
        let cycles: f64 = self.compared(copy).map(|(check, _)| of_check(check)).sum();
        aim.reaches.iter().enumerate().find_map(|(at, reach)| {
            let [all, less] = self.missed(at, copy);
            let off = (less - all).abs();
            let fits =
                off <= TOLERANCE * aim.within * all || off * reach.cycles <= tolerated * cycles;
            (!fits).then_some((reach.array.name(), (less - all) / all.max(1.0)))
        })
    }

    /// The checks that have a copy, and what it missed.
    fn compared(&self, copy: usize) -> impl Iterator<Item = (&Check, &Misses)> {
        self.checks.iter().filter_map(move |check| Some((check, check.copies.get(copy)?)))
    }

    /// Misses of an array in the checks that have a copy: its own, and those of the copy.
    fn missed(&self, at: usize, copy: usize) -> [f64; 2] {
        let each = self.compared(copy).map(|(check, copy)| [check.misses[at], copy[at]]);
        each.fold([0.0; 2], |sums, each| [sums[0] + each[0], sums[1] + each[1]])
    }

    /// From where on misses of an array count in windows with so much warming, and by how much they are too many even so,
    /// relative to those after the longest.
    ///
    /// That is as soon as what counts has at most half as many misses too many, or too few, as is asked for.
    pub(super) fn counted(&self, at: usize, warm: u64, within: f64) -> (u64, f64) {
        let shorter = || (0..self.copies()).take_while(|copy| self.of(*copy) < warm);
        let off = |copy: usize| self.mean_excess(at, copy, warm);
        match shorter().find(|copy| off(*copy).abs() <= TOLERANCE * within) {
            Some(copy) => (self.of(copy), off(copy)),
            None => (warm, self.excess(at, shorter().count())),
        }
    }

    /// How many misses an array has too many, relative to them, after half of the longest warming.
    pub(super) fn last_excess(&self, at: usize) -> f64 {
        self.copies().checked_sub(1).map_or(0.0, |copy| self.excess(at, copy))
    }

    /// How many more misses an array has in trials with what a copy had to warm up, relative to them.
    fn excess(&self, at: usize, copy: usize) -> f64 {
        let [all, less] = self.missed(at, copy);
        if less == all { 0.0 } else { (less - all) / all.max(1.0) }
    }

    /// The same of all that follows what the copy had, in windows with that much warming.
    fn mean_excess(&self, at: usize, copy: usize, warm: u64) -> f64 {
        let end = warm + self.window;
        let parts = (copy..self.copies()).map(|copy| {
            let [from, to] = [copy, copy + 1].map(|copy| self.of(copy).min(end));
            (to - from) as f64 * self.excess(at, copy)
        });
        parts.sum::<f64>() / (end - self.of(copy)) as f64
    }

    /// Misses of an array an instruction, if it had nothing at the end of the gap, in the second half of the longest warming.
    pub(super) fn new_each(&self, at: usize) -> f64 {
        self.each(|new| new.misses[at])
    }

    /// The same of a TLB without those of pages that are used first since the gap, which it may have had.
    pub(super) fn known_each(&self, at: usize) -> f64 {
        self.each(|new| new.misses[at] - new.pages)
    }

    fn each(&self, figure: impl Fn(&New) -> f64) -> f64 {
        let instructions: u64 = self.new.iter().map(|new| new.instructions).sum();
        self.new.iter().map(figure).sum::<f64>() / instructions.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampled::Reach;
    use strata_stream::Array;

    const WINDOW: u64 = 400_000;

    /// A last-level cache of which a miss costs 100 cycles.
    fn aim() -> Aim {
        let array = Array::LastLevelCache;
        let reaches = vec![Reach { array, entries: 64 << 10, ways: 16, cycles: 100.0 }];
        Aim { within: 0.02, base_cpi: 0.5, reaches }
    }

    /// A check in which the array misses 10,000 times, and copies so often.
    fn check<const COPIES: usize>(copies: [u64; COPIES]) -> Check {
        let copies = copies.map(|misses| vec![misses as f64]).to_vec();
        Check { instructions: WINDOW, misses: vec![10_000.0], copies }
    }

    fn warming(checks: Vec<Check>) -> Warming {
        let mut warming = Warming::new(1_600_000, WINDOW);
        warming.take(1_600_000, checks, None);
        warming
    }

    #[test]
    fn the_shortest_is_enough_of_which_all_longer_are() {
        // Of 1.2 million cycles half a percent are 60 misses, half of the aim of misses are 100.
        let enough = |copies| warming(vec![check(copies)]).enough(&aim(), 0.005);
        assert_eq!(enough([10_000; 5]), 50_000);
        assert_eq!(enough([20_000, 10_100, 10_000, 10_000, 10_000]), 100_000);
        assert_eq!(enough([10_000, 10_000, 9_800, 10_000, 10_000]), 400_000);
        // Half of the longest is not enough.
        assert_eq!(enough([10_000, 10_000, 10_000, 10_000, 10_200]), 1_600_000);
        // More may be off if it costs little next to all cycles.
        let costly = |tolerated| warming(vec![check([10_500; 5])]).enough(&aim(), tolerated);
        assert_eq!([costly(0.04), costly(0.05)], [1_600_000, 50_000]);
    }

    #[test]
    fn what_half_as_much_would_cost_is_told() {
        let warming = warming(vec![check([13_000, 12_000, 10_000, 10_000, 10_000])]);
        let needs = |warm| warming.needs(warm, &aim(), 0.005);
        assert_eq!(needs(200_000), Some(("last-level cache", 0.2)));
        assert_eq!(needs(400_000), None);
        assert_eq!(needs(50_000), None, "nothing is known of less");
    }

    #[test]
    fn a_copy_is_held_against_checks_that_have_it() {
        let mut warming = warming(vec![check([10_000; 5])]);
        assert_eq!(warming.longest(), 1_600_000);
        // A longer trial: with half of it there are a fifth more misses, in one of its checks.
        let [half, others] =
            [check([10_000, 10_000, 10_000, 10_000, 10_000, 12_000]), check([10_000; 4])];
        warming.take(3_200_000, vec![half, others], None);
        assert_eq!((warming.longest(), warming.enough(&aim(), 0.005)), (3_200_000, 3_200_000));
        assert!((warming.last_excess(0) - 0.2).abs() < 1e-9);
        // Checks are forgotten as others come.
        warming.take(3_200_000, vec![check([10_000; 6]); CHECKS], None);
        assert_eq!(warming.enough(&aim(), 0.005), 50_000);
    }

    #[test]
    fn what_is_new_is_of_the_longest_trials() {
        let mut warming = Warming::new(1_600_000, WINDOW);
        let new = |misses| {
            let pages = misses / 4.0;
            Some(New { instructions: 1_000_000, misses: vec![misses], pages })
        };
        assert_eq!(warming.new_each(0), 0.0);
        warming.take(1_600_000, Vec::new(), new(3000.0));
        warming.take(1_600_000, Vec::new(), new(1000.0));
        assert_eq!((warming.new_each(0), warming.known_each(0)), (0.002, 0.0015));
        warming.take(3_200_000, Vec::new(), new(500.0));
        assert_eq!(warming.new_each(0), 0.0005);
    }
}
