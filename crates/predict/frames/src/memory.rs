//! The buddy allocator.

use crate::bitmap::Bitmap;
use crate::colour_counts::Coloured;
use crate::fold::Folds;
use crate::occupancy::{Occupancy, REGION_WORDS, for_each_free_block};
use crate::owners::Owners;
use crate::reservations::Reservations;
use crate::{Frame, HUGE_ORDER, MAX_ORDER, REGION_FRAMES};

const ORDERS: usize = MAX_ORDER as usize + 1;

/// The physical memory of one layer.
///
/// Frames are numbered from 0. A *block* of order `o` is `1 << o` frames, naturally aligned. At
/// any time a frame is exactly one of: free in the buddy allocator, free in a reserved region
/// ([`Memory::reserve_region`]), allocated.
///
/// ```
/// use strata_frames::{Frame, HUGE_ORDER, Memory, REGION_FRAMES};
/// let mut memory = Memory::new(4 * REGION_FRAMES); // 8 MiB
///
/// // The lowest of the smallest blocks that suffice.
/// assert_eq!(memory.alloc(0), Some(Frame::new(0)));
/// assert_eq!(memory.alloc(HUGE_ORDER), Some(Frame::new(REGION_FRAMES)));
/// assert!(memory.alloc_at(Frame::new(1), 0), "a wanted frame, if it is free");
/// assert!(!memory.alloc_at(Frame::new(1), 0));
/// assert_eq!(memory.used_frames(), 2 + REGION_FRAMES);
///
/// // Buddies that are free together are one block again.
/// memory.free(Frame::new(0), 0);
/// memory.free(Frame::new(1), 0);
/// assert_eq!((memory.free_regions(), memory.fmfi(HUGE_ORDER)), (3, 0.0));
/// ```
///
/// What a [`Fragmenter`](crate::Fragmenter) did to a region is written when the region is first
/// changed; nothing behaves differently for that.
pub struct Memory {
    frames: u64,
    pub(crate) used: Occupancy,
    /// For each order, the free blocks, but for those of folded regions. A free, unreserved frame
    /// is in exactly one of them, and no two of them are buddies.
    pub(crate) blocks: [Bitmap; ORDERS],
    /// Free blocks of each order, those of folded regions included.
    pub(crate) counts: [u64; ORDERS],
    /// Bit `o` is set when `counts[o]` is not zero.
    pub(crate) nonempty: u32,
    /// Frames in free blocks.
    pub(crate) free: u64,
    /// The HPAS regions that lie in free blocks: the contiguity list.
    pub(crate) regions: Bitmap,
    /// The fewest of them there were since somebody asked to watch.
    least_regions: u64,
    pub(crate) reservations: Reservations,
    pub(crate) folds: Folds,
    pub(crate) owners: Owners,
    /// Only where cache colours are told apart.
    pub(crate) coloured: Option<Box<Coloured>>,
}

impl Memory {
    /// A memory of `frames` base pages, all free.
    ///
    /// Costs about a bit per 4 MiB; everything else is committed when touched.
    ///
    /// # Panics
    /// Above 256 TiB, or when the address space of this process cannot hold 4.4 bytes a frame.
    pub fn new(frames: u64) -> Self {
        let mut memory = Self {
            frames,
            used: Occupancy::new(frames),
            // One bit more than there are blocks: the buddy of the last block may not exist, and
            // is then asked for.
            blocks: std::array::from_fn(|order| Bitmap::new((frames >> order) + 1)),
            counts: [0; ORDERS],
            nonempty: 0,
            free: frames,
            regions: Bitmap::new(frames / REGION_FRAMES),
            least_regions: frames / REGION_FRAMES,
            reservations: Reservations::new(frames / REGION_FRAMES),
            folds: Folds::none(),
            owners: Owners::new(frames),
            coloured: None,
        };
        let largest = frames >> MAX_ORDER;
        memory.blocks[MAX_ORDER as usize].set_below(largest);
        memory.regions.set_below(largest << (MAX_ORDER - HUGE_ORDER));
        memory.counts[MAX_ORDER as usize] = largest;
        memory.nonempty = u32::from(largest != 0) << MAX_ORDER;
        // What is left at the end is the binary number of its frames, largest block first.
        for order in (0..MAX_ORDER).filter(|order| frames >> order & 1 != 0) {
            memory.insert(order, (frames >> order) - 1);
        }
        memory
    }

    /// Base pages in this memory.
    #[inline]
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Frames that [`alloc`](Self::alloc) can give out: free, and not in a reserved region.
    #[inline]
    pub fn free_frames(&self) -> u64 {
        self.free
    }

    /// Frames that are allocated; those in page lists are not.
    #[inline]
    pub fn used_frames(&self) -> u64 {
        self.frames - self.free - self.reservations.free - self.listed_frames()
    }

    /// Free blocks of exactly this order (a column of `/proc/buddyinfo`); reserved regions are
    /// not among them.
    #[inline]
    pub fn free_blocks(&self, order: u32) -> u64 {
        self.counts[order as usize]
    }

    /// HPAS regions that [`alloc`](Self::alloc) can give out whole.
    pub fn free_regions(&self) -> u64 {
        let [.., huge, largest] = self.counts;
        huge + (largest << (MAX_ORDER - HUGE_ORDER))
    }

    /// The fewest [`free_regions`](Self::free_regions) there were since
    /// [`watch_free_regions`](Self::watch_free_regions).
    pub fn least_free_regions(&self) -> u64 {
        self.least_regions
    }

    /// Begins to watch how many regions are free.
    pub fn watch_free_regions(&mut self) {
        self.least_regions = self.free_regions();
    }

    /// Allocates a block: of the smallest order that suffices, the one with the lowest address,
    /// split down to `order`. `None` when there is none.
    ///
    /// The block's frames can be freed together or apart, in any blocks they form.
    ///
    /// # Panics
    /// In debug builds, when `order` is above [`MAX_ORDER`].
    #[inline]
    pub fn alloc(&mut self, order: u32) -> Option<Frame> {
        debug_assert!(order <= MAX_ORDER, "order {order} is above {MAX_ORDER}");
        let candidates = self.nonempty >> order;
        if candidates == 0 {
            return self.alloc_drained(order);
        }
        let from = order + candidates.trailing_zeros();
        let listed = self.blocks[from as usize].first();
        // Past every memory if the only one is in a folded region.
        let mut frame = listed.map_or(u64::MAX, |index| index << from);
        let folded = self.folds.lowest[from as usize];
        if folded < frame >> HUGE_ORDER {
            self.unfold(folded);
            frame = self.blocks[from as usize].first()? << from;
        }
        self.carve(from, frame, order);
        Some(Frame::new(frame))
    }

    /// [`alloc`](Self::alloc) with what the page lists give back.
    #[cold]
    #[inline(never)]
    fn alloc_drained(&mut self, order: u32) -> Option<Frame> {
        if self.drain() > 0 { self.alloc(order) } else { None }
    }

    /// Allocates exactly the block at `frame`, if all of it is free and none of it reserved.
    ///
    /// # Panics
    /// In debug builds, when `frame` is not a multiple of the block's size, or `order` above
    /// [`MAX_ORDER`].
    #[inline]
    pub fn alloc_at(&mut self, frame: Frame, order: u32) -> bool {
        self.debug_check_block(frame, order);
        let frame = frame.get();
        if frame + (1 << order) > self.frames {
            return false;
        }
        // A folded region is in no larger block.
        if order < HUGE_ORDER && self.folds.holds(frame) {
            self.unfold(frame / REGION_FRAMES);
        }
        if !self.used.all_free(frame, order) {
            return self.drain() > 0 && self.alloc_at(Frame::new(frame), order);
        }
        // Free blocks are maximal, so a free range lies in one block, unless it is reserved.
        let holder =
            (order..=MAX_ORDER).find(|&from| self.blocks[from as usize].test(frame >> from));
        holder.inspect(|&from| self.carve(from, frame, order)).is_some()
    }

    /// Whether the whole block is free and unreserved, so that [`alloc_at`](Self::alloc_at) would
    /// take it. False past the end of memory.
    ///
    /// # Panics
    /// As [`alloc_at`](Self::alloc_at).
    #[inline]
    pub fn is_free(&self, frame: Frame, order: u32) -> bool {
        self.debug_check_block(frame, order);
        let (frame, last) = (frame.get(), frame.get() + (1 << order) - 1);
        if last >= self.frames {
            return false;
        }
        if self.folds.holds(frame) || self.folds.holds(last) {
            return order < HUGE_ORDER && self.folds.patterns().is_free(frame, order);
        }
        self.used.all_free(frame, order)
            && !self.reservations.holds(frame)
            && !self.reservations.holds(last)
    }

    /// Whether this frame is allocated. False past the end of memory.
    #[inline]
    pub fn is_allocated(&self, frame: Frame) -> bool {
        let frame = frame.get();
        if self.folds.holds(frame) {
            return self.folds.patterns().is_taken(frame);
        }
        frame < self.frames && self.used.all_used(frame, 0)
    }

    /// Frees a block, merging it with its free buddies. It need not have been allocated as one:
    /// an allocated order-9 block can be freed page by page, and 512 pages as one block.
    ///
    /// Frames of a reserved region stay reserved.
    ///
    /// # Panics
    /// In debug builds, when any frame of the block is free already, has an owner, or is past the
    /// end of memory, and as [`alloc_at`](Self::alloc_at).
    #[inline]
    pub fn free(&mut self, frame: Frame, order: u32) {
        self.debug_check_block(frame, order);
        let number = frame.get();
        debug_assert!(number + (1 << order) <= self.frames, "{frame:?} is past the end");
        if self.folds.overlaps(number, order) {
            self.unfold_block(number, order);
        }
        debug_assert!(self.used.all_used(number, order), "{frame:?} order {order} freed twice");
        self.debug_check_unowned(frame, order);
        if !self.reservations.is_empty() {
            if order > HUGE_ORDER {
                // Each region of the block may or may not be reserved.
                self.free(frame, order - 1);
                return self.free(frame + (1 << (order - 1)), order - 1);
            }
            if self.reservations.holds(number) {
                return self.free_reserved(number, order);
            }
        }
        self.used.give(number, order);
        self.free += 1 << order;
        if self.coloured.is_some() {
            self.colours_given(number, order);
        }
        self.insert_merged(order, number >> order);
    }

    /// Number of free frames in the HPAS region that holds `frame`, whether reserved or not; 0
    /// past the end of memory.
    #[inline]
    pub fn free_in_region(&self, frame: Frame) -> u32 {
        if frame.get() >= self.frames {
            return 0;
        }
        if self.folds.holds(frame.get()) {
            let pattern = self.folds.patterns().of(frame.get() / REGION_FRAMES);
            return (REGION_FRAMES - pattern.frames) as u32;
        }
        self.used.free_in(frame.get() / REGION_FRAMES)
    }

    /// The allocated frames of the HPAS region that holds `frame`, ascending.
    pub fn allocated_in_region(&self, frame: Frame) -> impl Iterator<Item = Frame> + '_ {
        let region = frame.get() / REGION_FRAMES;
        let start = region * REGION_FRAMES;
        let used = match frame.get() < self.frames {
            true if self.folds.holds(start) => self.folds.patterns().taken(region),
            true => *self.used.region(region),
            false => [0; REGION_WORDS],
        };
        (start..self.frames.min(start + REGION_FRAMES))
            .filter(move |at| used[(at - start) as usize / 64] >> (at % 64) & 1 != 0)
            .map(Frame::new)
    }

    /// Takes the block at `frame` out of the free block of order `from` that holds it, and puts
    /// back the rest.
    #[inline]
    fn carve(&mut self, from: u32, frame: u64, order: u32) {
        self.remove(from, frame >> from);
        for rest in (order..from).rev() {
            self.insert(rest, frame >> rest ^ 1);
        }
        if from >= HUGE_ORDER {
            self.least_regions = self.least_regions.min(self.free_regions());
        }
        debug_assert!(self.used.all_free(frame, order));
        self.used.take(frame, order);
        self.free -= 1 << order;
        if self.coloured.is_some() {
            self.colours_taken(frame, order);
        }
    }

    /// Lists a free block, merged with its buddies as far as they are free.
    #[inline]
    pub(crate) fn insert_merged(&mut self, mut order: u32, mut index: u64) {
        while order < MAX_ORDER && self.blocks[order as usize].test(index ^ 1) {
            self.remove(order, index ^ 1);
            index >>= 1;
            order += 1;
        }
        self.insert(order, index);
    }

    /// Takes a wholly free region off the lists without allocating it.
    pub(crate) fn isolate_region(&mut self, region: u64) {
        debug_assert!(self.regions.test(region));
        if self.blocks[HUGE_ORDER as usize].test(region) {
            self.remove(HUGE_ORDER, region);
        } else {
            self.remove(MAX_ORDER, region >> (MAX_ORDER - HUGE_ORDER));
            self.insert(HUGE_ORDER, region ^ 1);
        }
        self.least_regions = self.least_regions.min(self.free_regions());
        self.free -= REGION_FRAMES;
        self.colours_isolated(region);
    }

    /// Lists the free frames of a region of which none is listed; returns their number.
    pub(crate) fn list_region(&mut self, region: u64) -> u64 {
        let base = region * REGION_FRAMES;
        let used = *self.used.region(region);
        for_each_free_block(&used, |order, frame| {
            let index = (base + frame) >> order;
            // What is less than the region has a buddy in it, which is in use.
            match order {
                HUGE_ORDER => self.insert_merged(order, index),
                _ => self.insert(order, index),
            }
        });
        let listed = u64::from(self.used.free_in(region));
        self.free += listed;
        self.colours_listed(region);
        listed
    }

    #[inline]
    fn insert(&mut self, order: u32, index: u64) {
        self.blocks[order as usize].set(index);
        self.counts[order as usize] += 1;
        self.nonempty |= 1 << order;
        if order >= HUGE_ORDER {
            for region in Self::regions_of(order, index) {
                self.regions.set(region);
            }
        }
    }

    #[inline]
    fn remove(&mut self, order: u32, index: u64) {
        self.blocks[order as usize].clear(index);
        self.counts[order as usize] -= 1;
        if self.counts[order as usize] == 0 {
            self.nonempty &= !(1 << order);
        }
        if order >= HUGE_ORDER {
            for region in Self::regions_of(order, index) {
                self.regions.clear(region);
            }
        }
    }

    fn regions_of(order: u32, index: u64) -> std::ops::Range<u64> {
        let up = order - HUGE_ORDER;
        index << up..(index + 1) << up
    }

    #[inline]
    pub(crate) fn debug_check_block(&self, frame: Frame, order: u32) {
        debug_assert!(order <= MAX_ORDER, "order {order} is above {MAX_ORDER}");
        debug_assert!(
            frame.get() & ((1 << order) - 1) == 0,
            "{frame:?} cannot start a block of order {order}"
        );
    }
}
