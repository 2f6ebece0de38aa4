//! What `strata sweep` prints.

use super::outcomes::Outcomes;
use crate::failure::Failure;
use crate::tidy::{Cells, Column, is_estimated};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use strata_text::estimate::marked;

/// The figures that are shown of each run: their columns, and what they are called here.
const SHOWN: [(&str, &str); 5] = [
    ("stack", "stack"),
    ("policy", "policy"),
    ("cycles_per_access", "cycles per access"),
    ("walk_cycles_per_access", "walk cycles per access"),
    ("aligned_share", "well aligned"),
];

/// What follows a table that has estimates.
const ESTIMATES: &str =
    "Figures with ~ are estimated from windows of the stream; --csv has their bounds.\n";

/// The table: where each point is, and a few figures of each of its runs.
///
/// # Errors
/// When a result is none.
pub fn text(outcomes: &Outcomes<'_>) -> Result<String, Failure> {
    let columns = outcomes.columns()?;
    let errors = columns.iter().position(|column| column.name == "error").expect("it is there");
    let (axes, rest) = columns.split_at(errors);
    let errors = &rest[0].cells;
    // An axis of the same name says it already.
    let said = |name: &str| axes.iter().any(|axis| axis.name.strip_prefix("grid.") == Some(name));
    let shown = SHOWN.iter().filter(|(name, _)| !said(name)).filter_map(|(name, title)| {
        Some((rest.iter().find(|column| column.name == *name)?, *title))
    });
    let shown: Vec<(&Column, &str)> = shown.collect();
    let mut titles: Vec<&str> =
        axes.iter().map(|axis| axis.name.trim_start_matches("grid.")).collect();
    titles.extend(shown.iter().map(|(_, title)| title));
    if (0..errors.len()).any(|row| !errors.text(row).is_empty()) {
        titles.push("error");
    }
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(titles);
    let mut is_sampled = false;
    for row in 0..errors.len() {
        let mut cells: Vec<String> = axes.iter().map(|axis| axis.cells.text(row)).collect();
        cells.extend(shown.iter().map(|(column, _)| {
            let figure = rounded(&column.cells, row);
            if !is_estimated(rest, &column.name, row) {
                return figure;
            }
            is_sampled = true;
            marked(figure)
        }));
        cells.push(errors.text(row));
        table.add_row(cells);
    }
    let columns = axes.iter().chain(shown.iter().map(|(column, _)| *column));
    for (index, column) in columns.enumerate() {
        let number = !matches!(column.cells, Cells::Text(_));
        if let Some(shown) = table.column_mut(index).filter(|_| number) {
            shown.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.to_string();
    let mut out: String = lines.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    if is_sampled {
        out += ESTIMATES;
    }
    Ok(out)
}

fn rounded(cells: &Cells, row: usize) -> String {
    let text = match cells {
        Cells::Real(cells) => cells[row].map_or(String::new(), |cell| format!("{cell:.2}")),
        cells => cells.text(row),
    };
    if text.is_empty() { "-".to_owned() } else { text }
}
