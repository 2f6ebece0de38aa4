//! Who has a frame: one opaque word each.

use crate::{Frame, Memory};

impl Memory {
    /// The owner of a frame; 0 is nobody. A free frame has no owner.
    ///
    /// # Panics
    /// Past the end of memory.
    #[inline]
    pub fn owner(&self, frame: Frame) -> u64 {
        self.owners[frame.get() as usize]
    }

    /// Gives an allocated frame that nobody owns to `owner`. The word means nothing to this
    /// crate; a stack keeps its reverse map in it.
    ///
    /// # Panics
    /// Past the end of memory. In debug builds, when the frame is free, when it has an owner
    /// already (a frame owned twice), or when `owner` is 0.
    #[inline]
    pub fn set_owner(&mut self, frame: Frame, owner: u64) {
        debug_assert!(self.is_allocated(frame), "{frame:?} is free and cannot be owned");
        debug_assert!(owner != 0, "owner 0 is nobody");
        let word = &mut self.owners[frame.get() as usize];
        debug_assert!(*word == 0, "{frame:?} is owned by {word:#x} and wanted by {owner:#x}");
        *word = owner;
    }

    /// Takes the frame from its owner, who is returned; 0 when nobody owned it. To be called
    /// before the frame is freed or handed to another owner.
    ///
    /// # Panics
    /// Past the end of memory.
    #[inline]
    pub fn take_owner(&mut self, frame: Frame) -> u64 {
        std::mem::take(&mut self.owners[frame.get() as usize])
    }

    #[inline]
    pub(crate) fn debug_check_unowned(&self, frame: Frame, order: u32) {
        if cfg!(debug_assertions) {
            let start = frame.get() as usize;
            let owned = self.owners[start..start + (1 << order)].iter().position(|&o| o != 0);
            assert!(owned.is_none(), "{frame:?} order {order}: frame {owned:?} of it is owned");
        }
    }
}
