//! VEE'16 on extended page tables: which share of time goes to TLB misses natively and in a VM, for a database of
//! 475 GB and for several VMs.
//!
//! `conditions.rs` says what is run; it was written before any result was seen.

mod conditions;
mod tables;

use crate::{Document, Found, Paper, Row};

/// The paper.
#[derive(Clone, Copy, Debug, Default)]
pub struct Vee16;

impl Paper for Vee16 {
    fn rows(&self, scale: f64) -> Vec<Row> {
        conditions::rows(scale)
    }

    fn document(&self, found: &Found) -> Document {
        tables::document(found)
    }
}
