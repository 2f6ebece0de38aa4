//! The pages of one process, as its page table would show them.

use super::shared::{ALONE, Shared};
use rustc_hash::FxHashMap;
use strata_addr::{PageSize, Range, space::Virtual};

/// Pages remembered in front of the maps. Most accesses go to one of few pages.
const RECENT: usize = 256;

/// The base pages of one huge page.
#[derive(Clone, Debug, Default)]
struct Block {
    touched: [u64; 8],
    /// Those of them that were stored to.
    stored: [u64; 8],
    /// For each page its number in [`Shared`], or [`ALONE`].
    shared: Option<Box<[u32; 512]>>,
}

impl Block {
    /// The number of a page in [`Shared`].
    fn number(&self, page: u64) -> u32 {
        self.shared.as_ref().map_or(ALONE, |shared| shared[index(page)])
    }

    /// The number of a page in [`Shared`], which it loses.
    fn take_shared(&mut self, page: u64) -> u32 {
        let shared = self.shared.as_mut().map(|shared| &mut shared[index(page)]);
        shared.map_or(ALONE, std::mem::take)
    }

    /// The process has these pages no more, or nobody but the process.
    fn leave_all(&mut self, shared: &mut Shared) {
        let numbers = self.shared.take();
        numbers.iter().flat_map(|numbers| numbers.iter()).for_each(|number| {
            shared.leave(*number);
        });
    }

    /// What was stored to is shared with one process more.
    fn share(&mut self, shared: &mut Shared) {
        if self.stored == [0; 8] {
            return;
        }
        let numbers = self.shared.get_or_insert_with(|| Box::new([ALONE; 512]));
        for (page, number) in (0..).zip(numbers.iter_mut()) {
            let (word, bit) = place(page);
            if self.stored[word] & bit != 0 {
                *number = shared.join(*number);
            }
        }
    }
}

/// What is done to a page, as far as it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    Read,
    Store,
    /// A store to what nobody else has now; or none, and the others that a `fork` left it to are gone.
    Own,
    /// A store without a page fault; or none, where a store would fault.
    Unfaulted,
}

/// The pages of one process.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    /// By huge page.
    blocks: FxHashMap<u64, Block>,
    /// Pages that are touched: page + 1, shifted, and whether a store to it is nothing new.
    recent: Box<[u64; RECENT]>,
}

impl Default for Pages {
    fn default() -> Self {
        let recent = Box::new([0; RECENT]);
        Self { blocks: FxHashMap::default(), recent }
    }
}

impl Pages {
    /// Notes a touch. Gives whether it is news: the first one, the first store, or the first one since a `fork`.
    pub(super) fn touch(&mut self, page: u64, touch: Touch, shared: &mut Shared) -> bool {
        let (word, bit) = place(page);
        let block = self.blocks.entry(page / 512).or_default();
        let mut news = block.touched[word] & bit == 0;
        block.touched[word] |= bit;
        let is_store = match touch {
            Touch::Read => false,
            Touch::Unfaulted => block.number(page) == ALONE,
            Touch::Store | Touch::Own => true,
        };
        if is_store {
            news |= block.stored[word] & bit == 0;
            block.stored[word] |= bit;
            let number = block.take_shared(page);
            let others = shared.leave(number);
            news |= others || touch == Touch::Store && number != ALONE;
        }
        let settled = block.stored[word] & bit != 0 && block.number(page) == ALONE;
        self.recent[page as usize % RECENT] = (page + 1) << 1 | u64::from(settled);
        news
    }

    /// Whether a touch is nothing new, at a glance.
    #[inline]
    pub(super) fn knows(&self, page: u64, store: bool) -> bool {
        let entry = self.recent[page as usize % RECENT];
        entry >> 1 == page + 1 && (entry & 1 == 1 || !store)
    }

    /// The number of a page in [`Shared`].
    pub(super) fn number(&self, page: u64) -> u32 {
        self.blocks.get(&(page / 512)).map_or(ALONE, |block| block.number(page))
    }

    /// The pages of a child.
    pub(super) fn fork(&mut self, shared: &mut Shared) -> Self {
        self.blocks.values_mut().for_each(|block| block.share(shared));
        // A store to what is shared now is news.
        self.recent.fill(0);
        self.clone()
    }

    /// Nobody else has any of the pages any more.
    pub(super) fn leave_all(&mut self, shared: &mut Shared) {
        self.blocks.values_mut().for_each(|block| block.leave_all(shared));
    }

    pub(super) fn forget(&mut self, range: Range<Virtual>, shared: &mut Shared) {
        let (first, end) = (range.start.page().get(), pages_end(range));
        let inside = |huge: u64| first <= huge * 512 && huge * 512 + 512 <= end;
        let blocks = &mut self.blocks;
        if (end - first) / 512 > blocks.len() as u64 {
            blocks.retain(|huge, block| {
                let goes = inside(*huge);
                if goes {
                    block.leave_all(shared);
                }
                !goes
            });
        } else {
            (first / 512..end.div_ceil(512)).filter(|huge| inside(*huge)).for_each(|huge| {
                if let Some(mut block) = blocks.remove(&huge) {
                    block.leave_all(shared);
                }
            });
        }
        for huge in [first / 512, end / 512] {
            let Some(block) = blocks.get_mut(&huge) else { continue };
            for page in first.max(huge * 512)..end.min(huge * 512 + 512) {
                let (word, bit) = place(page);
                block.touched[word] &= !bit;
                block.stored[word] &= !bit;
                shared.leave(block.take_shared(page));
            }
        }
        self.recent.fill(0);
    }

    pub(super) fn remap(&mut self, from: Range<Virtual>, to: Range<Virtual>, shared: &mut Shared) {
        let (first, end) = (from.start.page().get(), pages_end(from));
        let mut moved = Vec::new();
        for page in first..end {
            let Some(block) = self.blocks.get_mut(&(page / 512)) else { continue };
            let (word, bit) = place(page);
            if block.touched[word] & bit != 0 {
                let stored = block.stored[word] & bit != 0;
                moved.push((page - first, stored, block.take_shared(page)));
            }
        }
        self.forget(from, shared);
        self.forget(to, shared);
        let (start, end) = (to.start.page().get(), pages_end(to));
        for (offset, stored, number) in moved {
            let page = start + offset;
            if page >= end {
                shared.leave(number);
                continue;
            }
            let (word, bit) = place(page);
            let block = self.blocks.entry(page / 512).or_default();
            block.touched[word] |= bit;
            if stored {
                block.stored[word] |= bit;
            }
            if number != ALONE {
                let numbers = block.shared.get_or_insert_with(|| Box::new([ALONE; 512]));
                numbers[index(page)] = number;
            }
        }
    }
}

fn place(page: u64) -> (usize, u64) {
    ((page / 64 % 8) as usize, 1 << (page % 64))
}

/// Which of the pages of its huge page it is.
fn index(page: u64) -> usize {
    (page % 512) as usize
}

pub(super) fn pages_end(range: Range<Virtual>) -> u64 {
    range.end.ceil(PageSize::Base).page().get().max(range.start.page().get())
}
