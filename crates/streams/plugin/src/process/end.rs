//! The end of the process, by itself or by a signal.

use super::Process;
use crate::pending::VCPU;
use crate::sampling;
use std::sync::atomic::Ordering::*;
use strata_stream::Event;
use strata_wire::{Message, encode};

impl Process {
    /// Whether page tables are looked at once more before they are gone: in a gap, and outside of one for copies of
    /// what relatives share, as a page that is seen to be a process's own is no sign of a copy once the others
    /// have ended.
    fn has_last_look(&self) -> bool {
        let is_related = || self.is_related.load(Relaxed) && self.wire.edges_passed() > 0;
        sampling::is_in_gap() || self.sampling.is_some() && is_related()
    }

    /// A signal is about to end the process, as the calling thread found. Others may still run, so that it
    /// speaks for itself and for what page tables show; what they did is found in their slots.
    pub fn dies(&self) {
        let Some(vcpu) = VCPU.get().filter(|vcpu| self.tid(*vcpu).is_some()) else { return };
        if self.wire.is_detached() {
            return;
        }
        self.tell_counts(vcpu);
        if self.has_last_look() {
            self.tell_touched(vcpu);
        }
        self.send(vcpu, &[Message::LastWord { pid: self.pid() }]);
    }

    /// The process ends; no thread runs observed code any more.
    pub fn ends(&self) {
        if let Some(vcpu) = (0..self.vcpus.load(Acquire)).find(|vcpu| self.tid(*vcpu).is_some()) {
            self.tell_counts(vcpu);
            if self.has_last_look() {
                self.tell_touched(vcpu);
            }
        }
        let mut last = None;
        for vcpu in 0..self.vcpus.load(Acquire) {
            if let Some(tid) = self.tid(vcpu) {
                let slot = self.slot(vcpu);
                self.settle(slot);
                self.wire.commit(slot);
                last = Some(tid);
            }
        }
        let Some(slot) = last.and_then(|tid| self.wire.take(self.owner(tid))) else { return };
        let mut words = Vec::new();
        encode(&Message::Event(Event::ProcessExit { pid: self.pid() }), &mut words);
        slot.append(&words);
        self.wire.commit(slot);
        self.wire.wake_consumer();
    }
}
