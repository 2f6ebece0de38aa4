//! What the lab and the model count of the same thing.

use super::misses::Misses;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use strata_engine::RunResult;
use strata_engine::report::{EntryCounts, LayerMemory};
use strata_inspect::join::report::Totals;
use strata_lab::{Counters, LabReport, Make, Readings};

/// A thing that both count.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Row {
    /// The layer that it happens in, or to.
    pub layer: String,
    /// What it is.
    pub what: String,
    /// Least and most that the lab counted, in all runs.
    pub measured: [u64; 2],
    /// Whether several runs counted nearly the same, so that nothing is left to chance.
    pub steady: bool,
    /// What the model says; `null` where it says nothing.
    pub predicted: Option<u64>,
}

/// How far apart two counts may be that are called alike: 10 %, or a handful; 5 % where the count is steady.
const ALIKE: f64 = 0.1;
const ALIKE_IF_STEADY: f64 = 0.05;
const HANDFUL: u64 = 8;
/// How far apart the counts of several runs may be that are called steady.
const STEADY: f64 = 0.01;

/// Whether several runs count nearly the same.
fn is_steady(counts: &[u64], [least, most]: [u64; 2]) -> bool {
    counts.len() > 1 && (most - least) as f64 <= STEADY * most as f64
}

impl Row {
    /// What is predicted over what was measured, the nearer end of it; `None` without a prediction, or where
    /// nothing was measured.
    pub fn ratio(&self) -> Option<f64> {
        let [least, most] = self.measured;
        let nearest = self.predicted?.clamp(least, most);
        (nearest > 0).then(|| self.predicted.unwrap_or(0) as f64 / nearest as f64)
    }

    /// Whether both count alike.
    pub fn is_alike(&self) -> Option<bool> {
        let predicted = self.predicted?;
        let nearest = predicted.clamp(self.measured[0], self.measured[1]);
        let apart = predicted.abs_diff(nearest);
        let alike = if self.steady { ALIKE_IF_STEADY } else { ALIKE };
        Some(apart <= HANDFUL || apart as f64 <= alike * nearest as f64)
    }
}

/// What one run counted in a layer.
struct Difference<'a>(&'a Readings, usize);

impl Difference<'_> {
    fn of(&self, count: impl Fn(&Counters) -> u64) -> u64 {
        self.0.counted(self.1, count)
    }
}

fn named(
    of: fn(&Counters) -> &BTreeMap<String, u64>,
    name: &'static str,
) -> impl Fn(&Counters) -> u64 {
    move |counters| of(counters).get(name).copied().unwrap_or(0)
}

/// Rows of every layer, the innermost first.
///
/// `shadows` says of each hypervisor, L0 first, whether it keeps shadows of its VM's page tables.
pub fn rows(
    reports: &[LabReport],
    run: &RunResult,
    misses: Option<&Misses>,
    shadows: &[bool],
) -> Vec<Row> {
    let mut table = Rows { reports, rows: Vec::new() };
    let layers = reports[0].layers.len();
    let innermost = layers - 1;
    let memory = |name: &str| run.layers.iter().find(|layer| layer.layer == name);
    let names = ["host", "l1"];
    let name = |layer: usize| if layer == innermost { "guest" } else { names[layer] };
    let faults = Some(run.faults.guest);
    let own = |report: &LabReport| {
        report.counted.as_ref().and_then(|counted| counted.faults).unwrap_or(0)
    };
    table.add_of_report(innermost, "page faults", own, faults);
    for layer in (0..layers).rev() {
        let what = "page faults answered with a huge page";
        let huge = memory(name(layer)).map(|memory| memory.huge_faults);
        table.add(layer, what, |d| d.of(|c| c.vmstat("thp_fault_alloc")), huge);
    }
    if layers > 1 {
        exits(&mut table, run, shadows);
        for layer in (0..innermost).rev() {
            let kept = |pick: fn(&LayerMemory) -> u64| memory(name(layer)).map(pick);
            if shadows[layer] {
                continue;
            }
            let base = kept(|memory| grown(memory, |entries| entries.base));
            table.add(layer, "4 KiB entries added", |d| d.of(|c| c.kvm("pages_4k")), base);
            let huge = kept(|memory| grown(memory, |entries| entries.huge));
            table.add(layer, "2 MiB entries added", |d| d.of(|c| c.kvm("pages_2m")), huge);
        }
        alignment(&mut table, innermost, run);
    }
    if let Some(misses) = misses {
        type Count = fn(&RunResult) -> u64;
        let kinds: [(&str, Count); 3] = [
            ("L1 TLB misses, recorded accesses", |run| run.tlb.l1_misses),
            ("L2 TLB misses, recorded accesses", |run| run.tlb.l2_misses),
            ("references of their walks", |run| run.walk_refs),
        ];
        for (what, of) in kinds {
            let (measured, predicted) = (of(&misses.true_tables), of(&misses.modelled));
            table.add_of_report(innermost, what, |_| measured, Some(predicted));
        }
    }
    table.rows
}

/// Huge pages of the innermost layer, and how they are aligned.
fn alignment(table: &mut Rows<'_>, innermost: usize, run: &RunResult) {
    let found = &run.alignment;
    type Count = fn(&Totals) -> u64;
    let kinds: [(&str, Count, u64); 5] = [
        ("huge pages", |totals| totals.huge, found.guest_huge),
        ("well aligned", |totals| totals.well_aligned, found.well_aligned),
        ("  of them pseudo huge", |totals| totals.pseudo_huge, found.pseudo_huge),
        ("type-1 misaligned", |totals| totals.type1, found.type1),
        ("type-2 misaligned", |totals| totals.type2, found.type2),
    ];
    for (what, of, predicted) in kinds {
        let counted =
            |report: &LabReport| report.alignment.as_ref().map_or(0, |found| of(&found.totals));
        table.add_of_report(innermost, what, counted, Some(predicted));
    }
}

/// How many entries more a kernel keeps than when the program began.
fn grown(memory: &LayerMemory, of: fn(&EntryCounts) -> u64) -> u64 {
    of(&memory.second_stage).saturating_sub(of(&memory.second_stage_before))
}

/// Instructions by which a guest hypervisor runs its guest, each as the manual and as the model calls it.
struct Instructions {
    /// The one that enters the guest.
    entry: (&'static str, &'static str),
    /// Those that come with it.
    script: &'static [(&'static str, &'static str)],
    /// The one that invalidates second-stage translations, by the manual.
    flush: &'static str,
}

const SVM: Instructions = Instructions {
    entry: ("VMRUN", "vmrun"),
    script: &[("VMLOAD", "vmload"), ("VMSAVE", "vmsave"), ("STGI", "stgi"), ("CLGI", "clgi")],
    flush: "INVLPGA",
};
const VMX: Instructions = Instructions {
    entry: ("VMRESUME", "vmresume"),
    script: &[("VMREAD", "vmread"), ("VMWRITE", "vmwrite"), ("VMPTRLD", "vmptrld")],
    flush: "INVEPT",
};

/// What a VM exits for when it touches memory: a fault in the table that hardware walks for it.
#[derive(Clone, Copy)]
struct FaultOfMemory {
    /// As the manual calls the exit.
    name: &'static str,
    /// As the model does.
    reasons: &'static [&'static str],
    what: &'static str,
}

impl FaultOfMemory {
    /// Of a VM whose hypervisor keeps shadows, or has a second stage.
    fn new(make: Make, shadows: bool) -> Self {
        let reasons: &[_] = &["second_stage_violation", "second_stage_write"];
        let violation = |name| Self { name, reasons, what: "second-stage violations" };
        let page_fault = |name| Self { name, reasons: &["page_fault"], what: "page faults" };
        match (make, shadows) {
            (Make::Amd, false) => violation("NPF"),
            (Make::Intel, false) => violation("EPT_VIOLATION"),
            (Make::Amd, true) => page_fault("PF"),
            (Make::Intel, true) => page_fault("EXCEPTION_NMI"),
        }
    }
}

/// Exits that L0 took, by whose they are and by reason; `shadows` says of each hypervisor, L0 first, whether it keeps
/// shadows. Accesses to devices are violations, too, of memory that no hypervisor backs; they are in none of these.
fn exits(table: &mut Rows<'_>, run: &RunResult, shadows: &[bool]) {
    let model = |layer: &str, reasons: &[&str]| -> u64 {
        let of_layer = run.exits_by_layer.iter().find(|exits| exits.layer == layer);
        let of = |reason: &&str| of_layer.and_then(|exits| exits.exits.get(*reason)).copied();
        reasons.iter().filter_map(of).sum()
    };
    let make = table.reports[0].machine.make;
    let amd = make == Make::Amd;
    let faults: Vec<FaultOfMemory> =
        shadows.iter().map(|shadows| FaultOfMemory::new(make, *shadows)).collect();
    // Of a hypervisor's VM. KVM counts a violation that is a page fault of its VM's memory, and no other.
    let of_devices = |d: &Difference<'_>, hypervisor: usize| {
        if shadows[hypervisor] {
            return 0;
        }
        let there = Difference(d.0, hypervisor);
        let violations = there.of(named(|c| &c.exits, faults[hypervisor].name));
        violations.saturating_sub(there.of(|c| c.kvm("pf_taken")))
    };
    let without = |of: u64, others: u64| of.saturating_sub(others);
    // Loads of a page table exit where a hypervisor keeps shadows.
    let loads = if amd { "CR3_WRITE" } else { "CR_ACCESS" };
    let [of_l1, rest @ ..] = &faults[..] else { return };
    let of_l2 = rest.first();
    let nested = |d: &Difference<'_>, name: &'static str| d.of(named(|c| &c.nested_exits, name));
    let own = |d: &Difference<'_>, fault: &FaultOfMemory| {
        let all = d.of(named(|c| &c.exits, fault.name));
        without(all, nested(d, fault.name) + of_devices(d, 0))
    };
    let innermost = if of_l2.is_some() { "l1" } else { "guest" };
    let Some(of_l2) = of_l2 else {
        let what = format!("exits of L1: {}", of_l1.what);
        table.add(0, &what, |d| own(d, of_l1), Some(model(innermost, of_l1.reasons)));
        if shadows[0] {
            let predicted = Some(model(innermost, &["control_register"]));
            let what = "exits of L1: loads of a page table";
            table.add(0, what, |d| d.of(named(|c| &c.exits, loads)), predicted);
        }
        return;
    };
    let what = format!("exits of L2: {}", of_l2.what);
    let counted = |d: &Difference<'_>| without(nested(d, of_l2.name), of_devices(d, 1));
    table.add(0, &what, counted, Some(model("guest", of_l2.reasons)));
    let mut for_memory = vec![of_l2.name];
    if shadows[1] {
        let predicted = Some(model("guest", &["control_register"]));
        table.add(0, "exits of L2: loads of a page table", |d| nested(d, loads), predicted);
        for_memory.push(loads);
    }
    let handed_on = |d: &Difference<'_>| {
        let all = for_memory.iter().map(|name| d.of(named(|c| &c.reflected_exits, name))).sum();
        without(all, of_devices(d, 1))
    };
    table.add(0, "  of them handed on to L1", handed_on, Some(model("guest", &["handed_on"])));
    let what = format!("exits of L1: {}", of_l1.what);
    table.add(0, &what, |d| own(d, of_l1), Some(model("l1", of_l1.reasons)));
    let Instructions { entry, script, flush } = if amd { SVM } else { VMX };
    let entries = |d: &Difference<'_>| d.of(named(|c| &c.exits, entry.0));
    // Every exit that is handed on ends in one.
    let for_others = |d: &Difference<'_>| {
        let handed_on_in_all = d.of(|counters| counters.reflected_exits.values().sum());
        without(handed_on_in_all, handed_on(d))
    };
    let what = format!("exits of L1: {} after them", entry.0);
    let entered = model("l1", &[entry.1]);
    table.add(0, &what, |d| without(entries(d), for_others(d)), Some(entered));
    let in_100 = |of: u64, entries: u64| (of * 100).checked_div(entries).unwrap_or(0);
    // KVM saves its own state once more where it takes up its guest after another program ran: when that is, the
    // clock decides.
    let taken_up = |d: &Difference<'_>| {
        if amd { Difference(d.0, 1).of(|counters| counters.kvm("host_state_reload")) } else { 0 }
    };
    for (name, reason) in script {
        let what = format!("exits of L1: {name} for 100 {}", entry.0);
        let counted = |d: &Difference<'_>| {
            let others = if *name == "VMSAVE" { taken_up(d) } else { 0 };
            in_100(without(d.of(named(|c| &c.exits, name)), others), entries(d))
        };
        // Where L1 enters nothing, there is nothing to say of what comes with it.
        let predicted = (entered > 0).then(|| in_100(model("l1", &[reason]), entered));
        table.add(0, &what, counted, predicted);
    }
    let counted = |d: &Difference<'_>| d.of(named(|c| &c.exits, flush));
    table.add(0, &format!("exits of L1: {flush}"), counted, Some(model("l1", &["invalidation"])));
    let ours: Vec<&str> = [of_l1.name, of_l2.name, entry.0, flush]
        .into_iter()
        .chain(script.iter().map(|(name, _)| *name))
        .collect();
    let others = |d: &Difference<'_>| {
        let rest = d.of(|counters| {
            let rest = counters.exits.iter().filter(|(name, _)| !ours.contains(&name.as_str()));
            rest.map(|(_, count)| count).sum()
        });
        let told = if shadows[1] { nested(d, loads) } else { 0 };
        without(rest, told) + of_devices(d, 0) + of_devices(d, 1) + taken_up(d)
    };
    table.add(0, "other exits: timers, devices, MSRs", others, None);
}

struct Rows<'a> {
    reports: &'a [LabReport],
    rows: Vec<Row>,
}

impl Rows<'_> {
    fn add(
        &mut self,
        layer: usize,
        what: &str,
        count: impl Fn(&Difference<'_>) -> u64,
        predicted: Option<u64>,
    ) {
        let counted = |report: &LabReport| {
            let counted = report.counted.as_ref();
            counted.map_or(0, |counted| count(&Difference(&counted.readings, layer)))
        };
        self.add_of_report(layer, what, counted, predicted);
    }

    fn add_of_report(
        &mut self,
        layer: usize,
        what: &str,
        count: impl Fn(&LabReport) -> u64,
        predicted: Option<u64>,
    ) {
        let counts: Vec<u64> = self.reports.iter().map(count).collect();
        let end = |of: fn(u64, u64) -> u64| counts.iter().copied().reduce(of).unwrap_or(0);
        let measured = [end(u64::min), end(u64::max)];
        if measured == [0, 0] && predicted.unwrap_or(0) == 0 {
            return;
        }
        self.rows.push(Row {
            layer: format!("L{layer}"),
            what: what.to_owned(),
            measured,
            steady: is_steady(&counts, measured),
            predicted,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(measured: [u64; 2], predicted: Option<u64>) -> Row {
        Row { layer: "L0".into(), what: "exits".into(), measured, steady: false, predicted }
    }

    #[test]
    fn counts_are_alike_within_a_tenth_of_the_nearer_end_or_a_handful() {
        for (measured, predicted, alike) in [
            ([1000, 1000], 1100, true),
            ([1000, 1000], 1101, false),
            ([1000, 1000], 899, false),
            ([1000, 2000], 1500, true),
            ([1000, 2000], 2200, true),
            ([1000, 2000], 2201, false),
            ([0, 0], 8, true),
            ([0, 0], 9, false),
        ] {
            let row = row(measured, Some(predicted));
            assert_eq!(row.is_alike(), Some(alike), "{row:?}");
        }
        assert_eq!(row([1, 1], None).is_alike(), None);
    }

    #[test]
    fn what_every_run_counts_is_to_be_predicted_twice_as_near() {
        assert!(is_steady(&[1000, 995, 990], [990, 1000]));
        assert!(!is_steady(&[1000, 989], [989, 1000]));
        assert!(!is_steady(&[1000], [1000, 1000]), "one run says nothing of others");
        for (predicted, alike) in [(1050, true), (1051, false), (950, true), (949, false)] {
            let row = Row { steady: true, ..row([1000, 1000], Some(predicted)) };
            assert_eq!(row.is_alike(), Some(alike), "{row:?}");
        }
    }

    #[test]
    fn a_ratio_is_to_the_nearer_end() {
        assert_eq!(row([100, 200], Some(150)).ratio(), Some(1.0));
        assert_eq!(row([100, 200], Some(50)).ratio(), Some(0.5));
        assert_eq!(row([100, 200], Some(300)).ratio(), Some(1.5));
        assert_eq!(row([0, 0], Some(3)).ratio(), None);
        assert_eq!(row([1, 1], None).ratio(), None);
    }
}
