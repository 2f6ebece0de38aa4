//! What `strata lab predict` found: the JSON it writes.

use super::rows::Row;
use super::state::LayerState;
use serde::Serialize;
use strata_engine::RunResult;
use strata_lab::{Counted, MachineReport, TraceReport};

/// What both counted.
#[derive(Debug, Serialize)]
pub struct Predicted {
    /// The scenario's name.
    pub scenario: String,
    /// The program and its arguments.
    pub program: Vec<String>,
    /// The machine that was run.
    pub machine: MachineReport,
    /// How often the layers ran the program.
    pub runs: u32,
    /// The layers as they were when it began, by the first run, L0 first.
    pub layers: Vec<LayerState>,
    /// What was counted.
    pub rows: Vec<Row>,
    /// What the layers counted in each run, before and after.
    pub counted: Vec<Counted>,
    /// What the model made of it.
    pub run: RunResult,
    /// What was recorded, if that was asked for.
    pub recorded: Option<TraceReport>,
    /// The second half of that on the page tables of the same moment.
    pub on_true_tables: Option<RunResult>,
}
