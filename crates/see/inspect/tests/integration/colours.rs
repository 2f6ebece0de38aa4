//! Cache colours of memory on a host: counted, compared and followed through layers.

use proptest::prelude::*;
use strata_inspect::join::colours::{ColourUse, Colouring, HotUse, Spread, colouring};
use strata_inspect::snapshot::entry::PagemapEntry;
use strata_inspect::snapshot::hot::{HotRegion, Watched};
use strata_inspect::snapshot::model::{CpuCache, Vm};
use strata_inspect::snapshot::region::{Special, pack};
use strata_inspect::{BackedVm, Snapshot};

const PAGES: u64 = 512;

/// An L2 of 32 colours, and an L3 of 16 slices with as many.
fn caches() -> Vec<CpuCache> {
    let cache = |level, kind: &str, sets, ways| CpuCache {
        level,
        kind: kind.into(),
        sets,
        ways,
        line_bytes: 64,
        cpus: "0".into(),
        complex_index: None,
    };
    vec![
        cache(1, "Data", 64, 8),
        cache(2, "Unified", 2048, 8),
        // A second one of the same level says nothing new.
        cache(2, "Unified", 2048, 8),
        cache(3, "Unified", 16 * 2048, 16),
    ]
}

/// A VM whose page `n` is in frame `frame(n)`, if it is anywhere.
fn vm(pid: u32, pages: u64, frame: impl Fn(u64) -> Option<u64>) -> BackedVm {
    let region = |index: u64| {
        let words: Vec<_> = (index * PAGES..(index + 1) * PAGES)
            .map(|page| {
                let frame = Some(page).filter(|page| *page < pages).and_then(&frame);
                Some(frame.map_or(PagemapEntry::default(), PagemapEntry::present_at))
            })
            .collect();
        pack(index, &words, false, |_| Special::None)
    };
    let regions = (0..pages.div_ceil(PAGES)).map(region).collect();
    BackedVm {
        vm: Vm { pid, comm: "qemu".into(), ..Vm::default() },
        regions,
        ..BackedVm::default()
    }
}

/// How the first VM of a layer lies over its colours.
fn uses(snapshot: &Snapshot) -> Vec<ColourUse> {
    Spread::of(snapshot).uses(0)
}

fn layer(vms: Vec<BackedVm>) -> Snapshot {
    let mut snapshot = Snapshot { vms, ..Snapshot::default() };
    snapshot.head.settings.caches = caches();
    snapshot
}

/// What becomes of the colours of a guest in these VMs, the nearest first: of the L3.
fn followed(vms: Vec<BackedVm>) -> Colouring {
    let (guest, lowest) = (layer(Vec::new()), layer(Vec::new()));
    let mut all = colouring(&guest, &lowest, &vms.iter().collect::<Vec<_>>());
    assert_eq!(all.iter().map(|it| &*it.cache).collect::<Vec<_>>(), ["L2", "L3"]);
    all.pop().unwrap()
}

proptest! {
    #[test]
    fn pages_are_counted_as_one_by_one(
        frames in prop::collection::vec(prop::option::weighted(0.8, 1u64..1 << 20), 1..1500),
    ) {
        let frame = |page: u64| frames[page as usize];
        let snapshot = layer(vec![vm(7, frames.len() as u64, frame)]);
        let all = uses(&snapshot);
        let mut pages = [0u64; 32];
        frames.iter().flatten().for_each(|frame| pages[(frame % 32) as usize] += 1);
        let sum: u64 = pages.iter().sum();
        prop_assert_eq!(all.len(), if sum == 0 { 0 } else { 2 });
        for used in all {
            prop_assert_eq!((used.colours, used.pages), (32, sum));
            prop_assert_eq!(used.used as usize, pages.iter().filter(|pages| **pages > 0).count());
            let fullest = *pages.iter().max().unwrap() as f64 * 32.0 / sum as f64;
            prop_assert!((used.fullest - fullest).abs() < 1e-9);
        }
    }

    #[test]
    fn hot_pages_are_counted_as_one_by_one(
        frames in prop::collection::vec(
            (prop::option::weighted(0.8, 1u64..1 << 20), 0u8..4), 1..1500,
        ),
        whole: bool,
    ) {
        // Rows of frames as well as frames as they come.
        let frame = |page: u64| match whole {
            true => Some(page + 77),
            false => frames[page as usize].0,
        };
        let mut snapshot = layer(vec![vm(7, frames.len() as u64, frame)]);
        prop_assert!(uses(&snapshot).iter().all(|used| used.hot.is_none()));
        snapshot.vms[0].vm.watched = Some(Watched::default());
        let mut pages = [0u64; 32];
        for index in 0..(frames.len() as u64).div_ceil(PAGES) {
            let mut hot = HotRegion { index, ..HotRegion::default() };
            for page in 0..PAGES {
                let at = index * PAGES + page;
                // The first region is used as a whole, which is counted at one go; pages of no frame are
                // in no colour.
                let used = index == 0 || frames.get(at as usize).is_some_and(|it| it.1 == 0);
                if used {
                    hot.watched.set(page as u16);
                    hot.used.set(page as u16);
                    let frame = (at < frames.len() as u64).then(|| frame(at)).flatten();
                    frame.into_iter().for_each(|frame| pages[(frame % 32) as usize] += 1);
                }
            }
            snapshot.vms[0].hot.push(hot);
        }
        let sum: u64 = pages.iter().sum();
        for used in uses(&snapshot) {
            let colours = pages.iter().filter(|pages| **pages > 0).count() as u32;
            let fullest = *pages.iter().max().unwrap() as f64 * 32.0 / sum.max(1) as f64;
            prop_assert_eq!(used.hot, Some(HotUse { pages: sum, used: colours, fullest }));
        }
    }

    #[test]
    fn any_table_of_colours_is_followed(shift in 0u64..32, gap in 0u64..9) {
        // Each block of 32 frames elsewhere, all of them turned by the same number of colours.
        let frame = |page: u64| Some((page / 32 * (gap + 1) + 3) * 32 + (page + shift) % 32);
        let it = followed(vec![vm(7, 4096, frame)]);
        prop_assert_eq!((it.pages, it.kept, it.colliding, it.survives), (4096, 1.0, 0, true));
    }
}

#[test]
fn frames_as_they_come_lose_the_guests_colours() {
    const PRIME: u64 = 65_521;
    // A permutation of as many pages as a prime number, which has nothing to do with colours.
    let scattered = |page: u64| Some(page * 40_503 % PRIME);
    let it = followed(vec![vm(7, PRIME, scattered)]);
    assert!(it.kept < 0.2 && !it.survives, "{it:?}");
    assert!((it.by_chance - 1.0 / 32.0).abs() < 1e-9);
    // One layer is enough for that, wherever it is.
    let straight = |page: u64| Some(page + 1024);
    for vms in [
        vec![vm(7, PRIME, scattered), vm(8, 70_000, straight)],
        vec![vm(7, PRIME, Some), vm(8, PRIME, scattered)],
    ] {
        let it = followed(vms);
        assert!(it.pages > 60_000 && !it.survives, "{it:?}");
    }
    let it = followed(vec![vm(7, PRIME, straight), vm(8, 70_000, straight)]);
    assert!(it.survives, "{it:?}");
}

#[test]
fn a_guest_that_is_told_of_fewer_colours_keeps_those() {
    let (mut guest, lowest) = (layer(Vec::new()), layer(Vec::new()));
    let told = |guest: &mut Snapshot, sets| guest.head.settings.caches[1].sets = sets;
    let straight = vm(7, 4096, |page| Some(page + 5));
    told(&mut guest, 512);
    let it = &colouring(&guest, &lowest, &[&straight])[0];
    assert_eq!((it.guest_colours, it.colours, it.kept, it.survives), (8, 32, 1.0, true));
    assert_eq!(it.by_chance, 1.0 / 8.0);
    // Of more than there are, some meet.
    told(&mut guest, 4096);
    let it = &colouring(&guest, &lowest, &[&straight])[0];
    assert_eq!((it.guest_colours, it.colliding, it.survives), (64, 64, false));
}

#[test]
fn two_colours_that_end_in_one_do_not_survive() {
    let folded = |page: u64| Some(page / 32 * 32 + page % 16);
    let it = followed(vec![vm(7, 4096, folded)]);
    assert_eq!((it.kept, it.colliding, it.survives), (1.0, 32, false));
}

#[test]
fn vms_meet_in_colours_and_ways() {
    let low = |page: u64| Some(page / 16 * 32 + page % 16 + 32);
    let high = |page: u64| Some(page / 16 * 32 + page % 16 + 48);
    let mut snapshot = layer(vec![vm(1, 4096, low), vm(2, 4096, low), vm(3, 4096, high)]);
    let shared = |snapshot: &Snapshot, level: usize| {
        let used = &uses(snapshot)[level];
        assert_eq!(used.used, 16);
        used.shared_with.iter().map(|it| (it.vm.clone(), it.share)).collect::<Vec<_>>()
    };
    let other = ("qemu (pid 2)".to_owned(), 1.0);
    assert_eq!(shared(&snapshot, 1), std::slice::from_ref(&other));
    // In other ways of the L3 they do not meet; the L2 has no classes.
    let classes = [("/", "L3:0=7ff;1=7ff"), ("a", "L3:0=003;1=003"), ("b", "L3:0=700;1=700")];
    snapshot.head.settings.cache_classes =
        classes.map(|(name, l3)| (name.to_owned(), l3.to_owned())).into();
    snapshot.vms[0].vm.cache_class = Some("a".into());
    assert_eq!(shared(&snapshot, 1), std::slice::from_ref(&other), "not known of the other");
    snapshot.vms[1].vm.cache_class = Some("b".into());
    assert_eq!(shared(&snapshot, 1), []);
    assert_eq!(shared(&snapshot, 0), std::slice::from_ref(&other));
    snapshot.vms[1].vm.cache_class = Some("/".into());
    assert_eq!(shared(&snapshot, 1), [other]);
}

#[test]
fn without_caches_nothing_is_said() {
    let snapshot = Snapshot { vms: vec![vm(1, 4096, Some)], ..Snapshot::default() };
    assert_eq!(uses(&snapshot), []);
    assert_eq!(colouring(&snapshot, &snapshot, &[&snapshot.vms[0]]), []);
    // A guest that is told of none goes by those of the host.
    let it = &colouring(&Snapshot::default(), &layer(Vec::new()), &[&snapshot.vms[0]])[0];
    assert!(it.survives && it.guest_colours == 32, "{it:?}");
}

#[test]
fn what_the_processor_says_of_its_index_is_not_guessed() {
    let mut snapshot = layer(vec![vm(1, 4096, Some)]);
    let l3 = |snapshot: &mut Snapshot, complex, sets| {
        let cache = &mut snapshot.head.settings.caches[3];
        (cache.complex_index, cache.sets) = (complex, sets);
        let found = uses(snapshot).into_iter().find(|used| used.cache == "L3");
        found.map(|used| (used.colours, used.slices_assumed, used.complex_index))
    };
    let sets = 16 * 2048;
    assert_eq!(l3(&mut snapshot, None, sets), Some((32, 16, None)));
    assert_eq!(l3(&mut snapshot, Some(true), sets), Some((32, 16, Some(true))));
    // In one piece all sets count.
    assert_eq!(l3(&mut snapshot, Some(false), sets), Some((512, 1, Some(false))));
    // A function of which nothing more is known has no colours that could be told.
    assert_eq!(l3(&mut snapshot, Some(true), 3000), None);
}

#[test]
fn all_vms_are_compared_with_each_other() {
    let of = |shift: u64| move |page: u64| Some(page / 16 * 32 + page % 16 + shift);
    let snapshot = layer((0..5).map(|pid| vm(pid, 512, of(32 + 4 * u64::from(pid)))).collect());
    let spread = Spread::of(&snapshot);
    for index in 0..5 {
        for used in spread.uses(index) {
            // Each differs by four of its sixteen colours from the next.
            let mut shares: Vec<f64> = used.shared_with.iter().map(|other| other.share).collect();
            let mut expected: Vec<f64> = (0..5usize)
                .filter(|other| *other != index)
                .map(|other| 1.0 - other.abs_diff(index) as f64 / 4.0)
                .filter(|share| *share > 0.0)
                .collect();
            shares.sort_by(f64::total_cmp);
            expected.sort_by(f64::total_cmp);
            assert_eq!(shares, expected, "{used:?}");
        }
    }
}
