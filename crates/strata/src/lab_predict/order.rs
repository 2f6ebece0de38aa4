//! Which of its free memory a kernel gives to programs first.
//!
//! Linux first gives what a processor has on a list of its own, which looks like memory in use (`mm/page_alloc.c`,
//! `rmqueue_pcplist`). Then it goes to the highest zone, and there to lists of movable blocks, where what was freed last
//! comes first. What the kernel itself used once, such as the initial file system that it has unpacked, is on lists of
//! their own, and goes to programs only when the zone has nothing else (`get_page_from_freelist`,
//! `__rmqueue_fallback`).
//!
//! A snapshot says how much is on each list and not which. What is backed below was used once, and what a kernel
//! boots with it puts high: so memory that was used once is taken to be the highest that is backed. Nobody says what kinds
//! of pages a processor has on its list: as many of them are taken to be for programs as of whole regions that were used
//! once. The model takes the smallest block that suffices and of these the lowest, so here regions are put in order.

use std::cmp::Reverse;
use strata_engine::FoundRegion;
use strata_inspect::text::pagetype::FreeList;

/// Base pages of a region of 2 MiB.
pub const PAGES: u16 = 512;

/// The zones of a kernel by their ends in regions of 2 MiB, lowest first (`arch/x86/mm/init.c`).
const ZONES: [(&str, u64); 3] = [("DMA", 8), ("DMA32", 2048), ("Normal", u64::MAX)];

/// What a kernel says of its free memory, in base pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Free<'a> {
    /// Blocks by zone and by what they are for, at the snapshot.
    pub lists: &'a [FreeList],
    /// Freed between the snapshot and the beginning of the program.
    pub freed: u64,
    /// On lists of single processors when the program began.
    pub listed: u64,
}

/// When it is a region's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    JustFreed,
    InUse,
    Free {
        zone: Reverse<usize>,
        /// For the kernel's own.
        kept: bool,
    },
}

struct Memory {
    regions: Vec<(u64, FoundRegion)>,
    turns: Vec<Turn>,
}

/// Regions of a memory, each with its number, in the order in which its kernel gives them to programs. Of the free
/// pages in regions that are partly in use, those that programs do not get first are pinned.
pub fn in_order(regions: Vec<(u64, FoundRegion)>, free: Free<'_>) -> Vec<FoundRegion> {
    let turn = |(index, region): &(u64, FoundRegion)| match free_in(region) {
        PAGES => Turn::Free { zone: Reverse(zone(*index)), kept: false },
        _ => Turn::InUse,
    };
    let turns = regions.iter().map(turn).collect();
    let mut memory = Memory { regions, turns };
    // The highest first.
    let full = |&at: &usize| memory.regions[at].1.pinned == PAGES;
    let full: Vec<usize> = (0..memory.regions.len()).rev().filter(full).collect();
    for (zone, (name, _)) in ZONES.iter().enumerate() {
        let lists: Vec<&FreeList> =
            free.lists.iter().filter(|list| list.zone.name == *name).collect();
        if !lists.is_empty() {
            let (movable, others): (Vec<&FreeList>, Vec<_>) =
                lists.into_iter().partition(|list| list.is_movable());
            memory.give_small(zone, movable.iter().map(|list| list.small_pages()).sum());
            memory.keep_whole(zone, others.iter().map(|list| list.zone.free_huge()).sum());
        }
    }
    let share = memory.programs_share();
    let of_programs = |pages: u64| (pages as f64 * share) as u64;
    memory.unused(&full, of_programs(free.freed), of_programs(free.listed));
    let mut order: Vec<usize> = (0..memory.regions.len()).collect();
    order.sort_by_key(|&at| memory.turns[at]);
    order.into_iter().map(|at| memory.regions[at].1).collect()
}

impl Memory {
    /// Those of a zone with this turn.
    fn of_zone(&self, number: usize, with: fn(Turn) -> bool) -> Vec<usize> {
        let all = 0..self.regions.len();
        all.filter(|&at| zone(self.regions[at].0) == number && with(self.turns[at])).collect()
    }

    /// Of what is free in regions in use, programs get so many pages first: more where programs' memory is.
    fn give_small(&mut self, zone: usize, mut pages: u64) {
        let mut partly = self.of_zone(zone, |turn| turn == Turn::InUse);
        partly.sort_by_key(|&at| Reverse(self.regions[at].1.movable + self.regions[at].1.of_vm));
        for at in partly {
            let region = &mut self.regions[at].1;
            let free = free_in(region);
            let given = pages.min(u64::from(free)) as u16;
            pages -= u64::from(given);
            region.pinned += free - given;
        }
    }

    /// So many free regions are on lists that the kernel keeps for itself.
    fn keep_whole(&mut self, number: usize, regions: u64) {
        let mut whole = self.of_zone(number, |turn| turn != Turn::InUse);
        whole.sort_by_key(|&at| Reverse((self.regions[at].1.backed, at)));
        for at in whole.into_iter().take(usize::try_from(regions).unwrap_or(usize::MAX)) {
            self.turns[at] = Turn::Free { zone: Reverse(number), kept: true };
        }
    }

    /// The share of free regions that were used once which are not kept for the kernel's own. The lowest zone is
    /// too small for processors to have much of it on their lists.
    fn programs_share(&self) -> f64 {
        let turns =
            self.regions.iter().zip(&self.turns).filter(|((_, region), _)| region.backed > 0);
        let kept = turns.filter_map(|(_, turn)| match *turn {
            Turn::Free { zone: Reverse(1..), kept } => Some(kept),
            _ => None,
        });
        let (all, kept) = kept.fold((0, 0), |(all, kept), at| (all + 1, kept + u32::from(at)));
        if all == 0 { 1.0 } else { f64::from(all - kept) / f64::from(all) }
    }

    /// Regions that look full are partly not in use: what was freed meanwhile is in blocks, and what processors
    /// have on their lists is in single pages.
    fn unused(&mut self, full: &[usize], mut freed: u64, mut listed: u64) {
        for &at in full {
            let region = &mut self.regions[at].1;
            let (of, most) = if freed > 0 { (&mut freed, PAGES) } else { (&mut listed, PAGES - 1) };
            let pages = (*of).min(u64::from(most)) as u16;
            *of -= u64::from(pages);
            region.pinned -= pages;
            if pages == PAGES {
                self.turns[at] = Turn::JustFreed;
            }
        }
    }
}

/// The number of the zone that a region is in.
fn zone(index: u64) -> usize {
    ZONES.iter().position(|(_, end)| index < *end).unwrap_or(0)
}

fn free_in(region: &FoundRegion) -> u16 {
    PAGES - region.pinned - region.movable - region.of_vm
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_inspect::text::pagetype;

    fn found(pinned: u16, movable: u16, backed: u16) -> FoundRegion {
        FoundRegion { pinned, movable, backed, ..FoundRegion::default() }
    }

    fn backed(regions: &[FoundRegion]) -> Vec<u16> {
        regions.iter().map(|region| region.backed).collect()
    }

    #[test]
    fn high_zones_come_first_and_what_the_kernel_used_once_last() {
        // One free region below 16 MiB; above, one in use, two that were never touched, and two freed.
        let regions = vec![
            (3, found(0, 0, 511)),
            (8, found(0, 0, 1)),
            (9, found(500, 12, 512)),
            (10, found(0, 0, 400)),
            (11, found(0, 0, 401)),
            (12, found(0, 0, 2)),
        ];
        let text = "Node 0, zone DMA, type Movable 0 0 0 0 0 0 0 0 0 1 0\n\
                    Node 0, zone DMA32, type Unmovable 0 0 0 0 0 0 0 0 0 0 1\n\
                    Node 0, zone DMA32, type Movable 0 0 0 0 0 0 0 0 0 2 0\n";
        let lists = pagetype::parse(text);
        let found = in_order(regions.clone(), Free { lists: &lists, ..Free::default() });
        assert_eq!(backed(&found), [512, 1, 2, 400, 401, 511]);
        // Of a snapshot that says nothing of lists, zones are known.
        assert_eq!(backed(&in_order(regions, Free::default())), [512, 1, 400, 401, 2, 511]);
    }

    #[test]
    fn memory_above_4_gib_is_taken_first() {
        let regions = vec![(2047, found(0, 0, 1)), (2048, found(0, 0, 2))];
        assert_eq!(backed(&in_order(regions, Free::default())), [2, 1]);
    }

    #[test]
    fn programs_get_the_free_pages_that_are_movable_and_where_programs_are_first() {
        let regions =
            vec![(8, found(300, 0, 512)), (9, found(100, 50, 512)), (10, found(10, 20, 512))];
        // 500 small pages: 362 in the second one, 138 in the third.
        let text = "Node 0, zone DMA32, type Movable 0 2 0 0 3 2 2 0 1 0 0\n\
                    Node 0, zone DMA32, type Reclaimable 44 0 0 0 0 0 0 0 3 0 0\n";
        let lists = pagetype::parse(text);
        assert_eq!(lists[0].small_pages(), 500);
        let found = in_order(regions, Free { lists: &lists, ..Free::default() });
        let free: Vec<u16> = found.iter().map(free_in).collect();
        assert_eq!(free, [0, 362, 138]);
        let movable: Vec<u16> = found.iter().map(|region| region.movable).collect();
        assert_eq!(movable, [0, 50, 20]);
    }

    #[test]
    fn what_was_freed_last_is_given_first_and_lists_of_processors_have_no_huge_page() {
        let regions = vec![
            (8, found(0, 0, 0)),
            (9, found(512, 0, 101)),
            (10, found(512, 0, 102)),
            (11, found(511, 1, 103)),
            (12, found(512, 0, 104)),
            (13, found(512, 0, 105)),
        ];
        let found = in_order(regions, Free { lists: &[], freed: 600, listed: 515 });
        let free: Vec<(u16, u16)> = found.iter().map(|at| (at.backed, free_in(at))).collect();
        // 512 and 88 freed, 511 and 4 listed; of no kernel that keeps any for its own.
        assert_eq!(free, [(105, 512), (101, 4), (102, 511), (103, 0), (104, 88), (0, 512)]);
    }

    #[test]
    fn of_a_processors_list_programs_get_what_they_get_of_memory_that_was_used_once() {
        // Three regions that were used once, of which one is for programs, and one that never was.
        let once = |index| (index, found(0, 0, 512));
        let full = (12, found(512, 0, 512));
        let regions = vec![once(8), once(9), once(10), (11, found(0, 0, 0)), full];
        let text = "Node 0, zone DMA32, type Unmovable 0 0 0 0 0 0 0 0 0 2 0\n";
        let lists = pagetype::parse(text);
        let found = in_order(regions, Free { lists: &lists, freed: 0, listed: 300 });
        assert_eq!(free_in(&found[0]), 100);
    }
}
