//! Every policy by name.

use crate::coplace::CoPlace;
use crate::gemini::Gemini;
use crate::gemini_settings::GeminiSettings;
use crate::linux::{Aligned, Linux};
use crate::parameters::{ParameterSet, PolicyParameters};
use crate::strata;
use crate::xgemini::{XGemini, XGeminiSettings};
use crate::xgemini_xplace;
use crate::xplace::XPlace;
use strata_stack::Policy;

/// A policy that can be asked for by name, and all that other parts of the program must know of it.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Name.
    pub name: &'static str,
    /// One line of explanation.
    pub summary: &'static str,
    /// Where it is described.
    pub source: &'static str,
    /// The sets of parameters that it reads. To set one of them is a mistake when no policy that
    /// reads it is used.
    pub parameters: &'static [ParameterSet],
    /// Whether it decides for each kernel by itself: then it can govern a guest whose guest hypervisor
    /// has another policy.
    pub independent: bool,
    /// Whether it has the host place a VM's memory by cache colour.
    pub by_colour: bool,
    /// Whether it is compared when nobody says which policies are to be.
    pub by_default: bool,
    /// What is to be said of its results.
    pub words: Words,
    /// Makes one.
    pub make: fn(&PolicyParameters) -> Box<dyn Policy>,
}

/// What a report in words must know of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// It is no remedy that anybody can install: it bounds what the others can reach.
    pub upper_bound: bool,
    /// Why it is behind another policy, where it is.
    pub behind: Option<Behind>,
}

/// Why a policy is behind another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// The other policy.
    pub other: &'static str,
    /// It is so on stacks of at most this many layers.
    pub most_layers: usize,
    /// A sentence.
    pub why: &'static str,
}

impl Entry {
    /// A policy without parameters, compared only when it is named.
    pub const fn new(
        name: &'static str,
        summary: &'static str,
        source: &'static str,
        make: fn(&PolicyParameters) -> Box<dyn Policy>,
    ) -> Self {
        let words = Words { upper_bound: false, behind: None };
        Self {
            name,
            summary,
            source,
            parameters: &[],
            independent: false,
            by_colour: false,
            by_default: false,
            words,
            make,
        }
    }

    /// It reads these sets of parameters.
    pub const fn reads(self, parameters: &'static [ParameterSet]) -> Self {
        Self { parameters, ..self }
    }

    /// It decides for each kernel by itself.
    pub const fn independent(self) -> Self {
        Self { independent: true, ..self }
    }

    /// It has the host place a VM's memory by cache colour.
    pub const fn by_colour(self) -> Self {
        Self { by_colour: true, ..self }
    }

    /// It is compared when nobody says which policies are to be.
    pub const fn by_default(self) -> Self {
        Self { by_default: true, ..self }
    }

    /// It is the upper bound of what the others can reach.
    pub const fn upper_bound(self) -> Self {
        Self { words: Words { upper_bound: true, ..self.words }, ..self }
    }

    /// Why it is behind another one, where it is.
    pub const fn behind(self, behind: Behind) -> Self {
        Self { words: Words { behind: Some(behind), ..self.words }, ..self }
    }
}

/// All policies, the baseline first, the upper bound last.
pub const REGISTRY: &[Entry] = &[
    Entry::new(
        "base",
        "base pages only, in every layer: the baseline",
        "vanilla of xGemini (TC 2024) V; Host-B-VM-B of Gemini (EuroSys 2023)",
        |_| Box::new(Linux::base()),
    )
    .independent()
    .by_default(),
    Entry::new(
        "thp",
        "Linux transparent huge pages, always, in every layer on its own",
        "Linux 6.12, mm/huge_memory.c and mm/khugepaged.c",
        |_| Box::new(Linux::thp()),
    )
    .independent()
    .by_default(),
    Entry::new(
        "guest-huge",
        "huge pages in the guest only: every one of them is misaligned",
        "Host-B-VM-H of Gemini (EuroSys 2023) Fig. 2",
        |_| Box::new(Linux::guest_huge()),
    ),
    Entry::new(
        "host-huge",
        "huge pages in the hypervisors only: every one of them is misaligned",
        "Host-H-VM-B of Gemini (EuroSys 2023) Fig. 2; Misalignment in its other figures",
        |_| Box::new(Linux::host_huge()),
    ),
    Entry::new(
        "gemini",
        "neighbouring layers align their huge pages; dual Gemini when nested (modified L1)",
        "Gemini (EuroSys 2023); xGemini (TC 2024) III.B",
        |parameters| Box::new(Gemini::new(GeminiSettings::from(parameters))),
    )
    .reads(GeminiSettings::SETS)
    .by_default(),
    Entry::new(
        "xgemini",
        "guest and host align across an unmodified L1, with pseudo huge pages",
        "xGemini (TC 2024) IV",
        |parameters| Box::new(XGemini::new(XGeminiSettings::from(parameters))),
    )
    .reads(XGeminiSettings::SETS)
    .by_default()
    .behind(Behind {
        other: "gemini",
        most_layers: 2,
        why: "Without a guest hypervisor xgemini is gemini whose huge pages follow touch: a fault \
              for each base page comes before each huge page.",
    }),
    Entry::new(
        "strata",
        "only the host's kernel is changed: rows of frames behind what stock guests and L1 map",
        "linux/ of this project, docs/kernel.md; xGemini (TC 2024) IV",
        |parameters| Box::new(strata::policy(parameters)),
    )
    .reads(strata::SETS),
    Entry::new(
        "coplace",
        "base pages; the host backs a VM's memory by cache colour, which a nested guest loses",
        "CoPlace (PACT 2021); xPlace 4.2",
        |parameters| Box::new(CoPlace::new(parameters)),
    )
    .reads(CoPlace::SETS)
    .by_colour(),
    Entry::new(
        "xplace",
        "base pages; the host keeps a nested guest's cache colours across an unmodified L1",
        "xPlace, section 5",
        |parameters| Box::new(XPlace::new(parameters)),
    )
    .reads(XPlace::SETS)
    .by_colour(),
    Entry::new(
        "xgemini+xplace",
        "xgemini where regions become whole; the host colours the pages of the others as xplace does",
        "xGemini (TC 2024) IV and xPlace, section 5; the choice between them is ours",
        |parameters| Box::new(xgemini_xplace::policy(parameters)),
    )
    .reads(xgemini_xplace::SETS)
    .by_colour(),
    Entry::new(
        "aligned",
        "the upper bound: whatever is touched is huge and well aligned from its first touch",
        "Host-H-VM-H of Gemini (EuroSys 2023) Fig. 2",
        |_| Box::new(Aligned),
    )
    .by_default()
    .upper_bound(),
];

impl PolicyParameters {
    /// Those of these policies, at their defaults.
    pub fn of(entries: &[Entry]) -> Self {
        Self::with(entries.iter().flat_map(|entry| entry.parameters))
    }
}

/// Those of every policy in the registry.
impl Default for PolicyParameters {
    fn default() -> Self {
        Self::of(REGISTRY)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeout::BookingParameters;
    use strata_params::Parameters;
    use strata_stack::{NodeId, Position};

    #[test]
    fn names_are_unique_and_found() {
        for entry in REGISTRY {
            assert_eq!(find(entry.name).unwrap().summary, entry.summary);
        }
        assert!(find("xgemin").is_err());
    }

    #[test]
    fn every_parameter_belongs_to_the_policies_that_read_it() {
        let readers = |name: &str| -> Vec<&str> {
            let reads =
                |entry: &&Entry| entry.parameters.iter().any(|set| set.names().any(|n| n == name));
            REGISTRY.iter().filter(reads).map(|entry| entry.name).collect()
        };
        assert_eq!(readers("gemini.scan_period"), ["gemini", "xgemini", "xgemini+xplace"]);
        assert_eq!(readers("ema.prealloc_pages"), ["gemini", "xgemini", "xgemini+xplace"]);
        assert_eq!(readers("booking.cap"), ["gemini", "xgemini", "strata", "xgemini+xplace"]);
        assert_eq!(readers("xgemini.period"), ["xgemini", "xgemini+xplace"]);
        assert_eq!(readers("colours.table_seed"), ["coplace", "xplace", "xgemini+xplace"]);
        assert_eq!(readers("xplace.copy"), ["xplace", "xgemini+xplace"]);
        assert_eq!(readers("huge_aligner.threshold"), ["xgemini", "xgemini+xplace"]);
        for parameter in PolicyParameters::default().parameters() {
            assert!(!readers(&parameter.name).is_empty(), "{}", parameter.name);
        }
    }

    #[test]
    fn a_policy_places_by_colour_if_it_says_so() {
        let host = Position { node: NodeId::HOST, level: 0, vms: 1, vm: NodeId::HOST };
        for entry in REGISTRY {
            let settings = (entry.make)(&PolicyParameters::default()).settings(host);
            assert_eq!(settings.coloured, entry.by_colour, "{}", entry.name);
        }
    }

    #[test]
    fn whom_a_policy_is_behind_is_a_policy() {
        for behind in REGISTRY.iter().filter_map(|entry| entry.words.behind) {
            find(behind.other).unwrap();
        }
        assert!(REGISTRY.iter().filter(|entry| entry.words.upper_bound).count() <= 1);
    }

    #[test]
    fn every_parameter_can_be_set_by_its_name() {
        let mut parameters = PolicyParameters::default();
        for parameter in parameters.parameters() {
            parameters.set(&parameter.name, &parameter.value).unwrap();
        }
        assert!(parameters.set("nothing", "1").is_err());
    }

    #[test]
    fn a_set_that_several_policies_read_is_there_once() {
        let parameters = PolicyParameters::default();
        let mut names: Vec<_> = parameters.parameters().into_iter().map(|p| p.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn what_is_set_is_what_a_policy_gets() {
        let mut parameters = PolicyParameters::default();
        parameters.set("booking.cap", "0.25").unwrap();
        let copy = parameters.clone();
        parameters.set("booking.cap", "0.75").unwrap();
        assert_eq!(copy.get::<BookingParameters>().cap, 0.25);
        assert_eq!(parameters.get::<BookingParameters>().cap, 0.75);
    }
}
