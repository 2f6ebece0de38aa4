//! Who has a frame: one opaque word each.

use crate::Frame;
use crate::memory::Memory;

impl Memory {
    /// The owner of a frame; 0 is nobody. A free frame has no owner.
    ///
    /// # Panics
    /// Past the end of memory.
    #[inline]
    pub fn owner(&self, frame: Frame) -> u64 {
        if self.folds.holds(frame.get()) {
            return self.folds.owner(frame.get());
        }
        self.owners.get(frame.get())
    }

    /// Gives an allocated frame that nobody owns to `owner`. The word means nothing to this
    /// crate; a stack keeps its reverse map in it.
    ///
    /// ```
    /// use strata_frames::Memory;
    /// let mut memory = Memory::new(512);
    /// let frame = memory.alloc(0).expect("all is free");
    /// memory.set_owner(frame, 0xabc);
    /// assert_eq!(memory.owner(frame), 0xabc);
    /// // Before it is freed, its owner gives it up.
    /// assert_eq!(memory.take_owner(frame), 0xabc);
    /// memory.free(frame, 0);
    /// ```
    ///
    /// # Panics
    /// Past the end of memory. In debug builds, when the frame is free, when it has an owner
    /// already (a frame owned twice), or when `owner` is 0.
    #[inline]
    pub fn set_owner(&mut self, frame: Frame, owner: u64) {
        debug_assert!(self.is_allocated(frame), "{frame:?} is free and cannot be owned");
        debug_assert!(owner != 0, "owner 0 is nobody");
        if self.folds.holds(frame.get()) {
            self.unfold_block(frame.get(), 0);
        }
        let word = self.owner(frame);
        debug_assert!(word == 0, "{frame:?} is owned by {word:#x} and wanted by {owner:#x}");
        self.owners.set(frame.get(), owner);
    }

    /// Takes the frame from its owner, who is returned; 0 when nobody owned it. To be called
    /// before the frame is freed or handed to another owner.
    ///
    /// # Panics
    /// Past the end of memory.
    #[inline]
    pub fn take_owner(&mut self, frame: Frame) -> u64 {
        if self.folds.holds(frame.get()) {
            self.unfold_block(frame.get(), 0);
        }
        self.owners.take(frame.get())
    }

    #[inline]
    pub(crate) fn debug_check_unowned(&self, frame: Frame, order: u32) {
        if cfg!(debug_assertions) {
            let mut block = frame.get()..frame.get() + (1 << order);
            let owned = block.find(|frame| self.owners.get(*frame) != 0);
            assert!(owned.is_none(), "{frame:?} order {order}: frame {owned:?} is owned");
        }
    }
}
