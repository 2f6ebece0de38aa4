//! Messages: what happens besides accesses.

use super::{Capture, add};
use std::collections::BTreeSet;
use strata_addr::{Range, space::Virtual};
use strata_stream::{Backing, Batch, Edge, Event, Pid, Protection, Shown};
use strata_wire::{Cut, Message};
use strata_workloads::tell_touched;

impl Capture {
    pub(super) fn message(&mut self, message: Message, sender: Pid, batch: &mut Batch) {
        match message {
            Message::Event(event) => self.event(event, batch),
            Message::Runs { pid, process } => {
                // The parent's word counts more than the child's own: in a PID namespace a process
                // does not know its number outside.
                if let Some(known) = self.processes.get(pid)
                    && (sender != pid || known.identity.is_none())
                {
                    known.identity = Some(process);
                }
            }
            Message::Exec { pid, image } => {
                self.abandoned(|owner| owner.pid == pid && owner.image < image, batch);
                if let Some(process) = self.processes.get(pid) {
                    process.image = image;
                    process.vmas = Default::default();
                    process.fetched = Default::default();
                    let event = Event::Exec { pid };
                    if let Some(touches) = &mut self.touches {
                        touches.event(&event, &mut |told| {
                            tell_touched(told, &mut self.chooser, batch)
                        });
                    }
                    batch.event(event);
                }
            }
            Message::Cut(cut) => self.cut(&cut, sender, batch),
            Message::Grow { pid, range } => {
                let Some(process) = self.processes.get(pid) else { return };
                let (backing, protection) = process
                    .vmas
                    .before(range.start)
                    .unwrap_or((Backing::Anonymous, Protection::READ_WRITE));
                self.event(Event::Map { pid, range, backing, protection, fixed: false }, batch);
            }
            Message::Shown { pid, range, shown } => self.shown(pid, range, shown, batch),
            Message::Blocks { intervals, counts } => self.count(intervals, &counts),
            Message::LastWord { pid } => {
                if let Some(process) = self.processes.get(pid) {
                    process.has_last_word = true;
                }
                self.leaves(pid);
            }
            Message::Leaves { pid } => self.leaves(pid),
            Message::Note(note) => add(note, &mut self.notes),
            Message::Warning(warning) => add(warning, &mut self.warnings),
        }
    }

    pub(super) fn event(&mut self, event: Event, batch: &mut Batch) {
        match event {
            Event::Fetched { pid, range } => {
                let Some(process) = self.processes.get(pid) else { return };
                let news = process.fetched.add(range).into_iter();
                return news.for_each(|range| batch.event(Event::Fetched { pid, range }));
            }
            Event::Sampling(edge) => {
                let due = self.edges.as_mut().map_or(vec![edge], |edges| edges.told(edge));
                return due.into_iter().for_each(|edge| self.edge(edge, batch));
            }
            _ => {}
        }
        match event {
            Event::ProcessStart { pid } => {
                self.begun = true;
                self.processes.start(pid);
            }
            Event::Fork { parent, child } => self.processes.fork(parent, child),
            Event::ProcessExit { pid } if !self.processes.end(pid) => return,
            Event::Map { pid, range, backing, protection, .. } => match self.processes.get(pid) {
                Some(process) => {
                    process.vmas.map(range, backing, protection);
                    process.fetched.remove(range);
                }
                None => return,
            },
            Event::Unmap { pid, range } => match self.processes.get(pid) {
                Some(process) => {
                    process.vmas.unmap(range);
                    process.fetched.remove(range);
                }
                None => return,
            },
            Event::Remap { pid, from, to } => match self.processes.get(pid) {
                Some(process) => {
                    process.vmas.remap(from, to);
                    process.fetched.remove(from);
                    process.fetched.remove(to);
                }
                None => return,
            },
            Event::Protect { pid, range, protection } => match self.processes.get(pid) {
                Some(process) => process.vmas.protect(range, protection),
                None => return,
            },
            _ => {}
        }
        if let Some(touches) = &mut self.touches {
            touches.event(&event, &mut |told| tell_touched(told, &mut self.chooser, batch));
        }
        self.chooser.iter_mut().for_each(|chooser| chooser.event(&event));
        batch.event(event);
    }

    /// The stream goes from one part to the next.
    fn edge(&mut self, edge: Edge, batch: &mut Batch) {
        self.in_gap = matches!(edge, Edge::Interval | Edge::Gap);
        if self.in_gap {
            self.first = Some(None);
        }
        batch.event(Event::Sampling(edge));
        if let Some(chooser) = &mut self.chooser {
            chooser.told(edge).into_iter().for_each(|event| batch.event(event));
            if let Some(placed) = chooser.edge(edge) {
                self.wire.place(placed);
            }
        }
        if let (true, Some(touches)) = (self.in_gap, &mut self.touches) {
            touches.tell_begun(&mut |told| tell_touched(told, &mut self.chooser, batch));
        }
    }

    /// Intervals are over in which so much was counted, the same in each as far as is known.
    fn count(&mut self, intervals: u64, counts: &[(usize, u64)]) {
        let Some(profile) = &mut self.profile else { return };
        for part in 0..intervals {
            let share = |count: u64| count * (part + 1) / intervals - count * part / intervals;
            profile.push(counts.iter().map(|(bucket, count)| (*bucket, share(*count))));
        }
    }

    /// A process is about to give up its memory.
    fn leaves(&mut self, pid: Pid) {
        if let Some(touches) = &mut self.touches {
            touches.leave(pid);
        }
    }

    /// Page tables show pages of a process.
    fn shown(&mut self, pid: Pid, range: Range<Virtual>, shown: Shown, batch: &mut Batch) {
        if shown.own && shown.faults.is_none() && self.unheard.is_none() {
            self.unheard = Some(self.ended_before());
        }
        let (Some(process), Some(touches)) = (self.processes.get(pid), &mut self.touches) else {
            return;
        };
        for data in process.vmas.data_in(range) {
            touches.shown(pid, data, shown, self.unheard.as_deref().unwrap_or_default());
        }
        touches.tell(None, &mut |told| tell_touched(told, &mut self.chooser, batch));
    }

    /// Processes that have ended without a word, before what is delivered now was seen or soon after. What is in
    /// line was handed over later: who handed over any of it lived then.
    fn ended_before(&mut self) -> Vec<Pid> {
        let mut ended = self.processes.silently_ended();
        if !ended.is_empty() {
            // They hand over no more, so that all of theirs is in line.
            self.wire.drain(&mut self.drain);
            let later: BTreeSet<Pid> =
                self.drain.slots().map(|index| self.wire.slot(index).owner().pid).collect();
            ended.retain(|pid| !later.contains(pid));
        }
        ended
    }

    /// A sibling of the sender had come this far when what follows happened.
    fn cut(&mut self, cut: &Cut, sender: Pid, batch: &mut Batch) {
        if self.wire.is_current(cut) && self.wire.slot(cut.slot).owner().pid == sender {
            self.accesses(cut.slot, Some(cut), batch);
        }
    }
}
