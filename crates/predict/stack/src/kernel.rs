//! The memory management of one layer's kernel.
//!
//! Guest kernel and hypervisor are the same Linux: frames, address spaces, faults. A guest has
//! one space per process; a hypervisor has one space, the VM process whose one large area is the
//! guest's memory. What a hypervisor adds, the second stage, is in [`crate::stack`].

use crate::frames::{Action, Change, Frames, KernelCounters};
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

/// A layer's memory is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no free frame left")]
pub struct OutOfMemory;

/// The memory management of one layer.
pub struct Kernel {
    pub(crate) frames: Frames,
    pub(crate) spaces: Vec<Option<Space>>,
    pub(crate) thp: ThpMode,
    pub(crate) khugepaged: Khugepaged,
    pub(crate) compaction_cursor: u64,
    /// Whether it empties regions by moving pages.
    pub(crate) compacts: bool,
    pub(crate) fallbacks: FxHashMap<(SpaceId, u64), Fallback>,
    pub(crate) levels: u8,
    /// Whatever its programs touch is a huge page and stays one ([`AlignAreas::Needless`]).
    ///
    /// [`AlignAreas::Needless`]: crate::AlignAreas::Needless
    pub(crate) whole: bool,
}

impl Kernel {
    /// A kernel with this memory, no spaces, and page tables of this many levels.
    pub fn new(memory: Memory, levels: u8, thp: ThpMode) -> Self {
        Self {
            frames: Frames::new(memory),
            spaces: Vec::new(),
            thp,
            khugepaged: Khugepaged::default(),
            compaction_cursor: 0,
            compacts: true,
            fallbacks: FxHashMap::default(),
            levels,
            whole: false,
        }
    }

    /// The layer's memory.
    pub fn memory(&self) -> &Memory {
        &self.frames.memory
    }

    /// The layer's memory, for policies that reserve and release regions.
    pub fn memory_mut(&mut self) -> &mut Memory {
        &mut self.frames.memory
    }

    /// How transparent huge pages are set.
    pub fn thp(&self) -> ThpMode {
        self.thp
    }

    /// What was counted.
    pub fn counters(&self) -> &KernelCounters {
        &self.frames.counters
    }

    /// Starts counting anew.
    pub fn reset_counters(&mut self) {
        self.frames.counters = KernelCounters::default();
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
        Owner::from_bits(self.frames.memory.owner(frame))
    }

    /// Whether several pages share a frame, copy on write.
    #[inline]
    pub(crate) fn is_shared(&self, frame: Frame<Lower>) -> bool {
        matches!(self.owner(frame), Owner::Shared { mappings } if mappings > 1)
    }

    /// A live space, and the frames for its tables.
    pub(crate) fn space_and_frames(&mut self, id: SpaceId) -> (&mut Space, &mut Frames) {
        let space = self.spaces[id.0 as usize].as_mut().expect("the space is alive");
        (space, &mut self.frames)
    }

    /// A live space.
    pub(crate) fn alive_mut(&mut self, id: SpaceId) -> &mut Space {
        self.space_and_frames(id).0
    }

    /// Gives a frame to an owner, whoever had it before.
    #[inline]
    pub(crate) fn set_owner(&mut self, frame: Frame<Lower>, owner: Owner) {
        self.frames.set_owner(frame, owner);
    }

    /// The lowest number that no live space has.
    ///
    /// # Errors
    /// [`OutOfMemory`] when all are in use.
    pub(crate) fn free_space_id(&self) -> Result<SpaceId, OutOfMemory> {
        let free = self.spaces.iter().position(Option::is_none).unwrap_or(self.spaces.len());
        u16::try_from(free).map(SpaceId).map_err(|_| OutOfMemory)
    }

    /// Makes an address space with number `id`, which must not be alive.
    ///
    /// # Errors
    /// [`OutOfMemory`] when there is no frame for the root of its page table.
    pub(crate) fn create_space(&mut self, id: SpaceId) -> Result<(), OutOfMemory> {
        let root = self.frames.table_frame().ok_or(OutOfMemory)?;
        let space = Space { table: PageTable::new(self.levels, root), vmas: VmaMap::default() };
        let index = id.0 as usize;
        if self.spaces.len() <= index {
            self.spaces.resize_with(index + 1, || None);
        }
        debug_assert!(self.spaces[index].is_none(), "{id:?} is alive");
        self.spaces[index] = Some(space);
        Ok(())
    }

    /// Takes a free block for content, for a base page use [`Frames::base_page`]; `at` names the frame wanted. Reserved frames are given
    /// only when named.
    pub(crate) fn take(&mut self, order: u32, at: Option<Frame<Lower>>) -> Option<Frame<Lower>> {
        match at {
            None => self.frames.memory.alloc(order),
            Some(frame) => {
                let taken = if self.frames.memory.is_reserved(frame) {
                    self.frames.memory.alloc_reserved(frame, order)
                } else {
                    self.frames.memory.alloc_at(frame, order)
                };
                taken.then_some(frame)
            }
        }
    }

    pub(crate) fn give_back(&mut self, frame: Frame<Lower>, order: u32) {
        for i in 0..1 << order {
            self.frames.disown(frame + i);
        }
        self.frames.memory.free(frame, order);
    }

    pub(crate) fn zeroed(&mut self, frame: Frame<Lower>, order: u32) {
        self.frames.log.actions.push(Action::Zero(frame, order));
        self.frames.counters.zeroed_pages += 1 << order;
    }

    pub(crate) fn copied(&mut self, from: Frame<Lower>, to: Frame<Lower>) {
        self.frames.log.actions.push(Action::Copy(from, to));
        self.frames.counters.copied_pages += 1;
    }

    pub(crate) fn changed(&mut self, space: SpaceId, page: Frame<Upper>, pages: u64) {
        self.frames.log.changes.push(Change { space, page, pages });
    }
}
