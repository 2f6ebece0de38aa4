//! The physical memory of one layer: guest, L1 or L0.
//!
//! [`Memory`] is a binary buddy allocator as in Linux, with what the systems of the papers need on
//! top of one: *reservations* of huge-page-aligned-and-sized (HPAS) regions for booking, a
//! *contiguity list* of free HPAS regions with next-fit search, the *owner* of every frame, and
//! the fragmentation indices of Linux. It can tell cache colours apart and give frames of wanted ones
//! ([`Memory::tell_colours`]). A [`Fragmenter`] brings a memory to a wanted index.
//!
//! A layer's own memory is the role [`space::Lower`](strata_addr::space::Lower), so every frame
//! here is a [`Frame`] of that role.
//!
//! ```
//! use strata_frames::{Fragmenter, HUGE_ORDER, Holders, Memory};
//!
//! let mut memory = Memory::new(1 << 18); // 1 GiB
//! let fragmenter = Fragmenter { target_fmfi: 0.5, ..Default::default() };
//! fragmenter.apply(&mut memory, Holders::default())?;
//! assert!((memory.fmfi(HUGE_ORDER) - 0.5).abs() < 0.01);
//!
//! let run = memory.largest_run().expect("half of the free memory is whole");
//! assert!(memory.reserve_region(run.start)); // Booked: `alloc` does not give it out,
//! assert!(memory.alloc_reserved(run.start, 0)); // only this does.
//! assert_eq!(memory.release_region(run.start), 511);
//! # Ok::<(), strata_frames::FragmenterError>(())
//! ```
//!
//! # Scale
//! A memory of 640 GiB has 160 M frames and several exist at once, so all state is bitmaps, 3 bits
//! a frame, and one owner word a frame, 64 bits held in 32. Both are allocated zeroed, and a zero bit
//! is what a fresh memory has nearly everywhere, so the operating system commits pages only where
//! the model touches them, and construction writes only the bitmap of the largest blocks. Of regions
//! that a [`Fragmenter`] took frames in a bit each is written until the model changes something there.
//!
//! # Determinism
//! Linux takes the head of a free list, so the most recently freed block. Here an allocation takes
//! the *lowest* of the smallest sufficient blocks: it does not depend on how the bitmaps came to
//! be, and it keeps small allocations compact at the low end (Gemini, section 5, wants the same
//! of its contiguity list).

mod bitmap;
mod check;
mod colour_books;
mod colour_counts;
mod coloured;
mod contiguity;
mod fold;
mod folding;
mod fragment;
mod index;
mod memory;
mod occupancy;
mod owner;
mod owners;
mod pattern;
mod random;
mod reservations;
mod reserve;
mod runs;

pub use check::Violation;
pub use colour_counts::ColouredParameters;
pub use coloured::{ColouringError, MAX_COLOURS};
pub use contiguity::Run;
pub use fold::Holders;
pub use fragment::{Fragmented, Fragmenter, FragmenterError};
pub use memory::Memory;
pub use random::shuffled;

/// The number of a base page in the layer's own memory.
pub type Frame = strata_addr::Frame<strata_addr::space::Lower>;

/// The largest buddy order: blocks of 4 MiB (`MAX_PAGE_ORDER` of Linux 6.12 on x86-64).
pub const MAX_ORDER: u32 = 10;

/// The order of an HPAS region, 2 MiB.
pub const HUGE_ORDER: u32 = 9;

/// Frames in an HPAS region.
pub const REGION_FRAMES: u64 = 1 << HUGE_ORDER;
