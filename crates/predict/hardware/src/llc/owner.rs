//! Who fills the last-level cache.

/// Who fills the last-level cache, such as a VM: numbers are dense from 0. It is what Intel's monitoring
/// and allocation tag a CPU with (SDM volume 3B, sections 17.18 and 17.19: RMID and class of service).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub u16);
