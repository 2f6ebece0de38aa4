//! What people write: sizes, counts, and names that are nearly right; and numbers as they read them.

pub mod estimate;
mod name;
pub mod number;
pub mod prometheus;
mod size;

pub use name::{closest, nearest};
pub use size::{parse_count, parse_size};
