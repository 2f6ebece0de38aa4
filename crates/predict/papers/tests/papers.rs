//! What every paper must be.

use std::collections::BTreeSet;
use strata_papers::gemini::{Gemini, XGemini};
use strata_papers::npt::Npt;
use strata_papers::vee16::Vee16;
use strata_papers::xplace::XPlace;
use strata_papers::{Found, Paper};

fn papers() -> [Box<dyn Paper>; 5] {
    [
        Box::new(XPlace::with(|_| true)),
        Box::new(Npt::with(|_| true)),
        Box::new(Vee16),
        Box::new(Gemini::with(1.0, |_| true)),
        Box::new(XGemini::with(1.0, |_| true)),
    ]
}

#[test]
fn rows_have_names_and_words_of_their_own() {
    for paper in papers() {
        let rows = paper.rows(1.0);
        let names: BTreeSet<_> = rows.iter().map(|row| &row.name).collect();
        let words: BTreeSet<_> = rows.iter().map(|row| &row.words).collect();
        assert_eq!((names.len(), words.len()), (rows.len(), rows.len()));
    }
}

#[test]
fn a_paper_without_results_has_its_tables_and_no_numbers_of_ours() {
    for paper in papers() {
        let document = paper.document(&Found::default());
        assert!(document.tables.len() >= 3, "{}", document.title);
        let text = document.to_string();
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        // One says what was run, and has no results.
        for table in document.tables.iter().filter(|table| table.title != "What stands for what") {
            assert!(!table.rows.is_empty(), "{}", table.title);
            let ours = table.rows.iter().filter(|row| !row[0].starts_with("published"));
            let has_none =
                |row: &Vec<String>| row.iter().any(|cell| cell == "-" || cell == "- / -");
            assert!(ours.clone().all(has_none), "{}: {:?}", table.title, table.rows);
        }
    }
}

#[test]
fn programs_that_are_not_recorded_are_named() {
    for paper in [&XPlace::with(|name| name != "xz") as &dyn Paper, &Npt::with(|name| name != "xz")]
    {
        let text = paper.document(&Found::default()).to_string();
        assert!(text.contains("Left out, as they are not recorded here: xz."), "{text}");
    }
}
