//! Regions of 2 MiB, as a table tells of them, and whether a page was accessed.

use strata_addr::{Addr, Frame, PageSize, space::Lower, space::Upper};
use strata_paging::{FrameSource, Radix, Region, Rights, TableId, X86};

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
    let leaves = (2..=4).fold(TableId::ROOT, |at, _| table.child(at, 0));
    table.mark(leaves, 5, true);
    assert!(table.test_and_clear_accessed(page.addr()));
    assert!(!table.test_and_clear_accessed(page.addr()), "it was cleared");
    assert!(table.mapping(page.addr()).unwrap().dirty, "the dirty flag stays");
    assert!(!table.test_and_clear_accessed(Addr::new(9 << 12)), "nothing is mapped there");
}
