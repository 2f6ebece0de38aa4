//! Tables, as Markdown and as JSON.

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, ContentArrangement};
use serde::Serialize;
use std::fmt;

/// What a paper's runs come to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Document {
    /// What it is about.
    pub title: String,
    /// Paragraphs before the tables.
    pub head: Vec<String>,
    /// The tables.
    pub tables: Vec<Table>,
}

/// A table: labels in the first column, values in the others.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Paragraphs before it.
    pub text: Vec<String>,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// A cell for each column.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(title: &str, text: &[&str], columns: &[&str]) -> Self {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Self {
            title: title.to_owned(),
            text: owned(text),
            columns: owned(columns),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When it has not a cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.columns.len(), "{}: {cells:?}", self.title);
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = comfy_table::Table::new();
        table.load_style(ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(&self.columns);
        table.add_rows(&self.rows);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        writeln!(f, "## {}\n", self.title)?;
        self.text.iter().try_for_each(|text| writeln!(f, "{text}\n"))?;
        // Rules are as wide as the widest cell, which is a waste of columns at the end.
        table.lines().try_for_each(|line| writeln!(f, "{}", line.trim_end()))
    }
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {}\n", self.title)?;
        self.head.iter().try_for_each(|text| writeln!(f, "{text}\n"))?;
        for (number, table) in self.tables.iter().enumerate() {
            write!(f, "{}{table}", if number > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}
