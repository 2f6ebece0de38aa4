//! The JSON of `strata lab run`, as far as it is shown; `docs/lab-scenarios.md` describes it.

use super::join::Join;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A run of the lab.
#[derive(Debug, Deserialize)]
pub struct Lab {
    /// Which scenario.
    pub scenario: String,
    /// What it is about.
    #[serde(default)]
    pub about: String,
    /// What truly happened.
    #[serde(default)]
    pub real: String,
    /// What did not.
    #[serde(default)]
    pub emulated: String,
    /// The layers, L0 first.
    pub layers: Vec<Layer>,
    /// What was done.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// The last join.
    #[serde(default)]
    pub alignment: Option<Join>,
}

/// A layer.
#[derive(Debug, Deserialize)]
pub struct Layer {
    /// Its number: 0 is the host.
    pub layer: u8,
    /// Its kernel.
    #[serde(default)]
    pub kernel: String,
    /// Counters at the end.
    pub after: Option<Counters>,
}

/// Counters of a layer at one moment.
#[derive(Debug, Deserialize)]
pub struct Counters {
    /// Bytes.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Bytes free.
    #[serde(default)]
    pub free_bytes: u64,
    /// Fragmentation.
    pub fmfi: Option<f64>,
    /// Exits by reason.
    #[serde(default)]
    pub exits: BTreeMap<String, u64>,
}

/// A step of a scenario.
#[derive(Debug, Deserialize)]
pub struct Step {
    /// What it was.
    pub what: String,
    /// How long it took.
    pub seconds: f64,
    /// How it ended.
    pub status: Option<i32>,
}
