//! Finds the tables of a moment in the machine's RAM, and proves them.
//!
//! No kernel says where its tables are. What is known are pairs: a page of the program and the
//! frame of real memory that the emulator used for it at that moment. Roots are accepted only if
//! they translate every pair rightly:
//!
//! 1. one pass over RAM finds the control blocks ([`Vmcb`]), which name nested roots, and all
//!    pages that could be the guest's root: they have an entry for the program's addresses;
//! 2. for each nested root, the guest's root is what a control block says, or, as that is only
//!    brought up to date at an exit, one of the possible pages within that guest's memory;
//! 3. without a nested root that fits, one of the possible pages is the only table there is: the
//!    program ran on the machine's own kernel;
//! 4. for the truth of each layer, any two control blocks whose tables one after the other map
//!    every pair: L1's own nested table, and L0's for L1.

use crate::ram::{Pages, Ram};
use crate::vmcb::Vmcb;
use crate::walk::{Behind, leaves, walk};
use rustc_hash::FxHashMap;
use std::io;
use strata_addr::space::{GuestHypervisorPhysical, GuestPhysical, HostPhysical};
use strata_addr::{Frame, PageSize, Vpn};
use strata_paging::{ENTRIES, index};

/// A page of the program and where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The page.
    pub page: Vpn,
    /// The frame.
    pub frame: Frame<HostPhysical>,
}

/// Where the roots are: each in the memory that its table maps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roots {
    /// The guest's page table. Without a second stage guest physical is host physical.
    pub guest: Frame<GuestPhysical>,
    /// The second stage that hardware walks.
    pub second: Option<Frame<HostPhysical>>,
    /// L1's own nested table and L0's for L1, where there are three layers.
    pub lower: Option<(Frame<GuestHypervisorPhysical>, Frame<HostPhysical>)>,
}

/// Why there are no roots.
#[derive(Debug, thiserror::Error)]
pub enum NotFound {
    /// RAM could not be read.
    #[error("cannot read the machine's RAM: {0}")]
    Io(#[from] io::Error),
    /// Nothing to prove a root with.
    #[error("no access was recorded; did the program reach its start marker?")]
    NoPairs,
    /// Nothing fits.
    #[error(
        "no page tables in RAM translate the {pairs} pages accessed last ({vmcbs} control blocks, \
         {roots} possible roots); do other programs use the same addresses?"
    )]
    NothingFits {
        /// Pairs to be translated.
        pairs: usize,
        /// Control blocks found.
        vmcbs: usize,
        /// Pages that could be roots.
        roots: usize,
    },
}

/// Present, for user code.
const PRESENT_USER: u64 = 1 | 1 << 2;
/// Reserved in entries of the fourth level, or beyond any address (APM volume 2, section 5.3).
const RESERVED_AT_TOP: u64 = 1 << 7 | 1 << 8 | 0x7ff << 52;

/// Whether one table maps all pairs.
fn fits(pages: &dyn Pages, root: u64, pairs: &[Pair]) -> bool {
    pairs.iter().all(|pair| {
        walk(pages, root, pair.page.get()).is_some_and(|hit| hit.frame == pair.frame.get())
    })
}

/// Whether a guest's table over a second stage maps all pairs.
fn fits_behind(ram: &dyn Pages, second: u64, guest: u64, pairs: &[Pair]) -> bool {
    let memory = Behind { below: ram, root: second };
    pairs.iter().all(|pair| {
        walk(&memory, guest, pair.page.get())
            .and_then(|gpa| walk(ram, second, gpa.frame))
            .is_some_and(|hit| hit.frame == pair.frame.get())
    })
}

/// Finds the roots that translate all pairs.
///
/// # Errors
/// When there are none.
pub fn search(ram: &dyn Ram, pairs: &[Pair]) -> Result<Roots, NotFound> {
    let first = pairs.first().ok_or(NotFound::NoPairs)?;
    let at = index(first.page.addr().get(), crate::LEVELS);
    let (mut vmcbs, mut possible) = (Vec::new(), Vec::new());
    ram.scan(&mut |frame, page| {
        vmcbs.extend(Vmcb::recognise(frame, page));
        if page[at] & (PRESENT_USER | RESERVED_AT_TOP) == PRESENT_USER {
            possible.push(frame);
        }
    })?;
    let mut nested: Vec<u64> = vmcbs.iter().filter_map(|vmcb| vmcb.nested_root).collect();
    nested.sort_unstable();
    nested.dedup();
    if let Some((guest, second)) = find_behind(ram, pairs, &vmcbs, &nested, &possible) {
        let lower = find_lower(ram, pairs, (guest, second), &vmcbs, &nested);
        let (guest, second) = (Frame::new(guest), Some(Frame::new(second)));
        let lower = lower.map(|(l1, l0)| (Frame::new(l1), Frame::new(l0)));
        return Ok(Roots { guest, second, lower });
    }
    match possible.iter().find(|&&root| fits(ram, root, pairs)) {
        Some(&guest) => Ok(Roots { guest: Frame::new(guest), second: None, lower: None }),
        None => Err(NotFound::NothingFits {
            pairs: pairs.len(),
            vmcbs: vmcbs.len(),
            roots: possible.len(),
        }),
    }
}

fn find_behind(
    ram: &dyn Pages,
    pairs: &[Pair],
    vmcbs: &[Vmcb],
    nested: &[u64],
    possible: &[u64],
) -> Option<(u64, u64)> {
    for vmcb in vmcbs {
        if let Some(second) = vmcb.nested_root
            && fits_behind(ram, second, vmcb.guest_root, pairs)
        {
            return Some((vmcb.guest_root, second));
        }
    }
    for &second in nested {
        let mut backed: FxHashMap<u64, u64> = FxHashMap::default();
        leaves(ram, second, 0..ENTRIES, &mut |first, hit| {
            // Larger ones are those of memory that a VM has for itself.
            if hit.size != PageSize::Giant {
                backed.extend((0..hit.size.base_pages()).map(|n| (hit.frame + n, first + n)));
            }
        });
        let guests = possible.iter().filter_map(|frame| backed.get(frame));
        if let Some(&guest) = { guests }.find(|&&guest| fits_behind(ram, second, guest, pairs)) {
            return Some((guest, second));
        }
    }
    None
}

/// L1's nested table and L0's for L1.
fn find_lower(
    ram: &dyn Pages,
    pairs: &[Pair],
    (guest, second): (u64, u64),
    vmcbs: &[Vmcb],
    nested: &[u64],
) -> Option<(u64, u64)> {
    let memory = Behind { below: ram, root: second };
    let gpas: Option<Vec<(u64, u64)>> = pairs
        .iter()
        .map(|pair| Some((walk(&memory, guest, pair.page.get())?.frame, pair.frame.get())))
        .collect();
    let gpas = gpas?;
    for &l0 in nested.iter().filter(|&&root| root != second) {
        let l1_memory = Behind { below: ram, root: l0 };
        for l1 in vmcbs.iter().filter_map(|vmcb| vmcb.nested_root) {
            let fits = gpas.iter().all(|&(gpa, frame)| {
                walk(&l1_memory, l1, gpa)
                    .and_then(|ghpa| walk(ram, l0, ghpa.frame))
                    .is_some_and(|hit| hit.frame == frame)
            });
            if fits {
                return Some((l1, l0));
            }
        }
    }
    None
}
