//! NestCloud (2011): what a nested VM costs with shadow paging and with EPT, with page-fault bypass, virtual EPT
//! and a paravirtual VMCS.
//!
//! `conditions.rs` says what is run; it was written before any result was seen. Nothing here takes a run of
//! `strata run`: sequences of faults, timers and requests run on the working machine of
//! `strata_nested::modes`, in seconds.

mod conditions;
mod constants;
mod measure;
mod published;
mod sequences;
mod successors;
mod tables;

use crate::{Document, Found, Paper, Row};

/// The paper.
#[derive(Clone, Copy, Debug)]
pub struct NestCloud {
    /// Sequences are so many times as long.
    pub scale: f64,
}

impl Paper for NestCloud {
    fn rows(&self, _: f64) -> Vec<Row> {
        Vec::new()
    }

    fn document(&self, _: &Found) -> Document {
        tables::document(self.scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_version_has_every_table_and_every_cell() {
        let document = NestCloud { scale: 0.25 }.document(&Found::default());
        assert!(document.tables.len() >= 9);
        let text = document.to_string();
        for word in ["NaN", "inf", "| - | - |"] {
            assert!(!text.contains(word), "{word}: {text}");
        }
    }
}
