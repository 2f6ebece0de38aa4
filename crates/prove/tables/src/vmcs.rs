//! Intel's virtual machine control structures, recognised by their content.
//!
//! The manual leaves their layout to the processor (SDM volume 3C, section 25.2). Two are of interest: that
//! of the emulated processor, and that in which KVM keeps an L1's for it, which is fixed because machines are
//! moved with it. Both begin with a number that says so. Only guests with paging and with EPT are of interest.

use crate::ram::Page;
use strata_addr::space::{Lower, Upper};
use strata_addr::{Addr, Frame};

/// What is read of a VMCS. It does not say whose it is: the memory of the hypervisor that it belongs to is
/// [`Lower`] here, that of the guest [`Upper`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vmcs {
    /// Whose layout it has.
    pub layout: VmcsLayout,
    /// The frame of the EPT's root.
    pub ept_root: Frame<Lower>,
    /// The frame of the guest's page table, as of the last exit.
    pub guest_root: Frame<Upper>,
}

/// A layout of a VMCS in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmcsLayout {
    /// Bochs 3.0's (`cpu/vmcs.cc`, `VMCS_Mapping::init_generic_mapping`): four bytes for each field encoding,
    /// by width, type and index. The number is that of the processor model that the lab emulates.
    Bochs,
    /// `struct vmcs12` of Linux 6.12 (`arch/x86/kvm/vmx/vmcs12.h`, where each offset is asserted).
    Kvm,
}

/// What makes a VMCS in a layout: its first four bytes, and offsets in bytes of three fields.
struct Fields {
    revision: u32,
    eptp: usize,
    cr0: usize,
    cr3: usize,
}

impl VmcsLayout {
    const ALL: [Self; 2] = [Self::Bochs, Self::Kvm];

    const fn fields(self) -> Fields {
        match self {
            Self::Bochs => Fields {
                revision: 4,
                eptp: of_bochs(1, 0, 0x1a),
                cr0: of_bochs(3, 2, 0),
                cr3: of_bochs(3, 2, 2),
            },
            Self::Kvm => Fields { revision: 0x11e5_7ed0, eptp: 120, cr0: 424, cr3: 432 },
        }
    }
}

/// Where Bochs has a field: width 0 to 3 (16, 64, 32 bits, natural), type 0 to 3, index with the access type
/// (SDM volume 3D, appendix B).
const fn of_bochs(width: usize, kind: usize, index: usize) -> usize {
    const FIELDS: [usize; 4] = [0x20, 0x50, 0x30, 0x30];
    let (mut before, mut narrower) = (0, 0);
    while narrower < width {
        before += 4 * FIELDS[narrower];
        narrower += 1;
    }
    0x10 + 4 * (before + kind * FIELDS[width] + index)
}

/// An EPT pointer's lower half without the flag for accessed and dirty flags: write-back, four levels (SDM
/// volume 3C, section 25.6.11).
const EPTP: u64 = 3 << 3 | 6;
const EPTP_MASK: u64 = 0xfff & !(1 << 6);
/// CR0: protection and paging.
const CR0_NEEDED: u64 = 1 | 1 << 31;
/// Bits of CR3 and of an EPT pointer that are the address of a table.
const TABLE: u64 = (1 << 52) - (1 << 12);

impl Vmcs {
    /// The VMCS in this page, if it looks like one.
    #[inline]
    pub fn recognise(page: &Page) -> Option<Self> {
        let revision = page[0] as u32;
        let layout = VmcsLayout::ALL.into_iter().find(|one| one.fields().revision == revision)?;
        let Fields { eptp, cr0, cr3, .. } = layout.fields();
        let word = |offset: usize| page[offset / 8];
        let fits = word(eptp) & EPTP_MASK == EPTP
            && word(eptp) >> 52 == 0
            && word(cr0) & CR0_NEEDED == CR0_NEEDED
            && word(cr3) >> 52 == 0;
        let root = |offset| word(offset) & TABLE;
        fits.then(|| Self {
            layout,
            ept_root: Addr::new(root(eptp)).page(),
            guest_root: Addr::new(root(cr3)).page(),
        })
    }

    /// Writes it into a page, with everything that makes one.
    pub fn write(&self, page: &mut Page) {
        let Fields { revision, eptp, cr0, cr3 } = self.layout.fields();
        page[0] = revision.into();
        page[eptp / 8] = self.ept_root.addr().get() | EPTP;
        page[cr0 / 8] = CR0_NEEDED;
        page[cr3 / 8] = self.guest_root.addr().get();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_is_recognised_and_each_thing_it_must_have_is_needed() {
        for layout in VmcsLayout::ALL {
            let (ept_root, guest_root) = (Frame::new(0x1234), Frame::new(0x99));
            let vmcs = Vmcs { layout, ept_root, guest_root };
            let mut page = [0; 512];
            vmcs.write(&mut page);
            assert_eq!(Vmcs::recognise(&page), Some(vmcs));
            let Fields { eptp, cr0, cr3, .. } = layout.fields();
            for offset in [0, eptp, cr0] {
                let mut less = page;
                less[offset / 8] = 0;
                assert_eq!(Vmcs::recognise(&less), None, "{layout:?} {offset:#x}");
            }
            // Flags beside the addresses: accessed and dirty flags in the EPT, a PCID.
            page[eptp / 8] |= 1 << 6;
            page[cr3 / 8] |= 0x123;
            assert_eq!(Vmcs::recognise(&page), Some(vmcs));
        }
        assert_eq!(Vmcs::recognise(&[u64::MAX; 512]), None);
        assert_eq!(Vmcs::recognise(&[0; 512]), None);
    }

    #[test]
    fn fields_of_bochs_are_where_its_map_has_them() {
        // EPT pointer 0x201a, guest CR0 0x6800, guest CR3 0x6802.
        let Fields { eptp, cr0, cr3, .. } = VmcsLayout::Bochs.fields();
        assert_eq!((eptp, cr0, cr3), (0x278, 0xb90, 0xb98));
    }
}
