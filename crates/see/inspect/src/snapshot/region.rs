//! How a hypervisor backs one 2 MiB region of a VM's memory, packed.
//!
//! ```text
//! region of GPA   |  512 base pages                          |
//! huge            |  one frame, 512 more follow              |  frame
//! contiguous      |  the same, but base mappings             |  frame
//! scattered       |  run   |gap|  run      |   run           |  runs of (first page, pages, frame)
//! ```

use crate::snapshot::entry::{FRAMES, PagemapEntry};

/// Base pages in a region.
pub const PAGES: usize = 512;
/// log2 of the bytes in a region.
pub const SHIFT: u32 = 21;

/// What holds a region, in the VMM's page table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// Nothing: never touched, or taken back.
    #[default]
    Absent = 0,
    /// One huge mapping.
    Huge = 1,
    /// 512 base mappings of neighbouring frames, in order.
    Contiguous = 2,
    /// Base mappings; pages may be missing.
    Scattered = 3,
    /// At least one page is in swap.
    Swapped = 4,
    /// At least one page is merged by KSM.
    Ksm = 5,
    /// At least one page is the kernel's zero page: read, never written.
    Zero = 6,
}

impl Class {
    /// Every class, by number.
    pub const ALL: [Self; 7] = [
        Self::Absent,
        Self::Huge,
        Self::Contiguous,
        Self::Scattered,
        Self::Swapped,
        Self::Ksm,
        Self::Zero,
    ];

    /// Its name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Huge => "huge",
            Self::Contiguous => "base-contiguous",
            Self::Scattered => "base-scattered",
            Self::Swapped => "swapped",
            Self::Ksm => "ksm",
            Self::Zero => "zero",
        }
    }
}

/// Neighbouring pages of a region in neighbouring frames. 9 bits of first page, 9 of length less
/// one, 40 of frame: 4 PiB of lower-level memory, x86-64's limit being 4 PiB (52 bits).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run(u64);

impl Run {
    /// A run of `pages` (1 to 512) from page `first` (0 to 511), its first in frame `frame`.
    pub fn new(first: u16, pages: u16, frame: u64) -> Self {
        debug_assert!(pages >= 1 && usize::from(first + pages) <= PAGES && frame < FRAMES);
        Self(u64::from(first) << 49 | u64::from(pages - 1) << 40 | frame)
    }

    /// First page, 0 to 511.
    pub fn first(self) -> u16 {
        (self.0 >> 49) as u16
    }

    /// Pages, 1 to 512.
    pub fn pages(self) -> u16 {
        (self.0 >> 40 & 0x1ff) as u16 + 1
    }

    /// Frame of the first page.
    pub fn frame(self) -> u64 {
        self.0 & (FRAMES - 1)
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{}@{:#x}", self.first(), self.pages(), self.frame())
    }
}

/// A region, with its runs in a list of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// GPA divided by 2 MiB.
    pub index: u64,
    /// What holds it.
    pub class: Class,
    /// It changed while it was read, more often than the scan was willing to read it again.
    pub uncertain: bool,
    /// Its pages are of a file or of shmem, by the page table's own account.
    pub file: bool,
    /// Only part of it is in a memory slot.
    pub partial: bool,
    /// Base pages that are present, 0 to 512.
    pub present: u16,
    /// Base pages in swap.
    pub swapped: u16,
    /// Base pages merged by KSM.
    pub merged: u16,
    /// Where the present pages are. Empty where frames are not known.
    pub runs: Vec<Run>,
}

impl Region {
    /// First byte of the region.
    pub fn start(&self) -> u64 {
        self.index << SHIFT
    }

    /// The frame of a base page (0 to 511), if it is present and known.
    pub fn frame(&self, page: u16) -> Option<u64> {
        let at = self.runs.partition_point(|run| run.first() <= page);
        let run = self.runs.get(at.checked_sub(1)?)?;
        let offset = page - run.first();
        (offset < run.pages()).then(|| run.frame() + u64::from(offset))
    }

    /// Whether all 512 pages are in order from a frame that is a multiple of 512.
    pub fn one_aligned_block(&self) -> bool {
        matches!(self.runs.as_slice(), [run] if run.pages() == 512 && run.frame().is_multiple_of(512))
    }
}

/// What is known of a page besides its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Nothing.
    None,
    /// Merged by KSM.
    Ksm,
    /// The zero page.
    Zero,
}

/// Packs what the pagemap has for the 512 pages of a region. `words[i]` is `None` where no slot
/// holds the page. `huge` says that one huge mapping maps all of it.
pub fn pack(
    index: u64,
    words: &[Option<PagemapEntry>],
    huge: bool,
    mut special: impl FnMut(u64) -> Special,
) -> Region {
    debug_assert_eq!(words.len(), PAGES);
    let mut region = Region { index, ..Region::default() };
    let (mut zero, mut files) = (0u16, 0u16);
    let mut frames_known = true;
    let mut run: Option<(u16, u16, u64)> = None;
    for (page, word) in (0u16..).zip(words) {
        let Some(word) = word else {
            region.partial = true;
            continue;
        };
        region.swapped += u16::from(word.swapped());
        if !word.present() {
            continue;
        }
        region.present += 1;
        files += u16::from(word.file());
        let Some(frame) = word.frame() else {
            frames_known = false;
            continue;
        };
        match special(frame) {
            Special::None => {}
            Special::Ksm => region.merged += 1,
            Special::Zero => zero += 1,
        }
        run = Some(match run {
            Some((first, pages, start))
                if first + pages == page && start + u64::from(pages) == frame =>
            {
                (first, pages + 1, start)
            }
            done => {
                region.runs.extend(done.map(|(first, pages, at)| Run::new(first, pages, at)));
                (page, 1, frame)
            }
        });
    }
    region.runs.extend(run.map(|(first, pages, at)| Run::new(first, pages, at)));
    if !frames_known {
        region.runs.clear();
    }
    region.file = files > 0;
    region.class = match &region {
        _ if region.merged > 0 => Class::Ksm,
        _ if region.swapped > 0 => Class::Swapped,
        _ if zero > 0 => Class::Zero,
        _ if region.present == 0 => Class::Absent,
        _ if huge => Class::Huge,
        _ if matches!(region.runs.as_slice(), [run] if run.pages() == 512) => Class::Contiguous,
        _ => Class::Scattered,
    };
    region
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn word(frame: u64) -> Option<PagemapEntry> {
        Some(PagemapEntry::present_at(frame))
    }

    #[test]
    fn classes() {
        let plain = |_| Special::None;
        let contiguous: Vec<_> = (0..512).map(|page| word(1024 + page)).collect();
        let region = pack(3, &contiguous, true, plain);
        assert_eq!((region.class, region.present, region.start()), (Class::Huge, 512, 3 << 21));
        assert!(region.one_aligned_block());
        assert_eq!(pack(3, &contiguous, false, plain).class, Class::Contiguous);
        let shifted: Vec<_> = (0..512).map(|page| word(1025 + page)).collect();
        let region = pack(3, &shifted, false, plain);
        assert_eq!((region.class, region.one_aligned_block()), (Class::Contiguous, false));
        let absent = vec![Some(PagemapEntry::default()); 512];
        assert_eq!(pack(0, &absent, false, plain).class, Class::Absent);
        let mut mixed = contiguous.clone();
        mixed[7] = Some(PagemapEntry::default());
        let region = pack(0, &mixed, false, plain);
        assert_eq!((region.class, region.present, region.runs.len()), (Class::Scattered, 511, 2));
        mixed[7] = Some(PagemapEntry::in_swap());
        assert_eq!(pack(0, &mixed, false, plain).class, Class::Swapped);
        let merged = pack(0, &contiguous, false, |frame| match frame {
            1030 => Special::Ksm,
            _ => Special::None,
        });
        assert_eq!((merged.class, merged.merged), (Class::Ksm, 1));
        assert_eq!(pack(0, &contiguous, false, |_| Special::Zero).class, Class::Zero);
        mixed[7] = None;
        assert!(pack(0, &mixed, false, plain).partial);
    }

    #[test]
    fn hidden_frames_are_not_taken_for_frame_zero() {
        let words = vec![Some(PagemapEntry::present_hidden()); 512];
        let region = pack(0, &words, false, |_| Special::None);
        assert_eq!((region.class, region.present), (Class::Scattered, 512));
        assert!(region.runs.is_empty() && region.frame(0).is_none());
    }

    proptest! {
        #[test]
        fn packing_loses_no_frame(
            frames in prop::collection::vec(prop::option::weighted(0.9, 1..40u64), PAGES),
            run in 1u64..40,
        ) {
            // Neighbours in stretches of `run` pages, so that runs of many lengths occur.
            let frames: Vec<Option<u64>> = (0u64..)
                .zip(&frames)
                .map(|(page, frame)| frame.map(|frame| frame * 1000 + page % run))
                .collect();
            let words: Vec<_> =
                frames.iter().map(|frame| frame.map(PagemapEntry::present_at)).collect();
            let region = pack(9, &words, false, |_| Special::None);
            for (page, frame) in (0u16..).zip(&frames) {
                prop_assert_eq!(region.frame(page), *frame);
            }
        }
    }
}
