//! Exits and entries of vCPUs become counts and times.
//!
//! A kernel sees these of a vCPU that runs a guest of its own, in this order: the exit; that it came from
//! the nested guest (Linux, arch/x86/kvm/trace.h, `kvm_nested_vmexit`); that the vCPU's own hypervisor is to handle it
//! (`kvm_nested_vmexit_inject`), where that is so; the entry. The hypervisor in the VM then makes exits of
//! its own, until it runs its guest again (`kvm_nested_vmenter`).

use crate::reason::Reason;
use crate::tracefs::{Event, What};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Who exited, and who handles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// The VM's own kernel, which may be a hypervisor itself.
    Guest,
    /// A guest of the VM's; the hypervisor here handles it.
    NestedHere,
    /// A guest of the VM's; it is handed on to the VM's own hypervisor.
    NestedHandedOn,
}

/// Exits of one level and reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// How many.
    pub exits: u64,
    /// Nanoseconds from the exits to the next entry: what the hypervisor here, its VMM and whoever had
    /// the processor meanwhile took.
    pub nanoseconds: u64,
    /// Of what was handed on: nanoseconds from then until the nested guest is run again.
    pub until_nested: u64,
}

/// What a vCPU did.
#[derive(Clone, Debug, Default)]
pub struct Vcpu {
    open: Option<Open>,
    /// A nested guest waits for the VM's own hypervisor, for this reason since then.
    waits: Option<(Reason, u64)>,
    /// By level and reason.
    pub counted: BTreeMap<(Level, Reason), Counted>,
    /// Times that it ran a guest of its own.
    pub nested_entries: u64,
}

/// An exit whose entry is to come.
#[derive(Clone, Copy, Debug)]
struct Open {
    time: u64,
    reason: Reason,
    nested: bool,
    handed_on: bool,
}

impl Open {
    fn level(self) -> Level {
        match (self.nested, self.handed_on) {
            (false, _) => Level::Guest,
            (true, false) => Level::NestedHere,
            (true, true) => Level::NestedHandedOn,
        }
    }
}

impl Vcpu {
    /// What happened next.
    pub fn note(&mut self, time: u64, what: What) {
        match what {
            What::Exit(reason) => {
                // The entry of one before was lost: its time is not known.
                if let Some(lost) = self.open.take() {
                    self.count(lost, lost.time);
                }
                self.open = Some(Open { time, reason, nested: false, handed_on: false });
            }
            What::Entry => {
                if let Some(open) = self.open.take() {
                    self.count(open, time);
                }
            }
            What::FromNested => {
                if let Some(open) = &mut self.open {
                    open.nested = true;
                }
            }
            What::HandedOn => {
                if let Some(open) = &mut self.open {
                    open.handed_on = true;
                    self.waits = Some((open.reason, time));
                }
            }
            What::ToNested => {
                self.nested_entries += 1;
                if let Some((reason, since)) = self.waits.take() {
                    let counted = self.counted.entry((Level::NestedHandedOn, reason)).or_default();
                    counted.until_nested += time.saturating_sub(since);
                }
            }
        }
    }

    fn count(&mut self, open: Open, end: u64) {
        let counted = self.counted.entry((open.level(), open.reason)).or_default();
        counted.exits += 1;
        counted.nanoseconds += end.saturating_sub(open.time);
    }

    /// What was counted up to now, which is then counted anew: a vCPU that is in an exit has it counted
    /// with its time so far, the rest of which comes later.
    fn take(&mut self, now: u64) -> Self {
        let mut taken = Self { open: None, waits: None, ..self.clone() };
        (self.counted, self.nested_entries) = (BTreeMap::new(), 0);
        if let Some(open) = &mut self.open {
            let counted = taken.counted.entry((open.level(), open.reason)).or_default();
            counted.nanoseconds += now.saturating_sub(open.time);
            open.time = open.time.max(now);
        }
        taken
    }
}

/// All vCPUs, by their threads.
#[derive(Clone, Debug, Default)]
pub struct Account {
    vcpus: FxHashMap<u32, Vcpu>,
    /// Events that are not older than all that may still come.
    pending: Vec<Event>,
}

impl Account {
    /// Counts `events`, in any order, as far as they are older than `complete`, in nanoseconds: all that
    /// is older must be known. The others are kept.
    pub fn note(&mut self, events: &mut Vec<Event>, complete: u64) {
        self.pending.append(events);
        self.pending.sort_by_key(|event| event.time);
        let ready = self.pending.partition_point(|event| event.time < complete);
        for event in self.pending.drain(..ready) {
            self.vcpus.entry(event.thread).or_default().note(event.time, event.what);
        }
    }

    /// What was counted of each vCPU since the last time, by thread; `now` in nanoseconds.
    pub fn take(&mut self, now: u64) -> BTreeMap<u32, Vcpu> {
        self.vcpus.iter_mut().map(|(thread, vcpu)| (*thread, vcpu.take(now))).collect()
    }

    /// A thread has ended.
    pub fn forget(&mut self, thread: u32) {
        self.vcpus.remove(&thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::Isa;
    use proptest::prelude::*;

    const VIOLATION: Reason = Reason { isa: Isa::Vmx, code: 48 };
    const READ: Reason = Reason { isa: Isa::Vmx, code: 23 };
    const RESUME: Reason = Reason { isa: Isa::Vmx, code: 24 };
    const HALT: Reason = Reason { isa: Isa::Vmx, code: 12 };

    fn of(vcpu: &Vcpu, level: Level, reason: Reason) -> (u64, u64, u64) {
        let counted = vcpu.counted.get(&(level, reason)).copied().unwrap_or_default();
        (counted.exits, counted.nanoseconds, counted.until_nested)
    }

    /// A violation of the nested guest that its hypervisor handles with a VMREAD, as the kernel below
    /// both sees it.
    #[test]
    fn an_exit_that_is_handed_on_costs_what_follows_from_it() {
        let mut vcpu = Vcpu::default();
        let sequence = [
            (100, What::Exit(VIOLATION)),
            (101, What::FromNested),
            (103, What::HandedOn),
            (110, What::Entry),
            (150, What::Exit(READ)),
            (153, What::Entry),
            (200, What::Exit(RESUME)),
            (203, What::ToNested),
            (210, What::Entry),
            (300, What::Exit(VIOLATION)),
            (301, What::FromNested),
            (320, What::Entry),
        ];
        sequence.into_iter().for_each(|(time, what)| vcpu.note(time, what));
        assert_eq!(of(&vcpu, Level::NestedHandedOn, VIOLATION), (1, 10, 100));
        assert_eq!(of(&vcpu, Level::NestedHere, VIOLATION), (1, 20, 0));
        assert_eq!(of(&vcpu, Level::Guest, READ), (1, 3, 0));
        assert_eq!(of(&vcpu, Level::Guest, RESUME), (1, 10, 0));
        assert_eq!((vcpu.counted.len(), vcpu.nested_entries), (4, 1));
    }

    /// A vCPU that sleeps through an interval shows its sleep in each of them, and one exit.
    #[test]
    fn an_exit_over_several_intervals_is_one_exit() {
        let mut account = Account::default();
        let event = |time, what| Event { time, thread: 7, what };
        account.note(&mut vec![event(10, What::Exit(HALT))], 100);
        let first = account.take(100);
        assert_eq!(of(&first[&7], Level::Guest, HALT), (0, 90, 0));
        let second = account.take(200);
        assert_eq!(of(&second[&7], Level::Guest, HALT), (0, 100, 0));
        account.note(&mut vec![event(230, What::Entry)], 300);
        let third = account.take(300);
        assert_eq!(of(&third[&7], Level::Guest, HALT), (1, 30, 0));
    }

    #[test]
    fn what_was_lost_makes_no_time() {
        let mut vcpu = Vcpu::default();
        vcpu.note(5, What::Entry);
        vcpu.note(10, What::Exit(HALT));
        vcpu.note(1_000, What::Exit(READ));
        vcpu.note(1_002, What::Entry);
        assert_eq!(of(&vcpu, Level::Guest, HALT), (1, 0, 0));
        assert_eq!(of(&vcpu, Level::Guest, READ), (1, 2, 0));
    }

    proptest! {
        /// Whatever order the processors' buffers are read in, and however often, sums are the same.
        #[test]
        fn the_order_of_reading_changes_nothing(
            steps in prop::collection::vec((0u32..3, 0usize..3, 1u64..50), 1..80),
            cuts in prop::collection::vec(0usize..80, 0..4),
        ) {
            let kinds = [What::Exit(HALT), What::Entry, What::Exit(READ)];
            let mut time = 0;
            let events: Vec<Event> = steps.iter().map(|(thread, what, delta)| {
                time += delta;
                Event { time, thread: *thread, what: kinds[*what] }
            }).collect();
            let end = time + 1;
            let mut whole = Account::default();
            whole.note(&mut events.clone(), end);
            let mut parts = Account::default();
            let mut cuts = cuts.iter().map(|cut| cut % events.len()).collect::<Vec<_>>();
            cuts.sort_unstable();
            let mut from = 0;
            for cut in cuts.into_iter().chain([events.len()]) {
                let mut part: Vec<Event> = events[from..cut].iter().rev().copied().collect();
                // What comes may be as old as the first that was not read.
                parts.note(&mut part, events.get(cut).map_or(end, |event| event.time));
                from = cut;
            }
            let sums = |account: &mut Account| -> Vec<_> {
                account.take(end).into_iter().map(|(thread, vcpu)| (thread, vcpu.counted)).collect()
            };
            prop_assert_eq!(sums(&mut whole), sums(&mut parts));
        }
    }
}
