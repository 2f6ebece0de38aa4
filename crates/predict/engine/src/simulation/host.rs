//! What a user can choose for a host with several VMs.

use crate::{Setup, SetupError, StackKind};
use strata_hardware::WayMask;
use strata_stack::PagePlacement;
use strata_stream::WorkloadInfo;

/// A VM of a host, with a guest that runs a stream; or a guest hypervisor that only runs other VMs.
#[derive(Clone, Debug)]
pub struct VmSetup {
    /// Its name, unlike any other's.
    pub name: String,
    /// The layers it has below itself and above the host: [`StackKind::Nested`] has a guest hypervisor
    /// of its own. The stack of a host without VMs is native.
    pub stack: StackKind,
    /// The name of the policy that governs its kernels and what the host does for it.
    pub policy: String,
    /// Bytes of memory of the guest. `None` takes 8 GiB, or half as much again as the workload is
    /// known to touch if that is more; of a guest hypervisor, a tenth more than its VMs have.
    pub memory: Option<u64>,
    /// The cores that its vCPUs are bound to; none to give every thread a core of its own.
    pub cores: Vec<u32>,
    /// Seconds of simulated time at which its program starts.
    pub start: f64,
    /// Its program begins anew until those of the other VMs have ended.
    pub repeat: bool,
    /// How its kernel places base pages; a guest hypervisor does as Linux.
    pub placement: PagePlacement,
    /// The ways of the last-level cache that it and all VMs in it may fill, as the host says; those of
    /// [`HostSetup::common`] if `None`.
    pub llc_ways: Option<WayMask>,
    /// Bytes that the host takes of its memory through a balloon, every other `balloon.period`; those of
    /// `balloon.size` if `None`. A guest hypervisor has none.
    pub balloon: Option<u64>,
    /// The VM that it runs in, which is then a guest hypervisor.
    pub within: Option<String>,
    /// Seed of what is random about its memory.
    pub seed: u64,
    /// What is known of its workload; `None` for a guest hypervisor, which has none.
    pub workload: Option<WorkloadInfo>,
}

/// A host and its VMs.
#[derive(Clone, Debug)]
pub struct HostSetup {
    /// What all have in common: CPU, page tables, fragmentation, warm-up, parameters. Its stack, policy
    /// and memory are those of VMs that have none of their own.
    pub common: Setup,
    /// Bytes of the host's memory. `None` takes what its VMs need, in the proportions of xGemini's
    /// testbed.
    pub memory: Option<u64>,
    /// Seed of what is random about the host's memory.
    pub seed: u64,
    /// The VMs. The one of a native host is no VM, but its programs.
    pub vms: Vec<VmSetup>,
}

impl HostSetup {
    /// A host for one guest, as `setup` says.
    pub fn single(setup: &Setup, workload: &WorkloadInfo) -> Self {
        let vm = VmSetup {
            name: String::new(),
            stack: setup.stack,
            policy: setup.policy.clone(),
            memory: setup.memory,
            cores: Vec::new(),
            start: 0.0,
            repeat: false,
            placement: setup.placement,
            llc_ways: None,
            balloon: None,
            within: None,
            seed: setup.seed,
            workload: Some(workload.clone()),
        };
        // Counted from the guest, whose memory then looks the same whatever is below.
        let seed = setup.seed.wrapping_add(setup.stack.layers() as u64 - 1);
        Self { common: setup.clone(), memory: None, seed, vms: vec![vm] }
    }

    /// A host for VMs with these names; what is random about a memory follows from the name, so that the
    /// order of the VMs changes nothing.
    ///
    /// # Errors
    /// [`SetupError::Refused`] when the VMs cannot be on one host.
    pub fn shared(
        common: Setup,
        memory: Option<u64>,
        mut vms: Vec<VmSetup>,
    ) -> Result<Self, SetupError> {
        for vm in &mut vms {
            vm.seed = common.seed ^ hash(&vm.name);
        }
        vms.sort_by(|a, b| a.name.cmp(&b.name));
        let host = Self { seed: common.seed, common, memory, vms };
        host.check()?;
        Ok(host)
    }

    /// The same host with one of its VMs alone, and the guest hypervisors it needs.
    ///
    /// # Panics
    /// When there is no VM of this name.
    #[must_use]
    pub fn alone(&self, name: &str) -> Self {
        let mut kept = vec![name.to_owned()];
        while let Some(below) = self.vm(kept.last().expect("one is kept")).within.clone() {
            kept.push(below);
        }
        let vms = self.vms.iter().filter(|vm| kept.contains(&vm.name)).cloned();
        let mut alone =
            Self { memory: Some(self.host_memory()), vms: vms.collect(), ..self.clone() };
        // There is nobody to wait for, and no core to share.
        alone.vms.iter_mut().for_each(|vm| vm.repeat = false);
        alone
    }

    fn vm(&self, name: &str) -> &VmSetup {
        self.vms.iter().find(|vm| vm.name == name).expect("it was checked")
    }

    /// The VM of the host that a VM is in, or itself.
    pub(super) fn outermost<'a>(&'a self, mut vm: &'a VmSetup) -> &'a VmSetup {
        while let Some(below) = &vm.within {
            vm = self.vm(below);
        }
        vm
    }

    /// The VMs in another one.
    pub(super) fn within<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a VmSetup> {
        self.vms.iter().filter(move |vm| vm.within.as_deref() == Some(name))
    }

    fn check(&self) -> Result<(), SetupError> {
        let refused = |why: String| Err(SetupError::Refused(why));
        let cores = self.common.cpu.core.cores;
        for (index, vm) in self.vms.iter().enumerate() {
            let name = &vm.name;
            if index > 0 && self.vms[index - 1].name == *name {
                return refused(format!(
                    "two VMs are called '{name}': give each a name of its own"
                ));
            }
            if vm.stack == StackKind::Native {
                return refused(format!("VM '{name}' has the stack native: give vm or nested"));
            }
            if let Some(core) = vm.cores.iter().find(|core| **core >= cores) {
                return refused(format!(
                    "VM '{name}' is bound to core {core}, and {} has {cores}, numbered from 0: \
                     give others",
                    self.common.cpu.name
                ));
            }
            let runs_vms = self.within(name).next().is_some();
            if vm.workload.is_none() && !runs_vms {
                return refused(format!(
                    "VM '{name}' has nothing to run: give it workload=, trace= or a program, or VMs \
                     with in={name}"
                ));
            }
            if runs_vms && vm.workload.is_some() {
                return refused(format!(
                    "VM '{name}' has a program and VMs in it: leave out one of the two"
                ));
            }
            if runs_vms && vm.balloon.is_some() {
                return refused(format!(
                    "VM '{name}' has VMs in it, and the host takes memory of guests: give balloon to the \
                     VMs in it"
                ));
            }
            if runs_vms && (vm.stack != StackKind::Vm || vm.within.is_some()) {
                return refused(format!(
                    "VM '{name}' has VMs in it, so it is a guest hypervisor on the host: leave out \
                     its stack and in="
                ));
            }
            let Some(below) = &vm.within else { continue };
            let Some(hypervisor) = self.vms.iter().find(|other| other.name == *below) else {
                return refused(format!("VM '{name}' is in '{below}', which is no VM"));
            };
            if vm.stack != StackKind::Vm {
                return refused(format!(
                    "VM '{name}' is in '{below}', so that it is nested already: leave out its stack"
                ));
            }
            if vm.llc_ways.is_some() {
                return refused(format!(
                    "VM '{name}' is in '{below}', and only the host divides the last-level cache: \
                     give llc-ways to '{below}'"
                ));
            }
            if hypervisor.policy != vm.policy {
                return refused(format!(
                    "VM '{name}' has the policy {}, and '{below}' which it is in {}: one policy \
                     governs all kernels of a VM of the host",
                    vm.policy, hypervisor.policy
                ));
            }
        }
        if !self.vms.is_empty() && self.vms.iter().all(|vm| vm.repeat || vm.workload.is_none()) {
            return refused("every VM repeats, so that there is no end: let one not".to_owned());
        }
        Ok(())
    }
}

/// FNV-1a of a name: the same on every machine and in every version.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
