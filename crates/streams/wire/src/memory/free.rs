//! The stack of free slots.

use super::Wire;
use crate::slot::SlotIndex;
use std::sync::atomic::Ordering::*;

impl Wire {
    pub(super) fn push_free(&self, index: SlotIndex) {
        let free = &self.header().free.0;
        let mut head = free.head.load(Relaxed);
        loop {
            self.slot(index).link.store(head as u32, Relaxed);
            let next = ((head >> 32) + 1) << 32 | u64::from(index + 1);
            match free.head.compare_exchange_weak(head, next, SeqCst, Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        free.length.fetch_add(1, Relaxed);
    }

    pub(super) fn pop_free(&self) -> Option<SlotIndex> {
        let free = &self.header().free.0;
        let mut head = free.head.load(Acquire);
        loop {
            let index = (head as u32).checked_sub(1)?;
            // May be stale when another producer pops first; then the exchange fails.
            let link = self.slot(index).link.load(Relaxed);
            let next = ((head >> 32) + 1) << 32 | u64::from(link);
            match free.head.compare_exchange_weak(head, next, AcqRel, Acquire) {
                Ok(_) => {
                    free.length.fetch_sub(1, Relaxed);
                    return Some(index);
                }
                Err(now) => head = now,
            }
        }
    }
}
