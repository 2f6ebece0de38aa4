//! One layer of a scenario.

use super::flaw::LayerFlaw;
use super::kernel::Kernel;
use super::memory::Memory;
use super::vmm::Vmm;
use crate::events::TraceEvent;
use crate::make::Make;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a kernel with its programs needs at least.
const LEAST_MEMORY: Memory = Memory::mib(128);

/// One layer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Its kernel.
    pub kernel: Kernel,
    /// Its memory, such as `1600M`.
    pub memory: Memory,
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
    pub trace_events: Vec<TraceEvent>,
    /// Exits of its VM are not counted by its kernel's events, which has a hypervisor in a VM read its VMCS.
    #[serde(default)]
    pub untraced: bool,
    /// The machine type that the layer below gives it, in QEMU's words: if not given, `microvm` for the
    /// lab's kernels and `pc` for others. Of L0 the make of the processors: `amd`, which it is if not
    /// given, or `intel`.
    machine: Option<String>,
    /// What the layer below takes its memory from.
    #[serde(default)]
    pub backend: Backend,
    /// Nodes of memory, equal shares of it, each bound to the layer below's node of that number.
    #[serde(default = "one")]
    pub nodes: u8,
    /// The VMM that runs it: more arguments of QEMU as a list, the path of a program of this computer that
    /// takes QEMU's command line in its place, or both as `{ program = PATH, arguments = [...] }`.
    #[serde(default)]
    pub vmm: Vmm,
    /// What starts that VMM, given its command line, such as `["strata-agent", "launch", "--no-thp"]`.
    #[serde(default)]
    pub launcher: Vec<String>,
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

fn one() -> u8 {
    1
}

impl Layer {
    /// A layer with this kernel and memory, and of everything else what a scenario's file need not say.
    pub fn new(kernel: Kernel, memory: Memory) -> Self {
        Self {
            kernel,
            memory,
            cpus: one(),
            thp: None,
            fragmentation: None,
            ksm: None,
            modules: BTreeMap::new(),
            write: BTreeMap::new(),
            parameters: String::new(),
            files: Vec::new(),
            programs: Vec::new(),
            trace_events: Vec::new(),
            untraced: false,
            machine: None,
            backend: Backend::default(),
            nodes: one(),
            vmm: Vmm::default(),
            launcher: Vec::new(),
        }
    }

    /// The make of the machine's processors, as L0 says.
    pub(crate) fn make(&self) -> Make {
        self.names_make().unwrap_or_default()
    }

    /// The make that L0 names, if it does.
    pub(super) fn names_make(&self) -> Option<Make> {
        self.machine.as_deref().and_then(Make::named)
    }

    /// Gives the machine processors of this make.
    pub(super) fn set_make(&mut self, make: Make) {
        self.machine = Some(make.to_string());
    }

    /// Whether its VMM is told to emulate it.
    pub fn is_emulated(&self) -> bool {
        self.vmm.arguments.iter().any(|argument| argument == "tcg")
    }

    /// Whether its KVM is to do without nested paging on processors of this make.
    pub fn shadows(&self, make: Make) -> bool {
        let parameter = match make {
            Make::Amd => "npt",
            Make::Intel => "ept",
        };
        self.is_off(make.module(), parameter)
    }

    /// Whether a module of its kernel is given this parameter as one of the words for no (`kstrtobool` of Linux).
    pub fn is_off(&self, module: &str, parameter: &str) -> bool {
        const NO: [&str; 7] = ["0", "n", "N", "f", "F", "off", "of"];
        self.parameter(module, parameter).is_some_and(|value| NO.contains(&value))
    }

    /// The value of a parameter that a module of its kernel is given; the last one counts.
    pub fn parameter(&self, module: &str, parameter: &str) -> Option<&str> {
        let mut given =
            self.modules.get(module)?.split_whitespace().filter_map(|word| word.split_once('='));
        given.rfind(|(name, _)| *name == parameter).map(|(_, value)| value)
    }

    /// The machine type that the layer below gives it, in QEMU's words.
    ///
    /// The lab's own kernel gets the smallest machine: its firmware runs for milliseconds only.
    /// SeaBIOS, which the PC has, changes between real and protected mode with interrupts on for
    /// seconds, and under two emulated hypervisors its stack sometimes does not survive that.
    pub fn machine(&self) -> &str {
        self.machine.as_deref().unwrap_or(match self.kernel {
            Kernel::Lab(_) => "microvm,acpi=on,pcie=on,rtc=on",
            Kernel::Debian | Kernel::File(_) => "pc",
        })
    }

    /// Refuses what no layer of this number can be. `hosts`: it runs machines.
    pub(super) fn check(&self, number: usize, hosts: bool) -> Result<(), LayerFlaw> {
        if self.memory < LEAST_MEMORY {
            let (memory, least) = (self.memory, LEAST_MEMORY);
            return Err(LayerFlaw::LittleMemory { layer: number, memory, least });
        }
        if self.cpus == 0 {
            return Err(LayerFlaw::NoCpu(number));
        }
        if self.nodes == 0 || u64::from(self.nodes) > self.memory.in_mib() {
            return Err(LayerFlaw::NoNode(number));
        }
        if number == 0 {
            self.check_outermost()?;
        }
        if let Some(fragmentation) = self.fragmentation
            && !((0.0..=1.0).contains(&fragmentation.fmfi)
                && (0.0..=1.0).contains(&fragmentation.movable))
        {
            return Err(LayerFlaw::Fragmentation(number));
        }
        if let Some(thp) = &self.thp
            && !["always", "madvise", "never"].contains(&thp.as_str())
        {
            return Err(LayerFlaw::Thp { layer: number, thp: thp.clone() });
        }
        if self.kernel != Kernel::Debian && !self.modules.is_empty() && !hosts {
            return Err(LayerFlaw::NoModules(number));
        }
        Ok(())
    }

    /// Refuses what L0 cannot be: its machine is this computer's process.
    fn check_outermost(&self) -> Result<(), LayerFlaw> {
        let memory = self.memory;
        if let Some(computer) = Memory::of_computer().filter(|&computer| memory > computer) {
            return Err(LayerFlaw::MoreMemoryThanComputer { memory, computer });
        }
        if let Some(machine) = self.machine.as_deref().filter(|name| Make::named(name).is_none()) {
            return Err(LayerFlaw::Make(machine.to_owned()));
        }
        let of_vmm = self.backend != Backend::default()
            || !self.launcher.is_empty()
            || self.vmm.program.is_some();
        if of_vmm {
            return Err(LayerFlaw::RunByNone);
        }
        if self.nodes > 1 {
            return Err(LayerFlaw::NodesOfComputer(self.nodes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::KernelVariant;
    use crate::scenario::Scenario;
    use crate::scenario::mistakes::{LAYER, refused};

    #[test]
    fn a_new_layer_is_what_a_file_says_with_kernel_and_memory_alone() {
        let scenario = Scenario::parse(&format!("about = 'x'\n{LAYER}"), "x").unwrap();
        let new = Layer::new(Kernel::Lab(KernelVariant::Vanilla), Memory::mib(1024));
        assert_eq!(format!("{new:?}"), format!("{:?}", scenario.layers[0]));
    }

    #[test]
    fn mistakes_are_named() {
        let says = |more: &str, words: &str| refused(&format!("{LAYER}{more}"), words);
        says("thq = 'always'\n", "thq");
        says("thp = 'sometimes'\n", "sometimes");
        says("trace_events = ['kvm']\n", "kvm is no event");
        says("cpus = 0\n", "no CPU");
        says("nodes = 0\n", "no node of memory");
        says("nodes = 2\n", "numa=fake=2U");
        says("backend = 'file'\n", "L0 is run by no layer");
        says("fragmentation = { fmfi = 2 }\n", "from 0 to 1");
        refused(&LAYER.replace("1G", "16M"), "too little");
        refused(&LAYER.replace("1G", "900000G"), "this computer has");
        let inner = LAYER.replace("1G", "500M");
        let modules = "modules = { kvm_amd = 'npt=0' }\n";
        refused(&format!("{LAYER}{inner}{modules}"), "L1 runs no machine");
    }
}
