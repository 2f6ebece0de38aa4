//! The content of memory, for tests: one tag per frame of real memory.

use rustc_hash::FxHashMap;

/// Tags of the frames of the lowest layer; 0, the default, is a page of zeroes.
#[derive(Debug, Default)]
pub struct Contents {
    tags: FxHashMap<u64, u64>,
}

impl Contents {
    /// The tag of a frame.
    pub fn read(&self, frame: u64) -> u64 {
        self.tags.get(&frame).copied().unwrap_or(0)
    }

    /// Writes a tag.
    pub fn write(&mut self, frame: u64, tag: u64) {
        if tag == 0 {
            self.tags.remove(&frame);
        } else {
            self.tags.insert(frame, tag);
        }
    }
}
