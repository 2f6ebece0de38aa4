//! What a chore costs in real layers, by the piece.

use super::chore::Chore;
use super::count::Count;
use super::model::Predicted;
use super::reasons;
use std::collections::BTreeMap;
use strata_lab::{Counters, LabReport, Make, Readings};
use strata_nested::ExitReason;

/// A chore's two programs, as the layers counted them.
pub struct Pair<'a> {
    readings: [&'a Readings; 2],
    /// How many pieces more the second did.
    pieces: f64,
}

impl<'a> Pair<'a> {
    /// Of this chore, if both programs did it.
    pub fn of(chore: &Chore, report: &'a LabReport) -> Option<Self> {
        let [few, many] = chore.times.map(|times| {
            let id = chore.step(times);
            let mut done = report.steps.iter().filter(|step| step.status == Some(0));
            done.find(|step| step.id.as_deref() == Some(&id))?.counters.as_ref()
        });
        let pieces = (chore.times[1] - chore.times[0]) as f64 / chore.piece as f64;
        Some(Self { readings: [few?, many?], pieces })
    }

    /// What one costs of something that a layer counts.
    pub fn each(&self, layer: usize, count: impl Fn(&Counters) -> u64) -> f64 {
        let [few, many] = self.readings.map(|readings| readings.counted(layer, &count) as f64);
        (many - few).max(0.0) / self.pieces
    }

    /// Seconds of one by a layer's clock.
    pub fn seconds(&self, layer: usize) -> f64 {
        let took = |readings: &Readings| readings.after[layer].at - readings.before[layer].at;
        let [few, many] = self.readings.map(took);
        (many - few).max(0.0) / self.pieces
    }

    /// What one costs by each name in such a map of a layer's.
    fn by_name(
        &self,
        layer: usize,
        of: fn(&Counters) -> &BTreeMap<String, u64>,
    ) -> BTreeMap<&'a str, f64> {
        let names = of(&self.readings[1].after[layer]).keys();
        let each = |name: &'a String| {
            (name.as_str(), self.each(layer, |c| of(c).get(name).copied().unwrap_or(0)))
        };
        names.map(each).collect()
    }
}

/// Exits less often than this are not told: a timer's now and then.
const SELDOM: f64 = 0.005;

/// Exits of one as L0 saw them, by reason.
struct Seen<'a> {
    /// Of all VMs together.
    all: BTreeMap<&'a str, f64>,
    /// Those of L2.
    nested: BTreeMap<&'a str, f64>,
    /// Of these, the ones that L1 is told of.
    handed_on: BTreeMap<&'a str, f64>,
    /// Violations by accesses to devices, which no hypervisor backs: of L1, and of L2.
    devices: [f64; 2],
}

impl<'a> Seen<'a> {
    fn new(pair: &Pair<'a>, layers: usize, make: Make) -> Self {
        let all = pair.by_name(0, |counters| &counters.exits);
        let nested = pair.by_name(0, |counters| &counters.nested_exits);
        let handed_on = pair.by_name(0, |counters| &counters.reflected_exits);
        let violation = reasons::name(ExitReason::SecondStageViolation, make).unwrap_or_default();
        // KVM counts a violation that is a page fault of its VM's memory, and no other.
        let others = |layer: usize, violations: f64| {
            (violations - pair.each(layer, |counters| counters.kvm("pf_taken"))).max(0.0)
        };
        let of_l2 = if layers == 3 { others(1, count(&handed_on, violation)) } else { 0.0 };
        let of_l1 = others(0, count(&all, violation));
        Self { all, nested, handed_on, devices: [of_l1, of_l2] }
    }

    /// Exits of a VM for a reason, without those that are a device's.
    fn of(&self, vm: usize, name: &str) -> f64 {
        let devices = match reasons::of(name) {
            Some(ExitReason::SecondStageViolation) => self.devices[vm - 1],
            _ => 0.0,
        };
        let exits = match vm {
            1 => count(&self.all, name) - count(&self.nested, name),
            _ => count(&self.nested, name),
        };
        (exits - devices).max(0.0)
    }

    /// What L1 is told of that the model has.
    fn handed_on(&self) -> f64 {
        let ours = self.handed_on.iter().filter(|(name, _)| is_modelled(name));
        (ours.map(|(_, count)| count).sum::<f64>() - self.devices[1]).max(0.0)
    }

    /// The part of what L1 executes that goes with that.
    fn share(&self) -> f64 {
        let all: f64 = self.handed_on.values().sum();
        if all > 0.0 { self.handed_on() / all } else { 0.0 }
    }
}

fn count(exits: &BTreeMap<&str, f64>, name: &str) -> f64 {
    exits.get(name).copied().unwrap_or(0.0)
}

/// Whether the model has it, and it is no instruction of a hypervisor.
fn is_modelled(name: &str) -> bool {
    reasons::of(name).is_some_and(|reason| !reason.is_instruction())
}

/// The exits of one: of each VM, and by reason. What L1 executes is that part of all it executed which goes with
/// exits that the model has; all else is measured alone.
pub fn exits(
    pair: &Pair<'_>,
    layers: usize,
    make: Make,
    predicted: Option<&Predicted>,
) -> Vec<Count> {
    if layers < 2 {
        return Vec::new();
    }
    let seen = Seen::new(pair, layers, make);
    let mut table = Table { rows: Vec::new(), predicted };
    if layers == 3 {
        for name in seen.nested.keys().filter(|name| is_modelled(name)) {
            table.exits(2, name, seen.of(2, name));
        }
        let told = seen.handed_on();
        table.add(2, "of these handed on to L1", told, Some(ExitReason::HandedOn));
    }
    let mut told = 0.0;
    for name in seen.all.keys() {
        let own = seen.of(1, name);
        let shown = match reasons::of(name) {
            Some(reason) if reason.is_instruction() => own * seen.share(),
            Some(_) => own,
            None => continue,
        };
        table.exits(1, name, shown);
        told += shown + if layers == 3 && is_modelled(name) { seen.of(2, name) } else { 0.0 };
    }
    let rest = (seen.all.values().sum::<f64>() - told).max(0.0);
    table.add(1, &format!("timers, devices and the rest{}", rest_of(layers)), rest, None);
    table.lacking(make, layers);
    table.rows
}

/// What L1 executes for one exit of L2 that it handles, whatever that is for.
pub fn handled(pair: &Pair<'_>, make: Make, predicted: Option<&Predicted>) -> Vec<Count> {
    let seen = Seen::new(pair, 3, make);
    let all: f64 = seen.handed_on.values().sum();
    let mut table = Table { rows: Vec::new(), predicted };
    for name in seen.all.keys() {
        if all > 0.0 && reasons::of(name).is_some_and(ExitReason::is_instruction) {
            table.exits(1, name, seen.of(1, name) / all);
        }
    }
    table.rows
}

fn rest_of(layers: usize) -> &'static str {
    if layers == 3 { ", L2's too" } else { "" }
}

struct Table<'a> {
    rows: Vec<Count>,
    predicted: Option<&'a Predicted>,
}

impl Table<'_> {
    fn exits(&mut self, vm: usize, name: &str, measured: f64) {
        // Of several names for one reason, one that was seen names the row.
        if measured > 0.0 {
            self.add(vm, name, measured, reasons::of(name));
        }
    }

    fn add(&mut self, vm: usize, what: &str, measured: f64, reason: Option<ExitReason>) {
        let predicted = match (self.predicted, reason) {
            (Some(predicted), Some(reason)) => Some(predicted.exits(vm, reason)),
            _ => None,
        };
        // Names that the model does not tell apart are one row.
        let same = |row: &&mut Count| {
            row.vm == format!("L{vm}") && reason.is_some() && row.reason == reason
        };
        if let Some(row) = self.rows.iter_mut().find(same) {
            row.measured += measured;
            return;
        }
        if measured < SELDOM && predicted.unwrap_or(0.0) < SELDOM {
            return;
        }
        self.rows.push(Count {
            vm: format!("L{vm}"),
            what: what.to_owned(),
            measured,
            predicted,
            reason,
        });
    }

    /// What the model has and the layers did not see.
    fn lacking(&mut self, make: Make, layers: usize) {
        for vm in 1..layers {
            for reason in ExitReason::ALL {
                let is_told =
                    |row: &Count| row.vm == format!("L{vm}") && row.reason == Some(reason);
                if let Some(name) = reasons::name(reason, make)
                    && !self.rows.iter().any(is_told)
                {
                    self.add(vm, name, 0.0, Some(reason));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters of L0, with these exits by name: in all, of L2, and handed on to L1.
    fn counters(exits: &[(&str, [u64; 3])]) -> Counters {
        let of = |which: usize| -> BTreeMap<String, u64> {
            exits.iter().map(|(name, counts)| ((*name).to_owned(), counts[which])).collect()
        };
        Counters {
            exits: of(0),
            nested_exits: of(1),
            reflected_exits: of(2),
            ..Counters::default()
        }
    }

    fn readings(exits: &[(&str, [u64; 3])]) -> Readings {
        let none = || vec![Counters::default(); 3];
        let mut after = none();
        after[0] = counters(exits);
        Readings { idle: none(), before: none(), after }
    }

    #[test]
    fn what_the_second_program_costs_more_is_told_by_vm_and_reason() {
        let few = readings(&[("PF", [500, 400, 300]), ("VMRUN", [500, 0, 0]), ("INTR", [9, 9, 9])]);
        // A thousand pieces more: three page faults of L2 each, of which L1 sees two, and one of L1's own; and
        // a tenth as many of L2's exits that L1 sees are timers.
        let many = readings(&[
            ("PF", [4500, 3400, 2300]),
            ("VMRUN", [2700, 0, 0]),
            ("INTR", [209, 209, 209]),
        ]);
        let pair = Pair { readings: [&few, &many], pieces: 1000.0 };
        let found = exits(&pair, 3, Make::Amd, None);
        let of = |vm: &str, what: &str| {
            found.iter().find(|count| count.vm == vm && count.what == what).unwrap().measured
        };
        assert_eq!(of("L2", "PF"), 3.0);
        assert_eq!(of("L2", "of these handed on to L1"), 2.0);
        assert_eq!(of("L1", "PF"), 1.0);
        // 2.2 of them, of which 2 of 2.2 are for page faults.
        assert!((of("L1", "VMRUN") - 2.0).abs() < 1e-9);
        assert!((of("L1", "timers, devices and the rest, L2's too") - 0.4).abs() < 1e-9);
        assert!(found.iter().all(|count| count.predicted.is_none()));
        assert!(exits(&pair, 1, Make::Amd, None).is_empty());
    }

    #[test]
    fn a_row_has_the_name_of_what_was_seen() {
        let few = readings(&[]);
        // INVLPG is L2's alone, and INVVPID and VMRESUME L1's.
        let many = readings(&[
            ("EXCEPTION_NMI", [2000, 2000, 2000]),
            ("INVLPG", [3000, 3000, 3000]),
            ("INVVPID", [4000, 0, 0]),
            ("VMLAUNCH", [0, 0, 0]),
            ("VMRESUME", [5000, 0, 0]),
        ]);
        let pair = Pair { readings: [&few, &many], pieces: 1000.0 };
        let found = exits(&pair, 3, Make::Intel, None);
        let of_l1: Vec<_> = found.iter().filter(|count| count.vm == "L1").collect();
        let told: Vec<_> = of_l1.iter().map(|count| (&*count.what, count.measured)).collect();
        assert_eq!(told, [("INVVPID", 4.0), ("VMRESUME", 5.0)]);
        // All that L1 executes, over the five exits that it is handed.
        let found = handled(&pair, Make::Intel, None);
        let told: Vec<_> = found.iter().map(|count| (&*count.what, count.measured)).collect();
        assert_eq!(told, [("VMRESUME", 1.0)]);
    }

    #[test]
    fn violations_that_are_no_page_faults_of_a_vms_memory_are_devices() {
        let few = readings(&[]);
        // Of five of L2, L1 is told of four and takes three for page faults; of the two of L1, one is a device's.
        let mut many = readings(&[("NPF", [7000, 5000, 4000])]);
        let taken = |count: u64| [("pf_taken".to_owned(), count)].into();
        many.after[0].kvm = taken(6000);
        many.after[1].kvm = taken(3000);
        let pair = Pair { readings: [&few, &many], pieces: 1000.0 };
        let found = exits(&pair, 3, Make::Amd, None);
        let told: Vec<_> = found.iter().map(|count| (&*count.vm, count.measured)).collect();
        assert_eq!(told, [("L2", 4.0), ("L2", 3.0), ("L1", 1.0), ("L1", 2.0)]);
    }
}
