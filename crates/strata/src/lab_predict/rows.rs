//! What the lab and the model count of the same thing.

use serde::Serialize;
use std::collections::BTreeMap;
use strata_engine::RunResult;
use strata_engine::report::{EntryCounts, LayerMemory};
use strata_lab::{Counters, LabReport, Readings};

/// A thing that both count.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The layer that it happens in, or to.
    pub layer: String,
    /// What it is.
    pub what: String,
    /// Least and most that the lab counted, in all runs.
    pub measured: [u64; 2],
    /// What the model says; `null` where it says nothing.
    pub predicted: Option<u64>,
}

/// How far apart two counts may be that are called alike: 10 %, or a handful.
const ALIKE: f64 = 0.1;
const HANDFUL: u64 = 8;

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
        Some(apart <= HANDFUL || apart as f64 <= ALIKE * nearest as f64)
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
pub fn rows(reports: &[LabReport], run: &RunResult) -> Vec<Row> {
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
        exits(&mut table, run, layers);
        for layer in (0..innermost).rev() {
            let kept = |pick: fn(&LayerMemory) -> u64| memory(name(layer)).map(pick);
            let base = kept(|memory| grown(memory, |entries| entries.base));
            table.add(layer, "4 KiB entries added", |d| d.of(|c| c.kvm("pages_4k")), base);
            let huge = kept(|memory| grown(memory, |entries| entries.huge));
            table.add(layer, "2 MiB entries added", |d| d.of(|c| c.kvm("pages_2m")), huge);
        }
        let huge =
            |report: &LabReport| report.alignment.as_ref().map_or(0, |found| found.totals.huge);
        table.add_of_report(innermost, "huge pages", huge, Some(run.alignment.guest_huge));
        let aligned = |report: &LabReport| {
            report.alignment.as_ref().map_or(0, |found| found.totals.well_aligned)
        };
        table.add_of_report(innermost, "well aligned", aligned, Some(run.alignment.well_aligned));
    }
    table.rows
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

/// Exits that L0 took, by whose they are and by reason. Accesses to devices are violations, too, of memory that no
/// hypervisor backs; they are in none of these.
fn exits(table: &mut Rows<'_>, run: &RunResult, layers: usize) {
    let model = |layer: &str, reason: &str| {
        let of_layer = run.exits_by_layer.iter().find(|exits| exits.layer == layer);
        of_layer.and_then(|exits| exits.exits.get(reason)).copied().unwrap_or(0)
    };
    let amd = reports_amd(table.reports);
    let violation = if amd { "NPF" } else { "EPT_VIOLATION" };
    let of_devices = move |d: &Difference<'_>, layer: usize| {
        let there = Difference(d.0, layer);
        let violations = there.of(named(|c| &c.exits, violation));
        violations.saturating_sub(there.of(|c| c.kvm("pf_taken")))
    };
    let all = move |d: &Difference<'_>| d.of(named(|c| &c.exits, violation)) - of_devices(d, 0);
    let of_l2 = model("guest", "second_stage_violation");
    if layers == 2 {
        return table.add(0, "exits of L1: second-stage violations", all, Some(of_l2));
    }
    let nested = move |d: &Difference<'_>| d.of(named(|c| &c.nested_exits, violation));
    let reflected = move |d: &Difference<'_>| d.of(named(|c| &c.reflected_exits, violation));
    let without = |of: u64, devices: u64| of.saturating_sub(devices);
    let what = "exits of L2: second-stage violations";
    table.add(0, what, |d| without(nested(d), of_devices(d, 1)), Some(of_l2));
    let handed_on = move |d: &Difference<'_>| without(reflected(d), of_devices(d, 1));
    table.add(0, "  of them handed on to L1", handed_on, Some(model("guest", "handed_on")));
    let of_l1 = model("l1", "second_stage_violation") + model("l1", "second_stage_write");
    let what = "exits of L1: second-stage violations";
    table.add(0, what, |d| without(all(d), nested(d)), Some(of_l1));
    let Instructions { entry, script, flush } = if amd { SVM } else { VMX };
    let entries = |d: &Difference<'_>| d.of(named(|c| &c.exits, entry.0));
    // Every exit that is handed on ends in one.
    let for_others = |d: &Difference<'_>| {
        let handed_on_in_all = d.of(|counters| counters.reflected_exits.values().sum());
        without(handed_on_in_all, handed_on(d))
    };
    let what = format!("exits of L1: {} after them", entry.0);
    let entered = model("l1", entry.1);
    table.add(0, &what, |d| without(entries(d), for_others(d)), Some(entered));
    let in_100 = |of: u64, entries: u64| (of * 100).checked_div(entries).unwrap_or(0);
    // KVM saves its own state once more where it takes up its guest after another program ran: when that is, the
    // clock decides.
    let taken_up = move |d: &Difference<'_>| {
        if amd { Difference(d.0, 1).of(|counters| counters.kvm("host_state_reload")) } else { 0 }
    };
    for (name, reason) in script {
        let what = format!("exits of L1: {name} for 100 {}", entry.0);
        let counted = |d: &Difference<'_>| {
            let others = if *name == "VMSAVE" { taken_up(d) } else { 0 };
            in_100(without(d.of(named(|c| &c.exits, name)), others), entries(d))
        };
        table.add(0, &what, counted, Some(in_100(model("l1", reason), entered)));
    }
    let counted = |d: &Difference<'_>| d.of(named(|c| &c.exits, flush));
    table.add(0, &format!("exits of L1: {flush}"), counted, Some(model("l1", "invalidation")));
    let ours: Vec<&str> = [violation, entry.0, flush]
        .into_iter()
        .chain(script.iter().map(|(name, _)| *name))
        .collect();
    let others = |d: &Difference<'_>| {
        d.of(|counters| {
            let rest = counters.exits.iter().filter(|(name, _)| !ours.contains(&name.as_str()));
            rest.map(|(_, count)| count).sum()
        }) + of_devices(d, 0)
            + of_devices(d, 1)
            + taken_up(d)
    };
    table.add(0, "other exits: timers, devices, MSRs", others, None);
}

fn reports_amd(reports: &[LabReport]) -> bool {
    reports[0].machine.make == strata_lab::Make::Amd
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
        let counts = || self.reports.iter().map(&count);
        let measured = [counts().min().unwrap_or(0), counts().max().unwrap_or(0)];
        if measured == [0, 0] && predicted.unwrap_or(0) == 0 {
            return;
        }
        self.rows.push(Row {
            layer: format!("L{layer}"),
            what: what.to_owned(),
            measured,
            predicted,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(measured: [u64; 2], predicted: Option<u64>) -> Row {
        Row { layer: "L0".into(), what: "exits".into(), measured, predicted }
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
    fn a_ratio_is_to_the_nearer_end() {
        assert_eq!(row([100, 200], Some(150)).ratio(), Some(1.0));
        assert_eq!(row([100, 200], Some(50)).ratio(), Some(0.5));
        assert_eq!(row([100, 200], Some(300)).ratio(), Some(1.5));
        assert_eq!(row([0, 0], Some(3)).ratio(), None);
        assert_eq!(row([1, 1], None).ratio(), None);
    }
}
