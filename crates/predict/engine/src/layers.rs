//! The layers of a machine: how many there are, and one thing for each.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Which translation stack a program runs on.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum StackKind {
    /// One layer: a kernel on hardware.
    Native,
    /// Two layers: a guest on L0.
    Vm,
    /// Three layers: L2 on L1 on L0.
    #[default]
    Nested,
}

impl StackKind {
    /// Every kind, from the fewest layers to the most.
    pub const ALL: [Self; 3] = [Self::Native, Self::Vm, Self::Nested];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Vm => "vm",
            Self::Nested => "nested",
        }
    }

    /// Layers that translate.
    pub const fn layers(self) -> usize {
        match self {
            Self::Native => 1,
            Self::Vm => 2,
            Self::Nested => 3,
        }
    }
}

impl fmt::Display for StackKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One thing per layer. Layers a stack has not got are `None`, written as `null`: `l1` in a VM,
/// `l1` and `host` natively, where `guest` is the only kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerLayer<T> {
    /// The kernel the program runs on: L2 when nested.
    pub guest: T,
    /// The guest hypervisor, L1.
    pub l1: Option<T>,
    /// The host hypervisor, L0.
    pub host: Option<T>,
}

impl<T: Copy> PerLayer<T> {
    /// The layers there are, with their names, from the guest down.
    pub fn present(&self) -> impl Iterator<Item = (&'static str, T)> {
        let layers = [("guest", Some(self.guest)), ("l1", self.l1), ("host", self.host)];
        layers.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}
