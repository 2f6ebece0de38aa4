//! What `strata lab levels` found: the JSON it writes.

use super::chore::{CHORES, Chore, FAULTS, PROCESSES};
use super::count::Count;
use super::measured::{self, Pair};
use super::model;
use serde::Serialize;
use strata_lab::{INSTRUCTIONS_PER_SECOND, LabReport, MachineReport, Make, Scenario};

/// All stacks.
#[derive(Debug, Default, Serialize)]
pub struct Levels {
    /// Those that were measured, one after the other.
    pub stacks: Vec<Stack>,
    /// Those that were not, or not whole.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Failed>,
}

impl Levels {
    /// Notes that a stack was not measured, or not whole.
    pub fn failed(&mut self, scenario: &str, why: &str) {
        self.failed.push(Failed { scenario: scenario.to_owned(), why: why.to_owned() });
    }
}

/// A stack that was not measured, or not whole.
#[derive(Debug, Serialize)]
pub struct Failed {
    /// The scenario's name.
    pub scenario: String,
    /// Why not.
    pub why: String,
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
    /// The chores that were done.
    pub chores: Vec<Cost>,
    /// What L1 executes for one exit of L2 that it handles, of all that processes cost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub handled: Vec<Count>,
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

impl Stack {
    /// Of what the layers counted.
    pub fn new(scenario: &Scenario, report: &LabReport) -> Self {
        Self {
            scenario: report.scenario.clone(),
            about: scenario.about.clone(),
            machine: report.machine.clone(),
            layers: scenario.layers.len(),
            chores: CHORES.iter().filter_map(|chore| cost(chore, scenario, report)).collect(),
            handled: handled(scenario, report),
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
        instructions: (make == Make::Intel)
            .then(|| pair.seconds(0) * INSTRUCTIONS_PER_SECOND as f64),
        exits: measured::exits(&pair, layers, make, predicted.as_ref()),
    })
}

fn handled(scenario: &Scenario, report: &LabReport) -> Vec<Count> {
    let processes =
        CHORES.iter().find(|chore| chore.name == PROCESSES && scenario.layers.len() == 3);
    let Some(pair) = processes.and_then(|chore| Pair::of(chore, report)) else {
        return Vec::new();
    };
    let predicted = model::setup(scenario).and_then(|setup| model::handled(&setup));
    measured::handled(&pair, scenario.make(), predicted.as_ref())
}
