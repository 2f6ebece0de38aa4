//! Real page tables, captured from the RAM of an emulated machine at the moment its plugin holds
//! it still, together with the accesses that used them.
//!
//! ```text
//!  machine (an emulator) --socket--> the lab --> recording      accesses of the program
//!        |                              |    \--> tables file    the tables, bit for bit
//!        +------- RAM file -------------+                        every access checked
//! ```
//! | module | subject |
//! | --- | --- |
//! | [`ram`] | the machine's memory, read page by page |
//! | [`walk`] | page walks in memory that was not built by this program |
//! | [`vmcb`] | AMD's control blocks, which name the nested tables |
//! | [`vmcs`] | Intel's control structures, which do too |
//! | [`entries`] | what is different about the entries of AMD's and Intel's second stages |
//! | [`search`] | finds the tables, without a word from any kernel, and proves them |
//! | [`observed`] | which access was where; the check of all of them |
//! | [`capture`] | the tables as they are kept |
//! | [`file`](mod@file) | their file; `docs/tables-format.md` describes the bytes |
//! | [`truth`] | how each huge page of the program is backed, layer by layer |
//! | [`variant`] | the tables for the hardware model: as they are, split, and as if aligned |
//!
//! Guests' tables have the format of x86-64 and four levels; so have the second stages of AMD (APM volume 2,
//! sections 5.3 and 15.25). Those of Intel are EPT (SDM volume 3C, section 29.3.2).

pub mod capture;
pub mod entries;
pub mod file;
#[doc(hidden)]
pub mod fuzz;
pub mod observed;
pub mod ram;
pub mod search;
pub mod truth;
pub mod variant;
pub mod vmcb;
pub mod vmcs;
pub mod walk;

pub use capture::{Capture, Role, ShadowCheck, Table};
pub use entries::Entries;
pub use observed::{Check, Observed};

/// Levels of every table captured.
pub const LEVELS: u8 = 4;
