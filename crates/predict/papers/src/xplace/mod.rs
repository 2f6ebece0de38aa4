//! xPlace against CoPlace, the host's own choice and bare metal, in a nested VM whose kernel places pages by
//! cache colour (IEEE TC 2024): throughput, misses of the last-level cache, two VMs that differ, overhead.
//!
//! [`conditions`] says what is run; it was written before any result was seen.

mod conditions;
mod tables;

use crate::{Document, Found, Paper, Row};

/// The paper.
#[derive(Clone, Copy, Debug, Default)]
pub struct XPlace;

impl Paper for XPlace {
    fn rows(&self, scale: f64) -> Vec<Row> {
        conditions::rows(scale)
    }

    fn document(&self, found: &Found) -> Document {
        tables::document(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn rows_have_names_and_words_of_their_own() {
        let rows = XPlace.rows(1.0);
        let names: BTreeSet<_> = rows.iter().map(|row| &row.name).collect();
        let words: BTreeSet<_> = rows.iter().map(|row| &row.words).collect();
        assert_eq!((names.len(), words.len()), (rows.len(), rows.len()));
    }

    #[test]
    fn a_paper_without_results_has_its_tables_and_no_numbers() {
        let document = XPlace.document(&Found::default());
        assert!(document.tables.len() >= 8);
        let text = document.to_string();
        assert!(text.contains("| canneal"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
