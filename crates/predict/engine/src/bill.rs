//! The bill: where every cycle of a run went, and which event shows it on real hardware.
//!
//! The parts of [`Cycles`] are what was charged. Within each, the bill tells layers and reasons apart in
//! the proportions of what was charged for them: so its sum is the run's cycles exactly, whatever share of
//! background work was charged.
//!
//! Events are those of Linux perf. Of the CPU's own there are three sets: Intel's as Haswell and Broadwell have
//! them (Linux, `tools/perf/pmu-events/arch/x86/broadwellde`), those of AMD's PPRs for Zen 2 and Zen 3
//! (`amdzen2`, `amdzen3`, in both of which they are), and those of any CPU, for AMD's before Zen. AMD counts
//! walks and not their cycles, and does not tell those of the second stage apart.

use crate::report::{BillItem, Cycles};
use strata_hardware as hardware;
use strata_nested::{Instructions, Virtualization};
use strata_stack::{ExitCounts, ExitReason, KernelCounters, KernelWork, NodeId, Part};

/// What a run did, as far as its bill depends on it.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Cycles of the hardware's part in its own terms.
    pub(crate) hardware: hardware::Cycles,
    /// Whether the table that hardware walked is a hypervisor's shadow of the guest's.
    pub(crate) shadowed: bool,
    /// Share of walks that was in the second stage.
    pub(crate) second_stage: f64,
    /// What the kernels did, by layer, the guest first.
    pub(crate) kernels: Vec<(&'static str, KernelCounters)>,
    /// What exits took, by the layer that took them, the guest first.
    pub(crate) exits: Vec<(&'static str, OfExits)>,
    /// Whose events there are.
    pub(crate) events: Events,
    /// Whether what the hardware did was estimated.
    pub(crate) is_sampled: bool,
    /// Whether exits come by a clock that was estimated.
    pub(crate) exits_by_clock: bool,
}

/// Events of the CPU's own that show where cycles went; empty where it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Events {
    data: &'static str,
    second_level: &'static str,
    walks: &'static str,
    second_stage: &'static str,
}

impl Events {
    /// Intel's, from Haswell to Broadwell.
    const INTEL: Self = Self {
        data: "cycle_activity.stalls_ldm_pending",
        second_level: "dtlb_load_misses.stlb_hit",
        walks: "dtlb_load_misses.walk_duration",
        second_stage: "ept.walk_cycles",
    };

    /// AMD's since Zen: PMCx041, PMCx045 with unit masks 0x01 and 0xf0.
    const ZEN: Self = Self {
        data: "ls_mab_alloc.loads",
        second_level: "ls_l1_d_tlb_miss.tlb_reload_4k_l2_hit",
        walks: "l2_dtlb_misses",
        second_stage: "",
    };

    /// Any CPU's, by the names that perf gives to what most have.
    const ANY: Self = Self {
        data: "L1-dcache-load-misses",
        second_level: "",
        walks: "dTLB-load-misses",
        second_stage: "",
    };

    /// Those of a CPU with this; virtual VMLOAD and VMSAVE came with Zen.
    pub(crate) const fn of(cpu: Virtualization) -> Self {
        match cpu.instructions {
            Instructions::Vmx => Self::INTEL,
            Instructions::Svm if cpu.vls => Self::ZEN,
            Instructions::Svm => Self::ANY,
        }
    }
}

impl Default for Events {
    fn default() -> Self {
        Self::INTEL
    }
}

/// Cycles of a layer's exits.
#[derive(Debug, Default)]
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
        let (of_windows, by_clock) = (self.is_sampled, self.exits_by_clock);
        let parts = [
            (total.execution, line("useful work", "guest", "instructions"), of_windows),
            (total.data, line("data stalls", "guest", self.events.data), of_windows),
            (total.walks, self.walks(lowest), of_windows),
            (total.faults, self.faults(), false),
            (total.exits, self.exits(), by_clock),
            (total.shootdowns, line("TLB shootdowns", "guest", "tlb:tlb_flush"), false),
            (total.background, line("background work", "all", "sched:sched_stat_runtime"), false),
        ];
        let items = parts.into_iter().flat_map(|(cycles, lines, estimated)| {
            shared(cycles, lines).into_iter().map(move |item| BillItem { estimated, ..item })
        });
        items.collect()
    }

    fn walks(&self, lowest: &'static str) -> Vec<Line> {
        let walks = self.hardware.walk + self.hardware.faulted_walk;
        let second_stage = walks * self.second_stage;
        let first = match self.shadowed {
            true => "walks, shadow of the guest's table",
            false => "walks, guest's table",
        };
        vec![
            ("second-level TLB".to_owned(), "guest", self.events.second_level, self.hardware.tlb),
            (first.to_owned(), "guest", self.events.walks, walks - second_stage),
            ("walks, second stage".to_owned(), lowest, self.events.second_stage, second_stage),
        ]
    }

    fn faults(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        for (depth, (layer, counters)) in self.kernels.iter().enumerate() {
            for (work, cycles) in KernelWork::ALL.into_iter().zip(counters.fault_cycles) {
                let event = match (work, depth) {
                    (KernelWork::Moving, _) => "migrate:mm_migrate_pages",
                    (KernelWork::Scanning, _) => "",
                    (_, 0) => "page-faults",
                    _ => "kvm:kvm_page_fault",
                };
                let name = match work {
                    KernelWork::Handling => "page faults".to_owned(),
                    other => format!("page faults: {}", other.name()),
                };
                lines.push((name, *layer, event, cycles as f64));
            }
        }
        lines
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
            let (level, event) = (level.to_owned(), event.to_owned());
            let item = BillItem { name, level, cycles: whole, event, estimated: false };
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
    use std::collections::BTreeSet;

    fn line(weight: f64) -> Line {
        ("x".to_owned(), "guest", "", weight)
    }

    #[test]
    fn events_are_those_of_the_cpu() {
        use strata_hardware::CpuModel;
        for (name, walks, second_stage) in [
            ("broadwell-e5-2620v4", "dtlb_load_misses.walk_duration", "ept.walk_cycles"),
            ("zen2", "l2_dtlb_misses", ""),
            ("zen3", "l2_dtlb_misses", ""),
            ("phenom-9550", "dTLB-load-misses", ""),
        ] {
            let events = Events::of(CpuModel::preset(name).unwrap().virtualization);
            assert_eq!((events.walks, events.second_stage), (walks, second_stage), "{name}");
        }
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

    /// Cycles of any size, often none.
    fn cycles() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), 0..1000u64, 0..1u64 << 48]
    }

    prop_compose! {
        fn account()(
            kernels in prop::collection::vec(prop::array::uniform5(cycles()), 1..4),
            exits in prop::collection::vec(
                (prop::collection::vec(cycles(), Part::COUNT), cycles()), 0..3,
            ),
            walks in 0.0..1e12f64,
            second_stage in 0.0..=1.0f64,
            cpu in prop::sample::select(vec![Events::INTEL, Events::ZEN, Events::ANY]),
        ) -> Account {
            const LAYERS: [&str; 4] = ["guest", "l2", "l1", "host"];
            let kernel = |fault_cycles| KernelCounters { fault_cycles, ..KernelCounters::default() };
            let of_exits = |(parts, read_anew): (Vec<u64>, u64)| {
                OfExits { parts: Part::all().zip(parts).collect(), read_anew }
            };
            Account {
                hardware: hardware::Cycles { walk: walks, tlb: walks / 7.0, ..Default::default() },
                shadowed: false,
                second_stage,
                kernels: LAYERS.into_iter().zip(kernels.into_iter().map(kernel)).collect(),
                exits: LAYERS.into_iter().zip(exits.into_iter().map(of_exits)).collect(),
                events: cpu,
                is_sampled: false,
                exits_by_clock: false,
            }
        }
    }

    prop_compose! {
        fn totals()(all in prop::array::uniform7(cycles())) -> Cycles {
            let [execution, data, walks, faults, exits, shootdowns, background] = all;
            Cycles { execution, data, walks, faults, exits, shootdowns, background }
        }
    }

    proptest! {
        #[test]
        fn each_kind_of_cycles_is_the_sum_of_its_lines(account in account(), total in totals()) {
            let bill = account.bill(&total);
            let sum = |begins: &[&str]| -> u64 {
                let lines = bill.iter().filter(|item| begins.iter().any(|b| item.name.starts_with(b)));
                lines.map(|item| item.cycles).sum()
            };
            // Where nothing of a kind was counted, its cycles are there all the same.
            let counted = |lines: Vec<Line>| lines.iter().any(|(.., weight)| *weight > 0.0);
            for (begins, all, lines) in [
                (&["walks", "second-level"][..], total.walks, account.walks("host")),
                (&["page faults"], total.faults, account.faults()),
                (&["exits: "], total.exits, account.exits()),
            ] {
                prop_assert_eq!(sum(begins), if counted(lines) { all } else { 0 }, "{:?}", begins);
            }
            prop_assert_eq!(sum(&[""]), total.total());
            // No line is there twice.
            let names: BTreeSet<_> = bill.iter().map(|item| (&item.name, &item.level)).collect();
            let told = bill.iter().filter(|item| item.name != "not told apart").count();
            prop_assert!(names.len() >= told, "{:?}", bill);
        }

        #[test]
        fn lines_are_estimated_as_their_part_is(
            account in account(),
            total in totals(),
            is_sampled in any::<bool>(),
            exits_by_clock in any::<bool>(),
        ) {
            let account = Account { is_sampled, exits_by_clock, ..account };
            for BillItem { name, estimated, .. } in account.bill(&total) {
                let begins = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
                let of_windows = ["useful work", "data stalls", "second-level TLB", "walks"];
                let expected = match name.as_str() {
                    "not told apart" => continue,
                    name if name.starts_with("exits: ") => exits_by_clock,
                    _ => is_sampled && begins(&of_windows),
                };
                prop_assert_eq!(estimated, expected, "{}", name);
            }
        }

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
