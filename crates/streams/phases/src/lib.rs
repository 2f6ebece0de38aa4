//! Phases of a program: which of its intervals are alike, and which of them to look at in detail.
//!
//! A first run of the program counts how many instructions each interval spends in each basic block. Intervals
//! that run the same code behave alike, so those with vectors alike are one phase, and a few of each phase
//! stand for all of it: SimPoint (Sherwood et al., Automatically Characterizing Large Scale Program Behavior,
//! ASPLOS 2002; Hamerly et al., SimPoint 3.0, Journal of Instruction-Level Parallelism 7, 2005).
//!
//! | file | subject |
//! | --- | --- |
//! | `sketch` | blocks as buckets: what is counted of an interval |
//! | `profile` | the vectors of a whole run, few enough whatever its length |
//! | `clusters` | k-means |
//! | `bic` | how many clusters there are |
//! | `windows` | which intervals of each phase are run in detail |
//! | `random` | numbers that look random and are the same each time |
//!
//! What differs from SimPoint: blocks are counted in buckets before they are projected, and of each phase at
//! least two intervals are drawn at random, where SimPoint takes the one nearest to the centre. With two it
//! is known how far intervals of a phase differ, and so how far estimates may be off.

mod bic;
mod clusters;
mod profile;
mod random;
mod sketch;
mod windows;

pub use profile::{Interval, Profile, Profiled};
pub use sketch::{BUCKETS, bucket};
pub use windows::{Phase, Settings, Window, Windows};
