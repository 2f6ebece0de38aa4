//! 2 MiB of memory, and what each of its pages is to hold.

use super::super::region::PAGE;
use super::memory::{HUGE, Memory, Mismatch};
use super::pattern::{Contents, Owner, Pattern, WORDS, following};
use super::tally::Tally;
use nix::sys::mman::MmapAdvise;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Pages of a chunk.
pub(super) const PAGES: usize = HUGE / PAGE;

/// What a page holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) contents: Contents,
    /// The last generation it had.
    pub(super) last: u32,
}

/// A huge page's worth of memory, of one thread at a time.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Its first address.
    pub(super) at: usize,
    /// What the kernel is told of its mapping.
    pub(super) advice: Option<MmapAdvise>,
    pub(super) pages: Vec<Page>,
    /// It is left alone until then.
    pub(super) rests: Option<Instant>,
}

impl Chunk {
    pub(super) fn new(at: usize, advice: Option<MmapAdvise>) -> Self {
        let pages = vec![Page { contents: Contents::Zero, last: 0 }; PAGES];
        Self { at, advice, pages, rests: None }
    }

    /// Address of a page.
    pub(super) fn address(&self, page: usize) -> usize {
        self.at + page * PAGE
    }

    /// Verifies pages.
    pub(super) fn verify(
        &self,
        memory: &Memory,
        pattern: &Pattern,
        pages: Range<usize>,
        tally: &mut Tally,
    ) -> Result<(), String> {
        for page in pages {
            memory
                .verify(pattern, self.pages[page].contents, self.address(page))
                .map_err(|mismatch| self.describe(memory, pattern, mismatch))?;
            tally.verified += 1;
        }
        Ok(())
    }

    /// Gives pages a new generation.
    pub(super) fn write(
        &mut self,
        memory: &Memory,
        pattern: &Pattern,
        pages: Range<usize>,
        tally: &mut Tally,
    ) {
        for page in pages {
            let last = following(self.pages[page].last);
            self.pages[page] = Page { contents: Contents::Own(last), last };
            memory.fill(pattern, Contents::Own(last), self.address(page));
            tally.written += 1;
        }
    }

    /// Makes pages equal to others.
    pub(super) fn equal(
        &mut self,
        memory: &Memory,
        pattern: &Pattern,
        pages: Range<usize>,
        value: u32,
        tally: &mut Tally,
    ) {
        for page in pages {
            self.pages[page].contents = Contents::Same(value);
            memory.fill(pattern, Contents::Same(value), self.address(page));
            tally.written += 1;
        }
    }

    /// Pages hold zeros from now on.
    pub(super) fn forget(&mut self, pages: Range<usize>) {
        for page in &mut self.pages[pages] {
            page.contents = Contents::Zero;
        }
    }

    /// Says all there is to say of a wrong word.
    pub(super) fn describe(
        &self,
        memory: &Memory,
        pattern: &Pattern,
        mismatch: Mismatch,
    ) -> String {
        let Mismatch { address, expected, found } = mismatch;
        let number = (address - self.at) / PAGE;
        let Page { contents, last } = self.pages[number];
        let page = self.address(number);
        let read = |word: usize| memory.word(page + word * 8).load(Relaxed);
        let wrong = (0..WORDS)
            .filter(|&word| read(word) != pattern.word(contents, page + word * 8))
            .count();
        let owner = match contents {
            Contents::Zero => "a page given back".to_owned(),
            Contents::Own(generation) => format!("generation {generation}"),
            Contents::Same(value) => Owner::Same { offset: address % PAGE, value }.to_string(),
        };
        format!(
            "mismatch at {address:#x}: expected {expected:#018x} ({owner}), found {found:#018x} \
             ({}); read again it is {:#018x}, and {wrong} of {WORDS} words of its page are wrong; \
             {}",
            pattern.wrong(found, address, last),
            memory.word(address).load(Relaxed),
            frame(page),
        )
    }
}

/// The frame behind a page, in words (Documentation/admin-guide/mm/pagemap.rst).
fn frame(page: usize) -> String {
    let mut entry = [0; 8];
    let read = File::open("/proc/self/pagemap")
        .and_then(|file| file.read_exact_at(&mut entry, (page / PAGE * 8) as u64));
    match (read, u64::from_ne_bytes(entry)) {
        (Err(error), _) => format!("/proc/self/pagemap: {error}"),
        (Ok(()), entry) if entry >> 63 == 0 => "no frame is mapped there".into(),
        (Ok(()), entry) => format!("the page is frame {:#x}", entry & ((1 << 55) - 1)),
    }
}
