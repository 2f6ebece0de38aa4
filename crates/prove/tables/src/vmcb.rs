//! AMD's virtual machine control blocks, recognised by their content (APM volume 2, appendix B).
//!
//! A VMCB is a page. What makes one is what the processor demands of it before it enters a guest
//! (APM volume 2, section 15.5.1): the intercept of VMRUN, an ASID that is not 0, EFER with SVM
//! enabled. Only guests in long mode are of interest.

use crate::ram::Page;
use strata_addr::space::{HostPhysical, Lower, Upper};
use strata_addr::{Addr, Frame};

/// What is read of a VMCB. It does not say whose it is: the memory of the hypervisor that it belongs to is
/// [`Lower`] here, that of the guest [`Upper`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vmcb {
    /// The frame it lies in.
    pub frame: Frame<HostPhysical>,
    /// The guest's address space identifier.
    pub asid: u32,
    /// The frame of the nested table's root, when nested paging is on.
    pub nested_root: Option<Frame<Lower>>,
    /// The frame of the guest's page table, as of the last exit.
    pub guest_root: Frame<Upper>,
}

/// Intercept vector 4, bit 0: VMRUN. It must be set.
const INTERCEPTS_4: usize = 0x10;
const ASID: usize = 0x58;
const NESTED_CTL: usize = 0x90;
const NESTED_CR3: usize = 0xb0;
/// Offsets in the state save area, which begins at 0x400.
const EFER: usize = 0x400 + 0xd0;
const CR4: usize = 0x400 + 0x148;
const CR3: usize = 0x400 + 0x150;
const CR0: usize = 0x400 + 0x158;

/// EFER: LME, LMA, SVME (APM volume 2, section 3.1.7).
const EFER_NEEDED: u64 = 1 << 8 | 1 << 10 | 1 << 12;
/// Every bit of EFER that is defined lies below.
const EFER_END: u64 = 1 << 22;
/// CR0: protection and paging.
const CR0_NEEDED: u64 = 1 | 1 << 31;
/// CR4: PAE, which long mode needs.
const CR4_NEEDED: u64 = 1 << 5;
/// Physical addresses have at most 52 bits.
const ADDRESS_END: u64 = 1 << 52;

impl Vmcb {
    /// The VMCB in this page, if it looks like one.
    #[inline]
    pub fn recognise(frame: Frame<HostPhysical>, page: &Page) -> Option<Self> {
        let word = |offset: usize| page[offset / 8];
        // The rarest first: every page of RAM is asked.
        let efer = word(EFER);
        if efer & EFER_NEEDED != EFER_NEEDED || efer >= EFER_END || word(INTERCEPTS_4) & 1 == 0 {
            return None;
        }
        let asid = word(ASID) as u32;
        let control = word(CR0) & CR0_NEEDED == CR0_NEEDED && word(CR4) & CR4_NEEDED != 0;
        let roots = word(CR3) < ADDRESS_END && word(NESTED_CR3) < ADDRESS_END;
        (asid != 0 && control && roots).then(|| Self {
            frame,
            asid,
            nested_root: (word(NESTED_CTL) & 1 != 0).then(|| Addr::new(word(NESTED_CR3)).page()),
            guest_root: Addr::new(word(CR3)).page(),
        })
    }

    /// Writes it into a page, with everything that makes one.
    pub fn write(&self, page: &mut Page) {
        page[INTERCEPTS_4 / 8] |= 1;
        page[ASID / 8] = self.asid.into();
        page[NESTED_CTL / 8] = self.nested_root.is_some().into();
        page[NESTED_CR3 / 8] = self.nested_root.map_or(0, |root| root.addr().get());
        page[EFER / 8] = EFER_NEEDED;
        page[CR4 / 8] = CR4_NEEDED;
        page[CR3 / 8] = self.guest_root.addr().get();
        page[CR0 / 8] = CR0_NEEDED;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_recognised_and_each_thing_it_must_have_is_needed() {
        let (frame, nested_root) = (Frame::new(7), Some(Frame::new(0x1234)));
        let vmcb = Vmcb { frame, asid: 1, nested_root, guest_root: Frame::new(0x99) };
        let mut page = [0; 512];
        vmcb.write(&mut page);
        assert_eq!(Vmcb::recognise(frame, &page), Some(vmcb));
        for offset in [INTERCEPTS_4, ASID, EFER, CR4, CR0] {
            let mut less = page;
            less[offset / 8] = 0;
            assert_eq!(Vmcb::recognise(frame, &less), None, "{offset:#x}");
        }
        assert_eq!(Vmcb::recognise(frame, &[u64::MAX; 512]), None);
        page[NESTED_CTL / 8] = 0;
        assert_eq!(Vmcb::recognise(frame, &page).unwrap().nested_root, None);
    }
}
