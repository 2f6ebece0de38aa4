//! Every policy by name.

use crate::coordination::GeminiSettings;
use crate::gemini::Gemini;
use crate::linux::{Aligned, Linux};
use crate::xgemini::{XGemini, XGeminiSettings};
use strata_params::{Parameter, ParameterError, Parameters};
use strata_stack::Policy;

/// A policy that can be asked for by name.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Name.
    pub name: &'static str,
    /// One line of explanation.
    pub summary: &'static str,
    /// Where it is described.
    pub source: &'static str,
    /// Makes one.
    pub make: fn(&PolicyParameters) -> Box<dyn Policy>,
}

/// All policies, the baseline first, the upper bound last.
pub const REGISTRY: &[Entry] = &[
    Entry {
        name: "base",
        summary: "base pages only, in every layer: the baseline",
        source: "vanilla of xGemini (TC 2024) V; Host-B-VM-B of Gemini (EuroSys 2023)",
        make: |_| Box::new(Linux::base()),
    },
    Entry {
        name: "thp",
        summary: "Linux transparent huge pages, always, in every layer on its own",
        source: "Linux 6.12, mm/huge_memory.c and mm/khugepaged.c",
        make: |_| Box::new(Linux::thp()),
    },
    Entry {
        name: "guest-huge",
        summary: "huge pages in the guest only: every one of them is misaligned",
        source: "Host-B-VM-H of Gemini (EuroSys 2023) Fig. 2",
        make: |_| Box::new(Linux::guest_huge()),
    },
    Entry {
        name: "host-huge",
        summary: "huge pages in the hypervisors only: every one of them is misaligned",
        source: "Host-H-VM-B of Gemini (EuroSys 2023) Fig. 2; Misalignment in its other figures",
        make: |_| Box::new(Linux::host_huge()),
    },
    Entry {
        name: "gemini",
        summary: "neighbouring layers align their huge pages; dual Gemini when nested (modified L1)",
        source: "Gemini (EuroSys 2023); xGemini (TC 2024) III.B",
        make: |parameters| Box::new(Gemini::new(parameters.gemini.clone())),
    },
    Entry {
        name: "xgemini",
        summary: "guest and host align across an unmodified L1, with pseudo huge pages",
        source: "xGemini (TC 2024) IV",
        make: |parameters| {
            Box::new(XGemini::new(XGeminiSettings {
                xgemini: parameters.xgemini.clone(),
                reused: parameters.gemini.clone(),
            }))
        },
    },
    Entry {
        name: "aligned",
        summary: "the upper bound: memory without fragmentation, every huge page well aligned",
        source: "Host-H-VM-H of Gemini (EuroSys 2023) Fig. 2",
        make: |_| Box::new(Aligned),
    },
];

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no policy is called '{0}'")]
pub struct UnknownPolicy(pub String);

/// The policy with this name.
///
/// # Errors
/// [`UnknownPolicy`].
pub fn find(name: &str) -> Result<&'static Entry, UnknownPolicy> {
    REGISTRY.iter().find(|entry| entry.name == name).ok_or_else(|| UnknownPolicy(name.to_owned()))
}

/// The parameters of all policies.
#[derive(Clone, Debug, Default)]
pub struct PolicyParameters {
    /// Gemini's, and what xGemini reuses of it.
    pub gemini: GeminiSettings,
    /// xGemini's host half.
    pub xgemini: crate::xgemini::XGeminiParameters,
}

impl PolicyParameters {
    fn sets(&self) -> [&dyn Parameters; 4] {
        let gemini = &self.gemini;
        [&gemini.scan, &gemini.allocator, &gemini.booking, &self.xgemini]
    }

    fn sets_mut(&mut self) -> [&mut dyn Parameters; 4] {
        let gemini = &mut self.gemini;
        [&mut gemini.scan, &mut gemini.allocator, &mut gemini.booking, &mut self.xgemini]
    }
}

impl Parameters for PolicyParameters {
    fn parameters(&self) -> Vec<Parameter> {
        self.sets().iter().flat_map(|set| set.parameters()).collect()
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ParameterError> {
        for set in self.sets_mut() {
            match set.set(name, value) {
                Err(ParameterError::Unknown(_)) => {}
                done => return done,
            }
        }
        Err(ParameterError::Unknown(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for entry in REGISTRY {
            assert_eq!(find(entry.name).unwrap().summary, entry.summary);
        }
        assert!(find("xgemin").is_err());
    }

    #[test]
    fn every_parameter_can_be_set_by_its_name() {
        let mut parameters = PolicyParameters::default();
        for parameter in parameters.parameters() {
            parameters.set(parameter.name, &parameter.value).unwrap();
        }
        assert!(parameters.set("nothing", "1").is_err());
    }
}
