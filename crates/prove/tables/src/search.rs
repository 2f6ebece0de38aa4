//! Finds the tables of a moment in the machine's RAM, and proves them.
//!
//! No kernel says where its tables are. What is known are pairs: a page of the program and the
//! frame of real memory that the emulator used for it at that moment. Roots are accepted only if
//! they translate every pair rightly:
//!
//! 1. one pass over RAM finds the control blocks ([`Vmcb`], [`Vmcs`]), which name nested roots, and all
//!    pages that could be the guest's root: they have an entry for the program's addresses;
//! 2. for each nested root, the guest's root is what a control block says, or, as that is only
//!    brought up to date at an exit, one of the possible pages within that guest's memory;
//! 3. without a nested root that fits, one of the possible pages is the only table there is: the
//!    program ran on the machine's own kernel;
//! 4. for the truth of each layer, any two control blocks whose tables one after the other map
//!    every pair: L1's own nested table, and L0's for L1.

use crate::entries::Entries;
use crate::ram::{Page, Pages, Ram};
use crate::vmcb::Vmcb;
use crate::vmcs::Vmcs;
use crate::walk::{Behind, Native, leaves, walk};
use rustc_hash::FxHashMap;
use std::io;
use strata_addr::space::{GuestHypervisorPhysical, GuestPhysical, HostPhysical, Lower, Upper};
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
    /// The format of the entries of second stages: one processor made all of them.
    pub entries: Entries,
}

/// What a control block of either processor says.
#[derive(Clone, Copy, Debug)]
struct Control {
    second: Option<Frame<Lower>>,
    guest: Frame<Upper>,
    entries: Entries,
}

impl Control {
    fn recognise(frame: Frame<HostPhysical>, page: &Page) -> Option<Self> {
        if let Some(Vmcb { nested_root, guest_root, .. }) = Vmcb::recognise(frame, page) {
            return Some(Self { second: nested_root, guest: guest_root, entries: Entries::X86 });
        }
        let Vmcs { ept_root, guest_root, .. } = Vmcs::recognise(page)?;
        Some(Self { second: Some(ept_root), guest: guest_root, entries: Entries::Ept })
    }
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
        "no page tables in RAM translate the {pairs} pages accessed last ({controls} control blocks, \
         {roots} possible roots); do other programs use the same addresses?"
    )]
    NothingFits {
        /// Pairs to be translated.
        pairs: usize,
        /// Control blocks found.
        controls: usize,
        /// Pages that could be roots.
        roots: usize,
    },
}

/// Present, for user code.
const PRESENT_USER: u64 = 1 | 1 << 2;
/// Reserved in entries of the fourth level, or beyond any address (APM volume 2, section 5.3).
const RESERVED_AT_TOP: u64 = 1 << 7 | 1 << 8 | 0x7ff << 52;

/// Whether one table, which lies in real memory, maps all pairs.
fn fits(ram: &dyn Pages<HostPhysical>, root: Frame<GuestPhysical>, pairs: &[Pair]) -> bool {
    let memory = Native(ram);
    pairs.iter().all(|pair| {
        walk(&memory, root, pair.page).is_some_and(|hit| hit.frame.cross() == pair.frame)
    })
}

/// Whether a guest's table over a second stage maps all pairs.
fn fits_behind(
    ram: &dyn Pages<HostPhysical>,
    second: Frame<HostPhysical>,
    guest: Frame<GuestPhysical>,
    pairs: &[Pair],
) -> bool {
    let memory = Behind { below: ram, root: second };
    pairs.iter().all(|pair| {
        walk(&memory, guest, pair.page)
            .and_then(|gpa| walk(ram, second, gpa.frame))
            .is_some_and(|hit| hit.frame == pair.frame)
    })
}

/// Finds the roots that translate all pairs.
///
/// # Errors
/// When there are none.
pub fn search(ram: &dyn Ram, pairs: &[Pair]) -> Result<Roots, NotFound> {
    let first = pairs.first().ok_or(NotFound::NoPairs)?;
    let at = index(first.page.addr().get(), crate::LEVELS);
    let (mut controls, mut possible) = (Vec::new(), Vec::new());
    ram.scan(&mut |frame, page| {
        controls.extend(Control::recognise(frame, page));
        if page[at] & (PRESENT_USER | RESERVED_AT_TOP) == PRESENT_USER {
            possible.push(frame);
        }
    })?;
    // As if each were L0's: those that are do not lead astray.
    let nested = controls.iter().filter_map(|control| control.second).map(Frame::cross);
    let mut nested: Vec<Frame<HostPhysical>> = nested.collect();
    nested.sort_unstable();
    nested.dedup();
    if let Some((guest, second)) = find_behind(ram, pairs, &controls, &nested, &possible) {
        let lower = find_lower(ram, pairs, (guest, second), &controls, &nested);
        let of_second = |control: &&Control| control.second.map(Frame::cross) == Some(second);
        let entries = controls.iter().find(of_second).map_or(Entries::X86, |one| one.entries);
        return Ok(Roots { guest, second: Some(second), lower, entries });
    }
    match possible.iter().map(|root| root.cross()).find(|&root| fits(ram, root, pairs)) {
        Some(guest) => Ok(Roots { guest, second: None, lower: None, entries: Entries::X86 }),
        None => Err(NotFound::NothingFits {
            pairs: pairs.len(),
            controls: controls.len(),
            roots: possible.len(),
        }),
    }
}

fn find_behind(
    ram: &dyn Pages<HostPhysical>,
    pairs: &[Pair],
    controls: &[Control],
    nested: &[Frame<HostPhysical>],
    possible: &[Frame<HostPhysical>],
) -> Option<(Frame<GuestPhysical>, Frame<HostPhysical>)> {
    for control in controls {
        let guest = control.guest.cross();
        if let Some(second) = control.second.map(Frame::cross)
            && fits_behind(ram, second, guest, pairs)
        {
            return Some((guest, second));
        }
    }
    for &second in nested {
        let mut backed: FxHashMap<Frame<HostPhysical>, Frame<GuestPhysical>> = FxHashMap::default();
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
    ram: &dyn Pages<HostPhysical>,
    pairs: &[Pair],
    (guest, second): (Frame<GuestPhysical>, Frame<HostPhysical>),
    controls: &[Control],
    nested: &[Frame<HostPhysical>],
) -> Option<(Frame<GuestHypervisorPhysical>, Frame<HostPhysical>)> {
    let memory = Behind { below: ram, root: second };
    let gpas: Option<Vec<(Frame<GuestPhysical>, Frame<HostPhysical>)>> = pairs
        .iter()
        .map(|pair| Some((walk(&memory, guest, pair.page)?.frame, pair.frame)))
        .collect();
    let gpas = gpas?;
    for &l0 in nested.iter().filter(|&&root| root != second) {
        let l1_memory = Behind { below: ram, root: l0 };
        for l1 in controls.iter().filter_map(|control| control.second).map(Frame::cross) {
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
