//! The bill: where every cycle of a run went, and which event shows it on real hardware.
//!
//! The parts of [`Cycles`] are what was charged. Within each, the bill tells layers and reasons apart in
//! the proportions of what was counted: so its sum is the run's cycles exactly, whatever share of
//! background work was charged.

use crate::report::{BillItem, Cycles};
use strata_hardware as hardware;
use strata_stack::{Costs, ExitCounts, ExitReason, KernelCounters, NodeId, Part};

/// What a run did, as far as its bill depends on it.
#[derive(Default)]
pub(crate) struct Account {
    /// Cycles of the hardware's part in its own terms.
    pub(crate) hardware: hardware::Cycles,
    /// Share of walks that was in the second stage.
    pub(crate) second_stage: f64,
    /// What the kernels did, by layer, the guest first.
    pub(crate) kernels: Vec<(&'static str, KernelCounters)>,
    /// What exits took, by the layer that took them, the guest first.
    pub(crate) exits: Vec<(&'static str, OfExits)>,
    /// What software costs.
    pub(crate) costs: Costs,
}

/// Cycles of a layer's exits.
#[derive(Default)]
pub(crate) struct OfExits {
    /// By what they went to.
    parts: Vec<(Part, u64)>,
    /// To reading anew what it wrote to its VMs' second stages.
    read_anew: u64,
}

impl OfExits {
    /// Those of a VM.
    pub(crate) fn of(counts: &ExitCounts, vm: NodeId) -> Self {
        let parts = Part::all().map(|part| (part, counts.cycles(vm, part))).collect();
        Self { parts, read_anew: counts.cycles_of_reading(vm) }
    }
}

/// One line before it has its cycles: name, layer, event, how much of its part it is.
type Line = (String, &'static str, &'static str, f64);

impl Account {
    /// The bill for cycles that went to these parts.
    pub(crate) fn bill(&self, total: &Cycles) -> Vec<BillItem> {
        // Of captured tables no kernel is known.
        let lowest = self.kernels.last().map_or("host", |(layer, _)| layer);
        let line = |name: &str, layer, event| vec![(name.to_owned(), layer, event, 1.0)];
        let parts = [
            (total.execution, line("useful work", "guest", "instructions")),
            (total.data, line("data stalls", "guest", "cycle_activity.stalls_ldm_pending")),
            (total.walks, self.walks(lowest)),
            (total.faults, self.faults()),
            (total.exits, self.exits()),
            (total.shootdowns, line("TLB shootdowns", "guest", "tlb:tlb_flush")),
            (total.background, line("background work", "all", "sched:sched_stat_runtime")),
        ];
        parts.into_iter().flat_map(|(cycles, lines)| shared(cycles, lines)).collect()
    }

    fn walks(&self, lowest: &'static str) -> Vec<Line> {
        let walks = self.hardware.walk + self.hardware.faulted_walk;
        let second_stage = walks * self.second_stage;
        vec![
            (
                "second-level TLB".to_owned(),
                "guest",
                "dtlb_load_misses.stlb_hit",
                self.hardware.tlb,
            ),
            (
                "walks, guest's table".to_owned(),
                "guest",
                "dtlb_load_misses.walk_duration",
                walks - second_stage,
            ),
            ("walks, second stage".to_owned(), lowest, "ept.walk_cycles", second_stage),
        ]
    }

    fn faults(&self) -> Vec<Line> {
        let lines = self.kernels.iter().enumerate().map(|(depth, (layer, counters))| {
            let event = if depth == 0 { "page-faults" } else { "kvm:kvm_page_fault" };
            ("page faults".to_owned(), *layer, event, self.costs.of_kernel(counters) as f64)
        });
        lines.collect()
    }

    fn exits(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        for (layer, exits) in &self.exits {
            for (part, cycles) in &exits.parts {
                let (name, event) = match part {
                    Part::Exit(ExitReason::HandedOn) => {
                        ("handed on".to_owned(), "kvm:kvm_nested_vmexit")
                    }
                    Part::Exit(reason) => (reason.name().replace('_', " "), "kvm:kvm_exit"),
                    Part::Handler => (format!("handled by {layer}"), "kvm:kvm_exit"),
                    Part::Copies => ("copied fields".to_owned(), ""),
                };
                lines.push((format!("exits: {name}"), *layer, event, *cycles as f64));
            }
            let name = "exits: second stage read anew".to_owned();
            lines.push((name, layer, "kvmmmu:kvm_mmu_sync_page", exits.read_anew as f64));
        }
        lines
    }
}

/// Share of the cycles of walks that is in the second stage.
pub(crate) fn second_stage(counters: &hardware::HardwareCounters) -> f64 {
    match counters.walk_cycles + counters.faulted_walk_cycles {
        0 => 0.0,
        all => counters.ept_walk_cycles as f64 / all as f64,
    }
}

/// Cycles shared out among lines by how much each is of them, none left over: each gets what is due
/// rounded down, and what remains goes to those that lost most.
fn shared(cycles: u64, lines: Vec<Line>) -> Vec<BillItem> {
    let mut lines: Vec<Line> = lines.into_iter().filter(|(.., weight)| *weight > 0.0).collect();
    let all: f64 = lines.iter().map(|(.., weight)| weight).sum();
    if cycles == 0 {
        return Vec::new();
    }
    if lines.is_empty() {
        // Charged, though nothing of the kind was counted: work before a warm-up was over.
        lines.push(("not told apart".to_owned(), "all", "", 1.0));
    }
    let due = |weight: f64| if all > 0.0 { cycles as f64 * (weight / all) } else { cycles as f64 };
    let mut items: Vec<(f64, BillItem)> = lines
        .into_iter()
        .map(|(name, level, event, weight)| {
            let whole = (due(weight) as u64).min(cycles);
            let item =
                BillItem { name, level: level.to_owned(), cycles: whole, event: event.to_owned() };
            (due(weight) - whole as f64, item)
        })
        .collect();
    let given: u64 = items.iter().map(|(_, item)| item.cycles).sum();
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|a, b| items[*b].0.total_cmp(&items[*a].0).then(a.cmp(b)));
    // Rounding of large numbers may leave more, or have given too much.
    let mut left = cycles as i128 - i128::from(given);
    let mut turn = order.iter().cycle();
    while left != 0 {
        let item = &mut items[*turn.next().expect("there is a line")].1;
        let step = (left / order.len() as i128).abs().max(1) * left.signum();
        let step = step.max(-i128::from(item.cycles));
        item.cycles = (i128::from(item.cycles) + step) as u64;
        left -= step;
    }
    items.into_iter().map(|(_, item)| item).filter(|item| item.cycles > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(weight: f64) -> Line {
        ("x".to_owned(), "guest", "", weight)
    }

    #[test]
    fn shares_are_what_is_due_to_a_cycle() {
        let cycles = |total, weights: &[f64]| -> Vec<u64> {
            let lines = weights.iter().map(|weight| line(*weight)).collect();
            shared(total, lines).iter().map(|item| item.cycles).collect()
        };
        assert_eq!(cycles(100, &[1.0, 1.0, 2.0]), [25, 25, 50]);
        assert_eq!(cycles(10, &[1.0, 1.0, 1.0]), [4, 3, 3]);
        assert_eq!(cycles(7, &[0.0, 3.0]), [7]);
        assert_eq!(cycles(0, &[1.0]), [0; 0]);
        let nothing = shared(5, vec![line(0.0)]);
        assert_eq!((nothing[0].cycles, nothing[0].name.as_str()), (5, "not told apart"));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_added(
            cycles in prop_oneof![0u64..1000, any::<u64>()],
            weights in prop::collection::vec(prop_oneof![Just(0.0), 0.0..1e18f64], 0..40),
        ) {
            let items = shared(cycles, weights.into_iter().map(line).collect());
            let sum: u128 = items.iter().map(|item| u128::from(item.cycles)).sum();
            prop_assert_eq!(sum, u128::from(cycles));
        }
    }
}
