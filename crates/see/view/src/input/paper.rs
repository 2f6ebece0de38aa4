//! The JSON of `strata paper`; `docs/papers.md` describes it.

use serde::Deserialize;

/// A paper's figures beside the model's.
#[derive(Debug, Deserialize)]
pub struct Paper {
    /// Some runs are missing.
    #[serde(default)]
    pub partial: bool,
    /// Name of the paper.
    pub title: String,
    /// Paragraphs before the tables.
    #[serde(default)]
    pub head: Vec<String>,
    /// Every run.
    pub runs: Vec<Command>,
    /// The tables.
    pub tables: Vec<Table>,
}

/// A run and how to make it alone.
#[derive(Debug, Deserialize)]
pub struct Command {
    /// Its name.
    pub name: String,
    /// The command.
    pub command: String,
}

/// A table.
#[derive(Debug, Deserialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Paragraphs before it.
    #[serde(default)]
    pub text: Vec<String>,
    /// Names of its columns.
    pub columns: Vec<String>,
    /// Its cells.
    pub rows: Vec<Vec<String>>,
}
