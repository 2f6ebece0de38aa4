//! Windows and gaps of a sampled stream: the looks at its clock, switches, and what page tables show of gaps.

use super::Process;
use crate::calls::{self, Call};
use crate::faults::{Seen, Watch};
use crate::sampling::Found;
use crate::{counting, image, sampling, switch, touched};
use std::io;
use std::sync::atomic::Ordering::*;
use std::sync::{MutexGuard, PoisonError};
use strata_addr::{Range, space::Virtual};
use strata_stream::{Edge, Event};
use strata_wire::Message;

/// Instructions that one of several threads adds at a time to the clock of a sampled stream.
const TELL: u64 = 1 << 12;

/// Bytes up to which all page-table entries of a range are looked at, mapped or not.
const DENSE: u64 = 1 << 30;

impl Process {
    /// A thread looks at the clock of a sampled stream, to which it adds instructions that are not counted
    /// inline.
    pub fn look(&self, vcpu: u32, instructions: u64) {
        if let Some(counting) = &self.counting {
            if let Some(told) = counting.look(&self.wire, instructions) {
                self.send(vcpu, &[told]);
            }
            return;
        }
        let Some(sampling) = &self.sampling else { return };
        if self.switching.load(Relaxed) {
            sampling.tell(&self.wire, instructions);
            return;
        }
        match sampling.look(&self.wire, instructions) {
            Found::Nothing => {}
            // What counts follows what warms up: nothing changes but what it is for.
            Found::Passed(Edge::Window) if !sampling::is_in_gap() => {
                self.send(vcpu, &[Message::Event(Event::Sampling(Edge::Window))]);
            }
            Found::Passed(Edge::Interval) if sampling::is_in_gap() => {
                self.send(vcpu, &[Message::Event(Event::Sampling(Edge::Interval))]);
            }
            Found::Passed(edge) => self.begin_switch(vcpu, Some(edge)),
            Found::Lags => self.begin_switch(vcpu, None),
        }
    }

    /// The same for one of several threads, which adds what it has done from time to time.
    pub fn look_as_one_of_many(&self, vcpu: u32, instructions: u64) {
        if self.slot(vcpu).is_in_gap() != sampling::is_in_gap() {
            self.notice_switch(vcpu);
        }
        let slot = self.slot(vcpu);
        let most = if self.counting.is_some() { counting::LOOK } else { TELL };
        if let Some(instructions) = slot.tell(instructions, most) {
            self.look(vcpu, instructions);
        }
    }

    fn begin_switch(&self, vcpu: u32, edge: Option<Edge>) {
        self.passed().extend(edge);
        // Whoever switches already tells of all that was passed.
        if !self.switching.swap(true, Relaxed) {
            switch::alone(vcpu as usize);
        }
    }

    fn passed(&self) -> MutexGuard<'_, Vec<Edge>> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No thread runs translated code: what was done before is handed over, and what observes changes.
    pub fn switch(&self, vcpu: usize) {
        let vcpu = vcpu as u32;
        self.switching.store(false, Relaxed);
        let edges = std::mem::take(&mut *self.passed());
        let in_gap =
            self.sampling.as_ref().is_some_and(|sampling| sampling.is_gap_next(&self.wire));
        // Until all know that the gap is over, or that one begins, nobody tells of what was touched in it.
        let mut seen = self.watch.as_ref().map(Watch::seen);
        if let Some(seen) = seen.as_mut().filter(|_| sampling::is_in_gap() && !in_gap) {
            self.tell_seen(vcpu, image::guest_ranges(), seen);
        }
        match edges.is_empty() {
            true => self.hand_over(vcpu),
            false => {
                let told: Vec<Message> =
                    edges.into_iter().map(|edge| Message::Event(Event::Sampling(edge))).collect();
                self.send(vcpu, &told);
            }
        }
        if let Some(seen) = seen.as_mut().filter(|_| in_gap && !sampling::is_in_gap()) {
            seen.begin_gap();
        }
        sampling::set_in_gap(in_gap);
        drop(seen);
        // Of what nobody wants to know, nothing is translated that observes.
        switch::observe(!in_gap && !self.wire.is_detached());
        self.notice_switch(vcpu);
    }

    /// What a thread fills is of a gap, or no more: each thread sees to its own slot.
    fn notice_switch(&self, vcpu: u32) {
        let in_gap = sampling::is_in_gap();
        if self.slot(vcpu).is_in_gap() != in_gap {
            self.hand_over(vcpu);
            // One that was empty was kept.
            self.slot(vcpu).relabel(in_gap);
        }
    }

    /// Tells of all pages that page tables show.
    pub(super) fn tell_touched(&self, vcpu: u32) {
        if let Some(watch) = &self.watch {
            self.tell_seen(vcpu, image::guest_ranges(), &mut watch.seen());
        }
    }

    /// The same of pages in these ranges, and of those that faulted wherever they are. What was seen nobody else tells of
    /// until this has.
    fn tell_seen(&self, vcpu: u32, ranges: io::Result<Vec<Range<Virtual>>>, seen: &mut Seen) {
        let (faults, is_all) = seen.take();
        let mut messages: Vec<Message> = seen.note().map(Message::Note).into_iter().collect();
        let found = ranges.and_then(|ranges| touched::pages(ranges, (&faults, is_all), self.pid()));
        match found {
            Ok(found) => messages.extend(found),
            Err(error) => {
                seen.put_back(faults);
                messages.push(Message::Note(format!(
                    "pages that were touched between windows are missing, as a process could not look at its page \
                     tables: {error}"
                )));
            }
        }
        if !messages.is_empty() {
            self.send(vcpu, &messages);
        }
    }

    /// The same before a call that changes the address space. Frames that it gives back were not free to what has been
    /// touched.
    pub(super) fn tell_before(&self, vcpu: u32, call: &Call) {
        let Some(watch) = self.watch.as_ref().filter(|_| sampling::is_in_gap()) else { return };
        let mut hidden = self.with_space(|space| calls::hides(call, space));
        if hidden.iter().any(|range| range.bytes() > DENSE)
            && let Ok(guest) = image::guest_ranges()
        {
            hidden = hidden
                .into_iter()
                .flat_map(|range| guest.iter().map(move |mapping| mapping.intersection(&range)))
                .filter(|part| !part.is_empty())
                .collect();
        }
        let mut seen = watch.seen();
        // Another thread may have ended the gap, and told of it.
        if sampling::is_in_gap() {
            self.tell_seen(vcpu, Ok(hidden), &mut seen);
        }
    }

    /// Tells of the instructions and of the blocks that the process has counted, before it is gone.
    pub(super) fn tell_counts(&self, vcpu: u32) {
        if let Some(sampling) = &self.sampling {
            sampling.tell(&self.wire, 0);
        }
        if self.counting.is_some() && !self.wire.is_detached() {
            self.look(vcpu, 0);
        }
    }

    /// In the child of a fork: a switch that a sibling of its parent's thread had begun is the parent's, and so is
    /// what was to be told of it.
    pub(super) fn forget_switch(&self) {
        self.passed().clear();
        self.switching.store(false, Relaxed);
    }
}
