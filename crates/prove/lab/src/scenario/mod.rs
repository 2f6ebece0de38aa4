//! Scenarios: what the layers are and what happens in them, as data. Each part refuses what it cannot
//! be; the documentation's reference is made of the comments here.

mod flaw;
mod intel;
mod kernel;
mod layer;
mod memory;
#[cfg(test)]
mod reference;
mod shipped;
mod step;
mod stress;
mod vmm;

pub use flaw::{Flaw, IntelFlaw, LayerFlaw, StepFlaw, StressFlaw};
pub use kernel::Kernel;
pub use layer::{Backend, Fragmentation, Layer};
pub use memory::Memory;
pub use shipped::names;
pub use step::Step;
pub use stress::Stress;
pub use vmm::Vmm;

use crate::error::LabError;
use crate::make::Make;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// A scenario, read from TOML.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// One line: what it shows.
    pub about: String,
    /// The layers, L0 first.
    #[serde(rename = "layer")]
    pub layers: Vec<Layer>,
    /// What happens once all layers run, in order.
    #[serde(default, rename = "step")]
    pub steps: Vec<Step>,
    /// What is done again and again while programs run that are to be stressed.
    #[serde(default, rename = "stress")]
    pub stress: Vec<Stress>,
}

impl Scenario {
    /// The shipped scenario of that name, or the one in a file.
    pub fn load(name: &str) -> Result<Self, LabError> {
        if let Some(text) = shipped::text(name) {
            return Self::parse(text, name);
        }
        let path = Path::new(name);
        if path.extension().is_none() && !path.exists() {
            return Err(LabError::UnknownScenario {
                name: name.to_owned(),
                known: shipped::beside(name),
            });
        }
        let text =
            text_of(path).map_err(|source| LabError::File { path: path.to_owned(), source })?;
        Self::parse(&text, name)
    }

    /// Reads and checks a scenario.
    pub fn parse(text: &str, name: &str) -> Result<Self, LabError> {
        let failed = |flaw| LabError::Scenario { name: name.to_owned(), flaw };
        let scenario: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            failed(Flaw::Unreadable { line, message: error.message().replace('\n', " ") })
        })?;
        scenario.check().map_err(failed)?;
        Ok(scenario)
    }

    /// The make of the machine's processors.
    pub fn make(&self) -> Make {
        self.layers[0].make()
    }

    /// Whether it is for machines of this make: those are that name no make, and those that name this one.
    pub fn runs_on(&self, make: Make) -> bool {
        self.layers[0].names_make().is_none_or(|named| named == make)
    }

    /// Has the scenario, of this name, run on a machine of another make.
    ///
    /// # Errors
    ///
    /// What that machine cannot do.
    pub fn set_make(&mut self, make: Make, name: &str) -> Result<(), LabError> {
        self.layers[0].set_make(make);
        intel::check(&self.layers)
            .map_err(|flaw| LabError::Scenario { name: name.to_owned(), flaw: flaw.into() })
    }

    /// The first program that its steps run in the innermost layer, and its arguments.
    pub fn program(&self) -> Option<&[String]> {
        let innermost = self.layers.len() as u8 - 1;
        self.steps.iter().find_map(|step| match step {
            Step::Run { layer, program, .. } if layer.unwrap_or(innermost) == innermost => {
                Some(program.as_slice())
            }
            _ => None,
        })
    }

    /// Whether a layer runs machines: those with a layer above, and a lone one may, by its programs.
    pub(crate) fn hosts(&self, layer: usize) -> bool {
        layer + 1 < self.layers.len() || self.layers.len() == 1
    }

    /// Whether all is slow: a layer's kernel checks itself, or a layer is emulated within the emulator.
    pub(crate) fn is_slow(&self) -> bool {
        self.layers.iter().any(|layer| layer.kernel.is_checked() || layer.is_emulated())
    }

    /// Refuses what makes no sense. What was parsed has passed this.
    ///
    /// # Errors
    ///
    /// The first [`Flaw`].
    pub fn check(&self) -> Result<(), Flaw> {
        let count = self.layers.len();
        if !(1..=3).contains(&count) {
            return Err(Flaw::Layers(count));
        }
        for (number, layer) in self.layers.iter().enumerate() {
            if number > 0 && layer.memory >= self.layers[number - 1].memory {
                return Err(LayerFlaw::MoreMemoryThanBelow(number).into());
            }
            layer.check(number, self.hosts(number))?;
        }
        intel::check(&self.layers)?;
        let mut ids = BTreeSet::new();
        for step in &self.steps {
            step.check(&self.layers)?;
            if let Some(twice) = step.id().filter(|id| !ids.insert(*id)) {
                return Err(Flaw::SameId(twice.to_owned()));
            }
            if matches!(step, Step::Run { stress: true, .. }) && self.stress.is_empty() {
                return Err(Flaw::NoStress);
            }
        }
        for stress in &self.stress {
            stress.check(&self.layers)?;
        }
        Ok(())
    }
}

/// The text of a scenario's file, of at most a length that no scenario has.
fn text_of(path: &Path) -> io::Result<String> {
    const LONGEST: u64 = 1 << 20;
    let mut text = String::new();
    File::open(path)?.take(LONGEST + 1).read_to_string(&mut text)?;
    match text.len() as u64 > LONGEST {
        true => Err(io::Error::other("it is longer than 1 MiB: name a scenario")),
        false => Ok(text),
    }
}

#[cfg(test)]
pub(crate) mod mistakes {
    //! What the tests of a scenario's parts share.

    use super::Scenario;

    /// A layer that is right.
    pub(crate) const LAYER: &str = "[[layer]]\nkernel = 'lab'\nmemory = '1G'\n";

    /// Checks that a scenario with this is refused in one line that has these words.
    pub(crate) fn refused(text: &str, words: &str) {
        let text = format!("about = 'x'\n{text}");
        let message = Scenario::parse(&text, "x").unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[cfg(test)]
mod tests {
    use super::mistakes::{LAYER, refused};
    use super::*;

    #[test]
    fn every_shipped_scenario_is_right() {
        assert!(names().count() >= 7);
        for name in names() {
            Scenario::load(name).unwrap();
        }
    }

    #[test]
    fn a_scenarios_program_is_the_first_one_of_its_innermost_layer() {
        let touch = |name| Scenario::load(name).unwrap().program().unwrap().join(" ");
        assert!(touch("vm").starts_with("strata-agent touch --size=96M"));
        // Its first step runs something in L0.
        assert_eq!(touch("refill"), "strata-agent touch --size=256M");
        let idle = Scenario::parse(&format!("about = 'x'\n{}", mistakes::LAYER), "x").unwrap();
        assert_eq!(idle.program(), None);
    }

    #[test]
    fn the_documented_scenario_is_right() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs");
        let mut steps = Vec::new();
        for page in reference::PAGES {
            let Ok(text) = std::fs::read_to_string(docs.join(page)) else { continue };
            let scenarios = text.split("```toml\n").skip(1);
            steps.extend(
                scenarios
                    .filter_map(|rest| rest.split("```").next())
                    .map(|scenario| Scenario::parse(scenario, page).unwrap().steps.len()),
            );
        }
        assert_eq!(steps, [4, 4]);
    }

    #[test]
    fn mistakes_are_named() {
        refused("layer = []\n", "0 layers");
        refused(&LAYER.repeat(2), "more memory");
        refused(&LAYER.replace("1G", "much"), "much is no memory");
        refused(
            &format!("{LAYER}[[step]]\ndo = 'run'\nprogram = ['x']\nstress = true\n"),
            "add [[stress]]",
        );
        let run = "[[step]]\ndo = 'run'\nid = 'a'\nprogram = ['x']\n".repeat(2);
        refused(&format!("{LAYER}{run}"), "two steps have id = \"a\"");
        let message = Scenario::load("vanila").unwrap_err().to_string();
        assert!(message.contains("clean"), "{message}");
        let message = Scenario::load("causes/none").unwrap_err().to_string();
        assert!(message.contains("causes/ksm") && !message.contains("clean"), "{message}");
        assert!(names().any(|name| name == "causes/ksm"));
    }
}
