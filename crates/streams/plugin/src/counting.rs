//! How many instructions the process runs in each of its blocks, where nothing else is wanted of it: what
//! phases are found by.
//!
//! Blocks share buckets (`strata_phases`). Each adds its instructions to its bucket, inline while there is one
//! thread. The buckets of all processes together are told where an interval ends by the clock of all.

use crate::sampling;
use crate::slots::SERIAL_INSTRUCTIONS;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use strata_phases::{BUCKETS, bucket};
use strata_wire::{Message, Wire};

/// Whether blocks are counted, and nothing else is seen.
static COUNTED: AtomicBool = AtomicBool::new(false);

/// Instructions that are not told yet, by bucket.
static BLOCKS: [AtomicU64; BUCKETS] = [const { AtomicU64::new(0) }; BUCKETS];

/// What tells programs apart whose blocks have the same addresses.
static PROGRAM: AtomicU64 = AtomicU64::new(0);

/// Instructions between two looks at the clock while there are other processes or threads.
pub const LOOK: u64 = 1 << 16;

/// Whether blocks are counted, and nothing else is seen.
pub fn is_counting() -> bool {
    COUNTED.load(Relaxed)
}

/// The program is this one.
pub fn set_program(name: &[u8]) {
    // FNV-1a.
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    PROGRAM.store(hash, Relaxed);
}

/// The bucket of the block at this address.
pub fn bucket_at(address: u64) -> usize {
    bucket(address ^ PROGRAM.load(Relaxed))
}

/// Where instructions in a bucket are counted.
pub fn count(bucket: usize) -> &'static AtomicU64 {
    &BLOCKS[bucket % BUCKETS]
}

/// What the process knows of the intervals in which blocks are counted.
#[derive(Debug)]
pub struct Counting {
    /// Instructions of the one thread that are in the clock.
    told: AtomicU64,
}

impl Counting {
    /// Of a process that begins.
    pub fn new(wire: &Wire) -> Self {
        COUNTED.store(true, Relaxed);
        sampling::set_sampled();
        sampling::set_in_gap(true);
        wire.begin_process();
        Self { told: AtomicU64::new(0) }
    }

    /// In the child of a fork: what its parent has not told is the parent's to tell.
    pub fn fork(&self) {
        BLOCKS.iter().for_each(|count| count.store(0, Relaxed));
        self.told.store(SERIAL_INSTRUCTIONS.load(Relaxed), Relaxed);
        sampling::look_at(0);
    }

    /// Looks at the clock, to which `instructions` are added besides those of a lone thread. Gives what is to be
    /// told of intervals that are over.
    pub fn look(&self, wire: &Wire, instructions: u64) -> Option<Message> {
        let now = SERIAL_INSTRUCTIONS.load(Relaxed);
        let more = now - self.told.swap(now, Relaxed);
        let clock = wire.advance(instructions + more);
        self.tell(wire);
        let told = (clock >= wire.interval_end())
            .then(|| (wire.end_intervals(clock), wire))
            .filter(|(intervals, _)| *intervals > 0)
            .map(|(intervals, wire)| Message::Blocks { intervals, counts: wire.take_blocks() });
        let far = if wire.is_lone() { u64::MAX } else { LOOK };
        let left = wire.interval_end().saturating_sub(clock);
        sampling::look_at(now.saturating_add(left.min(far)));
        told
    }

    /// Adds what was counted to what all processes have counted.
    pub fn tell(&self, wire: &Wire) {
        for (bucket, count) in BLOCKS.iter().enumerate() {
            if count.load(Relaxed) > 0 {
                wire.add_block(bucket, count.swap(0, Relaxed));
            }
        }
    }
}
