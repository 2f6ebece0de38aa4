//! How far estimates of a sampled stream may be off.

use super::figures::{
    CYCLES, FIGURES, Figures, L2_MISSES, LLC_MISSES, WALK_REFS, figures, is_misses, is_walk_cycles,
    parts,
};
use super::phases::Phases;
use super::sampled::{Bounds, Choice, OTHERS, Sampled};
use super::warmth::Part;
use super::{Strata, without_charges};
use std::collections::BTreeMap;
use strata_hardware::{HardwareCounters, Machine};
use strata_stream::{FEWEST_WINDOWS, half_width};

/// What the bounds of relations between runs are made of: each window of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Windows {
    pub(crate) strata: Box<Strata>,
    pub(crate) elapsed: Elapsed,
}

/// Elapsed cycles, and those for each cycle of all CPUs; and the instructions that were estimated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Elapsed {
    pub(crate) instructions: u64,
    pub(crate) cycles: f64,
    pub(crate) share: f64,
    /// How far it may be off by page faults, and by cold arrays.
    pub(crate) doubt: f64,
    pub(crate) cold: f64,
}

/// No bounds of a figure are nearer than this to it, relative to what is estimated of it. What the first-level data cache and
/// the walk caches keep through gaps is not measured, and nor is what threads do as they begin and end.
const RESOLUTION: f64 = 1e-3;

/// Windows of which nothing is known of the rest, if they alone had what there is.
const FEW: f64 = 4.0;

impl Strata {
    /// What is to be said of a run whose elapsed cycles are that many for each cycle of all CPUs.
    pub(crate) fn describe(
        &self,
        totals: &HardwareCounters,
        elapsed: f64,
        skipped: u64,
        machine: &Machine,
    ) -> Sampled {
        let values = figures(&without_charges(totals.clone()), machine);
        let charged: u64 = totals.charged.iter().sum();
        let mut bounds = BTreeMap::new();
        for (index, name) in FIGURES.iter().enumerate() {
            let Some(half) = self.half(index, totals.instructions) else {
                let unmet = self.unmet(index, &values, totals, machine);
                bounds.extend(unmet.map(|unmet| {
                    // All but what was run whole is what page faults are thought to add, or counts once.
                    let less = self.estimated(index, &values);
                    let burst = parts(index).iter().map(|(part, at)| self.burst(*part, *at));
                    let more = unmet + burst.sum::<f64>() + self.more_than_once(index, &values);
                    ((*name).to_owned(), Bounds::around(values[index], 0.0, [less, more]))
                }));
                continue;
            };
            let half = half.max(RESOLUTION * self.estimated(index, &values));
            let exact = if index == CYCLES { charged as f64 } else { 0.0 };
            let around = self.around(index, &values, half).plus(exact);
            bounds.insert((*name).to_owned(), around);
            // When one of several threads ends is as the emulator has it, which in gaps is faster, and not evenly.
            if index == CYCLES && self.retired.len() < 2 {
                bounds.insert("elapsed_cycles".to_owned(), around.times(elapsed));
            }
        }
        let others = OTHERS.iter().chain(&FIGURES).map(|name| (*name).to_owned());
        let mut estimated: Vec<String> = others.collect();
        estimated.sort();
        let phases = self.phases.as_deref();
        Sampled {
            choice: if phases.is_some() { Choice::Phases } else { Choice::Intervals },
            phases: phases.map(Phases::shares).unwrap_or_default(),
            windows: phases.map_or(self.windows().len() as u64, Phases::windows),
            whole_instructions: self.whole.counted.instructions,
            window_instructions: self.windows().seen().instructions,
            skipped_instructions: skipped,
            confidence: 95,
            bounds,
            estimated,
        }
    }

    /// What of a figure is estimated: all but what was run whole.
    fn estimated(&self, figure: usize, values: &Figures) -> f64 {
        (values[figure] - self.whole.figures[figure]).max(0.0)
    }

    /// Half the width of the interval of a figure, as far as chance goes.
    fn half(&self, figure: usize, instructions: u64) -> Option<f64> {
        if let Some(phases) = &self.phases {
            let rates = phases.rates(figure, &self.retired);
            return phases.half(self.beyond_whole(instructions), &rates);
        }
        let (fit, doubt) = self.fit(figure);
        if parts(figure).iter().all(|(part, at)| self.of(*part).has_none(*at)) {
            return None;
        }
        let chance = half_width(self.windows().lengths().zip(fit))?;
        let unseen =
            parts(figure).iter().map(|(part, at)| self.of(*part).unseen_on(*at, &self.retired));
        // The slope is known from the same windows, and not for sure.
        Some(chance.hypot(2.0 * doubt).hypot(2.0 * unseen.sum::<f64>()))
    }

    /// How many misses there may be, 95 of 100 times, where windows met none: three in as many instructions as they had
    /// (the rule of three; Hanley and Lippman-Hand, Journal of the American Medical Association 249, 1983).
    /// Of what walks are made of, as much as so many of them take that find nothing in caches.
    fn unmet(
        &self,
        figure: usize,
        values: &Figures,
        totals: &HardwareCounters,
        machine: &Machine,
    ) -> Option<f64> {
        let [(part, _)] = parts(figure) else { return None };
        let misses = if *part == Part::Walks { L2_MISSES } else { figure };
        let references = values[WALK_REFS] / values[L2_MISSES];
        let each = match figure {
            _ if figure == misses => 1.0,
            WALK_REFS => references,
            _ => references * f64::from(machine.model().cache.memory_cycles),
        };
        let is_known = is_misses(misses) && each.is_finite();
        if self.phases.is_some() || self.windows().len() < FEWEST_WINDOWS || !is_known {
            return None;
        }
        let seen = self.of(*part).seen().instructions as f64;
        Some(3.0 * self.beyond_whole(totals.instructions) as f64 / seen * each)
    }

    /// How much less of a figure there may be, as page tables are not in the caches yet where windows see what counts once.
    fn less_than_once(&self, figure: usize) -> f64 {
        let of_walks = parts(figure).iter().filter(|(part, _)| *part == Part::Walks);
        of_walks.map(|(_, at)| self.once().if_warm(*at)).sum()
    }

    /// How much more of a figure there may be if what counts once is there as often as windows met it, or if all CPUs loaded
    /// what others use in gaps.
    fn more_than_once(&self, figure: usize, values: &Figures) -> f64 {
        let of_window = &self.once[self.warmth.start(Part::Walks)];
        let of_walks = parts(figure).iter().filter(|(part, _)| *part == Part::Walks);
        let more = |(_, at): &(Part, usize)| {
            let sampled = of_window.if_sampled(*at, &self.retired) - self.once().figure(*at);
            let each =
                if *at == L2_MISSES { 1.0 } else { values[*at] / values[L2_MISSES].max(1.0) };
            sampled.max(self.loaded_in_gaps() * each)
        };
        of_walks.map(more).sum::<f64>().max(0.0)
    }

    /// Translations that CPUs may have loaded in gaps, as others use them: no more than each had instructions there.
    fn loaded_in_gaps(&self) -> f64 {
        let in_gaps =
            self.retired.iter().enumerate().map(|(cpu, retired)| retired - self.once().seen(cpu));
        self.unused
            .iter()
            .zip(in_gaps)
            .map(|(unused, in_gaps)| in_gaps.clamp(0.0, *unused as f64))
            .sum()
    }

    /// The bounds of a figure: chance, and what arrays were too cold for, to that side.
    fn around(&self, figure: usize, values: &Figures, half: f64) -> Bounds {
        let once = [self.less_than_once(figure), self.more_than_once(figure, values)];
        if self.phases.is_some() {
            return Bounds::around(values[figure], half, once);
        }
        let off = parts(figure).iter().fold(once, |[over, under], (part, at)| {
            let estimated = self.estimated(*at, values);
            let each = values[*at] / values[LLC_MISSES].max(1.0);
            let mut off = match (part, is_walk_cycles(*at)) {
                (Part::Walks, false) => self.warmth.off_walks(),
                _ => self.warmth.off(*part),
            };
            if is_walk_cycles(*at) {
                off.under += self.warmth.under_page_tables(values[LLC_MISSES]);
            }
            [
                over + off.over * estimated + self.at_first(*part, *at),
                under + off.under * estimated + off.guessed * each + self.burst(*part, *at),
            ]
        });
        Bounds::around(values[figure], half, off)
    }

    /// By how much a figure may be too low where hardly any window had any of it: there may be a burst that none met. What
    /// windows miss 95 of 100 times is no more than three of as many parts as there are of them (the rule of three), and may be as
    /// the worst of them, or as what was run whole.
    fn burst(&self, part: Part, figure: usize) -> f64 {
        let (windows, whole) = (self.of(part), &self.whole);
        let rates = windows.rates(figure, &self.weights(self.warmth.start(part)));
        let all: f64 = windows.lengths().sum();
        let had = windows.lengths().zip(&rates).map(|(length, rate)| length * rate.max(0.0));
        let [sum, squares] =
            had.fold([0.0; 2], |[sum, squares], had| [sum + had, squares + had * had]);
        // So many windows had nearly all, if they had as much each.
        if part == Part::Program || sum * sum >= FEW * squares && sum > 0.0 {
            return 0.0;
        }
        let before = whole.figures[figure] / (whole.counted.instructions as f64).max(1.0);
        let worst = rates.iter().copied().fold(before, f64::max);
        (3.0 / rates.len().max(3) as f64 * all * worst - sum).max(0.0)
    }

    /// By how much a figure may be too high as threads that began in gaps had brought into caches what windows see them bring.
    fn at_first(&self, part: Part, figure: usize) -> f64 {
        if matches!(part, Part::Program | Part::FirstTlb) {
            return 0.0;
        }
        self.of(part).at_first(figure, &self.whole, &self.weights(self.warmth.start(part)))
    }

    /// How far the cycles may be off besides by chance: by how well it is known what page faults add, and by what
    /// arrays were too cold for.
    pub(crate) fn doubts(&self, totals: &HardwareCounters, machine: &Machine) -> [f64; 2] {
        if self.phases.is_some() || self.windows().len() < FEWEST_WINDOWS {
            return [0.0; 2];
        }
        let values = figures(&without_charges(totals.clone()), machine);
        let cold = self.around(CYCLES, &values, 0.0);
        let cold = (cold.high - values[CYCLES]).max(values[CYCLES] - cold.low);
        [2.0 * self.fit(CYCLES).1, cold]
    }

    /// A figure of each window for each instruction, without what page faults have to do with it; and how uncertain that
    /// leaves what page faults add to its sum.
    fn fit(&self, figure: usize) -> (Vec<f64>, f64) {
        let mut rates = vec![0.0; self.windows().len()];
        let mut doubt = 0.0;
        for (part, at) in parts(figure) {
            let weights = self.weights(self.warmth.start(*part));
            let plain = self.of(*part).rates(*at, &weights);
            if *part == Part::Program {
                rates.iter_mut().zip(plain).for_each(|(sum, rate)| *sum += rate);
                continue;
            }
            let fit = self.of(*part).fit(*at, &self.whole, &weights);
            let unseen = self.unseen_faults(self.warmth.start(*part)).abs();
            let own = if self.is_corrected(*part) {
                doubt += fit.error * unseen;
                fit.rates
            } else {
                // What a page fault may add is not known, and by how much that is off neither: hardly by more than
                // what was not corrected, and as much as windows differ by.
                let without = half_width(self.windows().lengths().zip(plain.iter().copied()));
                doubt += ((fit.slope * unseen).abs() + without.unwrap_or(0.0)) / 2.0;
                plain
            };
            rates.iter_mut().zip(own).for_each(|(sum, rate)| *sum += rate);
        }
        (rates, doubt)
    }

    /// Half the width of the interval of the time of one run over that of another on the same stream.
    /// `own` and `base` are elapsed cycles of each, and for each cycle of all CPUs.
    pub(crate) fn relative(&self, base: &Self, own: Elapsed, of_base: Elapsed) -> Option<f64> {
        // It is as uncertain as when threads end next to others.
        if self.retired.len() > 1 {
            return None;
        }
        if let (Some(phases), Some(of_phases)) = (&self.phases, &base.phases) {
            let rates = phases.rates(CYCLES, &self.retired);
            let of_base_rates = of_phases.rates(CYCLES, &base.retired);
            return relative_by_phases(phases, [&rates, &of_base_rates], own, of_base);
        }
        if self.windows().len() != base.windows().len() {
            return None;
        }
        let relative = of_base.cycles / own.cycles;
        let (own_rates, base_rates) = (self.fit(CYCLES).0, base.fit(CYCLES).0);
        let differences = own_rates.iter().zip(&base_rates).map(|(own_rate, base_rate)| {
            base_rate * of_base.share - relative * own_rate * own.share
        });
        let chance = half_width(self.windows().lengths().zip(differences))?;
        let off = chance.hypot(of_base.doubt).hypot(relative * own.doubt);
        // What arrays were too cold for errs to the same side in both.
        Some((off + of_base.cold.max(relative * own.cold)) / own.cycles)
    }
}

/// The same of streams that are sampled by phases.
fn relative_by_phases(
    phases: &Phases,
    [own_rates, base_rates]: [&[f64]; 2],
    own: Elapsed,
    of_base: Elapsed,
) -> Option<f64> {
    let relative = of_base.cycles / own.cycles;
    if own_rates.len() != base_rates.len() {
        return None;
    }
    let pairs = own_rates.iter().zip(base_rates);
    let differences = pairs
        .map(|(own_rate, base_rate)| base_rate * of_base.share - relative * own_rate * own.share);
    let half = phases.half(own.instructions, &differences.collect::<Vec<_>>());
    Some(half? / own.cycles)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Seen;
    use crate::sampling::tests::{after, machine, strata};
    use strata_stream::Array;

    #[test]
    fn bounds_are_of_chance_alone_where_there_is_no_page_fault() {
        let walks = |window: u64| 1000 + window % 2 * 500;
        let (strata, exact) = strata((0..20).map(|window| (walks(window), 0)), 0);
        let rates = (0..20).map(|window| (10_000.0, walks(window) as f64 / 1000.0));
        let (found, chance) = (strata.half(4, exact.instructions), half_width(rates));
        assert!((found.unwrap() / chance.unwrap() - 1.0).abs() < 1e-9, "{found:?} {chance:?}");
    }

    /// What was run whole has five misses a page fault; windows have neither, and gaps a page fault each.
    #[test]
    fn what_only_page_faults_are_thought_to_add_may_not_be_there() {
        let seen = |misses: u64, faults| {
            let (instructions, walk_cycles) = (1000, 20 * misses);
            let counted = HardwareCounters {
                instructions,
                l1_misses: misses,
                l2_misses: misses,
                walk_cycles,
                data: strata_hardware::ByLevel { memory: misses, ..Default::default() },
                ..Default::default()
            };
            Seen { counted, faults }
        };
        let (strata, exact) = after(seen(50, 10), (0..20).map(|_| seen(0, 0)), 1);
        let totals = strata.totals(&exact);
        assert_eq!((totals.l2_misses, totals.data.memory), (150, 150));
        let bounds = strata.describe(&totals, 1.0, 0, &machine()).bounds;
        let seen = [("tlb.l1_misses", 50.0), ("tlb.l2_misses", 50.0), ("walk_cycles", 1000.0)];
        for (name, seen) in seen.into_iter().chain([("counters.strata.data_memory", 50.0)]) {
            assert_eq!(bounds[name].low, seen, "{name}");
        }
    }

    /// Walks take five cycles an instruction at the beginning, and as good as none where windows see them.
    #[test]
    fn there_may_be_a_burst_where_hardly_any_window_had_anything() {
        let seen = |walk_cycles| {
            let counted =
                HardwareCounters { instructions: 1000, walk_cycles, ..Default::default() };
            Seen { counted, faults: 0 }
        };
        let more = |windows: [u64; 20]| {
            let (strata, exact) = after(seen(5000), windows.into_iter().map(seen), 0);
            let totals = strata.totals(&exact);
            let bounds = strata.describe(&totals, 1.0, 0, &machine()).bounds["walk_cycles"];
            let (value, half) = (totals.walk_cycles as f64, strata.half(4, exact.instructions));
            bounds.high - value - half.unwrap()
        };
        let [three, two] =
            [3, 2].map(|had| std::array::from_fn(|at| if at < had { 10 } else { 0 }));
        // Three of twenty parts, each of 10,000 instructions, and not what windows had of it.
        assert!((more(two) - (3.0 * 50_000.0 - 200.0)).abs() < 1e-6, "{}", more(two));
        assert!((more(three) - (3.0 * 50_000.0 - 300.0)).abs() < 1e-6, "{}", more(three));
        assert!(more(std::array::from_fn(|at| if at < 4 { 10 } else { 0 })).abs() < 1e-6);
        // The worst window may be worse than the beginning.
        let worst = more(std::array::from_fn(|at| if at == 7 { 9000 } else { 0 }));
        assert!((worst - (3.0 * 90_000.0 - 90_000.0)).abs() < 1e-6, "{worst}");
    }

    #[test]
    fn a_cpu_may_have_loaded_in_gaps_what_others_use() {
        let high = |unused| {
            let (mut strata, exact) = strata((0..20).map(|window| (1000 + window % 2 * 500, 0)), 0);
            strata.end(vec![unused]);
            let totals = strata.totals(&exact);
            strata.describe(&totals, 1.0, 0, &machine()).bounds["tlb.l2_misses"].high
        };
        assert_eq!(high(600) - high(0), 600.0);
        // Gaps have 180,000 instructions, and none loads two.
        assert_eq!(high(1 << 40) - high(0), 180_000.0);
    }

    #[test]
    fn no_bounds_are_nearer_than_arrays_that_nobody_measures_allow() {
        let (strata, exact) = strata((0..20).map(|_| (1000, 0)), 0);
        let totals = strata.totals(&exact);
        assert_eq!(totals.walk_cycles, 200_000);
        let bounds = strata.describe(&totals, 1.0, 0, &machine()).bounds["walk_cycles"];
        assert_eq!(bounds, Bounds { low: 199_800.0, high: 200_200.0 });
    }

    #[test]
    fn walks_may_take_longer_where_lines_of_caches_may_be_gone() {
        let (mut strata, exact) = strata((0..20).map(|window| (1000 + window % 2 * 500, 0)), 0);
        Array::ALL.into_iter().for_each(|array| strata.warmed(array, 0, [0; 3]));
        let totals = strata.totals(&exact);
        let bounds =
            |strata: &Strata, name| strata.describe(&totals, 1.0, 0, &machine()).bounds[name];
        let before = ["walk_cycles", "cycles"].map(|name| bounds(&strata, name));
        strata.warmed(Array::LastLevelCache, 0, [400_000, 500_000, 0]);
        let after = ["walk_cycles", "cycles"].map(|name| bounds(&strata, name));
        let more = after[0].high - before[0].high;
        assert!((more / (totals.walk_cycles as f64 / 2.0) - 1.0).abs() < 1e-9, "{more}");
        assert!(after[1].high > before[1].high, "{after:?}");
        assert_eq!(after.map(|bounds| bounds.low), before.map(|bounds| bounds.low));
    }

    #[test]
    fn a_cold_cache_makes_walks_dear_and_not_many() {
        let windows = (0..20).map(|window| Seen {
            counted: HardwareCounters {
                instructions: 1000,
                l2_misses: 10 + window % 2 * 5,
                walk_refs: 30,
                walk_cycles: 1000 + window % 2 * 500,
                ..Default::default()
            },
            faults: 0,
        });
        let (mut strata, exact) = after(Seen::default(), windows, 0);
        Array::ALL.into_iter().for_each(|array| strata.warmed(array, 0, [0; 3]));
        let totals = strata.totals(&exact);
        let highs = |strata: &Strata| {
            let bounds = strata.describe(&totals, 1.0, 0, &machine()).bounds;
            ["tlb.l2_misses", "walk_refs", "walk_cycles"].map(|name| bounds[name].high)
        };
        let before = highs(&strata);
        strata.warmed(Array::L2Cache, 0, [0, 500_000, 0]);
        let cold = highs(&strata);
        assert_eq!(cold[..2], before[..2]);
        let more = cold[2] - before[2];
        assert!((more / (totals.walk_cycles as f64 / 2.0) - 1.0).abs() < 1e-9, "{more}");
    }
}
