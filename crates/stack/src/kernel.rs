//! The memory management of one layer's kernel.
//!
//! Guest kernel and hypervisor are the same Linux: frames, address spaces, faults. A guest has
//! one space per process; a hypervisor has one space, the VM process whose one large area is the
//! guest's memory. What a hypervisor adds, the second stage, is in [`crate::stack`].

use crate::owner::{Owner, SpaceId};
use crate::thp::{Fallback, Khugepaged, ThpMode};
use crate::vma::VmaMap;
use rustc_hash::FxHashMap;
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_frames::Memory;
use strata_paging::{FrameSource, Radix, X86};

/// A page table of this layer: what arrives to this layer's frames.
pub type PageTable = Radix<X86, Upper, Lower>;

/// One address space of a layer.
#[derive(Debug)]
pub struct Space {
    pub(crate) table: PageTable,
    pub(crate) vmas: VmaMap,
}

impl Space {
    /// Its page table.
    pub fn table(&self) -> &PageTable {
        &self.table
    }

    /// Its page table, for hardware that sets accessed and dirty flags.
    pub fn table_mut(&mut self) -> &mut PageTable {
        &mut self.table
    }

    /// Its areas.
    pub fn vmas(&self) -> &VmaMap {
        &self.vmas
    }
}

/// What an operation did to frames, in order; the stack passes it on to the layer below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The kernel wrote zeroes to this block of 2^order frames.
    Zero(Frame<Lower>, u32),
    /// The kernel copied this frame to that one.
    Copy(Frame<Lower>, Frame<Lower>),
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
    /// HPAS regions whose huge page was freed.
    pub freed_huge: Vec<Frame<Lower>>,
}

/// Events counted in one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounters {
    /// Page faults handled.
    pub faults: u64,
    /// Of these, those that a huge page satisfied.
    pub huge_faults: u64,
    /// Copy-on-write faults among them.
    pub cow_faults: u64,
    /// HPAS regions of base pages that became huge pages.
    pub promotions: u64,
    /// Of these, without moving a page.
    pub promotions_in_place: u64,
    /// Huge pages split.
    pub demotions: u64,
    /// Base pages moved to another frame.
    pub migrated_pages: u64,
    /// HPAS regions emptied by compaction.
    pub compacted_regions: u64,
    /// Base pages the kernel zeroed.
    pub zeroed_pages: u64,
    /// Base pages the kernel copied.
    pub copied_pages: u64,
    /// Page-table entries looked at by background scans.
    pub scanned_pages: u64,
}

/// A layer's memory is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no free frame left")]
pub struct OutOfMemory;

/// The memory management of one layer.
pub struct Kernel {
    pub(crate) memory: Memory,
    pub(crate) spaces: Vec<Option<Space>>,
    pub(crate) thp: ThpMode,
    pub(crate) khugepaged: Khugepaged,
    pub(crate) compaction_cursor: u64,
    pub(crate) fallbacks: FxHashMap<(SpaceId, u64), Fallback>,
    pub(crate) levels: u8,
    pub(crate) log: Log,
    pub(crate) counters: KernelCounters,
}

/// Takes page-table frames from a layer's memory.
pub(crate) struct TableFrames<'a> {
    pub(crate) memory: &'a mut Memory,
    pub(crate) log: &'a mut Log,
    pub(crate) counters: &'a mut KernelCounters,
}

impl FrameSource<Lower> for TableFrames<'_> {
    fn table_frame(&mut self) -> Option<Frame<Lower>> {
        let frame = self.memory.alloc(0).or_else(|| {
            // What is booked is given up before anything dies for want of a page table.
            self.memory.release_all_regions();
            self.memory.alloc(0)
        })?;
        self.memory.set_owner(frame, Owner::Table.word());
        self.log.actions.push(Action::Zero(frame, 0));
        self.counters.zeroed_pages += 1;
        Some(frame)
    }

    fn free_table_frame(&mut self, frame: Frame<Lower>) {
        debug_assert_eq!(Owner::from_word(self.memory.owner(frame)), Owner::Table);
        self.memory.take_owner(frame);
        self.memory.free(frame, 0);
    }
}

/// Splits a kernel borrow into one space and the frames for its tables.
macro_rules! space_and_frames {
    ($kernel:expr, $space:expr) => {{
        let kernel = &mut *$kernel;
        let space = kernel.spaces[$space.0 as usize].as_mut().expect("the space is alive");
        let frames = $crate::kernel::TableFrames {
            memory: &mut kernel.memory,
            log: &mut kernel.log,
            counters: &mut kernel.counters,
        };
        (space, frames)
    }};
}
pub(crate) use space_and_frames;

impl Kernel {
    /// A kernel with this memory, no spaces, and page tables of this many levels.
    pub fn new(memory: Memory, levels: u8, thp: ThpMode) -> Self {
        Self {
            memory,
            spaces: Vec::new(),
            thp,
            khugepaged: Khugepaged::default(),
            compaction_cursor: 0,
            fallbacks: FxHashMap::default(),
            levels,
            log: Log::default(),
            counters: KernelCounters::default(),
        }
    }

    /// The layer's memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The layer's memory, for policies that reserve and release regions.
    pub fn memory_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// How transparent huge pages are set.
    pub fn thp(&self) -> ThpMode {
        self.thp
    }

    /// What was counted.
    pub fn counters(&self) -> &KernelCounters {
        &self.counters
    }

    /// Starts counting anew.
    pub fn reset_counters(&mut self) {
        self.counters = KernelCounters::default();
    }

    /// A live space.
    pub fn space(&self, id: SpaceId) -> Option<&Space> {
        self.spaces.get(id.0 as usize)?.as_ref()
    }

    /// A live space.
    pub fn space_mut(&mut self, id: SpaceId) -> Option<&mut Space> {
        self.spaces.get_mut(id.0 as usize)?.as_mut()
    }

    /// Every live space.
    pub fn spaces(&self) -> impl Iterator<Item = (SpaceId, &Space)> {
        self.spaces
            .iter()
            .enumerate()
            .filter_map(|(id, space)| Some((SpaceId(id as u16), space.as_ref()?)))
    }

    /// Why the region of a page has no huge page from its first fault, if that was noted.
    pub fn fallback(&self, space: SpaceId, page: Frame<Upper>) -> Option<Fallback> {
        self.fallbacks.get(&(space, page.floor(PageSize::Huge).get())).copied()
    }

    /// Who uses a frame.
    #[inline]
    pub fn owner(&self, frame: Frame<Lower>) -> Owner {
        Owner::from_word(self.memory.owner(frame))
    }

    /// Whether several pages share a frame, copy on write.
    #[inline]
    pub(crate) fn is_shared(&self, frame: Frame<Lower>) -> bool {
        matches!(self.owner(frame), Owner::Shared { mappings } if mappings > 1)
    }

    /// Gives a frame to an owner, whoever had it before.
    #[inline]
    pub(crate) fn set_owner(&mut self, frame: Frame<Lower>, owner: Owner) {
        self.memory.take_owner(frame);
        self.memory.set_owner(frame, owner.word());
    }

    /// Makes an address space with number `id`, which must not be alive.
    ///
    /// # Errors
    /// [`OutOfMemory`] when there is no frame for the root of its page table.
    pub(crate) fn create_space(&mut self, id: SpaceId) -> Result<(), OutOfMemory> {
        let mut frames = TableFrames {
            memory: &mut self.memory,
            log: &mut self.log,
            counters: &mut self.counters,
        };
        let root = frames.table_frame().ok_or(OutOfMemory)?;
        let space = Space { table: PageTable::new(self.levels, root), vmas: VmaMap::default() };
        let index = id.0 as usize;
        if self.spaces.len() <= index {
            self.spaces.resize_with(index + 1, || None);
        }
        debug_assert!(self.spaces[index].is_none(), "{id:?} is alive");
        self.spaces[index] = Some(space);
        Ok(())
    }

    /// Takes a free block for content; `at` names the frame wanted. Reserved frames are given
    /// only when named.
    pub(crate) fn take(&mut self, order: u32, at: Option<Frame<Lower>>) -> Option<Frame<Lower>> {
        match at {
            None => self.memory.alloc(order),
            Some(frame) => {
                let taken = if self.memory.is_reserved(frame) {
                    self.memory.alloc_reserved(frame, order)
                } else {
                    self.memory.alloc_at(frame, order)
                };
                taken.then_some(frame)
            }
        }
    }

    pub(crate) fn give_back(&mut self, frame: Frame<Lower>, order: u32) {
        for i in 0..1 << order {
            self.memory.take_owner(frame + i);
        }
        self.memory.free(frame, order);
    }

    pub(crate) fn zeroed(&mut self, frame: Frame<Lower>, order: u32) {
        self.log.actions.push(Action::Zero(frame, order));
        self.counters.zeroed_pages += 1 << order;
    }

    pub(crate) fn copied(&mut self, from: Frame<Lower>, to: Frame<Lower>) {
        self.log.actions.push(Action::Copy(from, to));
        self.counters.copied_pages += 1;
    }

    pub(crate) fn changed(&mut self, space: SpaceId, page: Frame<Upper>, pages: u64) {
        self.log.changes.push(Change { space, page, pages });
    }
}
