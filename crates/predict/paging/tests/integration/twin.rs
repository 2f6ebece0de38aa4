//! The radix against a plain map of base pages, on random streams of operations.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use strata_addr::{Addr, Frame, PageSize, Range, space::Lower, space::Upper};
use strata_paging::{Ept, Format, FrameSource, Radix, Region, Rights, Span, TableId, X86};

/// Hands out table frames and insists that each comes back once.
#[derive(Default)]
struct Frames {
    next: u64,
    out: BTreeSet<u64>,
}

impl FrameSource<Lower> for Frames {
    fn table_frame(&mut self) -> Option<Frame<Lower>> {
        self.next += 1;
        self.out.insert(self.next);
        Some(Frame::new(self.next))
    }
    fn free_table_frame(&mut self, frame: Frame<Lower>) {
        assert!(self.out.remove(&frame.get()), "{frame:?} was not in use as a table");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Map { region: u64, offset: u64, size: PageSize, frame: u64, write: bool },
    Unmap { region: u64, offset: u64 },
    Collapse { region: u64, frame: u64 },
    Split { region: u64 },
    Update { region: u64, offset: u64 },
}

/// Few regions, some far apart, so that operations meet and upper levels differ.
fn region() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..4, Just(511), Just(512), Just(1 << 18), Just((1 << 27) - 1)]
}

fn op() -> impl Strategy<Value = Op> {
    let offset = prop_oneof![0u64..4, Just(511)];
    let size = prop_oneof![4 => Just(PageSize::Base), 1 => Just(PageSize::Huge)];
    prop_oneof![
        4 => (region(), offset.clone(), size, 0u64..1 << 20, any::<bool>()).prop_map(
            |(region, offset, size, frame, write)| Op::Map { region, offset, size, frame, write }
        ),
        2 => (region(), offset.clone()).prop_map(|(region, offset)| Op::Unmap { region, offset }),
        1 => (region(), 0u64..1 << 11).prop_map(|(region, frame)| Op::Collapse { region, frame }),
        1 => region().prop_map(|region| Op::Split { region }),
        1 => (region(), offset).prop_map(|(region, offset)| Op::Update { region, offset }),
    ]
}

/// Every mapped base page, with its frame, write right and whether a huge page maps it.
type Twin = BTreeMap<u64, (u64, bool, bool)>;

fn apply<F: Format>(
    radix: &mut Radix<F, Upper, Lower>,
    frames: &mut Frames,
    twin: &mut Twin,
    op: &Op,
) {
    let huge_at = |twin: &Twin, region: u64| twin.get(&(region * 512)).is_some_and(|page| page.2);
    let any_in =
        |twin: &Twin, region: u64| twin.range(region * 512..(region + 1) * 512).next().is_some();
    match *op {
        Op::Map { region, offset, size, frame, write } => {
            let free = match size {
                PageSize::Base => !twin.contains_key(&(region * 512 + offset)),
                _ => {
                    !matches!(radix.region(Frame::new(region * 512)), Region::Base { .. })
                        && !any_in(twin, region)
                }
            };
            if !free {
                return;
            }
            let rights = Rights { write, execute: false };
            let pages = size.base_pages();
            let (page, frame) = match size {
                PageSize::Base => (region * 512 + offset, frame),
                _ => (region * 512, frame & !511),
            };
            radix.map(Frame::new(page), size, Frame::new(frame), rights, frames).unwrap();
            for i in 0..pages {
                twin.insert(page + i, (frame + i, write, pages > 1));
            }
        }
        Op::Unmap { region, offset } => {
            let page = region * 512 + offset;
            let expected = twin.get(&page).copied();
            let got = radix.unmap(Frame::<Upper>::new(page).addr(), frames);
            assert_eq!(got.is_some(), expected.is_some());
            match expected {
                Some((_, _, true)) => twin.retain(|p, _| p / 512 != region),
                _ => drop(twin.remove(&page)),
            }
        }
        Op::Collapse { region, frame } => {
            if huge_at(twin, region) {
                return;
            }
            let before = twin.range(region * 512..(region + 1) * 512).count();
            let page = Frame::new(region * 512);
            let frame = frame * 512;
            let replaced = radix.collapse(page, Frame::new(frame), Rights::READ_WRITE, frames);
            assert_eq!(replaced, Ok(before as u16));
            for i in 0..512 {
                twin.insert(region * 512 + i, (frame + i, true, true));
            }
        }
        Op::Split { region } => {
            if huge_at(twin, region) {
                radix.split(Frame::new(region * 512), frames).unwrap();
                for (_, page) in twin.range_mut(region * 512..(region + 1) * 512) {
                    page.2 = false;
                }
            }
        }
        Op::Update { region, offset } => {
            let page = region * 512 + offset;
            let known = twin.contains_key(&page);
            let addr = Frame::<Upper>::new(page).addr();
            assert_eq!(radix.update(addr, |m| (m.frame, Rights::READ)), known);
            if known && huge_at(twin, region) {
                twin.range_mut(region * 512..(region + 1) * 512).for_each(|(_, p)| p.1 = false);
            } else if let Some(entry) = twin.get_mut(&page) {
                entry.1 = false;
            }
        }
    }
}

fn compare<F: Format>(radix: &Radix<F, Upper, Lower>, twin: &Twin) {
    let mut seen = Twin::new();
    let mut at = 0;
    for span in radix.spans(radix.everything()) {
        match span {
            Span::Absent(hole) => {
                assert_eq!(hole.start.get(), at, "a gap or an overlap");
                at = hole.end.get();
            }
            Span::Mapped(page, m) => {
                assert_eq!(page.addr().get(), at, "a gap or an overlap");
                at += m.size.bytes();
                for i in 0..m.size.base_pages() {
                    let entry = (m.frame.get() + i, m.rights.write, m.size == PageSize::Huge);
                    seen.insert(page.get() + i, entry);
                }
            }
        }
    }
    assert_eq!(at, radix.everything().end.get());
    assert_eq!(&seen, twin);
    let mut huge = Vec::new();
    radix.for_each_huge(|page, _| huge.push(page.get()));
    let expected: Vec<u64> =
        twin.iter().filter(|(at, page)| *at % 512 == 0 && page.2).map(|(at, _)| *at).collect();
    assert_eq!(huge, expected);
    let mut regions = Vec::new();
    radix.for_each_region(|page, region| {
        regions.push((page.get(), matches!(region, Region::Huge(_))));
    });
    let starts: BTreeSet<u64> = twin.keys().map(|page| page & !511).collect();
    let expected: Vec<_> = starts
        .into_iter()
        .map(|start| (start, twin.get(&start).is_some_and(|page| page.2)))
        .collect();
    assert_eq!(regions, expected);
    for (&page, &(frame, ..)) in twin {
        let addr = Frame::<Upper>::new(page).addr() + 123;
        assert_eq!(radix.translate(addr), Some(Frame::<Lower>::new(frame).addr() + 123));
    }
}

fn run<F: Format>(levels: u8, ops: &[Op]) {
    let mut frames = Frames::default();
    let root = frames.table_frame().unwrap();
    let mut radix = Radix::<F, Upper, Lower>::new(levels, root);
    let mut twin = Twin::new();
    for op in ops {
        apply(&mut radix, &mut frames, &mut twin, op);
    }
    compare(&radix, &twin);
    assert_eq!(frames.out.len(), radix.table_pages());
    radix.clear(&mut frames);
    compare(&radix, &Twin::new());
    assert_eq!(frames.out.len(), 1, "only the root is left");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_radix_equals_its_twin(ops in prop::collection::vec(op(), 1..60), levels in 4u8..=5) {
        run::<X86>(levels, &ops);
        run::<Ept>(levels, &ops);
    }

    #[test]
    fn spans_are_cut_to_the_range(
        start in 0u64..2048,
        len in prop_oneof![Just(1u64), 0u64..2048],
    ) {
        let mut frames = Frames::default();
        let root = frames.table_frame().unwrap();
        let mut radix = Radix::<X86, Upper, Lower>::new(4, root);
        for page in (0..2048).step_by(3) {
            let (page, frame) = (Frame::new(page), Frame::new(page));
            radix.map(page, PageSize::Base, frame, Rights::READ, &mut frames).unwrap();
        }
        let range = Range::sized(Addr::new(start * 4096), len * 4096);
        let is_mapped = |page: &u64| page.is_multiple_of(3) && *page < 2048;
        let got: Vec<_> = radix.mapped(range).map(|(page, _)| page.get()).collect();
        let want: Vec<_> = (start..start + len).filter(is_mapped).collect();
        prop_assert_eq!(&got, &want);
        let hole = radix.first_hole(range).map(|hole| hole.start.page().get());
        prop_assert_eq!(hole, (start..start + len).find(|page| !is_mapped(page)));
        let removed = radix.unmap_range(range, &mut frames);
        prop_assert_eq!(removed, want.len() as u64);
        prop_assert!(radix.first_mapped(range).is_none());
        let all = (0..2048).filter(is_mapped).count() as u64;
        prop_assert_eq!(radix.mapped(radix.everything()).count() as u64, all - removed);
    }
}

#[test]
fn children_are_where_the_entries_point() {
    let mut frames = Frames::default();
    let root = frames.table_frame().unwrap();
    let mut radix = Radix::<X86, Upper, Lower>::new(5, root);
    let (page, frame) = (Frame::new(0x1_2345_6789), Frame::new(42));
    assert_eq!(radix.map(page, PageSize::Base, frame, Rights::READ, &mut frames), Ok(5));
    let mut table = TableId::ROOT;
    for level in (2..=5).rev() {
        let at = strata_paging::index(page.addr().get(), level);
        let bits = radix.entry(table, at);
        table = radix.child(table, at);
        assert_eq!(X86::frame(bits), radix.frame_of(table).get());
    }
    assert!(radix.mark(table, strata_paging::index(page.addr().get(), 1), true));
    let mapping = radix.mapping(page.addr()).unwrap();
    assert!(mapping.accessed && mapping.dirty);
}

/// Where hardware reads an entry: 8 bytes each, in the frame of its table.
#[test]
fn entries_lie_one_after_the_other_in_the_frame_of_their_table() {
    let radix = Radix::<X86, Upper, Lower>::new(4, Frame::new(7));
    assert_eq!(radix.entry_addr(TableId::ROOT, 0), Addr::new(7 << 12));
    assert_eq!(radix.entry_addr(TableId::ROOT, 511), Addr::new((7 << 12) + 511 * 8));
}

/// Whoever keeps the id of a table page hears of it when one is freed, and only then.
#[test]
fn the_generation_moves_when_a_table_page_is_freed() {
    let mut frames = Frames::default();
    let root = frames.table_frame().unwrap();
    let mut radix = Radix::<X86, Upper, Lower>::new(4, root);
    let pages = [Frame::<Upper>::new(1), Frame::new(2)];
    for page in pages {
        radix.map(page, PageSize::Base, Frame::new(9), Rights::READ, &mut frames).unwrap();
    }
    let first = radix.generation();
    radix.unmap(pages[0].addr(), &mut frames);
    assert_eq!(radix.generation(), first, "the table has another page");
    radix.unmap(pages[1].addr(), &mut frames);
    assert!(radix.generation() > first);
    // The leaf table that a huge page takes the place of is freed, too.
    let before = radix.generation();
    radix.map(pages[0], PageSize::Base, Frame::new(9), Rights::READ, &mut frames).unwrap();
    radix.collapse(Frame::new(0), Frame::new(0), Rights::READ, &mut frames).unwrap();
    assert!(radix.generation() > before);
}

fn flags_stay<F: Format>() {
    let mut frames = Frames::default();
    let root = frames.table_frame().unwrap();
    let mut radix = Radix::<F, Upper, Lower>::new(4, root);
    let region = Frame::<Upper>::new(512);
    let flags = |radix: &Radix<F, Upper, Lower>, page: u64| {
        let mapping = radix.mapping((region + page).addr()).unwrap();
        (mapping.accessed, mapping.dirty)
    };
    let mark = |radix: &mut Radix<F, Upper, Lower>, page: u64, dirty| {
        let mut table = TableId::ROOT;
        for level in (2..=4).rev() {
            let at = strata_paging::index(region.addr().get(), level);
            table = radix.child(table, at);
        }
        radix.mark(table, page as usize, dirty);
    };
    for page in 0..3 {
        let frame = Frame::new(page);
        radix.map(region + page, PageSize::Base, frame, Rights::READ, &mut frames).unwrap();
    }
    mark(&mut radix, 0, false);
    mark(&mut radix, 1, true);
    for page in 0..3 {
        radix.update((region + page).addr(), |mapping| (mapping.frame, Rights::READ_WRITE));
    }
    let found = [0, 1, 2].map(|page| flags(&radix, page));
    assert_eq!(found, [(true, false), (true, true), (false, false)], "{}: changed", F::NAME);
    // One of the small pages was used, and one written: so was the huge page, and what it is split into.
    radix.collapse(region, Frame::new(1024), Rights::READ, &mut frames).unwrap();
    assert_eq!(flags(&radix, 2), (true, true), "{}: collapsed", F::NAME);
    radix.split(region, &mut frames).unwrap();
    assert_eq!(flags(&radix, 511), (true, true), "{}: split", F::NAME);
    radix.test_and_clear_accessed((region + 511).addr());
    assert_eq!(flags(&radix, 511), (false, true), "{}: cleared", F::NAME);
    assert_eq!(flags(&radix, 510), (true, true), "{}: of one page alone", F::NAME);
}

/// What hardware noted of a page is lost neither when its entry changes, nor when pages become a huge one and
/// back.
#[test]
fn accessed_and_dirty_flags_stay_when_pages_are_changed_collapsed_and_split() {
    flags_stay::<X86>();
    flags_stay::<Ept>();
}
