//! Which lines of a cache a page can use: index functions with slices, and colours of frames.
//!
//! ```text
//!   HPA  | ...            | set in the slice      | byte |
//!                   | ... | colour |   12 bits of page    |
//!          \________________ hash ____________/
//!                              |
//!                            slice
//! ```
//!
//! A cache of one piece is indexed by the bits above those of the line; those of them above the page's
//! 12 are the *colour*: frames of two colours never share a set (Kessler and Hill, TOCS 1992). In a
//! sliced cache each slice is indexed so, and a [`SliceHash`] of many more bits says which slice a line
//! is in.
//!
//! # What a hash does to colours
//! The lines of a page lie in many slices, so a colour is the same sets *in every slice*: the number of
//! colours is that of one slice, and a colour is as many times larger as there are slices. Frames of
//! two colours still never share a set, whatever the hash, since it is the address that says which set of a
//! slice. Which frames of one colour meet, bits of the frame number decide that are no colour bits, and no
//! colouring by the set index sees them. So perfect colouring with a hash leaves conflicts, and without
//! one looks better than it is:
//!
//! - With [`SliceHash::Intel`] and [`SliceHash::Even`] two frames of one colour meet in all their lines or in
//!   none, and in every aligned piece of memory of one way's size each set of each slice gets one line.
//! - [`SliceHash::Skylake`] permutes the lines of 16 KiB, so two frames of one colour meet in none, 8, 12, 40, 56
//!   or all 64 of their lines. It is even over 32 MiB only, to 12 or 13 lines in each set of each
//!   slice, and over one way's size a set gets up to four lines or none. Frames that lie one after the other, and fill the cache
//!   exactly, have conflicts then.
//!
//! ```
//! use strata_addr::{Gpa, Hpa};
//! use strata_colours::{CacheIndex, Colour, Colours, SliceHash};
//!
//! // 20 MiB in 20 ways and 8 slices.
//! let index = CacheIndex { line_bytes: 64, sets: 2048, slices: 8, hash: SliceHash::Intel };
//! let colours = Colours::new(&index)?;
//! assert_eq!(colours.count(), 32);
//! assert_eq!(colours.of(Hpa::new(33 << 12).page()), Colour::new(1));
//! // Taken as one piece it has 16384 sets.
//! let plain = Colours::new(&CacheIndex { hash: SliceHash::None, ..index })?;
//! assert_eq!(plain.count(), 256);
//! # Ok::<(), strata_colours::ColourError>(())
//! ```
//!
//! Colours of different spaces do not mix; a table from one to the other is the way, such as xPlace's:
//!
//! ```compile_fail
//! use strata_addr::{Gpa, Hpa};
//! # use strata_colours::{CacheIndex, Colours, SliceHash};
//! # let index = CacheIndex { line_bytes: 64, sets: 2048, slices: 1, hash: SliceHash::None };
//! # let colours = Colours::new(&index).unwrap();
//! assert!(colours.of(Gpa::new(0).page()) == colours.of(Hpa::new(0).page()));
//! ```

mod colour;
mod error;
mod hash;
mod index;
mod skylake;

pub use colour::{Colour, Colours, VirtualCache};
pub use error::ColourError;
pub use hash::SliceHash;
pub use index::CacheIndex;
