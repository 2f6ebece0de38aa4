//! What threads of traced programs do: they take slots, fill them and hand them over.

use super::Wire;
use super::header::{BACKLOG, END, NOTHING, SLOTS, STREAM};
use crate::slot::{COMMITTED, FILLING, Owner, Slot, SlotIndex};
use crate::{ProcessId, futex};
use std::sync::atomic::{Ordering::*, fence};
use std::time::{Duration, Instant};

/// Committed slots at which a sleeping consumer is woken; fewer wait for its next look.
pub(super) const WAKE_AT: u32 = 8;

impl Wire {
    /// A slot for a thread that has none yet. Adds to the slots in circulation, so that threads
    /// which hold partly filled slots never starve the others.
    pub fn take_first(&self, owner: Owner) -> Option<&Slot> {
        let free = &self.header().free.0;
        let fresh = &self.header().producers.0.fresh;
        if free.length.load(Relaxed) <= BACKLOG
            && let Ok(index) =
                fresh.fetch_update(Relaxed, Relaxed, |next| (next < SLOTS).then_some(next + 1))
        {
            return Some(self.label(index, owner));
        }
        self.take(owner)
    }

    /// A free slot, waiting for one as long as the consumer lives. `None` when the consumer has
    /// gone, detached or closed the wire, or when live threads hold every slot there is.
    pub fn take(&self, owner: Owner) -> Option<&Slot> {
        let free = &self.header().free.0;
        let mut waited = Duration::ZERO;
        loop {
            let seen = free.event.load(Acquire);
            if let Some(index) = self.pop_free() {
                return Some(self.label(index, owner));
            }
            free.producers_sleep.store(1, SeqCst);
            fence(SeqCst);
            if let Some(index) = self.pop_free() {
                return Some(self.label(index, owner));
            }
            if self.wanted() != STREAM {
                return None;
            }
            let start = Instant::now();
            self.wake_consumer();
            futex::wait(&free.event, seen, Duration::from_millis(50));
            let slept = start.elapsed();
            waited += slept;
            if slept >= Duration::from_millis(50) {
                let stuck = self.header().producers.0.fresh.load(Relaxed) >= SLOTS
                    && self.header().producers.0.committed.load(Relaxed) as u32 == 0
                    && waited > Duration::from_secs(5);
                if stuck || !self.consumer_runs() {
                    return None;
                }
            }
        }
    }

    /// A free slot, if there is one at once.
    pub fn try_take(&self, owner: Owner) -> Option<&Slot> {
        self.pop_free().map(|index| self.label(index, owner))
    }

    fn label(&self, index: SlotIndex, owner: Owner) -> &Slot {
        let slot = self.slot(index);
        slot.pid.store(owner.pid.0, Relaxed);
        slot.tid.store(owner.tid.0, Relaxed);
        slot.image.store(owner.image, Relaxed);
        slot.in_gap.store(owner.in_gap.into(), Relaxed);
        slot.accesses.store(0, Relaxed);
        slot.message_words.store(0, Relaxed);
        slot.instructions.store(0, Relaxed);
        slot.taking.store(self.header().producers.0.takings.fetch_add(1, Relaxed) + 1, Relaxed);
        slot.state.store(FILLING, Release);
        slot
    }

    /// Hands a slot over. `false` when another thread did so before (at the end of a process).
    pub fn commit(&self, slot: &Slot) -> bool {
        if slot.state.compare_exchange(FILLING, COMMITTED, AcqRel, Relaxed).is_err() {
            return false;
        }
        let Some(index) = self.index(slot) else { return false };
        let committed = &self.header().producers.0.committed;
        let mut head = committed.load(Relaxed);
        loop {
            slot.link.store(head as u32, Relaxed);
            let next = ((head >> 32) + 1) << 32 | u64::from(index + 1);
            match committed.compare_exchange_weak(head, next, SeqCst, Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        if (head >> 32) as u32 + 1 >= WAKE_AT {
            self.wake_consumer();
        }
        true
    }

    /// Makes a sleeping consumer look now instead of at its next timeout.
    pub fn wake_consumer(&self) {
        let sleeps = &self.header().producers.0.consumer_sleeps;
        if sleeps.load(SeqCst) != 0 && sleeps.swap(0, SeqCst) != 0 {
            futex::wake(sleeps);
        }
    }

    /// Counts accesses that had to be dropped.
    pub fn count_lost(&self, accesses: u64) {
        self.header().producers.0.lost.fetch_add(accesses, Relaxed);
    }

    pub(super) fn wanted(&self) -> u32 {
        self.header().wanted.load(Acquire)
    }

    /// Whether the consumer closed the wire: no one will read on, end.
    pub fn is_closed(&self) -> bool {
        self.wanted() == END
    }

    /// Whether the consumer detached: no one will read on, but the programs are to go on.
    #[inline]
    pub fn is_detached(&self) -> bool {
        self.wanted() == NOTHING
    }

    /// Whether the consumer's process still runs.
    pub fn consumer_runs(&self) -> bool {
        let header = self.header();
        let id = ProcessId {
            number: header.consumer.load(Relaxed),
            started: header.consumer_started.load(Relaxed),
        };
        id.is_running()
    }
}
