//! xPlace against CoPlace, the host's own choice and bare metal, in a nested VM whose kernel places pages by
//! cache colour (IEEE TC 2024): throughput, misses of the last-level cache, two VMs that differ, overhead.
//!
//! `conditions.rs` and `surfaces.rs` say what is run; they were written before any result was seen, but for what
//! the first says came later.

mod conditions;
mod measure;
mod published;
mod rows;
mod surfaces;
mod tables;

use conditions::{REAL, Real};

use crate::{Document, Found, Paper, Row};

/// The paper.
#[derive(Clone, Debug, Default)]
pub struct XPlace {
    /// The real programs that are recorded.
    recorded: Vec<&'static str>,
}

impl XPlace {
    /// The paper, with rows for those of the real programs that are recorded; default is none.
    pub fn with(is_recorded: impl Fn(&str) -> bool) -> Self {
        let names = REAL.iter().map(|program| program.name);
        Self { recorded: names.filter(|name| is_recorded(name)).collect() }
    }

    /// The real programs, those that are recorded and those that are not.
    fn real(&self) -> (Vec<&'static Real>, Vec<&'static Real>) {
        REAL.iter().partition(|program| self.recorded.contains(&program.name))
    }
}

impl Paper for XPlace {
    fn rows(&self, scale: f64) -> Vec<Row> {
        rows::rows(scale, &self.real().0)
    }

    fn document(&self, found: &Found) -> Document {
        let (there, missing) = self.real();
        tables::document(found, &there, &missing)
    }
}
