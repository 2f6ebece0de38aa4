//! Slots: what threads did to memory, as far as it was not delivered.

use super::{Capture, Progress, add};
use crate::vmas::page_of;
use strata_stream::{Access, Backing, Batch, Event, Pid, Protection, Tid};
use strata_wire::{Cut, SlotIndex, decode};

/// What is said where threads run beside each other in a window.
const BESIDE: &str = "threads or processes ran beside each other: between windows they run at other speeds than in them, \
                      so what waits for others may be seen too often or too seldom, and no bounds tell of that";

impl Capture {
    /// Puts a committed slot into the batch and gives it back to the producers.
    pub(super) fn deliver(&mut self, index: SlotIndex, batch: &mut Batch) {
        self.accesses(index, None, batch);
        self.unheard = None;
        let wire = self.wire.clone();
        let pid = wire.slot(index).owner().pid;
        let mut words = wire.slot(index).messages();
        while let Some((message, rest)) = decode(words) {
            words = rest;
            self.message(message, pid, batch);
        }
        wire.release(index);
    }

    /// Puts the accesses of a slot into the batch that were not yet, up to where a cut is, if there is one.
    pub(super) fn accesses(&mut self, index: SlotIndex, cut: Option<&Cut>, batch: &mut Batch) {
        let wire = self.wire.clone();
        let slot = wire.slot(index);
        let (taking, at) = (slot.taking(), index as usize);
        if at >= self.progress.len() {
            self.progress.resize(at + 1, Progress::default());
        }
        let accesses = slot.accesses();
        let (end, instructions) = match cut {
            // What the thread has done meanwhile comes later.
            Some(cut) => (cut.accesses as usize, cut.instructions),
            None => (accesses.len(), slot.instructions()),
        };
        let before = match self.progress[at] {
            progress if progress.taking == taking => progress,
            _ => Progress::default(),
        };
        let end = end.min(accesses.len()).max(before.accesses);
        let instructions = instructions.max(before.instructions);
        self.progress[at] = Progress { taking, accesses: end, instructions };
        let owner = slot.owner();
        if owner.in_gap {
            // The few accesses in it are of blocks that were running when the gap began.
            let instructions = instructions - before.instructions;
            if instructions > 0 && self.processes.get(owner.pid).is_some() {
                batch.event(Event::Skipped { tid: owner.tid, instructions });
            }
            return;
        }
        let piece = &accesses[before.accesses..end];
        if !piece.is_empty() {
            self.saw(owner.tid);
        }
        self.run(owner.pid, owner.tid, instructions - before.instructions, piece, batch);
    }

    /// A thread was seen to access memory.
    fn saw(&mut self, tid: Tid) {
        let Some(first) = &mut self.first else { return };
        if *first.get_or_insert(tid) != tid {
            add(BESIDE.to_owned(), &mut self.notes);
        }
    }

    /// Adds a run, with mappings inferred where accesses fall outside all known ones.
    fn run(&mut self, pid: Pid, tid: Tid, instructions: u64, words: &[u64], batch: &mut Batch) {
        let Some(process) = self.processes.get(pid) else {
            self.stray += words.len() as u64;
            return;
        };
        let mut instructions = instructions;
        let mut rest = words;
        loop {
            let vmas = &mut process.vmas;
            let mut outside = None;
            let mut used = 0;
            batch.run(tid, instructions, |out| {
                let from = out.len();
                out.extend(rest.iter().map(|&word| Access::from_bits(word)));
                used = rest.len();
                if let Some(index) = vmas.first_outside(&out[from..]) {
                    outside = Some(out[from + index].addr());
                    out.truncate(from + index);
                    used = index;
                }
            });
            if let Some(touches) = &mut self.touches {
                let all = batch.accesses();
                touches.run(tid, &all[all.len() - used..], false);
            }
            if let Some(chooser) = &mut self.chooser {
                let all = batch.accesses();
                chooser.run(pid, tid, instructions, &all[all.len() - used..]);
            }
            let Some(at) = outside else { return };
            instructions = 0;
            rest = &rest[used..];
            let (range, backing) = (page_of(at), Backing::Anonymous);
            let protection = Protection::READ_WRITE;
            vmas.map(range, backing, protection);
            self.inferred += 1;
            batch.event(Event::Map { pid, range, backing, protection, fixed: false });
        }
    }
}
