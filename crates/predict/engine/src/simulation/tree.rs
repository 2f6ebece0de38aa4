//! The kernels that a host is made of, from what a user chose.

use super::host::{HostSetup, VmSetup};
use super::sizes::{
    HOST_PERCENT, guest_memory, hypervisor_memory, percent, vm_memory, whole_regions,
};
use crate::{LayerFmfi, StackKind};
use std::iter;
use strata_colours::VirtualCache;
use strata_stack::{KernelConfig, PagePlacement};

/// A guest of a host that can be built.
pub(super) struct GuestPlan {
    /// Its VM, by its place in [`HostSetup::vms`].
    pub(super) vm: usize,
    /// Its kernel and those below it down to the host, by their places in [`StackConfig::kernels`].
    pub(super) path: Vec<usize>,
}

/// The kernels of a host: the host's, and those of one VM of the host after the other.
pub(super) struct Tree<'a> {
    pub(super) setup: &'a HostSetup,
    pub(super) kernels: Vec<KernelConfig>,
    pub(super) guests: Vec<GuestPlan>,
    /// The policies' names: of each VM of the host, and of each guest that has another than its guest
    /// hypervisor.
    pub(super) policies: Vec<String>,
    /// Which of them govern a VM of the host.
    pub(super) of_host: Vec<usize>,
    /// Which of them governs each kernel.
    pub(super) governs: Vec<usize>,
    /// Colours given to VMs that are told of a cache of their own: those of the next one come after them.
    pub(super) given: u32,
}

impl<'a> Tree<'a> {
    pub(super) fn new(setup: &'a HostSetup) -> Self {
        let guests = setup.vms.iter().filter(|vm| vm.workload.is_some());
        let asked: u64 = guests.map(guest_memory).sum();
        let layers = setup.vms.iter().map(|vm| setup.layers(vm)).max().unwrap_or(1);
        let LayerFmfi { guest, host, .. } = setup.common.fragmentation;
        let placement = setup.vms.first().map_or(PagePlacement::Linux, |vm| vm.placement);
        let (memory, fragmentation, placement) = match layers {
            1 => (asked, guest, placement),
            _ => {
                let memory = || percent(hypervisor_memory(asked, layers.max(3) - 3), HOST_PERCENT);
                (setup.memory.unwrap_or_else(memory), host, PagePlacement::Linux)
            }
        };
        let host = KernelConfig {
            below: None,
            memory: whole_regions(memory),
            fragmentation,
            seed: setup.seed,
            placement,
            cache: None,
            found: setup.found.first().cloned().unwrap_or_default(),
        };
        let mut tree = Self {
            setup,
            kernels: vec![host],
            guests: Vec::new(),
            policies: Vec::new(),
            of_host: Vec::new(),
            governs: vec![0],
            given: 0,
        };
        let on_host = setup.vms.iter().enumerate().filter(|(_, vm)| vm.within.is_none());
        on_host.for_each(|(index, vm)| tree.add_vm_of_host(index, vm));
        tree
    }

    fn add_vm_of_host(&mut self, index: usize, vm: &VmSetup) {
        let policy = self.add_policy(vm);
        self.of_host.push(policy);
        match vm.stack {
            StackKind::Native => self.guests.push(GuestPlan { vm: index, path: vec![0] }),
            _ => self.add_vm(index, vm, &[0], policy),
        }
    }

    fn add_policy(&mut self, vm: &VmSetup) -> usize {
        self.policies.push(vm.policy.clone());
        self.policies.len() - 1
    }

    /// Adds a VM with what is in it, on the kernels `below` down to the host, the next of which
    /// `policy` governs.
    fn add_vm(&mut self, index: usize, vm: &VmSetup, below: &[usize], policy: usize) {
        let same = self.policies[policy] == vm.policy;
        let policy = if same { policy } else { self.add_policy(vm) };
        if vm.workload.is_some() {
            let mut below = below.to_vec();
            // The guest hypervisors of its own, the lowest first, which holds all others.
            for above in (1..vm.stack.layers() - 1).rev() {
                let memory = hypervisor_memory(guest_memory(vm), above);
                let hypervisor = self.add_kernel(vm, above as u64, memory, below[0], policy);
                below.insert(0, hypervisor);
            }
            return self.add_guest(index, &below, policy);
        }
        let vms = self.setup.vms.iter().enumerate();
        let inside = vms.filter(|(_, other)| other.within.as_deref() == Some(&vm.name));
        let hypervisor = self.add_kernel(vm, 1, vm_memory(self.setup, vm), below[0], policy);
        let on_it: Vec<usize> = iter::once(hypervisor).chain(below.iter().copied()).collect();
        inside.for_each(|(index, vm)| self.add_vm(index, vm, &on_it, policy));
    }

    fn add_guest(&mut self, vm: usize, below: &[usize], policy: usize) {
        let guest = &self.setup.vms[vm];
        let kernel = self.add_kernel(guest, 0, guest_memory(guest), below[0], policy);
        self.kernels[kernel].cache = guest.vllc.map(|colours| {
            let first = self.given;
            self.given = first.wrapping_add(colours.count());
            VirtualCache { colours, first }
        });
        let path = iter::once(kernel).chain(below.iter().copied()).collect();
        self.guests.push(GuestPlan { vm, path });
    }

    /// Adds a kernel on the one `below`, with so many `above` it up to its guest, for `policy` to govern.
    fn add_kernel(
        &mut self,
        vm: &VmSetup,
        above: u64,
        memory: u64,
        below: usize,
        policy: usize,
    ) -> usize {
        let LayerFmfi { guest, l1, .. } = self.setup.common.fragmentation;
        let level = iter::successors(Some(below), |kernel| self.kernels[*kernel].below).count();
        self.kernels.push(KernelConfig {
            below: Some(below),
            memory: whole_regions(memory),
            fragmentation: if above == 0 { guest } else { l1 },
            seed: vm.seed.wrapping_add(above),
            placement: if above == 0 { vm.placement } else { PagePlacement::Linux },
            cache: None,
            found: self.setup.found.get(level).cloned().unwrap_or_default(),
        });
        self.governs.push(policy);
        self.kernels.len() - 1
    }
}
