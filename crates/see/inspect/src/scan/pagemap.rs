//! Reading page tables through `/proc/PID/pagemap` and frames through `/proc/kpageflags`, in large
//! pieces and without touching the process.
//!
//! Huge mappings are told from base mappings by `PAGEMAP_SCAN` (Linux 6.7 and later). Before that,
//! 512 neighbouring aligned frames whose first is the head of a huge page count as one.

use crate::scan::tree::Tree;
use crate::snapshot::entry::{PagemapEntry, flags};
use crate::snapshot::region::PAGES;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use strata_pagemap::{Pages, ranges};

/// Bytes in a 2 MiB block.
pub const BLOCK: u64 = 2 << 20;
/// Bytes in a base page.
pub const PAGE: u64 = 4096;
/// First address behind user space with four levels of page table.
pub const USER_END: u64 = 0x7fff_ffff_f000;

/// Words read at once: 128 KiB of file, 64 MiB of memory.
const WORDS: usize = 16 * 1024;

/// `/proc/kpageflags`, where it can be read.
#[derive(Debug)]
pub struct FrameFlags {
    file: Option<File>,
}

impl FrameFlags {
    /// Opens it; what cannot be opened gives no flags.
    pub fn open(tree: &Tree) -> Self {
        Self { file: tree.open("proc/kpageflags").ok() }
    }

    /// Whether flags can be read.
    pub fn readable(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.read_at(&mut [0; 8], 0).is_ok())
    }

    /// The flags of a frame.
    pub fn of(&self, frame: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.file.as_ref()?.read_exact_at(&mut bytes, frame.checked_mul(8)?).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    /// Flags of frames from `first` on; fewer than asked for at the end of memory.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self, first: u64, words: &mut Vec<u64>, count: usize) -> io::Result<()> {
        words.clear();
        let Some(file) = &self.file else { return Ok(()) };
        read_words(file, first, count, |word| words.push(word))
    }
}

/// Reads up to `count` words of 8 bytes from the word `first` on.
///
/// # Errors
/// When the file cannot be read.
pub fn read_words(
    file: &File,
    first: u64,
    count: usize,
    mut take: impl FnMut(u64),
) -> io::Result<()> {
    let mut buffer = vec![0; count.min(WORDS) * 8];
    let mut done = 0;
    while done < count {
        let length = (count - done).min(WORDS) * 8;
        let offset = (first + done as u64).checked_mul(8).ok_or(io::ErrorKind::InvalidInput)?;
        let read = file.read_at(&mut buffer[..length], offset)?;
        for word in buffer[..read].chunks_exact(8) {
            take(u64::from_ne_bytes(word.try_into().expect("eight bytes")));
        }
        if read < 8 {
            break;
        }
        done += read / 8;
    }
    Ok(())
}

/// How huge mappings are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `PAGEMAP_SCAN`.
    Scan,
    /// Head pages of neighbouring frames.
    Flags,
}

/// The page table of a process.
#[derive(Debug)]
pub struct AddressSpace {
    file: File,
    method: Method,
}

impl AddressSpace {
    /// Opens the page table of a process; `None` when it has none (it ended, or is a kernel
    /// thread).
    ///
    /// # Errors
    /// When it may not be read.
    pub fn open(tree: &Tree, pid: u32) -> io::Result<Option<Self>> {
        let file = match tree.open(&format!("proc/{pid}/pagemap")) {
            Ok(file) => file,
            Err(error) if gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        // This reading is more than a probe: kernels from 6.7 to 6.14 follow a null pointer when
        // PAGEMAP_SCAN is asked about a task without memory, a kernel thread or one that has just
        // ended. For such a task the file reads as empty, and what it reads as is settled when it
        // is opened.
        match file.read_at(&mut [0; 8], 0) {
            Ok(8) => {}
            Ok(_) => return Ok(None),
            Err(error) if gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        let scans = ranges(&file, 0, PAGE, Pages::Huge, &mut Vec::new()).is_ok();
        Ok(Some(Self { file, method: if scans { Method::Scan } else { Method::Flags } }))
    }

    /// How huge mappings are recognised.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Ranges under huge mappings, or `None` when only the frames can tell.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn huge(&self, start: u64, end: u64) -> io::Result<Option<Vec<(u64, u64)>>> {
        if self.method == Method::Flags {
            return Ok(None);
        }
        let mut found = Vec::new();
        ranges(&self.file, start, end, Pages::Huge, &mut found)?;
        Ok(Some(found))
    }

    /// The word of one page.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn word(&self, address: u64) -> io::Result<PagemapEntry> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, address / PAGE * 8)?;
        Ok(PagemapEntry(u64::from_ne_bytes(bytes)))
    }

    /// Reads the words of `words.len()` pages from `start` on and appends to `huge` the 2 MiB
    /// blocks under huge mappings, by address.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn read(
        &self,
        start: u64,
        words: &mut [PagemapEntry],
        huge: &mut Vec<u64>,
        frames: &FrameFlags,
    ) -> io::Result<()> {
        let end = start + words.len() as u64 * PAGE;
        let ranges = self.huge(start, end)?;
        let mut at = start;
        for (from, to) in ranges.iter().flatten().copied() {
            // Parts of blocks are read like base pages.
            let (from, to) = (from.next_multiple_of(BLOCK).max(at), to / BLOCK * BLOCK);
            if from >= to {
                continue;
            }
            self.bulk(at, &mut words[pages(start, at)..pages(start, from)])?;
            for block in (from..to).step_by(BLOCK as usize) {
                let first = self.word(block)?;
                let own = &mut words[pages(start, block)..][..PAGES];
                for (page, word) in (0u64..).zip(own) {
                    // All 512 follow from the first; hidden frames stay hidden.
                    *word = PagemapEntry(first.0 + if first.frame().is_some() { page } else { 0 });
                }
                huge.push(block);
            }
            at = to;
        }
        self.bulk(at, &mut words[pages(start, at)..])?;
        if ranges.is_none() {
            huge_by_flags(start, words, huge, frames);
        }
        Ok(())
    }

    fn bulk(&self, start: u64, words: &mut [PagemapEntry]) -> io::Result<()> {
        let count = words.len();
        let mut slots = words.iter_mut();
        read_words(&self.file, start / PAGE, count, |word| {
            if let Some(slot) = slots.next() {
                *slot = PagemapEntry(word);
            }
        })?;
        // Behind the end of user space nothing is mapped.
        slots.for_each(|slot| *slot = PagemapEntry::default());
        Ok(())
    }
}

/// Pages from `start` to `address`.
fn pages(start: u64, address: u64) -> usize {
    ((address - start) / PAGE) as usize
}

/// Blocks that a huge mapping may map, going by their frames.
fn huge_by_flags(start: u64, words: &[PagemapEntry], huge: &mut Vec<u64>, frames: &FrameFlags) {
    let first = start.next_multiple_of(BLOCK);
    let lead = pages(start, first).min(words.len());
    for (block, words) in (first..).step_by(BLOCK as usize).zip(words[lead..].chunks_exact(PAGES)) {
        let Some(head) = words[0].frame().filter(|frame| frame.is_multiple_of(PAGES as u64)) else {
            continue;
        };
        let in_order = (head..).zip(words).all(|(frame, word)| word.frame() == Some(frame));
        let is_head = |bits: u64| {
            bits & (flags::THP | flags::HUGETLB) != 0 && bits & flags::HEAD != 0
                || bits & flags::ZERO != 0
        };
        if in_order && frames.of(head).is_some_and(is_head) {
            huge.push(block);
        }
    }
}

/// Whether an error means that the process ended.
pub fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.kind() == io::ErrorKind::UnexpectedEof
        || error.raw_os_error() == Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synthetic_page_table_is_read_by_frames_and_flags() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("proc/5")).unwrap();
        let start = 2 * BLOCK - 2 * PAGE;
        let mut words = vec![0u64; 2 + 3 * PAGES];
        words[0] = PagemapEntry::present_at(7).0;
        for page in 0..PAGES {
            words[2 + page] = PagemapEntry::present_at((512 + page) as u64).0;
            words[2 + PAGES + page] = PagemapEntry::present_at((1024 + page) as u64).0;
        }
        let pagemap = File::create(directory.path().join("proc/5/pagemap")).unwrap();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        pagemap.write_all_at(&bytes, start / PAGE * 8).unwrap();
        let flags_file = File::create(directory.path().join("proc/kpageflags")).unwrap();
        let head = (flags::THP | flags::HEAD).to_ne_bytes();
        flags_file.write_all_at(&head, 512 * 8).unwrap();
        flags_file.write_all_at(&[0; 8], 4096 * 8).unwrap();
        let tree = Tree::new(directory.path());
        let frames = FrameFlags::open(&tree);
        assert!(frames.readable());
        let space = AddressSpace::open(&tree, 5).unwrap().unwrap();
        assert_eq!(space.method(), Method::Flags);
        let mut read = vec![PagemapEntry::default(); words.len()];
        let mut huge = Vec::new();
        space.read(start, &mut read, &mut huge, &frames).unwrap();
        assert!(read.iter().zip(&words).all(|(read, word)| read.0 == *word));
        assert_eq!(huge, [2 * BLOCK], "the second block is contiguous, but no huge page");
    }

    #[test]
    fn a_task_without_memory_has_no_page_table() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("proc/2")).unwrap();
        File::create(directory.path().join("proc/2/pagemap")).unwrap();
        let tree = Tree::new(directory.path());
        assert!(AddressSpace::open(&tree, 2).unwrap().is_none());
        assert!(AddressSpace::open(&tree, 3).unwrap().is_none());
    }

    #[test]
    fn our_own_page_table_can_be_read() {
        let tree = Tree::default();
        let space = AddressSpace::open(&tree, std::process::id()).unwrap().unwrap();
        let here = &raw const tree as u64;
        assert!(space.word(here).unwrap().present());
    }
}
