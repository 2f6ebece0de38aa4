//! TLBs, caches and walks against their slow twins.

mod common;
mod runs;
mod tlb_twin;
mod translation;
mod walks;
