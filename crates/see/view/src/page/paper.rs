//! The page of `strata paper`.

use super::Page;
use crate::figures::published;
use crate::html::{escaped, prose, table};
use crate::input::paper::{Paper, Table};
use std::fmt::Write;

/// The page.
pub fn page(paper: &Paper, json: &str) -> String {
    let mut page = Page { title: paper.title.clone(), ..Page::default() };
    if paper.partial {
        page.about = "<p class=warning>Partial: some runs are missing.</p>".to_owned();
    }
    let head: String =
        paper.head.iter().map(|text| format!("<p class=reading>{}</p>", prose(text))).collect();
    let tables: String = paper.tables.iter().map(one).collect();
    page.add("tables", "Published beside ours", "", head + &tables);
    page.add("runs", "Every run", "Each can be made by itself.", runs(paper));
    page.finish(json)
}

fn one(given: &Table) -> String {
    let mut out = format!("<h3>{}</h3>", escaped(&given.title));
    for text in &given.text {
        let _ = write!(out, "<p class=reading>{}</p>", prose(text));
    }
    let head: Vec<&str> = given.columns.iter().map(String::as_str).collect();
    out + &published::figure(given) + &table(&head, &given.rows, 1)
}

fn runs(paper: &Paper) -> String {
    let rows: Vec<Vec<String>> =
        paper.runs.iter().map(|run| vec![run.name.clone(), run.command.clone()]).collect();
    format!(
        "<details><summary>{} runs and their commands</summary>{}</details>",
        rows.len(),
        table(&["run", "command"], &rows, 2)
    )
}
