//! What `strata lab predict` found: the JSON it writes.

use super::rows::Row;
use super::state::LayerState;
use serde::{Deserialize, Serialize};
use strata_engine::RunResult;
use strata_lab::{Counted, LabReport, MachineReport, TraceReport};

/// What both counted.
#[derive(Debug, Serialize)]
pub struct Predicted {
    /// The scenario's name.
    pub scenario: String,
    /// The program and its arguments.
    pub program: Vec<String>,
    /// The machine that was run.
    pub machine: MachineReport,
    /// The layers' kernels, L0's first.
    pub kernels: Vec<LayerKernel>,
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

/// A layer's kernel.
#[derive(Debug, Deserialize, Serialize)]
pub struct LayerKernel {
    /// Which of the lab's kernels it is, `debian`, or a file of one's own.
    pub variant: String,
    /// The package that it comes from, with its version.
    pub package: String,
    /// Its release and version, as it calls itself.
    pub version: String,
}

impl LayerKernel {
    /// Those of all layers, L0's first.
    pub fn all(report: &LabReport) -> Vec<Self> {
        let layers = report.layers.iter();
        layers
            .map(|layer| Self {
                variant: layer.variant.clone(),
                package: layer.package.clone(),
                version: layer.booted.kernel.clone(),
            })
            .collect()
    }
}
