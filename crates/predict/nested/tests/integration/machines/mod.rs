//! Machines as tests begin with them.

use strata_nested::modes::{Level, Machine, Setup, Switches};
use strata_nested::{Hypervisor, Instructions, SecondStageWrites, Virtualization};

/// AMD, with virtual VMLOAD and VMSAVE and a virtual GIF or without them.
pub(crate) const fn amd(has_both: bool) -> Virtualization {
    Virtualization {
        instructions: Instructions::Svm,
        vmcs_shadowing: false,
        vls: has_both,
        vgif: has_both,
    }
}

/// Intel since Haswell.
pub(crate) const INTEL: Virtualization = Virtualization {
    instructions: Instructions::Vmx,
    vmcs_shadowing: true,
    vls: false,
    vgif: false,
};

/// Hypervisors and kernels of Linux 6.12.
pub(crate) fn setup(levels: &[Level], cpu: Virtualization, writes: SecondStageWrites) -> Setup {
    let native = Setup::native();
    let switches = Switches { writes, ..native.switches };
    Setup { levels: levels.to_vec(), switches, cpu, hypervisor: Hypervisor::Kvm612 }
}

/// A guest whose table has room for the pages of one leaf table, which its hypervisor knows, and frames that all
/// hypervisors have backed.
pub(crate) fn ready(setup: Setup) -> Machine {
    let mut machine = Machine::new(setup).unwrap();
    for _ in 0..2 {
        (0..512).for_each(|page| machine.touch(page, true));
        // The leaf table stays, as its last page does.
        machine.unmap(0, 511);
    }
    (0..256).for_each(|page| machine.touch(page, true));
    machine.reset();
    machine
}
