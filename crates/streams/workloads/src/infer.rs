//! Mappings for traces that have none.
//!
//! ChampSim and lackey record accesses only. The model needs mappings, as huge pages are made
//! within them. What is inferred: one process, and private anonymous read-write memory wherever
//! the trace touches, in units of 2 MiB. The first access to an unknown unit emits a
//! [`Event::Map`] of that unit before it. Neighbouring units are alike, so a kernel merges them
//! into one mapping. Two things differ from the real program: a small mapping counts as a whole
//! unit, so slightly more memory may become huge than could have; and nothing is ever unmapped.

use rustc_hash::FxHashSet;
use strata_addr::{Gva, PageSize, Range};
use strata_stream::{Access, AccessKind, Backing, Batch, Event, Pid, Protection, Tid};

/// First address that no Linux program has without asking for it: the end of the user half with
/// 4-level paging (Documentation/arch/x86/x86_64/mm.rst).
const USER_END: u64 = 1 << 47;

/// Units remembered in front of the set.
const RECENT: usize = 64;

/// A trace of one process and one thread whose mappings are inferred.
#[derive(Debug)]
pub struct Inferred {
    recent: [u64; RECENT],
    mapped: FxHashSet<u64>,
    started: bool,
    /// Instructions since the last access.
    instructions: u64,
    accesses: u64,
    outside: u64,
}

impl Default for Inferred {
    fn default() -> Self {
        Self {
            recent: [u64::MAX; RECENT],
            mapped: FxHashSet::default(),
            started: false,
            instructions: 0,
            accesses: 0,
            outside: 0,
        }
    }
}

const PID: Pid = Pid(0);
const TID: Tid = Tid(0);

impl Inferred {
    /// Begins the process, the first time it is called.
    pub fn start(&mut self, batch: &mut Batch) {
        if !std::mem::replace(&mut self.started, true) {
            batch.event(Event::ProcessStart { pid: PID });
            batch.event(Event::ThreadStart { pid: PID, tid: TID });
        }
    }

    /// An instruction that has been executed; its accesses follow.
    #[inline]
    pub fn instruction(&mut self) {
        self.instructions += 1;
    }

    /// An access of `size` bytes, with a mapping if it is the first to its place. Kernel and
    /// non-canonical addresses are left out and counted.
    #[inline]
    pub fn access(&mut self, batch: &mut Batch, kind: AccessKind, addr: u64, size: u32) {
        let access = Access::new(kind, Gva::new(addr), size);
        let last = addr.saturating_add(u64::from(access.size() - 1));
        if last >= USER_END {
            self.outside += 1;
            return;
        }
        self.touch(batch, addr);
        self.touch(batch, last);
        batch.access(TID, access, std::mem::take(&mut self.instructions));
        self.accesses += 1;
    }

    #[inline]
    fn touch(&mut self, batch: &mut Batch, addr: u64) {
        let unit = addr >> PageSize::Huge.shift();
        let recent = &mut self.recent[unit as usize % RECENT];
        if *recent != unit {
            *recent = unit;
            if self.mapped.insert(unit) {
                let start = Gva::new(addr).floor(PageSize::Huge);
                batch.event(Event::Map {
                    pid: PID,
                    range: Range::sized(start, PageSize::Huge.bytes()),
                    backing: Backing::Anonymous,
                    protection: Protection::READ_WRITE,
                    fixed: false,
                });
            }
        }
    }

    /// Adds the instructions after the last access.
    pub fn end(&mut self, batch: &mut Batch) {
        batch.run(TID, std::mem::take(&mut self.instructions), |_| ());
    }

    /// Accesses so far.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// What a reader of results must know.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "the trace holds no mappings: every 2 MiB touched counts as private anonymous memory \
             of one process, never unmapped"
                .to_owned(),
        ];
        if self.outside > 0 {
            notes.push(format!(
                "{} accesses to kernel or non-canonical addresses were left out",
                self.outside
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strata_stream::Step;

    proptest! {
        #[test]
        fn every_access_lies_in_mappings_and_none_is_mapped_twice(
            accesses in prop::collection::vec((any::<u64>(), 0u32..64, 1u32..65), 0..200),
        ) {
            let mut inferred = Inferred::default();
            let mut batch = Batch::new();
            inferred.start(&mut batch);
            for (addr, shift, size) in &accesses {
                inferred.instruction();
                inferred.access(&mut batch, AccessKind::Store, addr >> shift, *size);
            }
            inferred.end(&mut batch);
            let mut mapped: Vec<Range<_>> = Vec::new();
            let (mut seen, mut instructions) = (0, 0);
            for step in batch.steps() {
                match step {
                    Step::Event(&Event::Map { range, .. }) => {
                        prop_assert!(mapped.iter().all(|m| m.intersection(&range).is_empty()));
                        mapped.push(range);
                    }
                    Step::Event(_) => {}
                    Step::Run { accesses, instructions: count, .. } => {
                        instructions += count;
                        for access in accesses {
                            let last = access.addr() + u64::from(access.size() - 1);
                            for addr in [access.addr(), last] {
                                prop_assert!(mapped.iter().any(|m| m.contains(addr)));
                            }
                            seen += 1;
                        }
                    }
                }
            }
            prop_assert_eq!(seen + inferred.outside, accesses.len() as u64);
            prop_assert_eq!(seen, inferred.accesses());
            prop_assert_eq!(instructions, accesses.len() as u64);
        }
    }
}
