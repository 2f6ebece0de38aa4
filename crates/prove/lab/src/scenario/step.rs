//! One step of a scenario.

use super::flaw::StepFlaw;
use super::kernel::Kernel;
use super::layer::Layer;
use super::memory::Memory;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What a step may sleep at most, in seconds: a day.
const LONGEST_SLEEP: f64 = 86_400.0;

/// Something that happens. Layers are numbers: 0 is L0.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Runs a program to its end; with `stay`, until its first line of output.
    Run {
        /// What the report calls the step, so that its output is found there.
        id: Option<String>,
        /// Where; the innermost layer if not given.
        layer: Option<u8>,
        /// Program and arguments.
        program: Vec<String>,
        /// It stays: the next step begins when it has printed a line.
        #[serde(default)]
        stay: bool,
        /// The scenario's stressors are at work meanwhile.
        #[serde(default)]
        stress: bool,
        /// The counters of all layers are read before it starts and when it is over, or with `stay` has printed its
        /// first line: `steps[].counters`.
        #[serde(default)]
        count: bool,
        /// Seconds it may take.
        #[serde(default = "ten_minutes")]
        limit: u64,
    },
    /// Runs one more machine beside the layer above, with that layer's kernel: a program alone in it.
    Guest {
        /// The layer its VMM runs in.
        layer: u8,
        /// Its memory.
        memory: Memory,
        /// It has a guest of its own, with the kernel of one layer more, and this much memory; the
        /// program is alone in that one.
        nested: Option<Memory>,
        /// Its CPUs, and those of its guest.
        #[serde(default = "one")]
        cpus: u8,
        /// Program and arguments.
        program: Vec<String>,
        /// Seconds after which its VMM is killed.
        die: Option<f64>,
        /// Seconds it may take.
        #[serde(default = "ten_minutes")]
        limit: u64,
    },
    /// Resets the machine of the innermost layer, as its button does, and waits until its agent runs
    /// again. Programs that ran in it are gone.
    Reset,
    /// Writes a file.
    Write {
        /// Where.
        layer: u8,
        /// The file; a part `*` of the path stands for all directories there.
        path: String,
        /// Its new contents.
        text: String,
    },
    /// Sends a command to the VMM that runs the layer above.
    Qmp {
        /// The layer the VMM runs in.
        layer: u8,
        /// The command, such as `balloon`.
        execute: String,
        /// Its arguments.
        #[serde(default)]
        arguments: BTreeMap<String, toml::Value>,
    },
    /// Waits.
    Sleep {
        /// How long.
        seconds: f64,
    },
    /// Takes a snapshot of each layer with `strata scan`, innermost first.
    Scan,
}

fn one() -> u8 {
    1
}

fn ten_minutes() -> u64 {
    600
}

impl Step {
    /// The layer without which there is nothing to do it in.
    fn needs(&self) -> usize {
        usize::from(match self {
            Self::Run { layer, .. } => layer.unwrap_or(0),
            Self::Write { layer, .. } => *layer,
            Self::Qmp { layer, .. } => layer.saturating_add(1),
            Self::Guest { layer, nested, .. } => {
                layer.saturating_add(1 + u8::from(nested.is_some()))
            }
            Self::Reset => 1,
            Self::Sleep { .. } | Self::Scan => 0,
        })
    }

    /// What the report calls it.
    pub(crate) fn id(&self) -> Option<&str> {
        match self {
            Self::Run { id, .. } => id.as_deref(),
            _ => None,
        }
    }

    /// Refuses what cannot be done in these layers.
    pub(super) fn check(&self, layers: &[Layer]) -> Result<(), StepFlaw> {
        let (needed, last) = (self.needs(), layers.len() - 1);
        if needed > last {
            return Err(match self {
                Self::Qmp { layer, .. } => StepFlaw::NoVmm { layer: *layer, last },
                _ => StepFlaw::NoLayer { needed, last },
            });
        }
        match self {
            Self::Run { program, .. } if program.is_empty() => Err(StepFlaw::NoProgram),
            Self::Run { limit: 0, program, .. } => {
                Err(StepFlaw::NoTime { program: program[0].clone() })
            }
            Self::Sleep { seconds } if !(0.0..=LONGEST_SLEEP).contains(seconds) => {
                Err(StepFlaw::Sleep { seconds: *seconds, most: LONGEST_SLEEP })
            }
            Self::Guest { .. } => self.check_guest(layers),
            _ => Ok(()),
        }
    }

    fn check_guest(&self, layers: &[Layer]) -> Result<(), StepFlaw> {
        let Self::Guest { layer, memory, nested, program, die, .. } = self else { return Ok(()) };
        let this = || format!("{self:?}");
        if die.is_some_and(|die| !(die >= 0.0 && die.is_finite())) {
            return Err(StepFlaw::GuestDies(this()));
        }
        if program.is_empty() {
            return Err(StepFlaw::GuestWithoutProgram(this()));
        }
        let Some(inner) = nested else { return Ok(()) };
        if inner >= memory {
            return Err(StepFlaw::GuestOfLittleMemory(this()));
        }
        // Of Debian's, the lab would have to load the modules first.
        match layers.get(usize::from(*layer) + 1) {
            Some(host) if host.kernel == Kernel::Debian => Err(StepFlaw::GuestOfDebian(this())),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::mistakes::{LAYER, refused};

    #[test]
    fn mistakes_are_named() {
        let says = |step: &str, words: &str| refused(&format!("{LAYER}[[step]]\n{step}"), words);
        let write = "do = 'write'\nlayer = 2\npath = ''\ntext = ''\n";
        says(write, "a step is for L2, but the layers are L0 to L0");
        let qmp = "do = 'qmp'\nlayer = 0\nexecute = 'stop'\n";
        says(qmp, "the VMM of a layer above L0");
        says(&qmp.replace('0', "255"), "the VMM of a layer above L255");
        for seconds in ["-3", "inf", "nan", "1e9"] {
            says(&format!("do = 'sleep'\nseconds = {seconds}\n"), "cannot sleep");
        }
        says("do = 'run'\nprogram = []\n", "no program");
        says("do = 'run'\nprogram = ['true']\nlimit = 0\n", "no time");
        says("do = 'reset'\n", "a step is for L1");
    }

    #[test]
    fn mistakes_of_guests_are_named() {
        let guest = |below: &str, more: &str| {
            format!("{LAYER}{below}[[step]]\ndo = 'guest'\nlayer = 0\nmemory = '9M'\n{more}")
        };
        let inner = LAYER.replace("1G", "500M");
        refused(&guest(&inner, "program = []\n"), "runs no program");
        let nested = "program = ['true']\nnested = '8M'\n";
        refused(&guest(&inner, nested), "a step is for L2, but the layers are L0 to L1");
        let innermost = LAYER.replace("1G", "300M");
        let two = format!("{inner}{innermost}");
        refused(&guest(&two, &nested.replace("8M", "9M")), "less memory than its guest");
        refused(&guest(&two.replace("lab", "debian"), nested), "not Debian's");
        refused(&guest(&inner, "program = ['true']\ndie = -1.0\n"), "after so many seconds");
    }
}
