//! Fields of a VMCS and their encodings (SDM volume 3C, section 25.11.2; volume 3D, appendix B).

use std::fmt;

/// Width of a field (bits 14:13 of its encoding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 16 bits.
    Word = 0,
    /// 64 bits.
    Quad = 1,
    /// 32 bits.
    Double = 2,
    /// As wide as a register: 64 bits here.
    Natural = 3,
}

/// What a field is part of (bits 11:10 of its encoding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// Controls of execution, entry and exit.
    Control = 0,
    /// Information about an exit; read-only.
    ExitInformation = 1,
    /// State of the guest.
    Guest = 2,
    /// State of the hypervisor.
    Host = 3,
}

/// A field by its encoding. Not every encoding is one of a field.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Field(pub u32);

/// How many fields there are of a width and an area, by index from 0 (appendix B, tables B-1 to B-17).
const COUNTS: [(Width, Area, u32); 15] = [
    (Width::Word, Area::Control, 3),
    (Width::Word, Area::Guest, 10),
    (Width::Word, Area::Host, 7),
    (Width::Quad, Area::Control, 26),
    (Width::Quad, Area::ExitInformation, 1),
    (Width::Quad, Area::Guest, 10),
    (Width::Quad, Area::Host, 3),
    (Width::Double, Area::Control, 18),
    (Width::Double, Area::ExitInformation, 8),
    (Width::Double, Area::Guest, 24),
    (Width::Double, Area::Host, 1),
    (Width::Natural, Area::Control, 8),
    (Width::Natural, Area::ExitInformation, 6),
    (Width::Natural, Area::Guest, 20),
    (Width::Natural, Area::Host, 12),
];

/// The only gap in an area: nothing is between SYSENTER_CS and the preemption timer.
const GAP: Field = Field::of(Width::Double, Area::Guest, 22);

impl Field {
    /// The field of a width and an area with an index.
    pub const fn of(width: Width, area: Area, index: u32) -> Self {
        Self((width as u32) << 13 | (area as u32) << 10 | index << 1)
    }

    /// Its width.
    pub const fn width(self) -> Width {
        match self.0 >> 13 & 3 {
            0 => Width::Word,
            1 => Width::Quad,
            2 => Width::Double,
            _ => Width::Natural,
        }
    }

    /// What it is part of.
    pub const fn area(self) -> Area {
        match self.0 >> 10 & 3 {
            0 => Area::Control,
            1 => Area::ExitInformation,
            2 => Area::Guest,
            _ => Area::Host,
        }
    }

    const fn index(self) -> u32 {
        self.0 >> 1 & 0x1ff
    }

    /// Whether it means the upper half of a field of 64 bits (access type *high*).
    pub const fn is_high(self) -> bool {
        self.0 & 1 == 1
    }

    /// The whole field.
    pub const fn full(self) -> Self {
        Self(self.0 & !1)
    }

    /// Where the field is among all, from 0; `None` for an encoding that is no field's.
    pub fn slot(self) -> Option<u64> {
        let is_reserved = self.0 >> 15 != 0 || self.0 >> 12 & 1 != 0;
        let high_without_halves = self.is_high() && self.width() != Width::Quad;
        if is_reserved || high_without_halves || self.full() == GAP {
            return None;
        }
        let mut before = 0;
        for (width, area, count) in COUNTS {
            if (width, area) == (self.width(), self.area()) {
                return (self.index() < count).then(|| u64::from(before + self.index()));
            }
            before += count;
        }
        None
    }

    /// Every field, those of 64 bits as a whole.
    pub fn all() -> impl Iterator<Item = Self> {
        let fields = COUNTS.into_iter().flat_map(|(width, area, count)| {
            (0..count).map(move |index| Self::of(width, area, index))
        });
        fields.filter(|field| *field != GAP)
    }

    /// The bits of a value that the field keeps.
    pub const fn mask(self) -> u64 {
        match self.width() {
            Width::Word => 0xffff,
            Width::Double => 0xffff_ffff,
            Width::Quad | Width::Natural => u64::MAX,
        }
    }
}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} field {:#x}", self.width(), self.area(), self.0)
    }
}

macro_rules! fields {
    ($($name:ident = $encoding:literal, $meaning:literal;)*) => {
        impl Field {
            $(#[doc = $meaning] pub const $name: Self = Self($encoding);)*
        }
    };
}

// Those that somebody here calls by name.
fields! {
    VPID = 0x0000, "Virtual processor identifier.";
    GUEST_ES_SELECTOR = 0x0800, "Guest's ES, the first of eight selectors: CS, SS, DS, FS, GS, LDTR, TR.";
    GUEST_TR_SELECTOR = 0x080e, "Guest's TR.";
    GUEST_INTERRUPT_STATUS = 0x0810, "Guest's interrupt status.";
    PML_INDEX = 0x0812, "Index of the page-modification log.";
    HOST_ES_SELECTOR = 0x0c00, "Host's ES, the first of seven selectors: CS, SS, DS, FS, GS, TR.";
    HOST_CS_SELECTOR = 0x0c02, "Host's CS.";
    HOST_FS_SELECTOR = 0x0c08, "Host's FS.";
    HOST_GS_SELECTOR = 0x0c0a, "Host's GS.";
    HOST_TR_SELECTOR = 0x0c0c, "Host's TR.";
    IO_BITMAP_A = 0x2000, "Address of I/O bitmap A.";
    IO_BITMAP_B = 0x2002, "Address of I/O bitmap B.";
    MSR_BITMAP = 0x2004, "Address of the MSR bitmaps.";
    EXIT_MSR_STORE = 0x2006, "Address of the MSRs stored at an exit.";
    EXIT_MSR_LOAD = 0x2008, "Address of the MSRs loaded at an exit.";
    ENTRY_MSR_LOAD = 0x200a, "Address of the MSRs loaded at an entry.";
    PML_ADDRESS = 0x200e, "Address of the page-modification log.";
    TSC_OFFSET = 0x2010, "TSC offset.";
    VIRTUAL_APIC = 0x2012, "Address of the virtual-APIC page.";
    EPT_POINTER = 0x201a, "EPT pointer.";
    VMREAD_BITMAP = 0x2026, "Address of the VMREAD bitmap.";
    VMWRITE_BITMAP = 0x2028, "Address of the VMWRITE bitmap.";
    TSC_MULTIPLIER = 0x2032, "TSC multiplier.";
    GUEST_PHYSICAL_ADDRESS = 0x2400, "Guest-physical address of an EPT violation.";
    LINK_POINTER = 0x2800, "VMCS link pointer: the shadow VMCS.";
    GUEST_DEBUGCTL = 0x2802, "Guest's IA32_DEBUGCTL.";
    GUEST_PAT = 0x2804, "Guest's IA32_PAT.";
    GUEST_EFER = 0x2806, "Guest's IA32_EFER.";
    HOST_PAT = 0x2c00, "Host's IA32_PAT.";
    HOST_EFER = 0x2c02, "Host's IA32_EFER.";
    PIN_CONTROLS = 0x4000, "Pin-based controls.";
    PROCESSOR_CONTROLS = 0x4002, "Primary processor-based controls.";
    EXCEPTION_BITMAP = 0x4004, "Exceptions that exit.";
    PAGE_FAULT_MASK = 0x4006, "Page-fault error-code mask (PFEC_MASK).";
    PAGE_FAULT_MATCH = 0x4008, "Page-fault error-code match (PFEC_MATCH).";
    CR3_TARGETS = 0x400a, "Number of CR3-target values.";
    EXIT_CONTROLS = 0x400c, "Exit controls.";
    EXIT_MSR_STORE_COUNT = 0x400e, "MSRs stored at an exit.";
    EXIT_MSR_LOAD_COUNT = 0x4010, "MSRs loaded at an exit.";
    ENTRY_CONTROLS = 0x4012, "Entry controls.";
    ENTRY_MSR_LOAD_COUNT = 0x4014, "MSRs loaded at an entry.";
    ENTRY_EVENT = 0x4016, "Event to inject: interruption information.";
    ENTRY_EVENT_ERROR_CODE = 0x4018, "Error code of the event to inject.";
    ENTRY_INSTRUCTION_LENGTH = 0x401a, "Length of the instruction that the event to inject is one of.";
    TPR_THRESHOLD = 0x401c, "TPR threshold.";
    SECONDARY_CONTROLS = 0x401e, "Secondary processor-based controls.";
    INSTRUCTION_ERROR = 0x4400, "VM-instruction error.";
    EXIT_REASON = 0x4402, "Exit reason.";
    EXIT_EVENT = 0x4404, "Interruption information of an exit.";
    EXIT_EVENT_ERROR_CODE = 0x4406, "Error code of an exception that exited.";
    VECTORING_EVENT = 0x4408, "IDT-vectoring information: the event during whose delivery it exited.";
    VECTORING_ERROR_CODE = 0x440a, "Error code of that event.";
    EXIT_INSTRUCTION_LENGTH = 0x440c, "Length of the instruction that exited.";
    EXIT_INSTRUCTION = 0x440e, "Information about the instruction that exited.";
    GUEST_ES_LIMIT = 0x4800, "Limit of the guest's ES, the first of eight.";
    GUEST_GDTR_LIMIT = 0x4810, "Limit of the guest's GDTR.";
    GUEST_IDTR_LIMIT = 0x4812, "Limit of the guest's IDTR.";
    GUEST_ES_RIGHTS = 0x4814, "Access rights of the guest's ES, the first of eight.";
    GUEST_CS_RIGHTS = 0x4816, "Access rights of the guest's CS.";
    GUEST_SS_RIGHTS = 0x4818, "Access rights of the guest's SS.";
    GUEST_TR_RIGHTS = 0x4822, "Access rights of the guest's TR.";
    GUEST_INTERRUPTIBILITY = 0x4824, "Guest's interruptibility.";
    GUEST_ACTIVITY = 0x4826, "Guest's activity state.";
    GUEST_SYSENTER_CS = 0x482a, "Guest's IA32_SYSENTER_CS.";
    PREEMPTION_TIMER = 0x482e, "Preemption timer.";
    CR0_MASK = 0x6000, "Bits of CR0 that the hypervisor owns.";
    CR4_MASK = 0x6002, "Bits of CR4 that the hypervisor owns.";
    CR0_SHADOW = 0x6004, "What the guest reads of them in CR0.";
    CR4_SHADOW = 0x6006, "What the guest reads of them in CR4.";
    CR3_TARGET = 0x6008, "The first of four values that CR3 may be given without an exit.";
    EXIT_QUALIFICATION = 0x6400, "Exit qualification.";
    GUEST_LINEAR_ADDRESS = 0x640a, "Guest-linear address.";
    GUEST_CR0 = 0x6800, "Guest's CR0.";
    GUEST_CR3 = 0x6802, "Guest's CR3.";
    GUEST_CR4 = 0x6804, "Guest's CR4.";
    GUEST_ES_BASE = 0x6806, "Base of the guest's ES, the first of eight.";
    GUEST_GDTR_BASE = 0x6816, "Base of the guest's GDTR.";
    GUEST_IDTR_BASE = 0x6818, "Base of the guest's IDTR.";
    GUEST_DR7 = 0x681a, "Guest's DR7.";
    GUEST_RSP = 0x681c, "Guest's RSP.";
    GUEST_RIP = 0x681e, "Guest's RIP.";
    GUEST_RFLAGS = 0x6820, "Guest's RFLAGS.";
    GUEST_SYSENTER_ESP = 0x6824, "Guest's IA32_SYSENTER_ESP.";
    GUEST_SYSENTER_EIP = 0x6826, "Guest's IA32_SYSENTER_EIP.";
    HOST_CR0 = 0x6c00, "Host's CR0.";
    HOST_CR3 = 0x6c02, "Host's CR3.";
    HOST_CR4 = 0x6c04, "Host's CR4.";
    HOST_FS_BASE = 0x6c06, "Base of the host's FS, the first of five: GS, TR, GDTR, IDTR.";
    HOST_GS_BASE = 0x6c08, "Base of the host's GS.";
    HOST_TR_BASE = 0x6c0a, "Base of the host's TR.";
    HOST_GDTR_BASE = 0x6c0c, "Base of the host's GDTR.";
    HOST_IDTR_BASE = 0x6c0e, "Base of the host's IDTR.";
    HOST_SYSENTER_ESP = 0x6c10, "Host's IA32_SYSENTER_ESP.";
    HOST_SYSENTER_EIP = 0x6c12, "Host's IA32_SYSENTER_EIP.";
    HOST_RSP = 0x6c14, "Host's RSP.";
    HOST_RIP = 0x6c16, "Host's RIP.";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_field_has_a_slot_of_its_own_and_no_other_encoding_has_one() {
        let fields: Vec<_> = Field::all().collect();
        let slots: BTreeSet<_> = fields.iter().map(|field| field.slot().unwrap()).collect();
        assert_eq!(slots.len(), fields.len());
        let valid = (0..1u32 << 17).map(Field).filter(|field| field.slot().is_some());
        let valid: Vec<_> = valid.collect();
        for field in &valid {
            assert!(fields.contains(&field.full()), "{field:?}");
            assert!(!field.is_high() || field.width() == Width::Quad, "{field:?}");
        }
        let halves = fields.iter().filter(|field| field.width() == Width::Quad).count();
        assert_eq!(valid.len(), fields.len() + halves);
    }

    #[test]
    fn encodings_are_the_manuals() {
        // Volume 3D, appendix B: the last field of each table, and the ones beyond.
        let last = [
            0x0004, 0x0812, 0x0c0c, 0x2032, 0x2400, 0x2812, 0x2c04, 0x4022, 0x440e, 0x482e, 0x4c00,
            0x600e, 0x640a, 0x6826, 0x6c16,
        ];
        for encoding in last {
            assert!(Field(encoding).slot().is_some(), "{encoding:#x}");
            assert!(Field(encoding + 2).slot().is_none(), "{encoding:#x}");
        }
        assert_eq!(Field(0x482c).slot(), None);
        assert_eq!(
            (Field::EPT_POINTER.width(), Field::EPT_POINTER.area()),
            (Width::Quad, Area::Control)
        );
        assert_eq!(Field::EXIT_REASON.area(), Area::ExitInformation);
        assert_eq!(Field::HOST_RIP.width(), Width::Natural);
        assert_eq!(Field(0x201b).slot(), Field::EPT_POINTER.slot());
        assert!(Field(0x4001).slot().is_none(), "no upper half of 32 bits");
    }
}
