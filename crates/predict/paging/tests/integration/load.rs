//! Tables made of pages that were written elsewhere: equal to those they were copied from.

use proptest::prelude::*;
use std::collections::BTreeMap;
use strata_addr::space::{GuestPhysical, Virtual};
use strata_addr::{Frame, PageSize, Vpn};
use strata_paging::{ENTRIES, Format, FrameSource, LoadError, Radix, Rights, X86};

type Table = Radix<X86, Virtual, GuestPhysical>;
type Pages = BTreeMap<u64, [u64; ENTRIES]>;

const END: Frame<GuestPhysical> = Frame::new(1 << 32);

struct Upwards(u64);

impl<L> FrameSource<L> for Upwards {
    fn table_frame(&mut self) -> Option<Frame<L>> {
        self.0 += 7;
        Some(Frame::new(self.0))
    }
    fn free_table_frame(&mut self, _: Frame<L>) {}
}

fn table(pages: &[(u64, PageSize, u64)]) -> Table {
    let mut frames = Upwards(1000);
    let mut table = Table::new(4, Frame::new(1));
    for (page, size, frame) in pages {
        let (page, frame) = (Vpn::new(*page).floor(*size), Frame::new(*frame).floor(*size));
        let range = strata_addr::Range::sized(page.addr(), size.bytes());
        if table.first_mapped(range).is_none() {
            table.map(page, *size, frame, Rights::READ_WRITE, &mut frames).unwrap();
            table.test_and_clear_accessed(page.addr());
        }
    }
    table
}

fn copied(table: &Table) -> Pages {
    let mut pages = Pages::new();
    table.for_each_table(|_, frame, entries| {
        pages.insert(frame.get(), *entries);
    });
    pages
}

fn mappings(table: &Table) -> Vec<String> {
    let mapped = table.mapped(table.everything());
    mapped.map(|(page, mapping)| format!("{page:?} {mapping:?}")).collect()
}

fn size() -> impl Strategy<Value = PageSize> {
    prop::sample::select(&PageSize::ALL[..])
}

proptest! {
    #[test]
    fn what_is_loaded_is_what_was_written(
        pages in prop::collection::vec((0u64..1 << 36, size(), 0u64..1 << 30), 0..40),
    ) {
        let original = table(&pages);
        let copy = copied(&original);
        prop_assert_eq!(copy.len(), original.table_pages());
        let page = |frame: Frame<GuestPhysical>| copy.get(&frame.get());
        let (loaded, left) = Table::from_pages(4, Frame::new(1), END, copy.len(), page).unwrap();
        prop_assert_eq!(left, Default::default());
        prop_assert_eq!(mappings(&loaded), mappings(&original));
        prop_assert_eq!(copied(&loaded), copy);
    }
}

#[test]
fn what_makes_no_table_is_left_out_and_counted() {
    let original = table(&[(5, PageSize::Base, 9), (1 << 18, PageSize::Huge, 1 << 9)]);
    let mut copy = copied(&original);
    let root = copy.get_mut(&1).unwrap();
    root[9] = 0x87; // page-size flag at the fourth level
    root[10] = 0x0009_9999_9000 | 3; // a table that is not there
    root[11] = 1 << 51 | 3; // beyond physical memory
    let load = |pages: &Pages, root, limit| {
        let page = |frame: Frame<GuestPhysical>| pages.get(&frame.get());
        Table::from_pages(4, Frame::new(root), END, limit, page)
            .map(|(table, left)| (mappings(&table), (left.malformed, left.missing, left.beyond)))
    };
    assert_eq!(load(&copy, 1, 100), Ok((mappings(&original), (1, 1, 1))));
    assert_eq!(load(&copy, 2, 100), Err(LoadError::NoRoot));
    assert_eq!(load(&copy, 1, 2), Err(LoadError::TooLarge(2)));
    // A page that leads to itself is a table at each level, and ends.
    let selfish = Pages::from([(1, [1 << 12 | 3; ENTRIES])]);
    assert_eq!(load(&selfish, 1, 100), Err(LoadError::TooLarge(100)));
}

/// Physical memory ends after its last frame: a page may have that, and none beyond.
#[test]
fn a_page_may_end_where_memory_does() {
    let original = table(&[(5, PageSize::Base, 9999), (1 << 18, PageSize::Huge, 8 << 9)]);
    let copy = copied(&original);
    let load = |end| {
        let page = |frame: Frame<GuestPhysical>| copy.get(&frame.get());
        let (table, left) =
            Table::from_pages(4, Frame::new(1), Frame::new(end), 100, page).unwrap();
        (mappings(&table).len(), left.beyond)
    };
    assert_eq!(load(10_000), (2, 0));
    assert_eq!(load(9_999), (1, 1));
    // Of a huge page all frames count.
    assert_eq!(load(9 << 9), (1, 1));
    assert_eq!(load((9 << 9) - 1), (0, 2));
}

#[test]
fn the_root_may_be_in_the_last_frame_of_memory_and_not_after_it() {
    let copy = copied(&table(&[]));
    let load = |end| {
        let page = |frame: Frame<GuestPhysical>| copy.get(&frame.get());
        Table::from_pages(4, Frame::new(1), Frame::new(end), 1, page).map(|(_, left)| left)
    };
    assert_eq!(load(2), Ok(Default::default()));
    assert_eq!(load(1), Err(LoadError::NoRoot));
}

#[test]
fn an_entry_that_leads_to_a_table_keeps_its_rights_and_flags() {
    let mut copy = copied(&table(&[(5, PageSize::Base, 9)]));
    copy.get_mut(&1).unwrap()[0] ^= X86::WRITE | X86::ACCESSED;
    let page = |frame: Frame<GuestPhysical>| copy.get(&frame.get());
    let (loaded, _) = Table::from_pages(4, Frame::new(1), END, 10, page).unwrap();
    assert_eq!(copied(&loaded), copy);
}

#[test]
fn tables_are_visited_with_their_levels_the_root_first() {
    let table = table(&[(5, PageSize::Base, 9), (1 << 18, PageSize::Huge, 1 << 9)]);
    let mut levels = Vec::new();
    table.for_each_table(|level, _, _| levels.push(level));
    assert_eq!(levels[0], 4);
    levels.sort_unstable();
    // The huge page is in the next GiB: another table of level 2 is on its way, and none below.
    assert_eq!(levels, [1, 2, 2, 3, 4]);
}

#[test]
fn the_memory_type_of_large_leaves_is_no_part_of_their_frame() {
    let original = table(&[(0, PageSize::Huge, 1 << 9)]);
    let mut copy = copied(&original);
    for page in copy.values_mut() {
        for entry in page.iter_mut().filter(|entry| **entry & 0x80 != 0) {
            *entry |= 1 << 12;
        }
    }
    let page = |frame: Frame<GuestPhysical>| copy.get(&frame.get());
    let (loaded, _) = Table::from_pages(4, Frame::new(1), END, 10, page).unwrap();
    assert_eq!(mappings(&loaded), mappings(&original));
}
