//! The radix tree of table pages.

use crate::{ENTRIES, Entry, Format, Rights, index};
use std::fmt;
use std::marker::PhantomData;
use strata_addr::{Addr, Frame, PageSize, Range, space::Space};

/// A table page within one [`Radix`]. Stays valid until the page is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub(crate) u32);

impl TableId {
    /// The root of every radix.
    pub const ROOT: Self = Self(0);
}

/// A mapped page.
#[derive(Debug)]
pub struct Mapping<L: Space> {
    /// First base frame of the mapped page.
    pub frame: Frame<L>,
    /// Size mapped.
    pub size: PageSize,
    /// Rights.
    pub rights: Rights,
    /// The accessed flag.
    pub accessed: bool,
    /// The dirty flag.
    pub dirty: bool,
}

impl<L: Space> Clone for Mapping<L> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<L: Space> Copy for Mapping<L> {}
impl<L: Space> PartialEq for Mapping<L> {
    fn eq(&self, other: &Self) -> bool {
        let key = |m: &Self| (m.frame, m.size, m.rights, m.accessed, m.dirty);
        key(self) == key(other)
    }
}
impl<L: Space> Eq for Mapping<L> {}

/// The memory that table pages come from had no frame left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no frame left for a page table")]
pub struct NoFrame;

/// Where table pages come from and go to.
pub trait FrameSource<L> {
    /// A frame for a table page, or `None` when memory is full.
    fn table_frame(&mut self) -> Option<Frame<L>>;
    /// Takes back the frame of a freed table page.
    fn free_table_frame(&mut self, frame: Frame<L>);
}

pub(crate) struct Table {
    pub(crate) entries: Box<[u64; ENTRIES]>,
    /// Ids of the tables that entries point to; only above level 1, where it is worth the memory.
    pub(crate) children: Option<Box<[u32; ENTRIES]>>,
    pub(crate) frame: u64,
    pub(crate) present: u16,
}

impl Table {
    fn new(frame: u64, level: u8) -> Self {
        Self {
            entries: Box::new([0; ENTRIES]),
            children: (level > 1).then(|| Box::new([0; ENTRIES])),
            frame,
            present: 0,
        }
    }
}

// `repr(C)`, so that tables that differ only in their marker have the same layout.
/// A radix page table that maps pages of the space `U` to frames of the space `L`, with entries
/// of format `F` and 3 to 5 levels.
///
/// ```
/// use strata_addr::{Frame, Gpa, Hpa, PageSize, space::GuestPhysical, space::HostPhysical};
/// use strata_paging::{Ept, FrameSource, Radix, Rights};
///
/// /// Table pages come from the frames from number 1 on.
/// struct Upwards(u64);
/// impl FrameSource<HostPhysical> for Upwards {
///     fn table_frame(&mut self) -> Option<Frame<HostPhysical>> {
///         self.0 += 1;
///         Some(Frame::new(self.0))
///     }
///     fn free_table_frame(&mut self, _: Frame<HostPhysical>) {}
/// }
///
/// let mut frames = Upwards(0);
/// let root = frames.table_frame().unwrap();
/// let mut table = Radix::<Ept, GuestPhysical, HostPhysical>::new(4, root);
/// let (page, frame) = (Gpa::new(4 << 20).page(), Hpa::new(6 << 20).page());
/// // Three entries are written: the leaf, and those that lead to the two table pages added.
/// assert_eq!(table.map(page, PageSize::Huge, frame, Rights::ALL, &mut frames), Ok(3));
/// assert_eq!(table.translate(Gpa::new((4 << 20) + 5)), Some(Hpa::new((6 << 20) + 5)));
///
/// // Split, the same frames are mapped in 512 pieces, and each can go.
/// table.split(page, &mut frames)?;
/// assert_eq!(table.mapped(table.everything()).count(), 512);
/// table.unmap(page.addr(), &mut frames);
/// assert_eq!(table.translate(page.addr()), None);
/// # Ok::<(), strata_paging::NoFrame>(())
/// ```
#[repr(C)]
pub struct Radix<F, U, L> {
    pub(crate) tables: Vec<Table>,
    free: Vec<u32>,
    levels: u8,
    generation: u64,
    marker: PhantomData<(F, U, L)>,
}

impl<F: Format, U: Space, L: Space> Radix<F, U, L> {
    /// An empty table whose root is in `root`.
    ///
    /// # Panics
    /// When `levels` is not 3, 4 or 5.
    pub fn new(levels: u8, root: Frame<L>) -> Self {
        assert!((3..=5).contains(&levels), "a page table has 3 to 5 levels, not {levels}");
        Self {
            tables: vec![Table::new(root.get(), levels)],
            free: Vec::new(),
            levels,
            generation: 0,
            marker: PhantomData,
        }
    }

    /// The same table between other spaces: the step from the roles of a layer to the spaces that
    /// play them, as [`Addr::cross`] is for one address.
    #[inline]
    pub fn cross_mut<V: Space, M: Space>(&mut self) -> &mut Radix<F, V, M> {
        let table: *mut Self = self;
        // SAFETY: `Radix` is `repr(C)` and its space parameters only occur in a `PhantomData`, so
        // both types have the same layout and the same valid values. The exclusive borrow of
        // `self` lasts as long as the result.
        unsafe { &mut *table.cast() }
    }

    /// Levels, the root's included.
    #[inline]
    pub fn levels(&self) -> u8 {
        self.levels
    }

    /// Counts the table pages freed so far: whoever keeps a [`TableId`] across changes drops it
    /// when this moves.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Number of table pages.
    pub fn table_pages(&self) -> usize {
        self.tables.len() - self.free.len()
    }

    /// The frame that holds a table page.
    #[inline]
    pub fn frame_of(&self, table: TableId) -> Frame<L> {
        Frame::new(self.tables[table.0 as usize].frame)
    }

    /// The physical address of an entry.
    #[inline]
    pub fn entry_addr(&self, table: TableId, index: usize) -> Addr<L> {
        self.frame_of(table).addr() + 8 * index as u64
    }

    /// The bits of all entries of a table page.
    #[inline]
    pub fn entries(&self, table: TableId) -> &[u64; ENTRIES] {
        &self.tables[table.0 as usize].entries
    }

    /// The bits of an entry.
    #[inline]
    pub fn entry(&self, table: TableId, index: usize) -> u64 {
        self.tables[table.0 as usize].entries[index]
    }

    /// The table that a present non-leaf entry points to.
    ///
    /// # Panics
    /// When `table` is at the leaf level.
    #[inline]
    pub fn child(&self, table: TableId, index: usize) -> TableId {
        let children = self.tables[table.0 as usize].children.as_ref();
        TableId(children.expect("leaf-level tables have no children")[index])
    }

    /// Sets the accessed flag of a present entry, and the dirty flag too when `dirty`. Returns
    /// whether that changed the entry (a write to memory, in hardware).
    #[inline]
    pub fn mark(&mut self, table: TableId, index: usize, dirty: bool) -> bool {
        let entry = &mut self.tables[table.0 as usize].entries[index];
        let marked = *entry | F::ACCESSED | if dirty { F::DIRTY } else { 0 };
        let changed = marked != *entry;
        *entry = marked;
        changed
    }

    /// The entry where a walk to `addr` ends, a leaf or absent, and its level.
    #[inline]
    fn last_slot(&self, addr: Addr<U>) -> (TableId, usize, u8) {
        let mut table = TableId::ROOT;
        let mut level = self.levels;
        loop {
            let at = index(addr.get(), level);
            let bits = self.entry(table, at);
            if !F::is_present(bits) || F::is_leaf(bits, level) {
                return (table, at, level);
            }
            table = self.child(table, at);
            level -= 1;
        }
    }

    /// The page that maps `addr`, if one does.
    #[inline]
    pub fn mapping(&self, addr: Addr<U>) -> Option<Mapping<L>> {
        let (table, at, level) = self.leaf_slot(addr)?;
        Some(decode_leaf::<F, L>(self.entry(table, at), level))
    }

    /// The address that `addr` maps to, if it is mapped.
    pub fn translate(&self, addr: Addr<U>) -> Option<Addr<L>> {
        self.mapping(addr).map(|m| m.frame.addr() + addr.offset(m.size))
    }

    /// Maps a page that is not mapped, no part of it. Returns the number of entries written: 1,
    /// and 1 more for every table page added.
    ///
    /// # Errors
    /// [`NoFrame`] when a table page was needed and `frames` had none; the page is then unmapped,
    /// table pages added on the way stay.
    ///
    /// # Panics
    /// In debug builds, when the page or part of it is mapped, or something is not aligned.
    pub fn map(
        &mut self,
        page: Frame<U>,
        size: PageSize,
        frame: Frame<L>,
        rights: Rights,
        frames: &mut impl FrameSource<L>,
    ) -> Result<u32, NoFrame> {
        debug_assert!(page.is_aligned(size) && frame.is_aligned(size));
        let addr = page.addr().get();
        let mut table = TableId::ROOT;
        let mut level = self.levels;
        let mut written = 1;
        while level > size.level() {
            let at = index(addr, level);
            let bits = self.entry(table, at);
            if F::is_present(bits) {
                debug_assert!(!F::is_leaf(bits, level), "{page:?} is inside a larger mapping");
                table = self.child(table, at);
            } else {
                let child_frame = frames.table_frame().ok_or(NoFrame)?;
                table = self.add_table(table, at, level, child_frame);
                written += 1;
            }
            level -= 1;
        }
        let at = index(addr, level);
        let slot = &mut self.tables[table.0 as usize];
        debug_assert!(!F::is_present(slot.entries[at]), "{page:?} is mapped already");
        slot.entries[at] = F::leaf(frame.get(), size, rights);
        slot.present += 1;
        Ok(written)
    }

    /// Removes the leaf that maps `addr`, whatever its size, and the table pages that are empty
    /// then. Returns what was mapped.
    pub fn unmap(&mut self, addr: Addr<U>, frames: &mut impl FrameSource<L>) -> Option<Mapping<L>> {
        let mut path = [(TableId::ROOT, 0); 5];
        let mut table = TableId::ROOT;
        let mut level = self.levels;
        let mapping = loop {
            let at = index(addr.get(), level);
            path[level as usize - 1] = (table, at);
            let bits = self.entry(table, at);
            if !F::is_present(bits) {
                return None;
            }
            if F::is_leaf(bits, level) {
                break decode_leaf::<F, L>(bits, level);
            }
            table = self.child(table, at);
            level -= 1;
        };
        loop {
            let (table, at) = path[level as usize - 1];
            let slot = &mut self.tables[table.0 as usize];
            slot.entries[at] = 0;
            slot.present -= 1;
            if slot.present > 0 || level == self.levels {
                return Some(mapping);
            }
            self.free_table(table, frames);
            level += 1;
        }
    }

    /// Changes the leaf that maps `addr` in place: `change` gets its mapping and returns frame and
    /// rights; accessed and dirty are kept. Returns whether there was a leaf.
    pub fn update(
        &mut self,
        addr: Addr<U>,
        change: impl FnOnce(Mapping<L>) -> (Frame<L>, Rights),
    ) -> bool {
        let Some((table, at, level)) = self.leaf_slot(addr) else {
            return false;
        };
        let entry = &mut self.tables[table.0 as usize].entries[at];
        let mapping = decode_leaf::<F, L>(*entry, level);
        let (frame, rights) = change(mapping);
        debug_assert!(frame.is_aligned(mapping.size));
        *entry = F::leaf(frame.get(), mapping.size, rights) | *entry & (F::ACCESSED | F::DIRTY);
        true
    }

    /// Clears the accessed flag of the leaf that maps `addr`; returns what it was.
    pub fn test_and_clear_accessed(&mut self, addr: Addr<U>) -> bool {
        let Some((table, at, _)) = self.leaf_slot(addr) else {
            return false;
        };
        let entry = &mut self.tables[table.0 as usize].entries[at];
        let was = *entry & F::ACCESSED != 0;
        *entry &= !F::ACCESSED;
        was
    }

    /// The whole input space.
    pub fn everything(&self) -> Range<U> {
        Range::new(Addr::new(0), Addr::new(1 << (12 + 9 * u32::from(self.levels))))
    }

    /// Frees every table page but the root, and forgets every mapping.
    pub fn clear(&mut self, frames: &mut impl FrameSource<L>) {
        self.clear_below(TableId::ROOT, self.levels, frames);
    }

    /// The frame of the root, for whoever takes the whole table down after [`Radix::clear`].
    pub fn root_frame(&self) -> Frame<L> {
        self.frame_of(TableId::ROOT)
    }

    fn clear_below(&mut self, table: TableId, level: u8, frames: &mut impl FrameSource<L>) {
        for at in 0..ENTRIES {
            let bits = self.entry(table, at);
            if F::is_present(bits) && !F::is_leaf(bits, level) {
                let child = self.child(table, at);
                self.clear_below(child, level - 1, frames);
                self.free_table(child, frames);
            }
        }
        let slot = &mut self.tables[table.0 as usize];
        slot.entries.fill(0);
        slot.present = 0;
    }

    #[inline]
    fn leaf_slot(&self, addr: Addr<U>) -> Option<(TableId, usize, u8)> {
        let slot = self.last_slot(addr);
        F::is_present(self.entry(slot.0, slot.1)).then_some(slot)
    }

    /// The table whose entries have `level` on the way to `addr`, when the walk gets there.
    pub(crate) fn table_at(&self, addr: Addr<U>, level: u8) -> Option<TableId> {
        let mut table = TableId::ROOT;
        for above in (level + 1..=self.levels).rev() {
            let at = index(addr.get(), above);
            let bits = self.entry(table, at);
            if !F::is_present(bits) || F::is_leaf(bits, above) {
                return None;
            }
            table = self.child(table, at);
        }
        Some(table)
    }

    /// Links a fresh table page below entry `at` of `parent`, which is at `level`, and counts the
    /// entry as one more present: the caller keeps `present` right when it was present before.
    pub(crate) fn add_table(
        &mut self,
        parent: TableId,
        at: usize,
        level: u8,
        frame: Frame<L>,
    ) -> TableId {
        let table = Table::new(frame.get(), level - 1);
        let id = match self.free.pop() {
            Some(id) => {
                self.tables[id as usize] = table;
                id
            }
            None => {
                self.tables.push(table);
                (self.tables.len() - 1) as u32
            }
        };
        let slot = &mut self.tables[parent.0 as usize];
        slot.entries[at] = F::table(frame.get());
        slot.present += 1;
        slot.children.as_mut().expect("parents are above the leaf level")[at] = id;
        TableId(id)
    }

    pub(crate) fn free_table(&mut self, table: TableId, frames: &mut impl FrameSource<L>) {
        frames.free_table_frame(self.frame_of(table));
        let slot = &mut self.tables[table.0 as usize];
        slot.children = None;
        slot.present = 0;
        // A stale id must read as "nothing there", not as somebody else's entries.
        slot.entries.fill(0);
        self.free.push(table.0);
        self.generation += 1;
    }
}

impl<F: Format, U, L> fmt::Debug for Radix<F, U, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = self.tables.len() - self.free.len();
        write!(f, "{} table, {} levels, {pages} table pages", F::NAME, self.levels)
    }
}

#[inline]
pub(crate) fn decode_leaf<F: Format, L: Space>(bits: u64, level: u8) -> Mapping<L> {
    match F::decode(bits, level) {
        Entry::Leaf(leaf) => Mapping {
            frame: Frame::new(leaf.frame),
            size: leaf.size,
            rights: leaf.rights,
            accessed: leaf.accessed,
            dirty: leaf.dirty,
        },
        other => unreachable!("{other:?} where a leaf at level {level} was found"),
    }
}
