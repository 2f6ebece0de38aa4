//! Lines of a table: a label and a cell for each run.

use anstyle::Style;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, Table, Width};
use std::fmt::Write;
use strata_engine::RunResult;
use strata_text::estimate::marked;
use strata_text::number::ratio;

pub(crate) const LABEL: usize = 27;
pub(crate) const CELL: usize = 10;
pub(crate) const BOLD: Style = Style::new().bold();

/// One line of a table: a heading without cells, or a label with one cell per run.
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) cells: Vec<String>,
}

/// The lines of a stack's table.
pub(crate) struct Lines<'a> {
    pub(crate) runs: &'a [&'a RunResult],
    pub(crate) lines: Vec<Line>,
}

impl Lines<'_> {
    pub(crate) fn heading(&mut self, label: &str) {
        self.lines.push(Line { label: label.to_owned(), cells: Vec::new() });
    }

    pub(crate) fn row(&mut self, label: &str, cell: impl Fn(&RunResult) -> String) {
        let cells = self.runs.iter().map(|run| cell(run)).collect();
        self.lines.push(Line { label: format!("  {label}"), cells });
    }

    /// A row of figures that are estimated where the stream was sampled.
    pub(crate) fn estimated(&mut self, label: &str, cell: impl Fn(&RunResult) -> String) {
        self.row(label, |run| mark(run, cell(run)));
    }

    /// The same, of a measure divided by that of the first run.
    pub(crate) fn relative_estimated(&mut self, label: &str, measure: impl Fn(&RunResult) -> f64) {
        let base = measure(self.runs[0]);
        self.estimated(label, |run| ratio((base > 0.0).then(|| measure(run) / base)));
    }

    /// A row of a measure divided by that of the first run.
    pub(crate) fn relative(&mut self, label: &str, measure: impl Fn(&RunResult) -> f64) {
        let base = measure(self.runs[0]);
        self.row(label, |run| ratio((base > 0.0).then(|| measure(run) / base)));
    }
}

/// A figure, marked where it is estimated from windows of the stream.
pub(crate) fn mark(run: &RunResult, figure: String) -> String {
    if run.sampled.is_some() { marked(figure) } else { figure }
}

/// Appends a table of these lines under a header.
pub(crate) fn print<'a>(out: &mut String, lines: &[Line], header: impl Iterator<Item = &'a str>) {
    let mut table = Table::new();
    table.load_style(NOTHING);
    let mut columns = vec![String::new()];
    columns.extend(header.map(str::to_owned));
    let count = columns.len();
    table.set_header(columns);
    for line in lines {
        let mut cells = vec![line.label.clone()];
        cells.extend(line.cells.iter().cloned());
        cells.resize(count, String::new());
        table.add_row(cells);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 0));
        let width = if index == 0 { LABEL } else { CELL - 1 };
        let width = Width::Fixed(width as u16);
        column.set_constraint(ColumnConstraint::LowerBoundary(width));
        if index > 0 {
            column.set_padding((1, 0));
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let headings = lines.iter().map(|line| line.cells.is_empty());
    for (line, heading) in table.lines().zip(std::iter::once(true).chain(headings)) {
        let line = line.trim_end();
        let _ = match heading {
            true => writeln!(out, "{BOLD}{line}{BOLD:#}"),
            false => writeln!(out, "{line}"),
        };
    }
}
