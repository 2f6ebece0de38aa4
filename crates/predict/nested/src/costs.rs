//! What one exit costs, by its reason.

use crate::access::Access;
use crate::reason::ExitReason;
use crate::script::Hypervisor;
use crate::second_stage_writes::SecondStageWrites;

strata_params::parameters! {
    /// Cycles of an exit to L0 and of the entry back, by reason; and what hypervisors in VMs do at an
    /// exit. Defaults marked `?` are estimates without a published source for the
    /// modelled machine.
    pub struct ExitCosts {
        /// A second-stage violation, without the fault it leads to: the direct cost of an exit, there
        /// and back (SplitX, WIOV'11, section 1: 2,000 cycles on a Xeon X5570 with KVM).
        second_stage_violation: u64 = 2000, "exit.second_stage_violation", "cycles";
        /// An exit of a nested guest that L0 makes look like one to the guest hypervisor, in place of
        /// the cost of its reason: a direct exit, and half of what software of L0 takes for that and
        /// for the entry back. Together they are 16,000 cycles: L0's share of a CPUID of L2 (SVt,
        /// ISCA'19, table 1: 8.39 of 10.40 us, 2.4 GHz) without two direct exits. `?`
        handed_on: u64 = 10_000, "exit.handed_on", "cycles";
        /// A guest hypervisor's write to its second stage: as a violation.
        second_stage_write: u64 = 2000, "exit.second_stage_write", "cycles";
        /// A guest hypervisor's INVEPT, INVVPID or INVLPGA, or an INVLPG that exits: as a violation. `?`
        invalidation: u64 = 2000, "exit.invalidation", "cycles";
        /// VMREAD: the direct cost of an exit; looking up a field is little beside it. `?`
        vmread: u64 = 2000, "exit.vmread", "cycles";
        /// VMWRITE: as VMREAD. `?`
        vmwrite: u64 = 2000, "exit.vmwrite", "cycles";
        /// VMLAUNCH or VMRESUME: a direct exit, and the other half of L0's software (see
        /// `exit.handed_on`), which checks the guest hypervisor's VMCS and makes one for hardware
        /// from it. `?`
        vmresume: u64 = 10_000, "exit.vmresume", "cycles";
        /// VMPTRLD: as VMREAD. `?`
        vmptrld: u64 = 2000, "exit.vmptrld", "cycles";
        /// VMCLEAR: as VMREAD. `?`
        vmclear: u64 = 2000, "exit.vmclear", "cycles";
        /// VMRUN: as VMRESUME. `?`
        vmrun: u64 = 10_000, "exit.vmrun", "cycles";
        /// VMLOAD: as VMREAD. `?`
        vmload: u64 = 2000, "exit.vmload", "cycles";
        /// VMSAVE: as VMREAD. `?`
        vmsave: u64 = 2000, "exit.vmsave", "cycles";
        /// STGI: as VMREAD. `?`
        stgi: u64 = 2000, "exit.stgi", "cycles";
        /// CLGI: as VMREAD. `?`
        clgi: u64 = 2000, "exit.clgi", "cycles";
        /// A page fault of a VM with shadow paging: a direct exit, and software that looks into the VM's
        /// table, injects the fault or mends the shadow; for which `exit.handler` is taken. `?`
        page_fault: u64 = 6700, "exit.page_fault", "cycles";
        /// MOV to CR3 of a VM with shadow paging: as `exit.page_fault`, since the shadow of the new table
        /// has to be found and brought up to date. `?`
        control_register: u64 = 6700, "exit.control_register", "cycles";
        /// An external interrupt: the direct cost; what the host does for the interrupt it would do
        /// without a VM, too. `?`
        external_interrupt: u64 = 2000, "exit.external_interrupt", "cycles";
        /// Use of the interrupt controller that the hypervisor's kernel plays: a direct exit and
        /// `exit.handler`. `?`
        apic: u64 = 6700, "exit.apic", "cycles";
        /// HLT: the direct cost. `?`
        halt: u64 = 2000, "exit.halt", "cycles";
        /// Use of a device that a process of the hypervisor plays: a direct exit, and `exit.handler` for the
        /// kernel and once more for the process. `?`
        io: u64 = 11_400, "exit.io", "cycles";
        /// A guest hypervisor's read of a model-specific register: as VMREAD. `?`
        msr: u64 = 2000, "exit.msr", "cycles";
        /// What a guest hypervisor does itself at an exit that it is handed, besides a fault in its
        /// kernel and the exits of its instructions: L1's share of a CPUID of L2 (SVt, ISCA'19, table
        /// 1: 1.96 us, 2.4 GHz). `?`
        handler: u64 = 4700, "exit.handler", "cycles";
        /// Taking a field over between a VMCS in a guest hypervisor's memory and the copy that the hypervisor
        /// below has of it, where they share that memory (`nested.vmcs_access`): a read, a write and the
        /// loop around them. `?`
        copied_field: u64 = 10, "nested.copied_field", "cycles per field";
        /// Which instructions a guest hypervisor executes to handle an exit: those of `kvm-84`, of
        /// which NestCloud's table I has the mix, or those of `kvm-6.12`, counted in its source.
        hypervisor: Hypervisor = Hypervisor::Kvm84, "nested.hypervisor", "";
        /// How a guest hypervisor gets at its VMCS: by `instructions`, which exit unless the CPU has shadow
        /// VMCSs; `paravirtual`, in memory that the hypervisor below copies at every entry and exit
        /// (NestCloud, V.C); or `enlightened`, the same with a note of what has changed (Hyper-V; KVM
        /// offers it as `hv-evmcs`). The last two are Intel's, and leave shadow VMCSs unused.
        vmcs_access: Access = Access::Instructions, "nested.vmcs_access", "";
        /// How the host learns of entries that a guest hypervisor writes to its second stage: `unsync`, the
        /// first write to a leaf table exits and the table is read anew later (Linux 6.12,
        /// `arch/x86/kvm/mmu/mmu.c`), or `trap`, each write exits, as in the papers' hypervisors.
        second_stage_writes: SecondStageWrites = SecondStageWrites::Unsync, "nested.second_stage_writes", "";
        /// Exits handed on to a hypervisor in a VM while which an interrupt comes, of all: the hypervisor enters its VM
        /// once more, and what is unsync is read anew. On AMD's instructions that protects the table that the policy
        /// `strata` has left writable; elsewhere it changes nothing. Nothing else of such an interrupt is counted:
        /// `rate.tick` has what timers cost.
        interrupted: f64 = 0.0, "nested.interrupted", "share";
        /// Page faults of a VM with shadow paging do not exit on pages of which every shadow knows that the
        /// guest's own table lacks them, by the mask and match of error codes that a VMCS has (NestCloud, V.A).
        /// Shadows know it only of leaf tables that are not unsync. Intel's alone.
        page_fault_bypass: bool = false, "nested.page_fault_bypass", "";
    }
}

impl ExitCosts {
    /// Cycles of an exit that L0 handles; of [`ExitReason::HandedOn`], of one that it hands on.
    pub const fn of(&self, reason: ExitReason) -> u64 {
        match reason {
            ExitReason::SecondStageViolation => self.second_stage_violation,
            ExitReason::HandedOn => self.handed_on,
            ExitReason::SecondStageWrite => self.second_stage_write,
            ExitReason::Invalidation => self.invalidation,
            ExitReason::Vmread => self.vmread,
            ExitReason::Vmwrite => self.vmwrite,
            ExitReason::Vmresume => self.vmresume,
            ExitReason::Vmptrld => self.vmptrld,
            ExitReason::Vmclear => self.vmclear,
            ExitReason::Vmrun => self.vmrun,
            ExitReason::Vmload => self.vmload,
            ExitReason::Vmsave => self.vmsave,
            ExitReason::Stgi => self.stgi,
            ExitReason::Clgi => self.clgi,
            ExitReason::PageFault => self.page_fault,
            ExitReason::ControlRegister => self.control_register,
            ExitReason::ExternalInterrupt => self.external_interrupt,
            ExitReason::Apic => self.apic,
            ExitReason::Halt => self.halt,
            ExitReason::Io => self.io,
            ExitReason::Msr => self.msr,
        }
    }
}

/// What took the place of a parameter that there was in earlier versions.
pub fn replacement(name: &str) -> Option<&'static str> {
    match name {
        "exit.cycles" => Some(
            "each reason has its own cost: set exit.second_stage_violation, \
             exit.second_stage_write or exit.invalidation",
        ),
        "exit.reflect" => Some(
            "the cost of an exit handed to L1 follows from what L1 does with it: set \
             exit.handed_on, exit.handler, exit.vmresume or exit.vmrun, or the costs of L1's \
             other instructions",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_params::Parameters;

    #[test]
    fn every_reason_has_a_cost_under_its_own_name() {
        for (index, reason) in ExitReason::ALL.into_iter().enumerate() {
            let mut costs = ExitCosts::default();
            let value = 31 + index as u64;
            costs.set(&format!("exit.{}", reason.name()), &value.to_string()).unwrap();
            assert_eq!(costs.of(reason), value);
        }
    }

    #[test]
    fn what_was_replaced_is_no_parameter_any_more_and_what_replaces_it_is() {
        let parameters = ExitCosts::default().parameters();
        let is_known = |name: &str| parameters.iter().any(|parameter| parameter.name == name);
        for old in ["exit.cycles", "exit.reflect"] {
            assert!(!is_known(old));
            let remedy = replacement(old).unwrap();
            let names = remedy.split([' ', ',', ':']).filter(|word| word.starts_with("exit."));
            assert!(names.clone().count() >= 3, "{remedy}");
            names.for_each(|name| assert!(is_known(name), "{name}"));
        }
        assert_eq!(replacement("exit.vmread"), None);
    }
}
