//! Parsers of the texts in `/proc` and `/sys`, and of VMM command lines.
//!
//! All take any text: what does not look as expected is left out, never a panic.

pub mod buddy;
pub mod cmdline;
pub mod iomem;
pub mod maps;
pub mod pagetype;
pub mod pairs;
pub mod zoneinfo;
