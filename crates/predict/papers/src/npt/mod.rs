//! The talk on nested paging at KVM Forum 2008: what walk caches and the nested TLB save of the references of a
//! two-dimensional walk, and what huge pages do.
//!
//! `conditions.rs` says what is run; it was written before any result was seen.

mod conditions;
mod tables;

use crate::{Document, Found, Paper, Row};
use conditions::{PROGRAMS, Program};

/// The talk.
#[derive(Clone, Debug, Default)]
pub struct Npt {
    /// The recorded programs that there are.
    recorded: Vec<&'static str>,
}

impl Npt {
    /// The talk, with rows for those programs that are recorded; default is none.
    pub fn with(is_recorded: impl Fn(&str) -> bool) -> Self {
        let names = PROGRAMS.iter().filter(|program| program.is_recorded);
        Self {
            recorded: names.map(|program| program.name).filter(|name| is_recorded(name)).collect(),
        }
    }

    fn programs(&self) -> (Vec<&'static Program>, Vec<&'static Program>) {
        let is_there =
            |program: &&Program| !program.is_recorded || self.recorded.contains(&program.name);
        PROGRAMS.iter().partition(is_there)
    }
}

impl Paper for Npt {
    fn rows(&self, scale: f64) -> Vec<Row> {
        conditions::rows(scale, &self.programs().0)
    }

    fn document(&self, found: &Found) -> Document {
        let (there, missing) = self.programs();
        tables::document(found, &there, &missing)
    }
}
