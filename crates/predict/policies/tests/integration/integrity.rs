//! Every policy on stacks of one to four layers, checked on random lives of processes.

use crate::made;
use crate::world::{Op, PAGES, World, op};
use proptest::prelude::*;
use strata_addr::{Frame, PageSize, space::Lower};
use strata_policies::{PolicyParameters, REGISTRY};
use strata_stack::{NodeId, Owner};

fn world(policy: &str, layers: usize, fragmentation: f64) -> World {
    World::new(layers, fragmentation, made(policy, &[]))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn nothing_is_lost_under_any_policy(
        policy in 0..REGISTRY.len(),
        layers in 1usize..=4,
        fragmentation in prop_oneof![Just(0.0), Just(0.5), Just(1.0)],
        backed in any::<bool>(),
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let policy = (REGISTRY[policy].make)(&PolicyParameters::default());
        let new = if backed { World::backed } else { World::new };
        let mut world = new(layers, fragmentation, policy);
        for op in &ops {
            world.apply(op);
            world.check();
        }
        world.finish();
    }
}

/// Hosts with several VMs: of each kernel the one it runs on, and its memory in MiB.
pub const TREES: [&[(Option<usize>, u64)]; 4] = [
    // Two VMs on the host.
    &[(None, 128), (Some(0), 32), (Some(0), 40)],
    // Two nested guests in one guest hypervisor.
    &[(None, 176), (Some(0), 112), (Some(1), 32), (Some(1), 40)],
    // Two guest hypervisors with a guest each.
    &[(None, 208), (Some(0), 56), (Some(0), 64), (Some(1), 32), (Some(2), 32)],
    // A nested guest beside a VM.
    &[(None, 160), (Some(0), 56), (Some(1), 32), (Some(0), 32)],
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn nothing_is_lost_in_any_tree_under_any_policy(
        policy in 0..REGISTRY.len(),
        tree in 0..TREES.len(),
        ops in prop::collection::vec((0usize..3, op()), 1..40),
        end_after in 0usize..60,
    ) {
        let policy = (REGISTRY[policy].make)(&PolicyParameters::default());
        let mut world = World::tree(TREES[tree], policy);
        for (at, (guest, op)) in ops.iter().enumerate() {
            if at == end_after {
                let vm = world.stack.path_down(world.guest).nth(at % 2).unwrap();
                if world.stack.below(vm).is_some() {
                    world.end_vm(vm);
                }
            }
            if world.stack.guests().next().is_none() {
                break;
            }
            world.act_in(*guest);
            world.apply(op);
            world.check();
        }
        world.finish();
    }
}

#[test]
fn the_end_of_a_vm_gives_everything_back_under_any_policy() {
    for entry in REGISTRY {
        for tree in TREES {
            let mut world = World::tree(tree, (entry.make)(&PolicyParameters::default()));
            let host = world.stack.nodes().next().unwrap();
            let used = |world: &World| {
                let memory = world.stack.kernel(host).memory();
                memory.used_frames() + memory.reserved_regions() * 512
            };
            // The first VM of the host and whatever is in it act, and nobody else.
            let vm = world.stack.nodes().nth(1).unwrap();
            let guests: Vec<_> = world.stack.guests().collect();
            for guest in guests {
                if world.stack.path_down(guest).any(|below| below == vm) {
                    world.guest = guest;
                    (0..PAGES).for_each(|page| world.touch(0, page, true));
                }
            }
            world.apply(&Op::Wake);
            let before = used(&world);
            world.end_vm(vm);
            world.check();
            // What is left is what was taken before anything ran, and the other VMs' few tables.
            let mut other = World::tree(tree, (entry.make)(&PolicyParameters::default()));
            other.end_vm(vm);
            // Freed huge pages may be kept for a while; then they go back too.
            (0..20).for_each(|_| world.apply(&Op::Wake));
            (0..20).for_each(|_| other.apply(&Op::Wake));
            assert_eq!(used(&world), used(&other), "{} on {tree:?}", entry.name);
            assert!(used(&world) < before, "{} on {tree:?}", entry.name);
        }
    }
}

/// Touches everything, lets background work run, and returns guest huge pages, well-aligned ones
/// and pseudo huge ones.
fn settled(policy: &str, layers: usize, fragmentation: f64) -> (u64, u64, u64) {
    let mut world = world(policy, layers, fragmentation);
    for page in 0..PAGES {
        world.touch(0, page, true);
    }
    for _ in 0..20 {
        world.apply(&Op::Wake);
    }
    for page in 0..PAGES {
        world.touch(0, page, false);
    }
    let alignment = world.stack.alignment(world.guest);
    world.finish();
    (alignment.guest_huge, alignment.well_aligned, alignment.pseudo_huge)
}

#[test]
fn gemini_aligns_a_guest_with_its_host() {
    // With more, the host of this small stack has no order-9 block left to give.
    for fragmentation in [0.0, 0.25] {
        let (huge, aligned, _) = settled("gemini", 2, fragmentation);
        assert!(huge >= 4 && aligned == huge, "{aligned} of {huge} at FMFI {fragmentation}");
    }
}

#[test]
fn gemini_keeps_the_offset_where_an_area_grows() {
    const STEP: u64 = 32;
    let mut world = world("gemini", 2, 0.0);
    world.apply(&Op::Unmap { pid: 0, page: 0, pages: PAGES });
    for page in (0..PAGES).step_by(STEP as usize) {
        world.apply(&Op::Map { pid: 0, page, pages: STEP, fixed: false });
        (page..page + STEP).for_each(|page| world.touch(0, page, true));
    }
    // No daemon has run. The area neither begins nor ends with a region.
    let alignment = world.stack.alignment(world.guest);
    assert_eq!(alignment.guest_huge, PAGES / 512 - 1);
    assert_eq!(alignment.well_aligned, alignment.guest_huge);
    world.finish();
}

#[test]
fn xgemini_makes_pseudo_huge_pages_where_the_guest_hypervisor_has_base_pages() {
    let mut world = World::new(3, 0.0, made("xgemini", &[("xgemini.l1_thp", "false")]));
    for page in 0..PAGES {
        world.touch(0, page, true);
    }
    let alignment = world.stack.alignment(world.guest);
    // The last region is padding but for a few pages: memory use follows touch.
    assert_eq!(alignment.guest_huge, PAGES / 512);
    assert_eq!(alignment.well_aligned, alignment.guest_huge);
    assert_eq!(alignment.pseudo_huge, alignment.guest_huge);
    world.check();
    world.finish();
}

/// A nested guest under xGemini whose guest hypervisor has base pages, all of its memory that is in use in
/// pseudo huge pages; one page of the guest's memory that is.
fn in_pseudo_huge_pages() -> (World, Frame<Lower>) {
    let mut world = World::new(3, 0.0, made("xgemini", &[("xgemini.l1_thp", "false")]));
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    let mut frames = Vec::new();
    for (_, space) in world.stack.kernel(world.guest).spaces() {
        space.table().for_each_huge(|_, mapping| frames.push(mapping.frame));
    }
    (world, frames[1] + 77)
}

/// "When a guest hypervisor attempts to change a page mapping that may affect a pseudo huge page, the host
/// needs to change the host EPT accordingly": the frame of the page that is there now and the one in the row
/// change places, and the huge entry is back with the first access.
#[test]
fn xgemini_1_a_pseudo_huge_page_comes_back_when_the_guest_hypervisor_moves_a_page_of_it() {
    let (mut world, page) = in_pseudo_huge_pages();
    let before = world.stack.alignment(world.guest);
    assert_eq!(before.pseudo_huge, PAGES / 512);
    for page in [page, page + 1, page + 300, page] {
        world.apply(&Op::Migrate { above_host: 1, page: page.get() });
        world.check();
        let broken = world.stack.alignment(world.guest);
        assert_eq!(broken.pseudo_huge, before.pseudo_huge - 1, "L1 has it elsewhere");
        (0..PAGES).for_each(|page| world.touch(0, page, true));
        assert_eq!(world.stack.alignment(world.guest), before);
        world.check();
    }
    world.finish();
}

/// A place where a region cannot become whole, because something there cannot be moved, is given up for good.
#[test]
fn xgemini_4_d_a_row_that_cannot_be_had_in_one_place_is_made_in_another() {
    let mut world = World::new(3, 0.0, made("xgemini", &[("xgemini.l1_thp", "false")]));
    // In the middle of the area, so that the region is whole.
    world.touch(0, 1024, true);
    let space = world.stack.kernel(world.guest).spaces().next().unwrap().0;
    let table = world.stack.kernel(world.guest).space(space).unwrap().table();
    let (_, mapping) = table.first_mapped(table.everything()).unwrap();
    let home = world.stack.compose(world.guest, mapping.frame.cross()).unwrap().frame;
    let memory = world.stack.kernel_mut(NodeId::HOST).memory_mut();
    let stone = home.floor(PageSize::Huge) + (home.index_in(PageSize::Huge) + 100) % 512;
    assert!(memory.alloc_reserved(stone, 0));
    memory.set_owner(stone, Owner::Pinned.to_bits());
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    let alignment = world.stack.alignment(world.guest);
    assert_eq!(alignment.well_aligned, alignment.guest_huge - 1, "one region has a stone in it");
    for _ in 0..4 {
        world.apply(&Op::Wake);
        (0..PAGES).for_each(|page| world.touch(0, page, false));
    }
    let alignment = world.stack.alignment(world.guest);
    assert_eq!(alignment.well_aligned, alignment.guest_huge);
    world.finish();
}

/// "xGemini does not allocate a huge page if the touched memory space is smaller than a huge page": neither at
/// a fault nor in the background. And a frame goes to its offset at once: nothing is split for it, and
/// nearly nothing copied.
#[test]
fn xgemini_4_c_the_host_takes_what_is_touched_and_puts_it_where_it_belongs_at_once() {
    let policies = ["xgemini", "xgemini+xplace"];
    for (policy, l1_thp) in policies.iter().flat_map(|p| [(p, "false"), (p, "true")]) {
        let shown = format!("{policy}, L1 THP {l1_thp}");
        let mut world = World::new(3, 0.0, made(policy, &[("xgemini.l1_thp", l1_thp)]));
        let used = |world: &World| world.stack.kernel(NodeId::HOST).memory().used_frames();
        let (before, l1) = (used(&world), world.stack.nodes().nth(1).unwrap());
        // A quarter of each region, here and there.
        (0..PAGES).step_by(4).for_each(|page| world.touch(0, page, true));
        for _ in 0..5 {
            // What L1 has touched, for L2 and for itself, and tables of the host's own.
            let touched = world.stack.kernel(l1).memory().used_frames();
            let taken = used(&world) - before;
            assert!(taken < touched + 100, "{shown}: {taken} for {touched}");
            world.apply(&Op::Wake);
        }
        (0..PAGES).for_each(|page| world.touch(0, page, true));
        let regions = PAGES / 512 + 1;
        let host = *world.stack.kernel(NodeId::HOST).counters();
        assert_eq!(host.demotions, 0, "{shown}");
        assert!(host.copied_pages <= 4 * regions, "{shown}: {host:?}");
        let alignment = world.stack.alignment(world.guest);
        assert!(alignment.guest_huge >= PAGES / 512, "{shown}: {alignment:?}");
        assert_eq!(alignment.well_aligned, alignment.guest_huge, "{shown}");
        world.check();
        world.finish();
    }
}

/// The upper bound: whatever is ever touched is huge and well aligned from its first touch, however small its
/// area is and however it grows, and stays so.
#[test]
fn aligned_is_huge_from_the_first_touch_to_the_end() {
    // Enough is free to copy all of it for a child.
    const USED: u64 = 2040;
    for layers in [2, 3] {
        let mut world = world("aligned", layers, 0.5);
        world.apply(&Op::Unmap { pid: 0, page: 0, pages: PAGES });
        let mut regions = 0;
        for page in (0..USED).step_by(8) {
            world.apply(&Op::Map { pid: 0, page, pages: 8, fixed: page % 16 == 0 });
            world.touch(0, page, true);
            // The first region begins before the area does.
            regions = regions.max((page + 5) / 512 + 1);
            let alignment = world.stack.alignment(world.guest);
            let found = (alignment.guest_huge, alignment.well_aligned);
            assert_eq!(found, (regions, regions), "{layers} layers, page {page}");
        }
        for op in [
            Op::Unmap { pid: 0, page: 700, pages: 3 },
            Op::DontNeed { pid: 0, page: 900, pages: 700 },
            Op::Fork { parent: 0 },
            Op::Touch { pid: 2, page: 100, store: true },
            Op::Remap { pid: 0, from: 1700, to: 1901, pages: 99 },
            Op::Ksm { pages: 100_000 },
        ] {
            world.apply(&op);
            (0..USED).step_by(97).for_each(|page| world.touch(0, page, true));
            let alignment = world.stack.alignment(world.guest);
            assert_eq!(alignment.well_aligned, alignment.guest_huge, "{layers}, {op:?}");
            let base = world.stack.kernel(world.guest).spaces().map(|(_, space)| {
                let table = space.table();
                table.mapped(table.everything()).filter(|(_, m)| m.size == PageSize::Base).count()
            });
            assert_eq!(base.sum::<usize>(), 0, "{layers}, {op:?}");
        }
        world.finish();
    }
}
