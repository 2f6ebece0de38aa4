//! Words that several threads count up at once, with atomics.

use super::memory::{HUGE, Memory, Mismatch};
use super::pattern::{Contents, Pattern};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// The lower half counts; the upper half tells whose word it is.
const COUNT: u64 = 0xffff_ffff;
/// Words of a huge page.
const WORDS: usize = HUGE / 8;

/// The words of one huge page, and what other memory says of them: counts begun, and counts done.
/// A word may never be below what was done before it was read, nor above what had begun after.
#[derive(Debug)]
pub(super) struct Shared {
    start: usize,
    begun: Vec<AtomicU32>,
    done: Vec<AtomicU32>,
}

impl Shared {
    /// Puts the first value into every word.
    pub(super) fn new(memory: &Memory, pattern: &Pattern, start: usize) -> Self {
        let zeros = || (0..WORDS).map(|_| AtomicU32::new(0)).collect();
        let shared = Self { start, begun: zeros(), done: zeros() };
        for word in 0..WORDS {
            let at = start + word * 8;
            memory.word(at).store(own(pattern, at), SeqCst);
        }
        shared
    }

    /// Counts a word up, between two looks at it.
    pub(super) fn count(
        &self,
        memory: &Memory,
        pattern: &Pattern,
        word: usize,
    ) -> Result<(), Mismatch> {
        self.verify(memory, pattern, word)?;
        self.begun[word].fetch_add(1, SeqCst);
        memory.word(self.start + word * 8).fetch_add(1, SeqCst);
        self.done[word].fetch_add(1, SeqCst);
        self.verify(memory, pattern, word)
    }

    /// Looks at a word.
    pub(super) fn verify(
        &self,
        memory: &Memory,
        pattern: &Pattern,
        word: usize,
    ) -> Result<(), Mismatch> {
        let address = self.start + word * 8;
        let least = self.done[word].load(SeqCst);
        let found = memory.word(address).load(SeqCst);
        let most = self.begun[word].load(SeqCst);
        let own = own(pattern, address);
        let count = (found & COUNT) as u32;
        if found & !COUNT == own && (least..=most).contains(&count) {
            return Ok(());
        }
        Err(Mismatch { address, expected: own | u64::from(least), found })
    }

    /// Looks at every word.
    pub(super) fn verify_all(&self, memory: &Memory, pattern: &Pattern) -> Result<(), Mismatch> {
        (0..WORDS).try_for_each(|word| self.verify(memory, pattern, word))
    }

    /// Words there are.
    pub(super) const fn words(&self) -> usize {
        WORDS
    }
}

/// The upper half of a word.
fn own(pattern: &Pattern, at: usize) -> u64 {
    pattern.word(Contents::Own(0), at) & !COUNT
}
