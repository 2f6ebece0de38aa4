//! What holds where an option is not given.

use strata_engine::StackKind;

/// The stack when none is named.
pub const DEFAULT_STACK: StackKind = StackKind::Nested;

/// FMFI when none is given: moderately fragmented.
pub const DEFAULT_FMFI: f64 = 0.8;

/// Levels of page tables when none are given.
pub const DEFAULT_LEVELS: u8 = 4;

/// The seed when none is given.
pub const DEFAULT_SEED: u64 = 1;
