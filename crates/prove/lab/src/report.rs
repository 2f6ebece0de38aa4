//! What a run tells.

use crate::boot::Booted;
use crate::counters::Counters;
use crate::make::MachineReport;
use crate::steps::{Counted, StepReport};
use crate::stress::StressReport;
use crate::trace::TraceReport;
use serde::Serialize;
use std::ops::Deref;
use strata_inspect::join::regions::Regions;
use strata_inspect::join::report::Join;

/// Version of the report's form.
const VERSION: u32 = 1;
/// What in a report truly happened.
const REAL: &str = "kernels, page tables, faults, exits, promotions, alignment and contents";
/// What in a report did not.
const EMULATED: &str = "processors: seconds are those of an emulator, TLB misses and cycles of real \
                        hardware are not in this report";

/// Everything a run found. Serialised, it is the JSON of `strata lab run --json`.
#[derive(Clone, Debug, Serialize)]
pub struct LabReport {
    /// Version of this form.
    pub strata_lab: u32,
    /// The scenario's name.
    pub scenario: String,
    /// What it shows.
    pub about: String,
    /// What truly happened.
    pub real: String,
    /// What did not.
    pub emulated: &'static str,
    /// The machine.
    pub machine: MachineReport,
    /// The layers, L0 first.
    pub layers: Vec<LayerReport>,
    /// Whether the run began with the machine that was kept once its layers ran, in this run or an earlier one.
    pub kept: bool,
    /// Why the machine had to be started again, once for each time: boots that came to a standstill.
    pub restarts: Vec<String>,
    /// What was done, in order.
    pub steps: Vec<StepReport>,
    /// What stressed them meanwhile.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stress: Vec<StressReport>,
    /// What all layers counted while the program ran, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted: Option<Counted>,
    /// Alignment by the last snapshots of all layers, as `strata join` says it.
    pub alignment: Option<Alignment>,
    /// What was recorded, if a trace was asked for.
    pub trace: Option<TraceReport>,
}

/// The join of all layers, and every huge page of the guest in it.
#[derive(Clone, Debug, Serialize)]
pub struct Alignment {
    /// The join.
    #[serde(flatten)]
    pub join: Join,
    /// Each huge page through all layers.
    pub regions: Regions,
}

impl Deref for Alignment {
    type Target = Join;

    fn deref(&self) -> &Join {
        &self.join
    }
}

/// One layer.
#[derive(Clone, Debug, Serialize)]
pub struct LayerReport {
    /// How it came up.
    #[serde(flatten)]
    pub booted: Booted,
    /// Which kernel it runs: `vanilla`, `aligned`, `debug` or `debian`, or where one's own is.
    pub variant: String,
    /// The package its kernel comes from, with its version; `a file` of one's own.
    pub package: String,
    /// SHA-256, of the package where the kernel is Debian's, of the image where it is the lab's.
    pub sha256: String,
    /// Counters when all layers ran and nothing else had happened.
    pub before: Counters,
    /// Counters at the end.
    pub after: Counters,
    /// Counters over time.
    pub samples: Vec<Counters>,
}

impl LabReport {
    pub(crate) fn new(
        (scenario, about): (&str, &str),
        machine: MachineReport,
        layers: Vec<LayerReport>,
        steps: Vec<StepReport>,
    ) -> Self {
        let kernels = match layers.len() {
            1 => "one real kernel ran".to_owned(),
            2 => "two real kernels ran".to_owned(),
            _ => "three real kernels ran".to_owned(),
        };
        Self {
            strata_lab: VERSION,
            scenario: scenario.into(),
            about: about.into(),
            real: format!("{REAL}: {kernels}"),
            emulated: EMULATED,
            machine,
            layers,
            kept: false,
            restarts: Vec::new(),
            steps,
            stress: Vec::new(),
            counted: None,
            alignment: None,
            trace: None,
        }
    }
}
