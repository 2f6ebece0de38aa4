//! The geometry of a data cache.

use crate::limits;
use serde::{Deserialize, Serialize};

/// One data cache with lines of 64 bytes; 0 bytes for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheGeometry {
    /// Size.
    pub bytes: u64,
    /// Associativity.
    pub ways: u32,
    /// Cycles of a hit.
    pub cycles: u32,
}

impl CacheGeometry {
    /// Sets.
    pub fn sets(&self) -> u64 {
        self.bytes / (u64::from(self.ways) << limits::LINE_SHIFT)
    }
}
