//! Bits of the control fields (SDM volume 3C, sections 25.6 to 25.8).

/// Pin-based controls (table 25-5).
pub mod pin {
    /// External interrupts exit.
    pub const EXTERNAL_INTERRUPT: u32 = 1 << 0;
    /// NMIs exit.
    pub const NMI: u32 = 1 << 3;
    /// Virtual NMIs.
    pub const VIRTUAL_NMI: u32 = 1 << 5;
    /// The preemption timer counts.
    pub const PREEMPTION_TIMER: u32 = 1 << 6;
    /// Bits that must be 1 where nothing else is said (appendix A.3.1).
    pub const DEFAULT1: u32 = 0x16;
    /// All that can be 1 here.
    pub const ALLOWED: u32 = DEFAULT1 | EXTERNAL_INTERRUPT | NMI | VIRTUAL_NMI | PREEMPTION_TIMER;
}

/// Primary processor-based controls (table 25-6).
pub mod processor {
    /// Exit as soon as interrupts are allowed.
    pub const INTERRUPT_WINDOW: u32 = 1 << 2;
    /// Use the TSC offset.
    pub const TSC_OFFSETTING: u32 = 1 << 3;
    /// HLT exits.
    pub const HLT: u32 = 1 << 7;
    /// INVLPG exits.
    pub const INVLPG: u32 = 1 << 9;
    /// MOV to CR3 exits.
    pub const CR3_LOAD: u32 = 1 << 15;
    /// MOV from CR3 exits.
    pub const CR3_STORE: u32 = 1 << 16;
    /// Use a virtual TPR.
    pub const TPR_SHADOW: u32 = 1 << 21;
    /// Exit as soon as NMIs are allowed.
    pub const NMI_WINDOW: u32 = 1 << 22;
    /// I/O exits always.
    pub const IO: u32 = 1 << 24;
    /// Use I/O bitmaps.
    pub const IO_BITMAPS: u32 = 1 << 25;
    /// Use MSR bitmaps.
    pub const MSR_BITMAPS: u32 = 1 << 28;
    /// There are secondary controls.
    pub const SECONDARY: u32 = 1 << 31;
    /// Bits that must be 1 where nothing else is said (appendix A.3.2).
    pub const DEFAULT1: u32 = 0x0401_e172;
    /// All that can be 1 here.
    pub const ALLOWED: u32 = DEFAULT1
        | INTERRUPT_WINDOW
        | TSC_OFFSETTING
        | HLT
        | INVLPG
        | TPR_SHADOW
        | NMI_WINDOW
        | IO
        | IO_BITMAPS
        | MSR_BITMAPS
        | SECONDARY;
}

/// Secondary processor-based controls (table 25-7).
pub mod secondary {
    /// Use EPT.
    pub const EPT: u32 = 1 << 1;
    /// Use a VPID.
    pub const VPID: u32 = 1 << 5;
    /// Guests may run without paging.
    pub const UNRESTRICTED_GUEST: u32 = 1 << 7;
    /// VMREAD and VMWRITE of the guest use a shadow VMCS.
    pub const VMCS_SHADOWING: u32 = 1 << 14;
    /// Log pages that are written.
    pub const PML: u32 = 1 << 17;
    /// All that can be 1 here, shadowing apart.
    pub const ALLOWED: u32 = EPT | VPID | UNRESTRICTED_GUEST | PML;
}

/// Exit controls (table 25-13).
pub mod exit {
    /// The host is in 64-bit mode.
    pub const HOST_64_BIT: u32 = 1 << 9;
    /// Save IA32_PAT.
    pub const SAVE_PAT: u32 = 1 << 18;
    /// Load IA32_PAT.
    pub const LOAD_PAT: u32 = 1 << 19;
    /// Save IA32_EFER.
    pub const SAVE_EFER: u32 = 1 << 20;
    /// Load IA32_EFER.
    pub const LOAD_EFER: u32 = 1 << 21;
    /// Save the preemption timer.
    pub const SAVE_PREEMPTION_TIMER: u32 = 1 << 22;
    /// Bits that must be 1 where nothing else is said (appendix A.4).
    pub const DEFAULT1: u32 = 0x0003_6dff;
    /// All that can be 1 here.
    pub const ALLOWED: u32 = DEFAULT1
        | HOST_64_BIT
        | SAVE_PAT
        | LOAD_PAT
        | SAVE_EFER
        | LOAD_EFER
        | SAVE_PREEMPTION_TIMER;
}

/// Entry controls (table 25-15).
pub mod entry {
    /// The guest is in IA-32e mode.
    pub const GUEST_IA32E: u32 = 1 << 9;
    /// Load IA32_PAT.
    pub const LOAD_PAT: u32 = 1 << 14;
    /// Load IA32_EFER.
    pub const LOAD_EFER: u32 = 1 << 15;
    /// Bits that must be 1 where nothing else is said (appendix A.5).
    pub const DEFAULT1: u32 = 0x0000_11ff;
    /// All that can be 1 here.
    pub const ALLOWED: u32 = DEFAULT1 | GUEST_IA32E | LOAD_PAT | LOAD_EFER;
}
