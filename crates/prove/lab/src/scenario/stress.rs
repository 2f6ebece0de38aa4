//! What a scenario does again and again.

use super::flaw::{Flaw, StressFlaw};
use super::layer::Layer;
use super::step::Step;
use serde::Deserialize;

/// Something done again and again.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stress {
    /// What the report calls it.
    pub name: String,
    /// Seconds from the beginning of one step to that of the next, if that one is done by then.
    pub every: f64,
    /// Seconds until the first.
    #[serde(default)]
    pub after: f64,
    /// What is done, in order, and from the first again.
    #[serde(rename = "step")]
    pub steps: Vec<Step>,
}

impl Stress {
    /// Refuses what cannot be done again and again in these layers.
    pub(super) fn check(&self, layers: &[Layer]) -> Result<(), Flaw> {
        let Self { name, every, after, steps } = self;
        if !(*every > 0.0 && every.is_finite() && *after >= 0.0 && after.is_finite()) {
            return Err(StressFlaw::Clock(name.clone()).into());
        }
        if steps.is_empty() {
            return Err(StressFlaw::NoStep(name.clone()).into());
        }
        for step in steps {
            step.check(layers)?;
            if !step.can_be_repeated() {
                return Err(StressFlaw::OnceOnly(name.clone()).into());
            }
        }
        Ok(())
    }
}

impl Step {
    /// Whether a stressor can do it.
    fn can_be_repeated(&self) -> bool {
        matches!(
            self,
            Self::Run { stay: false, stress: false, layer: Some(_), .. }
                | Self::Guest { .. }
                | Self::Write { .. }
                | Self::Qmp { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::mistakes::{LAYER, refused};

    #[test]
    fn mistakes_are_named() {
        let says = |every: &str, text: &str, words: &str| {
            let stress = format!("[[stress]]\nname = 'y'\nevery = {every}\n{text}");
            refused(&format!("{LAYER}{}{stress}", LAYER.replace("1G", "500M")), words);
        };
        says("1", "step = []\n", "no step");
        says("0", "step = []\n", "are seconds");
        says("1", "step = [{ do = 'scan' }]\n", "nothing else");
        says("1", "step = [{ do = 'run', program = ['true'] }]\n", "nothing else");
        let write = "step = [{ do = 'write', layer = 2, path = '', text = '' }]\n";
        says("1", write, "a step is for L2");
        let guest = "step = [{ do = 'guest', layer = 0, memory = '9M', program = [] }]\n";
        says("1", guest, "runs no program");
    }
}
