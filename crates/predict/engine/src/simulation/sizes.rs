//! How much memory VMs and hypervisors have where nobody says.

use super::host::{HostSetup, VmSetup};

const GIB: u64 = 1 << 30;

/// Least memory of a guest whose size nobody gave. A guest has several times what one program
/// touches, as in the papers' testbeds; in fragmented memory a smaller one runs out of huge blocks
/// before a program of 1 GiB is there, and no policy matters any more.
const ORDINARY_MEMORY: u64 = 8 * GIB;

/// Bytes of memory asked of a guest, or chosen for it.
pub(super) fn guest_memory(vm: &VmSetup) -> u64 {
    let known = vm.workload.as_ref().and_then(|workload| workload.footprint_bytes).unwrap_or(0);
    vm.memory.unwrap_or_else(|| ORDINARY_MEMORY.max(known + known / 2))
}

/// Hypervisors have more memory than their guests in the proportions of the xGemini testbed: 100 GB for
/// L2, 110 GB for L1, 128 GB for L0 (xGemini, table I).
const L1_PERCENT: u64 = 110;
pub(super) const HOST_PERCENT: u64 = 128;

pub(super) fn percent(bytes: u64, percent: u64) -> u64 {
    (u128::from(bytes) * u128::from(percent) / 100) as u64
}

/// Bytes of memory of the lowest of so many hypervisors, one in the other, around VMs of so many bytes.
pub(super) fn hypervisor_memory(vms: u64, hypervisors: usize) -> u64 {
    (0..hypervisors).fold(vms, |above, _| percent(above, L1_PERCENT))
}

/// Bytes of memory asked of a VM that is given by itself, or chosen for it: a guest hypervisor has room for
/// the VMs in it.
pub(super) fn vm_memory(setup: &HostSetup, vm: &VmSetup) -> u64 {
    if vm.workload.is_some() {
        return guest_memory(vm);
    }
    let inside = || setup.within(&vm.name).map(|inside| vm_memory(setup, inside)).sum();
    vm.memory.unwrap_or_else(|| hypervisor_memory(inside(), 1))
}

/// Whole HPAS regions, so that the slot of a guest is one too.
pub(super) fn whole_regions(bytes: u64) -> u64 {
    bytes & !((2 << 20) - 1)
}

/// Less memory than this holds no kernel worth modelling.
pub(super) const LEAST_MEMORY: u64 = 16 << 20;
