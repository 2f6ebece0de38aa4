//! What `strata lab levels` found: the JSON it writes.

use super::chore::{CHORES, Chore, FAULTS, PROCESSES};
use super::measured::{self, Pair};
use super::model;
use serde::Serialize;
use strata_lab::{LabReport, MachineReport, Make, Scenario};
use strata_nested::ExitReason;

/// Instructions that are a second to the kernels of an Intel machine, as long as it is busy.
const PER_SECOND: f64 = 400e6;

/// All stacks.
#[derive(Debug, Serialize)]
pub struct Levels {
    /// One after the other.
    pub stacks: Vec<Stack>,
}

/// A stack, and what chores cost in its innermost layer.
#[derive(Debug, Serialize)]
pub struct Stack {
    /// The scenario's name.
    pub scenario: String,
    /// What it shows.
    pub about: String,
    /// The machine that was run.
    pub machine: MachineReport,
    /// Layers, L0 included.
    pub layers: usize,
    /// The chores.
    pub chores: Vec<Cost>,
}

/// What one of a chore costs.
#[derive(Debug, Serialize)]
pub struct Cost {
    /// As `strata-agent chore` calls it.
    pub chore: String,
    /// What one is.
    pub one: String,
    /// How often it was done in either program.
    pub times: [u64; 2],
    /// Page faults in the innermost layer.
    pub faults: f64,
    /// Instructions that all layers execute, where the emulator counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<f64>,
    /// Exits.
    pub exits: Vec<Count>,
}

/// Exits of a VM for one reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Count {
    /// Whose.
    pub vm: String,
    /// Why, as KVM's events name it.
    pub what: String,
    /// How many real layers counted.
    pub measured: f64,
    /// How many the model says; `null` where it says nothing.
    pub predicted: Option<f64>,
    /// What the model calls it.
    #[serde(skip)]
    pub reason: Option<ExitReason>,
}

/// How far apart two counts may be that are called alike: 10 %, or one in twenty pieces.
const ALIKE: f64 = 0.1;
const ONE_IN_TWENTY: f64 = 0.05;

impl Count {
    /// Whether both count alike.
    pub fn is_alike(&self) -> Option<bool> {
        let apart = (self.predicted? - self.measured).abs();
        Some(apart <= ONE_IN_TWENTY || apart <= ALIKE * self.measured)
    }
}

impl Stack {
    /// Of what the layers counted.
    pub fn new(scenario: &Scenario, report: &LabReport) -> Self {
        Self {
            scenario: report.scenario.clone(),
            about: scenario.about.clone(),
            machine: report.machine.clone(),
            layers: scenario.layers.len(),
            chores: CHORES.iter().filter_map(|chore| cost(chore, scenario, report)).collect(),
        }
    }
}

fn cost(chore: &Chore, scenario: &Scenario, report: &LabReport) -> Option<Cost> {
    let pair = Pair::of(chore, report)?;
    let layers = scenario.layers.len();
    let faults = pair.each(layers - 1, |counters| counters.vmstat("pgfault"));
    let predicted = model::setup(scenario).and_then(|setup| match chore.name {
        FAULTS => model::faults(&setup),
        PROCESSES => model::processes(&setup, faults.round() as u64),
        _ => None,
    });
    let make = scenario.make();
    Some(Cost {
        chore: chore.name.to_owned(),
        one: chore.one.to_owned(),
        times: chore.times,
        faults,
        instructions: (make == Make::Intel).then(|| pair.seconds(0) * PER_SECOND),
        exits: measured::exits(&pair, layers, make, predicted.as_ref()),
    })
}
