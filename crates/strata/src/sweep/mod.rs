//! Many runs, one for each point of a grid of options: `strata sweep`, and what Python's `sweep` is made
//! of.
//!
//! ```text
//!  FILE.toml --grid--> points --cache--> those not known --work--> runs, as many as memory holds
//!                        |                                             |
//!                        +----------------- outcomes <-----------------+--> table, CSV, JSON
//! ```

mod cache;
mod command;
mod grid;
mod outcomes;
mod point;
mod table;
mod work;

pub use cache::Cache;
pub use command::sweep;
pub use grid::{Grid, Point};
pub use outcomes::{Outcomes, swept};
pub use point::{Outcome, key, run};
pub use work::{Done, Work};
