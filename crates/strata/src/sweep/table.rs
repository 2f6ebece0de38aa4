//! What `strata sweep` prints.

use super::outcomes::Outcomes;
use crate::failure::Failure;
use crate::tidy::{Cells, Column};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

/// The figures that are shown of each run: their columns, and what they are called here.
const SHOWN: [(&str, &str); 5] = [
    ("stack", "stack"),
    ("policy", "policy"),
    ("relative_throughput", "throughput"),
    ("cycles_per_access", "cycles/access"),
    ("aligned_share", "well aligned"),
];

/// The table: where each point is, and a few figures of each of its runs.
///
/// # Errors
/// When a result is none.
pub fn text(outcomes: &Outcomes<'_>) -> Result<String, Failure> {
    let columns = outcomes.columns()?;
    let errors = columns.iter().position(|column| column.name == "error").expect("it is there");
    let (axes, rest) = columns.split_at(errors);
    let shown = SHOWN.iter().filter(|(name, _)| {
        // An axis of the same name says it already.
        !axes.iter().any(|axis| axis.name.strip_prefix("grid.") == Some(*name))
    });
    let shown: Vec<(&Column, &str)> = shown
        .filter_map(|(name, title)| {
            Some((rest.iter().find(|column| column.name == *name)?, *title))
        })
        .collect();
    let mut table = Table::new();
    table.load_style(NOTHING);
    let title = |axis: &Column| axis.name.trim_start_matches("grid.").to_owned();
    table.set_header(
        axes.iter().map(title).chain(shown.iter().map(|(_, title)| (*title).to_owned())),
    );
    for row in 0..rest[0].cells.len() {
        let mut cells: Vec<String> = axes.iter().map(|axis| axis.cells.text(row)).collect();
        match rest[0].cells.text(row) {
            why if why.is_empty() => {
                cells.extend(shown.iter().map(|(column, _)| rounded(&column.cells, row)));
            }
            why => cells.push(why),
        }
        table.add_row(cells);
    }
    let numbers = axes.iter().chain(shown.iter().map(|(column, _)| *column)).enumerate();
    for (index, column) in numbers {
        if let (Some(shown), false) =
            (table.column_mut(index), matches!(column.cells, Cells::Text(_)))
        {
            shown.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.to_string();
    Ok(lines.lines().map(|line| line.trim_end().to_owned() + "\n").collect())
}

fn rounded(cells: &Cells, row: usize) -> String {
    match cells {
        Cells::Real(cells) => cells[row].map_or("-".to_owned(), |cell| format!("{cell:.2}")),
        cells => cells.text(row),
    }
}
