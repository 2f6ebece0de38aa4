//! What threads tell, in slots of the wire.

use super::Process;
use crate::slots::SERIAL_INSTRUCTIONS;
use crate::{calls, glib, guest, observation};
use std::sync::atomic::Ordering::*;
use strata_wire::{Cut, Message, Slot, encode};

impl Process {
    /// Hands over what the thread has filled, and gives it a new slot.
    pub fn hand_over(&self, vcpu: u32) {
        let slot = self.slot(vcpu);
        if self.wire.is_detached() {
            return self.detach(vcpu);
        }
        let Some(tid) = self.tid(vcpu) else {
            slot.reset();
            return;
        };
        if slot.is_empty() && !self.is_serial_count_due() {
            return;
        }
        self.settle(slot);
        let owner = self.owner(tid);
        if self.wire.index(slot).is_some() {
            self.wire.commit(slot);
            let next = self.wire.take(owner).unwrap_or_else(|| self.without_slot());
            self.set_slot(vcpu, next);
        } else {
            self.wire.count_lost(u64::from(slot.reset()));
            if let Some(next) = self.wire.try_take(owner) {
                self.set_slot(vcpu, next);
            }
        }
    }

    /// Nobody wants to know more: the thread writes to a place of its own until its code is
    /// translated anew, without observation.
    fn detach(&self, vcpu: u32) {
        let slot = self.slot(vcpu);
        if self.wire.index(slot).is_some() {
            self.set_slot(vcpu, Box::leak(Slot::detached()));
        } else {
            slot.reset();
        }
        // Without the way around the emulator's fault it goes on being slow.
        if observation::give_up() && glib::is_preloaded() {
            observation::ends();
            (self.stop_observing)();
        }
    }

    fn is_serial_count_due(&self) -> bool {
        SERIAL_INSTRUCTIONS.load(Relaxed) != self.told.load(Relaxed)
    }

    /// Credits instructions counted inline to the slot of the one thread there is.
    pub(super) fn settle(&self, slot: &Slot) {
        let now = SERIAL_INSTRUCTIONS.load(Relaxed);
        slot.retire(now - self.told.swap(now, Relaxed));
    }

    /// There is no slot to be had. When nobody reads any more, the process ends: programs started
    /// for a capture end with it. Otherwise live threads hold every slot of the wire, and what
    /// this one does is lost, but counted.
    pub(super) fn without_slot(&self) -> &Slot {
        if self.wire.is_closed() {
            guest::end_process();
        }
        if !self.wire.consumer_runs() {
            eprintln!("strata: the capture of this program was killed; ending the program too");
            guest::end_process();
        }
        Box::leak(Slot::detached())
    }

    /// Sends messages, after everything the thread did before.
    pub fn send(&self, vcpu: u32, messages: &[Message]) {
        let mut words = Vec::new();
        for message in messages {
            if calls::divides_siblings(message) {
                self.cuts(vcpu)
                    .iter()
                    .for_each(|&cut| self.put(vcpu, Message::Cut(cut), &mut words));
            }
            self.put(vcpu, message.clone(), &mut words);
        }
        self.hand_over(vcpu);
    }

    pub(super) fn put(&self, vcpu: u32, message: Message, words: &mut Vec<u64>) {
        words.clear();
        encode(&message, words);
        if !self.slot(vcpu).append(words) {
            self.hand_over(vcpu);
            self.slot(vcpu).append(words);
        }
    }

    /// How far the sibling threads of `vcpu` have come.
    fn cuts(&self, vcpu: u32) -> Vec<Cut> {
        (0..self.vcpus.load(Acquire))
            .filter(|&other| other != vcpu)
            .filter_map(|other| {
                let (tid, slot) = (self.tid(other)?, self.slot(other));
                let taking = slot.taking();
                let (accesses, instructions) = slot.progress();
                // A thread that waits for a slot still points to its last, by now another's.
                if slot.owner().tid != tid || accesses == 0 {
                    return None;
                }
                Some(Cut { slot: self.wire.index(slot)?, taking, accesses, instructions })
            })
            .collect()
    }
}
