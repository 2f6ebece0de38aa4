//! Exits of a VM for one reason, counted by layers and by the model.

use serde::Serialize;
use strata_nested::ExitReason;

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
