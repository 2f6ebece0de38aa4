//! Names of exits, in the manuals and in the model.

use strata_lab::Make;
use strata_nested::ExitReason;

/// What the model calls an exit, and what KVM's events do: the names of the APM's volume 2, appendix C, and of the
/// SDM's volume 3D, appendix C. A write to a table of a second stage is a violation for them.
const NAMES: [(ExitReason, &[&str], &[&str]); 15] = [
    (ExitReason::SecondStageViolation, &["NPF"], &["EPT_VIOLATION"]),
    (ExitReason::PageFault, &["PF"], &["EXCEPTION_NMI"]),
    (ExitReason::ControlRegister, &["CR3_WRITE"], &["CR_ACCESS"]),
    (ExitReason::Invalidation, &["INVLPGA", "INVLPG"], &["INVEPT", "INVVPID", "INVLPG"]),
    (ExitReason::Vmread, &[], &["VMREAD"]),
    (ExitReason::Vmwrite, &[], &["VMWRITE"]),
    (ExitReason::Vmresume, &[], &["VMRESUME", "VMLAUNCH"]),
    (ExitReason::Vmptrld, &[], &["VMPTRLD"]),
    (ExitReason::Vmclear, &[], &["VMCLEAR"]),
    (ExitReason::Vmrun, &["VMRUN"], &[]),
    (ExitReason::Vmload, &["VMLOAD"], &[]),
    (ExitReason::Vmsave, &["VMSAVE"], &[]),
    (ExitReason::Stgi, &["STGI"], &[]),
    (ExitReason::Clgi, &["CLGI"], &[]),
    // AMD's are reads and writes, and L1 writes others than the model has: it sets its timer.
    (ExitReason::Msr, &["MSR"], &["MSR_READ"]),
];

/// The model's reason of an exit that KVM's events name like this, if the model has it.
pub fn of(name: &str) -> Option<ExitReason> {
    let named = |(_, svm, vmx): &&(_, &[&str], &[&str])| svm.contains(&name) || vmx.contains(&name);
    NAMES.iter().find(named).map(|(reason, ..)| *reason)
}

/// What KVM's events name an exit of the model's, if they do.
pub fn name(reason: ExitReason, make: Make) -> Option<&'static str> {
    let (_, svm, vmx) = NAMES.iter().find(|(known, ..)| *known == reason)?;
    match make {
        Make::Amd => svm.first(),
        Make::Intel => vmx.first(),
    }
    .copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_either_manual_lead_to_the_same_reason() {
        assert_eq!(of("NPF"), of("EPT_VIOLATION"));
        assert_eq!(of("INVVPID"), of("INVLPGA"));
        assert_eq!(of("CPUID"), None);
        assert_eq!(name(ExitReason::PageFault, Make::Amd), Some("PF"));
        assert_eq!(name(ExitReason::Vmrun, Make::Intel), None, "it is AMD's");
        assert_eq!(name(ExitReason::Halt, Make::Intel), None, "time's");
    }
}
