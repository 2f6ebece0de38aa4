//! Scenarios: what the layers are and what happens in them, as data.

use crate::error::LabError;
use crate::events;
use crate::kernel::Variant;
use include_dir::{Dir, include_dir};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// What a kernel with its programs needs at least, in bytes.
const LEAST_MEMORY: u64 = 128 << 20;
/// What a step may sleep at most, in seconds: a day.
const LONGEST_SLEEP: f64 = 86_400.0;

static SHIPPED: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/scenarios");

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

/// One layer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Its kernel.
    pub kernel: Kernel,
    /// Its memory, such as `1600M`.
    pub memory: String,
    /// Its CPUs.
    #[serde(default = "one")]
    pub cpus: u8,
    /// Huge pages for anonymous memory: what `transparent_hugepage/enabled` is to be.
    pub thp: Option<String>,
    /// Fragments its free memory before anything else happens in it.
    pub fragmentation: Option<Fragmentation>,
    /// Merges equal pages, of which so many are scanned at a time (`pages_to_scan`).
    pub ksm: Option<u32>,
    /// Parameters of kernel modules, such as `kvm_amd = "npt=0"`.
    #[serde(default)]
    pub modules: BTreeMap<String, String>,
    /// Files to write, such as settings below `/sys`.
    #[serde(default)]
    pub write: BTreeMap<String, String>,
    /// More kernel parameters.
    #[serde(default)]
    pub parameters: String,
    /// Files of this computer that it has at the same place; directories with all that is in them.
    #[serde(default)]
    pub files: Vec<PathBuf>,
    /// Programs of this computer to copy into it with their libraries, for steps to run by their names
    /// or by where they are on this computer.
    #[serde(default)]
    pub programs: Vec<PathBuf>,
    /// Events of its kernel to count, as `system:event`, or as `system:event:field` to count each
    /// value of a field.
    #[serde(default)]
    pub trace_events: Vec<String>,
    /// The machine type that the layer below gives it; [`Layer::machine`] says which if not given.
    machine: Option<String>,
    /// What the layer below takes its memory from.
    #[serde(default)]
    pub backend: Backend,
    /// Nodes of memory, equal shares of it, each bound to the layer below's node of that number.
    #[serde(default = "one")]
    pub nodes: u8,
    /// More arguments of the VMM that runs it.
    #[serde(default)]
    pub vmm: Vec<String>,
    /// What starts that VMM, given its command line, such as `["strata-agent", "launch", "--no-thp"]`.
    #[serde(default)]
    pub launcher: Vec<String>,
}

/// Which kernel a layer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Built by `strata lab build`: `vanilla` (or `lab`), `aligned`, `debug`.
    Lab(Variant),
    /// Debian's own image for clouds, as it comes: `debian`.
    Debian,
}

impl<'de> Deserialize<'de> for Kernel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Name {
            #[serde(alias = "lab")]
            Vanilla,
            Aligned,
            Debug,
            Debian,
        }
        Ok(match Name::deserialize(deserializer)? {
            Name::Vanilla => Self::Lab(Variant::Vanilla),
            Name::Aligned => Self::Lab(Variant::Aligned),
            Name::Debug => Self::Lab(Variant::Debug),
            Name::Debian => Self::Debian,
        })
    }
}

impl Kernel {
    /// The kernel checks itself.
    pub(crate) fn is_checked(self) -> bool {
        matches!(self, Self::Lab(variant) if variant.is_checked())
    }

    /// The kernel has code of ours.
    pub(crate) fn is_patched(self) -> bool {
        matches!(self, Self::Lab(variant) if variant.is_patched())
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lab(variant) => variant.fmt(out),
            Self::Debian => out.write_str("debian"),
        }
    }
}

/// What the memory of a virtual machine is, in the eyes of the kernel below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Anonymous memory.
    #[default]
    Ram,
    /// A memfd.
    Memfd,
    /// A file in a temporary file system.
    File,
}

/// Fragmentation by a real fragmenter.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fragmentation {
    /// Unusable free space index for order 9 to reach.
    pub fmfi: f64,
    /// Share of the pages held that compaction may move.
    #[serde(default)]
    pub movable: f64,
}

/// Something that happens. Layers are numbers: 0 is L0.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Runs a program to its end; with `stay`, until its first line of output.
    Run {
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
        /// Seconds it may take.
        #[serde(default = "ten_minutes")]
        limit: u64,
    },
    /// Runs one more machine beside the layer above, with that layer's kernel: a program alone in it.
    Guest {
        /// The layer its VMM runs in.
        layer: u8,
        /// Its memory.
        memory: String,
        /// It has a guest of its own, with the kernel of one layer more, and this much memory; the
        /// program is alone in that one.
        nested: Option<String>,
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

impl Layer {
    /// The machine type that the layer below gives it, in QEMU's words.
    ///
    /// The lab's own kernel gets the smallest machine: its firmware runs for milliseconds only.
    /// SeaBIOS, which the PC has, changes between real and protected mode with interrupts on for
    /// seconds, and under two emulated hypervisors its stack sometimes does not survive that.
    pub fn machine(&self) -> &str {
        self.machine.as_deref().unwrap_or(match self.kernel {
            Kernel::Lab(_) => "microvm,acpi=on,pcie=on,rtc=on",
            Kernel::Debian => "pc",
        })
    }
}

impl Scenario {
    /// The shipped scenario of that name, or the one in a file.
    pub fn load(name: &str) -> Result<Self, LabError> {
        if let Some(text) = shipped(name) {
            return Self::parse(text, name);
        }
        let path = Path::new(name);
        if path.extension().is_none() && !path.exists() {
            // Of its own directory only: nobody reads the names of all.
            let kind = name.rsplit_once('/').map_or("", |(kind, _)| kind);
            let mut all: Vec<_> = names()
                .filter(|known| known.rsplit_once('/').map_or("", |(kind, _)| kind) == kind)
                .collect();
            if all.is_empty() {
                all = names().filter(|known| !known.contains('/')).collect();
            }
            return Err(LabError::Scenario(format!(
                "no scenario is called '{name}'; there are {}, or give a file ending in .toml",
                all.join(", ")
            )));
        }
        let text =
            text_of(path).map_err(|source| LabError::File { path: path.to_owned(), source })?;
        Self::parse(&text, name)
    }

    /// Reads and checks a scenario.
    pub fn parse(text: &str, name: &str) -> Result<Self, LabError> {
        let failed = |reason: String| LabError::Scenario(format!("scenario {name}: {reason}"));
        let scenario: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            failed(format!("line {line}: {}", error.message().replace('\n', " ")))
        })?;
        scenario.check().map_err(failed)?;
        Ok(scenario)
    }

    /// Whether a layer runs machines: those with a layer above, and a lone one may, by its programs.
    pub(crate) fn hosts(&self, layer: usize) -> bool {
        layer + 1 < self.layers.len() || self.layers.len() == 1
    }

    /// Whether a layer's kernel checks itself, and all are slow with it.
    pub(crate) fn is_checked(&self) -> bool {
        self.layers.iter().any(|layer| layer.kernel.is_checked())
    }

    fn check(&self) -> Result<(), String> {
        let count = self.layers.len();
        if !(1..=3).contains(&count) {
            return Err(format!("it has {count} layers; there can be 1, 2 or 3"));
        }
        let mut below = u64::MAX;
        let of_computer = computer_memory();
        for (number, layer) in self.layers.iter().enumerate() {
            let memory = bytes(&layer.memory)?;
            if memory >= below {
                return Err(format!("L{number} cannot have more memory than the layer below"));
            }
            below = memory;
            if memory < LEAST_MEMORY {
                return Err(format!(
                    "L{number} has {} of memory, too little for a kernel and its programs: give it \
                     {}M or more",
                    layer.memory,
                    LEAST_MEMORY >> 20
                ));
            }
            if let Some(all) = of_computer.filter(|&all| number == 0 && memory > all) {
                return Err(format!(
                    "L0 cannot have {} of memory: this computer has {} MiB",
                    layer.memory,
                    all >> 20
                ));
            }
            if layer.cpus == 0 {
                return Err(format!("L{number} has no CPU: cpus is 1 or more"));
            }
            if layer.nodes == 0 || u64::from(layer.nodes) > memory >> 20 {
                return Err(format!("L{number} has no node of memory: nodes is 1 or more"));
            }
            let of_vmm = layer.machine.is_some()
                || layer.backend != Backend::default()
                || !layer.launcher.is_empty();
            if of_vmm && number == 0 {
                return Err(
                    "L0 is run by no layer: machine, backend and launcher are for those above"
                        .into(),
                );
            }
            if layer.nodes > 1 && number == 0 {
                return Err(format!(
                    "L0 cannot have {0} nodes, which would be this computer's: give it the parameter \
                     numa=fake={0}U",
                    layer.nodes
                ));
            }
            if let Some(fragmentation) = layer.fragmentation
                && !((0.0..=1.0).contains(&fragmentation.fmfi)
                    && (0.0..=1.0).contains(&fragmentation.movable))
            {
                return Err(format!("L{number}: fmfi and movable are numbers from 0 to 1"));
            }
            if let Some(thp) = &layer.thp
                && !["always", "madvise", "never"].contains(&thp.as_str())
            {
                return Err(format!("L{number}: thp is always, madvise or never, not {thp}"));
            }
            for event in &layer.trace_events {
                events::parse(event).map_err(|reason| format!("L{number}: {reason}"))?;
            }
            if layer.kernel != Kernel::Debian && !layer.modules.is_empty() && !self.hosts(number) {
                return Err(format!(
                    "L{number} runs no machine and has no module to set: put what its kernel shall \
                     have into parameters"
                ));
            }
        }
        for step in &self.steps {
            self.check_step(step)?;
        }
        for stress in &self.stress {
            let Stress { name, every, after, steps } = stress;
            if !(*every > 0.0 && every.is_finite() && *after >= 0.0 && after.is_finite()) {
                return Err(format!("stress '{name}': every and after are seconds"));
            }
            for step in steps {
                self.check_step(step)?;
                match step {
                    Step::Run { stay: false, stress: false, layer: Some(_), .. }
                    | Step::Guest { .. }
                    | Step::Write { .. }
                    | Step::Qmp { .. } => {}
                    _ => {
                        return Err(format!(
                            "stress '{name}' can write, qmp, guest, and run with a layer and without \
                             stay and stress, nothing else"
                        ));
                    }
                }
            }
            if steps.is_empty() {
                return Err(format!("stress '{name}' has no step"));
            }
        }
        Ok(())
    }

    fn check_step(&self, step: &Step) -> Result<(), String> {
        let layer = match step {
            Step::Run { layer, .. } => layer.unwrap_or(0),
            Step::Write { layer, .. } => *layer,
            Step::Qmp { layer, .. } => *layer + 1,
            Step::Guest { layer, memory, nested, program, die, .. } => {
                let outer = bytes(memory)?;
                if die.is_some_and(|die| !(die >= 0.0 && die.is_finite())) {
                    return Err(format!("a guest dies after so many seconds: {step:?}"));
                }
                if program.is_empty() {
                    return Err(format!("a guest runs no program: {step:?}"));
                }
                if let Some(inner) = nested {
                    if bytes(inner)? >= outer {
                        return Err(format!("a guest has less memory than its guest: {step:?}"));
                    }
                    // Of Debian's, the lab would have to load the modules first.
                    let host = self.layers.get(usize::from(*layer) + 1);
                    if host.is_some_and(|host| host.kernel == Kernel::Debian) {
                        return Err(format!(
                            "a guest that has a guest needs a kernel of the lab's, not Debian's: {step:?}"
                        ));
                    }
                }
                *layer + 1 + u8::from(nested.is_some())
            }
            Step::Reset => 1,
            Step::Sleep { .. } | Step::Scan => 0,
        };
        let count = self.layers.len();
        if usize::from(layer) >= count {
            let what = match step {
                Step::Qmp { layer, .. } => format!("the VMM of a layer above L{layer}"),
                _ => format!("L{layer}"),
            };
            let last = count - 1;
            return Err(format!("a step is for {what}, but the layers are L0 to L{last}"));
        }
        match step {
            Step::Run { program, .. } if program.is_empty() => {
                return Err("a step runs no program: give its name and arguments".into());
            }
            Step::Run { limit: 0, program, .. } => {
                return Err(format!(
                    "a step gives {} no time: limit is 1 second or more",
                    program[0]
                ));
            }
            Step::Sleep { seconds } if !(0.0..=LONGEST_SLEEP).contains(seconds) => {
                return Err(format!(
                    "a step cannot sleep {seconds} seconds: give a number from 0 to \
                     {LONGEST_SLEEP}"
                ));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Bytes of memory this computer has, if it can be asked.
fn computer_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// The text of a shipped scenario.
fn shipped(name: &str) -> Option<&'static str> {
    SHIPPED.get_file(format!("{name}.toml"))?.contents_utf8()
}

/// Names of the shipped scenarios: those that show what stacks do, then those below `causes/`, each
/// kind in alphabetical order.
pub fn names() -> impl Iterator<Item = &'static str> {
    let causes = SHIPPED.dirs().flat_map(|directory| directory.files());
    SHIPPED.files().chain(causes).filter_map(|file| file.path().to_str()?.strip_suffix(".toml"))
}

/// Bytes of a size such as `1600M`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'G') => (&text[..text.len() - 1], 30),
        Some(b'M') => (&text[..text.len() - 1], 20),
        _ => return Err(format!("{text} is no size; write it as 1600M or 2G")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text} is no size, such as 1600M"))?;
    number.checked_shl(shift).filter(|size| size >> shift == number).ok_or("too large".into())
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
mod tests {
    use super::*;

    #[test]
    fn every_shipped_scenario_is_right() {
        assert!(names().count() >= 7);
        for name in names() {
            Scenario::load(name).unwrap();
        }
    }

    #[test]
    fn the_documented_scenario_is_right() {
        let text = include_str!("../../../docs/lab.md");
        let scenarios = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let steps: Vec<usize> = scenarios
            .map(|scenario| Scenario::parse(scenario, "docs/lab.md").unwrap().steps.len())
            .collect();
        assert_eq!(steps, [4, 4]);
    }

    #[test]
    fn kernels_have_names_and_the_lab_s_is_the_vanilla_one() {
        let kernel = |name: &str| {
            let text = format!("about = 'x'\n[[layer]]\nkernel = '{name}'\nmemory = '1G'\n");
            Scenario::parse(&text, "x").unwrap().layers[0].kernel
        };
        assert_eq!(kernel("lab"), Kernel::Lab(Variant::Vanilla));
        for named in Variant::ALL.map(Kernel::Lab).into_iter().chain([Kernel::Debian]) {
            assert_eq!(kernel(&named.to_string()), named);
        }
    }

    #[test]
    fn mistakes_are_named() {
        let says = |text: &str, words: &str| {
            let message = Scenario::parse(text, "x").unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
            assert!(!message.contains('\n'), "{message}");
        };
        let layer = "[[layer]]\nkernel = 'lab'\nmemory = '1G'\n";
        says("about = 'x'\nlayer = []\n", "0 layers");
        says(&format!("about = 'x'\n{layer}{layer}"), "more memory");
        says(&format!("about = 'x'\n{layer}thq = 'always'\n"), "thq");
        says(&format!("about = 'x'\n{layer}thp = 'sometimes'\n"), "sometimes");
        says(&format!("about = 'x'\n{layer}trace_events = ['kvm']\n"), "kvm is no event");
        says("about = 'x'\n[[layer]]\nkernel = 'lab'\nmemory = 'much'\n", "much");
        says("about = 'x'\n[[layer]]\nkernel = 'allign'\nmemory = '1G'\n", "`aligned`");
        let step = |text: &str| format!("about = 'x'\n{layer}[[step]]\n{text}");
        let write = "do = 'write'\nlayer = 2\npath = ''\ntext = ''\n";
        says(&step(write), "a step is for L2, but the layers are L0 to L0");
        let qmp = "do = 'qmp'\nlayer = 0\nexecute = 'stop'\n";
        says(&step(qmp), "the VMM of a layer above L0");
        for seconds in ["-3", "inf", "nan", "1e9"] {
            says(&step(&format!("do = 'sleep'\nseconds = {seconds}\n")), "cannot sleep");
        }
        says(&step("do = 'run'\nprogram = []\n"), "no program");
        says(&step("do = 'run'\nprogram = ['true']\nlimit = 0\n"), "no time");
        says(&format!("about = 'x'\n{layer}cpus = 0\n"), "no CPU");
        says(&format!("about = 'x'\n{layer}nodes = 0\n"), "no node of memory");
        says(&format!("about = 'x'\n{layer}nodes = 2\n"), "numa=fake=2U");
        says("about = 'x'\n[[layer]]\nkernel = 'lab'\nmemory = '16M'\n", "too little");
        says("about = 'x'\n[[layer]]\nkernel = 'lab'\nmemory = '900000G'\n", "this computer has");
        let two = format!("about = 'x'\n{layer}{}", layer.replace("1G", "500M"));
        let stress = |text: &str| format!("{two}[[stress]]\nname = 'y'\nevery = 1\n{text}");
        says(&stress("step = []\n"), "no step");
        says(&stress("step = [{ do = 'scan' }]\n"), "nothing else");
        says(&format!("about = 'x'\n{layer}backend = 'file'\n"), "L0 is run by no layer");
        let write = "step = [{ do = 'write', layer = 2, path = '', text = '' }]\n";
        says(&stress(write), "a step is for L2");
        says(&stress("step = []\n").replace("every = 1", "every = 0"), "are seconds");
        let guest = "step = [{ do = 'guest', layer = 0, memory = '9M', program = [] }]\n";
        says(&stress(guest), "runs no program");
        let nested = guest.replace("program = []", "program = ['true'], nested = '8M'");
        says(&stress(&nested), "a step is for L2, but the layers are L0 to L1");
        says(&stress(&nested.replace("8M", "9M")), "less memory than its guest");
        says(&stress(&nested).replace("kernel = 'lab'", "kernel = 'debian'"), "not Debian's");
        says(&format!("about = 'x'\n{layer}[[step]]\ndo = 'reset'\n"), "a step is for L1");
        let message = Scenario::load("vanila").unwrap_err().to_string();
        assert!(message.contains("clean"), "{message}");
        let message = Scenario::load("causes/none").unwrap_err().to_string();
        assert!(message.contains("causes/ksm") && !message.contains("clean"), "{message}");
        assert!(names().any(|name| name == "causes/ksm"));
    }
}
