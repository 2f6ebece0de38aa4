//! Whose processors the emulated machine has.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The make of the machine's processors, and with it the emulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Make {
    /// AMD's, with SVM and nested paging: QEMU emulates them.
    #[default]
    Amd,
    /// Intel's, with VMX and EPT: Bochs does.
    Intel,
}

impl Make {
    /// The make of that name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Amd, Self::Intel].into_iter().find(|make| make.to_string() == name)
    }

    /// The part of KVM that is for these processors, as a module.
    pub(crate) fn module(self) -> &'static str {
        match self {
            Self::Amd => "kvm_amd",
            Self::Intel => "kvm_intel",
        }
    }

    /// The part of KVM for the other make's.
    pub(crate) fn other_module(self) -> &'static str {
        match self {
            Self::Amd => Self::Intel.module(),
            Self::Intel => Self::Amd.module(),
        }
    }

    /// What `strata lab build` needs to be told for this machine.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::Amd => "",
            Self::Intel => " --machine intel",
        }
    }
}

impl fmt::Display for Make {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Amd => "amd",
            Self::Intel => "intel",
        })
    }
}

/// The machine that L0 ran on.
#[derive(Clone, Debug, Serialize)]
pub struct MachineReport {
    /// The make of its processors.
    pub make: Make,
    /// The emulator and its version.
    pub emulator: String,
    /// The model of its processors, as the emulator names it.
    pub processor: String,
}
