//! Names of a guest's exits on Intel processors.

/// Set in the reason of an entry that failed.
const FAILED: u64 = 1 << 31;

/// The name of a basic exit reason (Intel SDM volume 3D, appendix C), as KVM has it
/// (`arch/x86/include/uapi/asm/vmx.h`).
pub(super) fn name(reason: u64) -> String {
    let named = match reason & 0xffff {
        0 => "EXCEPTION_NMI",
        1 => "EXTERNAL_INTERRUPT",
        2 => "TRIPLE_FAULT",
        3 => "INIT_SIGNAL",
        4 => "SIPI_SIGNAL",
        7 => "INTERRUPT_WINDOW",
        8 => "NMI_WINDOW",
        9 => "TASK_SWITCH",
        10 => "CPUID",
        12 => "HLT",
        13 => "INVD",
        14 => "INVLPG",
        15 => "RDPMC",
        16 => "RDTSC",
        18 => "VMCALL",
        19 => "VMCLEAR",
        20 => "VMLAUNCH",
        21 => "VMPTRLD",
        22 => "VMPTRST",
        23 => "VMREAD",
        24 => "VMRESUME",
        25 => "VMWRITE",
        26 => "VMOFF",
        27 => "VMON",
        28 => "CR_ACCESS",
        29 => "DR_ACCESS",
        30 => "IO_INSTRUCTION",
        31 => "MSR_READ",
        32 => "MSR_WRITE",
        33 => "INVALID_STATE",
        34 => "MSR_LOAD_FAIL",
        36 => "MWAIT_INSTRUCTION",
        37 => "MONITOR_TRAP_FLAG",
        39 => "MONITOR_INSTRUCTION",
        40 => "PAUSE_INSTRUCTION",
        41 => "MCE_DURING_VMENTRY",
        43 => "TPR_BELOW_THRESHOLD",
        44 => "APIC_ACCESS",
        45 => "EOI_INDUCED",
        46 => "GDTR_IDTR",
        47 => "LDTR_TR",
        48 => "EPT_VIOLATION",
        49 => "EPT_MISCONFIG",
        50 => "INVEPT",
        51 => "RDTSCP",
        52 => "PREEMPTION_TIMER",
        53 => "INVVPID",
        54 => "WBINVD",
        55 => "XSETBV",
        56 => "APIC_WRITE",
        57 => "RDRAND",
        58 => "INVPCID",
        59 => "VMFUNC",
        60 => "ENCLS",
        61 => "RDSEED",
        62 => "PML_FULL",
        63 => "XSAVES",
        64 => "XRSTORS",
        67 => "UMWAIT",
        68 => "TPAUSE",
        74 => "BUS_LOCK",
        75 => "NOTIFY",
        _ => return format!("{reason:#x}"),
    };
    match reason & FAILED {
        0 => named.into(),
        _ => format!("{named} (entry failed)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_their_names() {
        assert_eq!(name(48), "EPT_VIOLATION");
        assert_eq!(name(FAILED | 33), "INVALID_STATE (entry failed)");
        assert_eq!(name(0x55), "0x55");
    }
}
