//! What is counted of the last-level cache.

use super::WayMask;
use serde::{Deserialize, Serialize};

/// Misses by their cause: Hill and Smith (IEEE Transactions on Computers 38(12), 1989), told read by read.
/// All 0 unless they are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissCauses {
    /// Lines never read before.
    pub cold: u64,
    /// Lines that a fully associative cache of as many lines would not have had either.
    pub capacity: u64,
    /// Lines that such a cache would have had.
    pub conflict: u64,
}

impl MissCauses {
    /// Misses in all.
    pub fn total(&self) -> u64 {
        self.cold + self.capacity + self.conflict
    }
}

/// What an owner did in a shared cache, and what it has there.
#[derive(Clone, Copy, Debug)]
pub struct LlcUse<'a> {
    /// What it did since the last reset.
    pub counters: &'a LlcCounters,
    /// The ways that it may fill.
    pub ways: WayMask,
    /// Misses are told apart by their cause.
    pub is_classified: bool,
    /// Bytes that it holds.
    pub held_bytes: u64,
}

/// What one owner did in the last-level cache. Causes are told read by read; Hill and Smith's number of
/// conflict misses, the difference to the fully associative cache's misses, is that of
/// [`MissCauses::conflict`] less [`LlcCounters::lucky_hits`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LlcCounters {
    /// Reads that missed the private caches.
    pub reads: u64,
    /// Those that missed this one as well.
    pub misses: u64,
    /// Misses on data, by cause.
    pub data: MissCauses,
    /// Misses on entries of page tables, by cause.
    pub walks: MissCauses,
    /// Hits on lines that a fully associative cache would have dropped.
    pub lucky_hits: u64,
    /// Lines that it put out of the cache, by whose they were: a line is of whoever filled it.
    pub evicted: Vec<u64>,
    /// Lines that left private caches because they dropped out of an inclusive last level.
    pub inclusion_victims: u64,
}
