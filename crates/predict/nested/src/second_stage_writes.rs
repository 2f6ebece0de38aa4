//! How the host learns what a hypervisor in a VM writes to its second stage.

use strata_params::{ParameterError, Value};

/// What happens when a hypervisor in a VM writes an entry of its second stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecondStageWrites {
    /// The first write to a leaf table exits, and the host reads the table anew later, as KVM does today.
    #[default]
    Unsync,
    /// Each write exits, as with the hypervisors of the papers.
    Trap,
}

impl SecondStageWrites {
    const ALL: [Self; 2] = [Self::Unsync, Self::Trap];

    const fn name(self) -> &'static str {
        match self {
            Self::Unsync => "unsync",
            Self::Trap => "trap",
        }
    }
}

impl Value for SecondStageWrites {
    fn parse(name: &str, text: &str, _: &str) -> Result<Self, ParameterError> {
        let known = Self::ALL.into_iter().find(|known| known.name() == text);
        known.ok_or_else(|| ParameterError::Invalid {
            name: name.to_owned(),
            value: text.to_owned(),
            expected: "unsync or trap",
        })
    }

    fn print(&self) -> String {
        self.name().to_owned()
    }
}
