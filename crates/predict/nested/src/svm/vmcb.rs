//! The virtual machine control block and its layout (APM volume 2, appendix B).

use crate::memory::Memory;

/// A place in a VMCB, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u64);

macro_rules! places {
    ($($name:ident = $offset:literal, $meaning:literal;)*) => {
        impl Place {
            $(#[doc = $meaning] pub const $name: Self = Self($offset);)*

            /// Every place that has a name here.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

places! {
    CR_INTERCEPTS = 0x000, "Accesses of control and debug registers that exit.";
    EXCEPTION_INTERCEPTS = 0x008, "Exceptions that exit, and the first half of what exits besides.";
    INTERCEPTS = 0x010, "The second half of what exits besides: VMRUN is bit 0.";
    IOPM = 0x040, "Address of the I/O permission map.";
    MSRPM = 0x048, "Address of the MSR permission map.";
    TSC_OFFSET = 0x050, "TSC offset.";
    ASID = 0x058, "ASID in the low half, TLB control in the high half.";
    VIRTUAL_INTERRUPT = 0x060, "Virtual interrupts, virtual GIF.";
    INTERRUPT_SHADOW = 0x068, "Interrupt shadow.";
    EXIT_CODE = 0x070, "Exit code.";
    EXIT_INFORMATION_1 = 0x078, "Exit information, first part.";
    EXIT_INFORMATION_2 = 0x080, "Exit information, second part: of a nested page fault its address.";
    EXIT_EVENT = 0x088, "Event during whose delivery it exited.";
    NESTED = 0x090, "Nested paging is bit 0.";
    EVENT = 0x0a8, "Event to inject.";
    NESTED_CR3 = 0x0b0, "Root of the nested page table.";
    EXTENSIONS = 0x0b8, "Virtual VMLOAD and VMSAVE is bit 1.";
    CLEAN = 0x0c0, "What has not changed since the last VMRUN.";
    NEXT_RIP = 0x0c8, "Where the next instruction is.";
    ES = 0x400, "ES: selector, attributes, limit; its base follows. CS, SS, DS follow.";
    CS = 0x410, "CS.";
    FS = 0x440, "FS: VMLOAD and VMSAVE move it.";
    FS_BASE = 0x448, "Base of FS.";
    GS = 0x450, "GS: VMLOAD and VMSAVE move it.";
    GS_BASE = 0x458, "Base of GS.";
    LDTR = 0x470, "LDTR: VMLOAD and VMSAVE move it.";
    LDTR_BASE = 0x478, "Base of LDTR.";
    TR = 0x490, "TR: VMLOAD and VMSAVE move it.";
    TR_BASE = 0x498, "Base of TR.";
    EFER = 0x4d0, "EFER.";
    CR4 = 0x548, "CR4.";
    CR3 = 0x550, "CR3.";
    CR0 = 0x558, "CR0.";
    DR7 = 0x560, "DR7.";
    DR6 = 0x568, "DR6.";
    RFLAGS = 0x570, "RFLAGS.";
    RIP = 0x578, "RIP.";
    RSP = 0x5d8, "RSP.";
    RAX = 0x5f8, "RAX.";
    STAR = 0x600, "STAR: VMLOAD and VMSAVE move it.";
    LSTAR = 0x608, "LSTAR: VMLOAD and VMSAVE move it.";
    CSTAR = 0x610, "CSTAR: VMLOAD and VMSAVE move it.";
    SFMASK = 0x618, "SFMASK: VMLOAD and VMSAVE move it.";
    KERNEL_GS_BASE = 0x620, "KernelGsBase: VMLOAD and VMSAVE move it.";
    SYSENTER_CS = 0x628, "SYSENTER_CS: VMLOAD and VMSAVE move it.";
    SYSENTER_ESP = 0x630, "SYSENTER_ESP: VMLOAD and VMSAVE move it.";
    SYSENTER_EIP = 0x638, "SYSENTER_EIP: VMLOAD and VMSAVE move it.";
    CR2 = 0x640, "CR2.";
}

impl Place {
    /// What VMLOAD loads and VMSAVE saves (volume 3, VMLOAD).
    pub const MOVED_BY_VMLOAD: [Self; 16] = [
        Self::FS,
        Self::FS_BASE,
        Self::GS,
        Self::GS_BASE,
        Self::LDTR,
        Self::LDTR_BASE,
        Self::TR,
        Self::TR_BASE,
        Self::STAR,
        Self::LSTAR,
        Self::CSTAR,
        Self::SFMASK,
        Self::KERNEL_GS_BASE,
        Self::SYSENTER_CS,
        Self::SYSENTER_ESP,
        Self::SYSENTER_EIP,
    ];

    /// Whether it is the base of a segment that VMLOAD loads, an address.
    pub const fn is_base(self) -> bool {
        matches!(
            self,
            Self::FS_BASE | Self::GS_BASE | Self::LDTR_BASE | Self::TR_BASE | Self::KERNEL_GS_BASE
        )
    }

    /// The bit of the clean field that says whether the processor may use what it remembers of this
    /// place (section 15.15.3); `None` for what is always read.
    pub const fn clean_bit(self) -> Option<u32> {
        match self.0 {
            0x000 | 0x008 | 0x010 | 0x050 => Some(0),
            0x040 | 0x048 => Some(1),
            0x058 => Some(2),
            0x060 => Some(3),
            0x090 | 0x0b0 => Some(4),
            0x4d0 | 0x548 | 0x550 | 0x558 => Some(5),
            0x560 | 0x568 => Some(6),
            0x400 | 0x410 => Some(8),
            0x640 => Some(9),
            _ => None,
        }
    }
}

/// A VMCB at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vmcb(pub u64);

impl Vmcb {
    /// What is at a place.
    pub fn get(self, memory: &Memory, place: Place) -> u64 {
        memory.read(self.0 + place.0)
    }

    /// Changes what is at a place.
    pub fn set(self, memory: &mut Memory, place: Place, value: u64) {
        memory.write(self.0 + place.0, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn places_are_apart_and_inside() {
        let offsets: BTreeSet<_> = Place::ALL.iter().map(|place| place.0).collect();
        assert_eq!(offsets.len(), Place::ALL.len());
        assert!(offsets.iter().all(|offset| offset.is_multiple_of(8) && *offset < 4096));
    }
}
