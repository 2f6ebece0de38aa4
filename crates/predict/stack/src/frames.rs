//! The frames of one kernel: its memory, what was done to it, and what was counted.

use crate::owner::{Owner, SpaceId};
use crate::ppm::{Placer, Purpose};
use strata_addr::{Frame, space::Lower, space::Upper};
use strata_colours::Colour;
use strata_counters::counters;
use strata_frames::{HUGE_ORDER, Memory};
use strata_paging::FrameSource;

/// What an operation did to frames, in order; the stack passes it on to the layer below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The kernel wrote zeroes to this block of 2^order frames.
    Zero(Frame<Lower>, u32),
    /// The kernel copied this frame to that one.
    Copy(Frame<Lower>, Frame<Lower>),
    /// The kernel exchanged what is in these two frames.
    Exchange(Frame<Lower>, Frame<Lower>),
}

/// Translations of a space that no longer hold: `pages` base pages from `page`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The space.
    pub space: SpaceId,
    /// First page.
    pub page: Frame<Upper>,
    /// Number of base pages.
    pub pages: u64,
}

/// What the kernel did since the log was last drained.
#[derive(Debug, Default)]
pub struct Log {
    /// Frames written, in order.
    pub actions: Vec<Action>,
    /// Translations invalidated, in order.
    pub changes: Vec<Change>,
    /// HPAS regions whose huge page was freed, with the space that had it.
    pub freed_huge: Vec<(SpaceId, Frame<Lower>)>,
}

counters! {
    /// Events counted in one layer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KernelCounters {
        /// Page faults handled.
        faults: u64;
        /// Page faults that a huge page satisfied.
        huge_faults: u64, "strata.huge_faults";
        /// Copy-on-write faults.
        cow_faults: u64, "strata.cow_faults";
        /// HPAS regions of base pages that became huge pages.
        promotions: u64;
        /// Promotions without moving a page.
        promotions_in_place: u64, "strata.promotions_in_place";
        /// Huge pages split.
        demotions: u64;
        /// Base pages moved to another frame.
        migrated_pages: u64;
        /// HPAS regions emptied by compaction.
        compacted_regions: u64, "strata.compacted_regions";
        /// Base pages that kernels zeroed.
        zeroed_pages: u64, "strata.zeroed_pages";
        /// Base pages that kernels copied.
        copied_pages: u64, "strata.copied_pages";
        /// Pages of a guest that went into its balloon.
        balloon_taken: u64, "strata.balloon_taken";
        /// Pages of a guest that came back from its balloon.
        balloon_returned: u64, "strata.balloon_returned";
        /// Frames that the host freed behind pages of balloons.
        balloon_freed: u64, "strata.balloon_freed";
        /// Exits by which a guest's balloon told the host of pages; among no other exits.
        balloon_exits: u64, "strata.balloon_exits";
        /// Pages that gave up their frame for that of a page with equal contents.
        merged_pages: u64, "strata.ksm_merged";
        /// Merged pages that got a frame of their own again because something stored to them.
        unmerged_pages: u64, "strata.ksm_unmerged";
        /// Times that equal pages were not merged because their cache colours differ.
        kept_apart: u64, "strata.ksm_kept_apart";
        /// Page-table entries looked at by background scans.
        scanned_pages: u64, "strata.scanned_entries";
        /// Cycles of page faults, by what they went to; those of background work are not among them.
        fault_cycles: [u64; 5];
    }
}

/// A kernel's memory with its books. Page tables take their frames from it.
pub(crate) struct Frames {
    pub(crate) memory: Memory,
    pub(crate) log: Log,
    pub(crate) counters: KernelCounters,
    /// Places base pages by colour; none in a kernel that does as Linux.
    pub(crate) placer: Option<Placer>,
    /// Places huge pages by colour, where colours are those of huge pages.
    pub(crate) huge_placer: Option<Placer>,
}

impl Frames {
    pub(crate) fn new(memory: Memory) -> Self {
        let (log, counters) = (Log::default(), KernelCounters::default());
        Self { memory, log, counters, placer: None, huge_placer: None }
    }

    /// Takes a base page where the kernel places such pages.
    #[inline]
    pub(crate) fn base_page(&mut self, purpose: Purpose) -> Option<Frame<Lower>> {
        if self.memory.colours().is_some() {
            self.coloured_page(purpose)
        } else {
            self.memory.alloc(0)
        }
    }

    /// Takes a free huge page where the kernel places such pages.
    pub(crate) fn huge_page(&mut self, purpose: Purpose) -> Option<Frame<Lower>> {
        let Self { memory, huge_placer: Some(placer), .. } = self else {
            return self.memory.alloc(HUGE_ORDER);
        };
        let colours = placer.colours();
        let (first, count) = (placer.wish(memory, purpose), colours.count());
        let (colour, frame) = (0..count).find_map(|further| {
            let colour = Colour::new((first.index() + further) % count);
            Some((colour, memory.alloc_region_of(colours, colour)?))
        })?;
        placer.took(purpose, colour);
        Some(frame)
    }

    fn coloured_page(&mut self, purpose: Purpose) -> Option<Frame<Lower>> {
        let colours = self.memory.colours()?;
        let first = match (purpose, &mut self.placer) {
            (_, Some(placer)) => placer.wish(&self.memory, purpose),
            (Purpose::Moved(from), None) => colours.of(from),
            (_, None) => return self.memory.alloc(0),
        };
        let count = colours.count();
        let (colour, frame) = (0..count).find_map(|further| {
            let colour = Colour::new((first.index() + further) % count);
            Some((colour, self.memory.take_coloured(colour)?))
        })?;
        if let Some(placer) = &mut self.placer {
            placer.took(purpose, colour);
        }
        Some(frame)
    }

    /// Gives a frame to an owner, whoever had it before.
    #[inline]
    pub(crate) fn set_owner(&mut self, frame: Frame<Lower>, owner: Owner) {
        self.disown(frame);
        self.memory.set_owner(frame, owner.to_bits());
        for placer in self.placers() {
            placer.owned(frame, owner, true);
        }
    }

    /// Takes a frame from its owner.
    #[inline]
    pub(crate) fn disown(&mut self, frame: Frame<Lower>) {
        let owner = self.memory.take_owner(frame);
        for placer in self.placers() {
            placer.owned(frame, Owner::from_bits(owner), false);
        }
    }

    /// Whoever places pages by colour, if somebody does.
    #[inline]
    pub(crate) fn placers(&mut self) -> impl Iterator<Item = &mut Placer> {
        self.placer.iter_mut().chain(&mut self.huge_placer)
    }
}

impl FrameSource<Lower> for Frames {
    fn table_frame(&mut self) -> Option<Frame<Lower>> {
        let frame = self.base_page(Purpose::Kernel).or_else(|| {
            // What is booked is given up before anything dies for want of a page table.
            self.memory.release_all_regions();
            self.base_page(Purpose::Kernel)
        })?;
        self.set_owner(frame, Owner::Table);
        self.log.actions.push(Action::Zero(frame, 0));
        self.counters.zeroed_pages += 1;
        Some(frame)
    }

    fn free_table_frame(&mut self, frame: Frame<Lower>) {
        debug_assert_eq!(Owner::from_bits(self.memory.owner(frame)), Owner::Table);
        self.disown(frame);
        self.memory.free(frame, 0);
    }
}
