//! What the one reader does: it takes what was handed over, gives slots back, and says what it wants.

use super::Wire;
use super::header::{END, NOTHING, SLOTS};
use super::producers::WAKE_AT;
use crate::futex;
use crate::slot::{Cut, FREE, Owner, SlotIndex};
use std::collections::VecDeque;
use std::sync::atomic::{Ordering::*, fence};
use std::time::Duration;

impl Wire {
    /// Everything committed since the last call, oldest first, appended to `out`.
    pub fn drain(&self, out: &mut Drain) {
        let head = self.header().producers.0.committed.swap(0, SeqCst);
        let first = out.0.len();
        let mut link = head as u32;
        while link != 0 {
            out.0.push_back(link - 1);
            link = self.slot(link - 1).link.load(Relaxed);
        }
        out.0.make_contiguous()[first..].reverse();
    }

    /// Sleeps until several slots are committed, a producer waits, or `timeout`.
    pub fn sleep(&self, timeout: Duration) {
        let producers = &self.header().producers.0;
        producers.consumer_sleeps.store(1, SeqCst);
        fence(SeqCst);
        let depth = (producers.committed.load(SeqCst) >> 32) as u32;
        let wanted = self.header().free.0.producers_sleep.load(SeqCst) != 0;
        if depth >= WAKE_AT || depth > 0 && wanted {
            producers.consumer_sleeps.store(0, SeqCst);
            return;
        }
        futex::wait(&producers.consumer_sleeps, 1, timeout);
        producers.consumer_sleeps.store(0, SeqCst);
    }

    /// Gives a slot back to the producers.
    pub fn release(&self, index: SlotIndex) {
        self.slot(index).state.store(FREE, Release);
        self.push_free(index);
        let free = &self.header().free.0;
        fence(SeqCst);
        if free.producers_sleep.load(Relaxed) != 0 && free.producers_sleep.swap(0, SeqCst) != 0 {
            free.event.fetch_add(1, SeqCst);
            futex::wake(&free.event);
        }
    }

    /// Slots that are owned by threads `ended` holds for. When their process has ended and
    /// everything committed was released, these hold what it had not handed over yet.
    pub fn orphans(&self, ended: impl Fn(Owner) -> bool) -> Vec<SlotIndex> {
        let used = self.header().producers.0.fresh.load(Acquire).min(SLOTS);
        let mut found: Vec<_> = (0..used)
            .filter(|&index| {
                let slot = self.slot(index);
                slot.state.load(Acquire) != FREE && ended(slot.owner())
            })
            .collect();
        found.sort_by_key(|&index| self.slot(index).taking());
        found
    }

    /// Whether a cut still tells of the present use of its slot.
    pub fn is_current(&self, cut: &Cut) -> bool {
        cut.slot < SLOTS && {
            let slot = self.slot(cut.slot);
            slot.state.load(Acquire) != FREE && slot.taking() == cut.taking
        }
    }

    /// Accesses that producers had to drop.
    pub fn lost(&self) -> u64 {
        self.header().producers.0.lost.load(Relaxed)
    }

    /// Tells all producers to end.
    pub fn close(&self) {
        self.want(END);
    }

    /// Tells all producers to go on unobserved.
    pub fn detach(&self) {
        self.want(NOTHING);
    }

    fn want(&self, what: u32) {
        let free = &self.header().free.0;
        self.header().wanted.store(what, SeqCst);
        free.event.fetch_add(1, SeqCst);
        futex::wake(&free.event);
    }
}

/// Committed slots in the order of their hand-over.
#[derive(Debug, Default)]
pub struct Drain(VecDeque<SlotIndex>);

impl Drain {
    /// The next slot.
    pub fn pop(&mut self) -> Option<SlotIndex> {
        self.0.pop_front()
    }

    /// Those that are in line, the next one first.
    pub fn slots(&self) -> impl Iterator<Item = SlotIndex> {
        self.0.iter().copied()
    }

    /// Whether this slot is still in line.
    pub fn contains(&self, index: SlotIndex) -> bool {
        self.0.contains(&index)
    }

    /// Whether all slots drained were taken out.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
