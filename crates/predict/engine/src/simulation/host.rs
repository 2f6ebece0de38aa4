//! What a user can choose for a host with several VMs.

use crate::{Setup, SetupError, StackKind};
use std::iter;
use strata_colours::Colours;
use strata_hardware::WayMask;
use strata_policies::REGISTRY;
use strata_stack::{Found, PagePlacement};
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
    /// The colours of the last-level cache that it is told of; those of the host's if `None`. A guest
    /// hypervisor has none of its own.
    pub vllc: Option<Colours>,
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
    /// What a chain of kernels was found like, the host first; nothing where their memories are empty.
    pub found: Vec<Found>,
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
            // Native programs are told of the real one.
            vllc: setup.llc.vllc.filter(|_| setup.stack != StackKind::Native),
            balloon: None,
            within: None,
            seed: setup.seed,
            workload: Some(workload.clone()),
        };
        // Counted from the guest, whose memory then looks the same whatever is below.
        let seed = setup.seed.wrapping_add(setup.stack.layers() as u64 - 1);
        Self { common: setup.clone(), memory: None, seed, found: Vec::new(), vms: vec![vm] }
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
        let host = Self { seed: common.seed, common, memory, found: Vec::new(), vms };
        host.check()?;
        Ok(host)
    }

    /// The same host with one of its VMs alone, and the guest hypervisors it needs.
    ///
    /// # Panics
    /// When there is no VM of this name.
    #[must_use]
    pub fn alone(&self, name: &str) -> Self {
        let kept: Vec<&VmSetup> =
            iter::once(self.vm(name)).chain(self.below(self.vm(name))).collect();
        let kept = |vm: &&VmSetup| kept.iter().any(|other| other.name == vm.name);
        let vms = self.vms.iter().filter(kept).cloned();
        let mut alone =
            Self { memory: Some(self.host_memory()), vms: vms.collect(), ..self.clone() };
        // There is nobody to wait for, and no core to share.
        alone.vms.iter_mut().for_each(|vm| vm.repeat = false);
        alone
    }

    fn vm(&self, name: &str) -> &VmSetup {
        self.vms.iter().find(|vm| vm.name == name).expect("it was checked")
    }

    /// The kernels that a VM is in and has of its own.
    pub(super) fn layers(&self, vm: &VmSetup) -> usize {
        self.below(vm).count() + vm.stack.layers()
    }

    /// The VMs that a VM is in, the next first.
    fn below<'a>(&'a self, vm: &'a VmSetup) -> impl Iterator<Item = &'a VmSetup> {
        let below = |vm: &&'a VmSetup| vm.within.as_deref().map(|below| self.vm(below));
        iter::successors(below(&vm), below)
    }

    /// The VM of the host that a VM is in, or itself.
    pub(super) fn outermost<'a>(&'a self, vm: &'a VmSetup) -> &'a VmSetup {
        self.below(vm).last().unwrap_or(vm)
    }

    /// The VMs in another one.
    pub(super) fn within<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a VmSetup> {
        self.vms.iter().filter(move |vm| vm.within.as_deref() == Some(name))
    }

    /// Whether there can be such a host.
    fn check(&self) -> Result<(), SetupError> {
        for (index, vm) in self.vms.iter().enumerate() {
            if index > 0 && self.vms[index - 1].name == vm.name {
                return refused(format!(
                    "two VMs are called '{}': give each a name of its own",
                    vm.name
                ));
            }
            let Some(below) = &vm.within else { continue };
            if self.vms.iter().all(|other| other.name != *below) {
                return refused(format!(
                    "VM '{}' is in '{below}', which is no VM: give --vm {below} as well",
                    vm.name
                ));
            }
        }
        self.vms.iter().try_for_each(|vm| self.check_place(vm))?;
        self.check_cores()?;
        if !self.vms.is_empty() && self.vms.iter().all(|vm| vm.repeat || vm.workload.is_none()) {
            return refused("every VM repeats, so that there is no end: let one not".to_owned());
        }
        Ok(())
    }

    /// Whether a VM can be where it is and have in it what it has.
    fn check_place(&self, vm: &VmSetup) -> Result<(), SetupError> {
        let name = &vm.name;
        if vm.stack == StackKind::Native {
            return refused(format!("VM '{name}' has the stack native: give vm or nested"));
        }
        let runs_vms = self.within(name).next().is_some();
        if vm.workload.is_none() && !runs_vms {
            return refused(format!(
                "VM '{name}' has nothing to run: give it workload=, trace= or a program, or VMs with \
                 in={name}"
            ));
        }
        if runs_vms && vm.workload.is_some() {
            return refused(format!(
                "VM '{name}' has a program and VMs in it: leave out one of the two"
            ));
        }
        if runs_vms && vm.balloon.is_some() {
            return refused(format!(
                "VM '{name}' has VMs in it, and the host takes memory of guests: give balloon to the VMs \
                 in it"
            ));
        }
        if runs_vms && vm.stack != StackKind::Vm {
            return refused(format!(
                "VM '{name}' has VMs in it, so it is a guest hypervisor: leave out its stack"
            ));
        }
        // With more below than there are VMs it is in itself.
        if self.below(vm).take(self.vms.len()).count() == self.vms.len() {
            return refused(format!(
                "VM '{name}' is in itself, by the in= of those that it is in: let one be on the host"
            ));
        }
        if StackKind::of_layers(self.layers(vm)).is_none() {
            return refused(format!(
                "VM '{name}' would be on {} kernels, and at most {} are modelled: leave out a guest \
                 hypervisor",
                self.layers(vm) - 1,
                StackKind::EVERY.len() - 1
            ));
        }
        let Some(below) = &vm.within else { return Ok(()) };
        if vm.stack != StackKind::Vm {
            return refused(format!(
                "VM '{name}' is in '{below}', so that it is nested already: leave out its stack"
            ));
        }
        if vm.llc_ways.is_some() {
            return refused(format!(
                "VM '{name}' is in '{below}', and only the host divides the last-level cache: give \
                 llc-ways to '{}'",
                self.outermost(vm).name
            ));
        }
        let (policy, of_hypervisor) = (&vm.policy, &self.vm(below).policy);
        if policy == of_hypervisor {
            return Ok(());
        }
        if runs_vms {
            return refused(format!(
                "VM '{name}' has the policy {policy}, and '{below}' which it is in {of_hypervisor}: one \
                 policy governs all guest hypervisors of a VM of the host, so give both the same"
            ));
        }
        // A policy that nobody knows is told of when it is made.
        if strata_policies::find(policy).is_ok_and(|entry| !entry.independent) {
            let independent = REGISTRY.iter().filter(|entry| entry.independent);
            let independent: Vec<_> = independent.map(|entry| entry.name).collect();
            return refused(format!(
                "VM '{name}' has the policy {policy}, which works across layers, and '{below}' which it \
                 is in {of_hypervisor}: give '{below}' the policy {policy} too, or '{name}' one of {}",
                independent.join(", ")
            ));
        }
        Ok(())
    }

    /// Whether the CPU has the cores that VMs are bound to, and one for each of the others.
    fn check_cores(&self) -> Result<(), SetupError> {
        let (cpu, cores) = (&self.common.cpu.name, self.common.cpu.core.cores);
        let running = || self.vms.iter().filter(|vm| vm.workload.is_some());
        for vm in running() {
            if let Some(core) = vm.cores.iter().find(|core| **core >= cores) {
                return refused(format!(
                    "VM '{}' is bound to core {core}, and {cpu} has {cores}, numbered from 0: give \
                     others",
                    vm.name
                ));
            }
        }
        let free = running().filter(|vm| vm.cores.is_empty()).count();
        let bound = running().flat_map(|vm| &vm.cores).max().map_or(0, |last| last + 1);
        if free > 0 && free as u64 + u64::from(bound) > u64::from(cores) {
            return refused(format!(
                "{free} VMs would have a core of their own above the {bound} that others are bound to, \
                 and {cpu} has {cores}: bind several to one core with cores=, or give it more with \
                 --set core.cores="
            ));
        }
        Ok(())
    }
}

fn refused<T>(why: String) -> Result<T, SetupError> {
    Err(SetupError::Refused(why))
}

/// FNV-1a of a name: the same on every machine and in every version.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
