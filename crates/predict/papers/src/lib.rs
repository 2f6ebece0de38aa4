//! Published figures beside what the model finds.
//!
//! A [`Paper`] is a list of [`Row`]s, each a command line of `strata run`, and a way to make tables of their
//! results. [`Work`] runs what is not [`Kept`] from before, so that whoever interrupts it goes on later,
//! and every row can be run by itself.

mod cells;
mod found;
pub mod gemini;
mod kept;
pub mod nestcloud;
pub mod npt;
mod row;
mod table;
pub mod vee16;
mod work;
pub mod xplace;

pub use found::{Found, Spread};
pub use kept::{Kept, KeptError};
pub use row::Row;
pub use table::{Document, Table};
pub use work::{Done, RowError, Work};

/// A paper's figures.
pub trait Paper {
    /// The runs that its tables take, each once. `scale` multiplies the accesses of each; 1 takes some
    /// minutes on two cores.
    fn rows(&self, scale: f64) -> Vec<Row>;

    /// What follows from the runs that there are.
    fn document(&self, found: &Found) -> Document;
}
