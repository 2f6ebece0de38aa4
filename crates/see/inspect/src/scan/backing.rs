//! Scanning how a VM's memory is backed, piece by piece, each read twice.

use crate::scan::frame_set::FrameSet;
use crate::scan::pagemap::{AddressSpace, BLOCK, FrameFlags};
use crate::snapshot::entry::{PagemapEntry, flags};
use crate::snapshot::model::{Slot, Vm};
use crate::snapshot::region::{PAGES, Region, Special, pack};
use std::io;

/// Regions read before they are read again: 128 MiB of memory, 256 KiB of words. Few, so that
/// little time passes between the two readings; enough that system calls do not count.
const CHUNK: u64 = 64;

/// Readings of a chunk before what still changes is called uncertain.
const READINGS: usize = 4;

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Regions that differed between the first two readings.
    pub reread: u64,
    /// Regions that differed to the last.
    pub uncertain: u64,
}

/// Frames that KSM merged; none where KSM is idle.
pub type Merged = FrameSet;

/// One reading of a chunk.
#[derive(Debug, Default)]
struct Chunk {
    /// `None` where no slot is.
    words: Vec<Option<PagemapEntry>>,
    /// Whether one huge mapping maps the region.
    huge: Vec<bool>,
}

/// Reads the backing of all slots of a VM and hands regions on in order of GPA.
///
/// # Errors
/// When the VMM is gone, or the regions cannot be taken.
pub fn scan(
    vm: &Vm,
    space: &AddressSpace,
    frames: &FrameFlags,
    merged: &Merged,
    mut take: impl FnMut(Vec<Region>) -> io::Result<()>,
) -> io::Result<Counts> {
    let mut counts = Counts::default();
    for (first, end) in chunks(&vm.slots) {
        let mut now = reading(vm, space, frames, first, end)?;
        let mut unsettled = Vec::new();
        for attempt in 1..READINGS {
            let next = reading(vm, space, frames, first, end)?;
            unsettled = differences(&now, &next);
            now = next;
            if unsettled.is_empty() {
                break;
            }
            counts.reread += if attempt == 1 { unsettled.len() as u64 } else { 0 };
        }
        counts.uncertain += unsettled.len() as u64;
        let mut regions = Vec::with_capacity((end - first) as usize);
        for (at, index) in (first..end).enumerate() {
            let words = &now.words[at * PAGES..(at + 1) * PAGES];
            if words.iter().all(Option::is_none) {
                continue;
            }
            let mut specials = Specials { frames, merged, last: None, zero: None };
            let mut region = pack(index, words, now.huge[at], |frame| specials.of(frame));
            if now.huge[at] && region.runs.first().is_some_and(|run| specials.is_zero(run.frame()))
            {
                region.class = crate::snapshot::region::Class::Zero;
            }
            region.uncertain = unsettled.binary_search(&at).is_ok();
            regions.push(region);
        }
        take(regions)?;
    }
    Ok(counts)
}

/// Gives the frames of a VM's memory, read once.
///
/// # Errors
/// When the VMM is gone.
pub fn each_frame(
    vm: &Vm,
    space: &AddressSpace,
    frames: &FrameFlags,
    mut take: impl FnMut(u64),
) -> io::Result<()> {
    for (first, end) in chunks(&vm.slots) {
        let chunk = reading(vm, space, frames, first, end)?;
        chunk.words.iter().flatten().filter_map(|word| word.frame()).for_each(&mut take);
    }
    Ok(())
}

/// Ranges of region indices with slots, cut into chunks.
fn chunks(slots: &[Slot]) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    for slot in slots.iter().filter(|slot| slot.size > 0) {
        let (mut first, end) = (slot.gpa / BLOCK, (slot.gpa + slot.size).div_ceil(BLOCK));
        // Slots may share a region.
        first = first.max(found.last().map_or(0, |&(_, end)| end));
        while first < end {
            let next = end.min(first + CHUNK);
            found.push((first, next));
            first = next;
        }
    }
    found
}

fn reading(
    vm: &Vm,
    space: &AddressSpace,
    frames: &FrameFlags,
    first: u64,
    end: u64,
) -> io::Result<Chunk> {
    let regions = (end - first) as usize;
    let mut chunk = Chunk { words: vec![None; regions * PAGES], huge: vec![false; regions] };
    let (start, stop) = (first * BLOCK, end * BLOCK);
    let mut words = Vec::new();
    for slot in &vm.slots {
        // Slots of less than a page, or not on one, hold nothing a page table could map.
        let from = slot.gpa.max(start).next_multiple_of(4096);
        let to = slot.gpa.saturating_add(slot.size).min(stop) / 4096 * 4096;
        if from >= to {
            continue;
        }
        words.clear();
        words.resize(((to - from) / 4096) as usize, PagemapEntry::default());
        let mut huge = Vec::new();
        let hva = slot.hva(from);
        space.read(hva, &mut words, &mut huge, frames)?;
        let at = ((from - start) / 4096) as usize;
        for (own, word) in chunk.words[at..].iter_mut().zip(&words) {
            *own = Some(*word);
        }
        if slot.congruent() {
            for block in huge {
                chunk.huge[((block - hva + from - start) / BLOCK) as usize] = true;
            }
        }
    }
    Ok(chunk)
}

/// Regions that two readings have different.
fn differences(before: &Chunk, after: &Chunk) -> Vec<usize> {
    let place = |word: &Option<PagemapEntry>| word.map(PagemapEntry::place);
    let differs = |at: &usize| {
        let pages = at * PAGES..(at + 1) * PAGES;
        let (old, new) = (&before.words[pages.clone()], &after.words[pages]);
        before.huge[*at] != after.huge[*at] || !old.iter().map(place).eq(new.iter().map(place))
    };
    (0..before.huge.len()).filter(differs).collect()
}

/// Tells merged pages and the zero page from others. The zero page shows by being mapped at two
/// places in a row, so that its flags need not be read for every frame.
struct Specials<'a> {
    frames: &'a FrameFlags,
    merged: &'a Merged,
    last: Option<u64>,
    zero: Option<u64>,
}

impl Specials<'_> {
    fn of(&mut self, frame: u64) -> Special {
        let again = self.last.replace(frame) == Some(frame);
        if self.merged.has(frame) {
            return Special::Ksm;
        }
        if again && self.zero != Some(frame) && self.is_zero(frame) {
            self.zero = Some(frame);
        }
        if self.zero == Some(frame) { Special::Zero } else { Special::None }
    }

    fn is_zero(&self, frame: u64) -> bool {
        self.frames.of(frame).is_some_and(|bits| bits & flags::ZERO != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_every_region_with_a_slot_once() {
        let slot = |gpa, size| Slot { gpa, size, hva: 0 };
        let slots = [slot(0, 0xa_0000), slot(0xc_0000, 200 << 20), slot(1 << 32, 1 << 21)];
        let found = chunks(&slots);
        assert_eq!(found, [(0, 1), (1, 65), (65, 101), (2048, 2049)]);
        assert!(chunks(&[slot(5, 0)]).is_empty());
    }
}
