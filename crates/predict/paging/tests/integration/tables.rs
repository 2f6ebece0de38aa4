//! Regions of 2 MiB and holes, as a table tells of them, and what hardware notes of a page.

use strata_addr::{Addr, Frame, PageSize, Range, space::Lower, space::Upper};
use strata_paging::{Format, FrameSource, Radix, Region, Rights, TableId, X86};

type Table = Radix<X86, Upper, Lower>;

struct Upwards(u64);

impl FrameSource<Lower> for Upwards {
    fn table_frame(&mut self) -> Option<Frame<Lower>> {
        self.0 += 1;
        Some(Frame::new(self.0))
    }
    fn free_table_frame(&mut self, _: Frame<Lower>) {}
}

const ROOT: Frame<Lower> = Frame::new(9);

/// Pages mapped to the frames of the same numbers.
fn table(pages: &[(u64, PageSize)]) -> (Table, Upwards) {
    let (mut table, mut frames) = (Table::new(4, ROOT), Upwards(100));
    for (page, size) in pages {
        let (page, frame) = (Frame::new(*page), Frame::new(*page));
        table.map(page, *size, frame, Rights::READ, &mut frames).unwrap();
    }
    (table, frames)
}

/// The table page of this level on the way to address 0.
fn table_page(table: &Table, level: u8) -> TableId {
    (level..table.levels()).fold(TableId::ROOT, |at, _| table.child(at, 0))
}

#[test]
fn regions_are_visited_in_order_and_a_giant_page_is_512_of_them() {
    let (base, huge, giant) = (5 << 18 | 1 << 9, 5 << 18 | 3 << 9, (1 << 27) + (1 << 18));
    let (table, _) = table(&[
        (giant, PageSize::Giant),
        (huge, PageSize::Huge),
        (base | 7, PageSize::Base),
        (base | 8, PageSize::Base),
    ]);
    let mut seen = Vec::new();
    table.for_each_region(|page, region| match region {
        Region::Absent => panic!("nothing is mapped at {page:?}"),
        Region::Huge(mapping) => seen.push((page.get(), mapping.frame.get(), 512)),
        Region::Base { present, .. } => seen.push((page.get(), base, present)),
    });
    let mut expected = vec![(base, base, 2), (huge, huge, 512)];
    expected.extend((0..512).map(|region| (giant + 512 * region, giant, 512)));
    assert_eq!(seen, expected);
}

#[test]
fn the_accessed_flag_is_told_and_cleared_once_it_was_set() {
    let page = Frame::new(5);
    let (mut table, _) = table(&[(5, PageSize::Base), (6, PageSize::Base)]);
    assert!(!table.test_and_clear_accessed(page.addr()), "nobody has used it");
    table.mark(table_page(&table, 1), 5, true);
    assert!(table.test_and_clear_accessed(page.addr()));
    assert!(!table.test_and_clear_accessed(page.addr()), "it was cleared");
    assert!(table.mapping(page.addr()).unwrap().dirty, "the dirty flag stays");
    assert!(!table.test_and_clear_accessed(Addr::new(9 << 12)), "nothing is mapped there");
}

/// Hardware writes an entry only when a flag is missing.
#[test]
fn marking_an_entry_again_changes_nothing() {
    let page = Frame::new(5);
    let (mut table, _) = table(&[(5, PageSize::Base)]);
    let leaves = table_page(&table, 1);
    let flags = |table: &Table| {
        let mapping = table.mapping(page.addr()).unwrap();
        (mapping.accessed, mapping.dirty)
    };
    for (dirty, changed) in [(false, true), (false, false)] {
        assert_eq!(table.mark(leaves, 5, dirty), changed, "loaded");
        assert_eq!(flags(&table), (true, false));
    }
    for (dirty, changed) in [(true, true), (true, false), (false, false)] {
        assert_eq!(table.mark(leaves, 5, dirty), changed, "stored to");
        assert_eq!(flags(&table), (true, true));
    }
}

#[test]
fn the_pieces_of_a_huge_page_have_the_entries_of_base_pages_with_its_flags() {
    let huge = Frame::new(512);
    let (mut table, mut frames) = table(&[(512, PageSize::Huge)]);
    table.mark(table_page(&table, 2), 1, false);
    table.split(huge, &mut frames).unwrap();
    let Region::Base { entries, .. } = table.region(huge) else { panic!("it was split") };
    let piece = |at| X86::leaf(512 + at as u64, PageSize::Base, Rights::READ) | X86::ACCESSED;
    assert_eq!(*entries, std::array::from_fn(piece));
}

#[test]
#[should_panic(expected = "leaf-level tables have no children")]
fn no_table_lies_below_a_leaf_table() {
    let (table, _) = table(&[(5, PageSize::Base)]);
    table.child(table_page(&table, 1), 5);
}

/// A walk, which heeds only the bits that index tables, would find the first page after the last.
#[test]
fn the_last_hole_ends_where_the_input_space_does() {
    let (table, _) = table(&[]);
    let (end, page) = (table.everything().end, PageSize::Base.bytes());
    let last = Range::new(Addr::new(end.get() - page), end);
    assert_eq!(table.first_hole(last), Some(last));
    assert_eq!(table.first_hole(Range::sized(last.start, 2 * page)), Some(last));
    assert_eq!(table.first_hole(Range::sized(end, page)), None);
}
