//! What people write: sizes, counts, and names that are nearly right.

mod name;
mod size;

pub use name::{closest, nearest};
pub use size::{parse_count, parse_size};
