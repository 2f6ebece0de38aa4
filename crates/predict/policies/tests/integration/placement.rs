//! CoPlace and xPlace: where the colours of a guest's memory survive the layers below.

use crate::integrity::TREES;
use crate::made;
use crate::world::machines::colours;
use crate::world::{Op, PAGES, World, op};
use proptest::prelude::*;
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_colours::{Colour, Colours, VirtualCache};
use strata_stack::{
    Kernel, KernelOutOfMemory, KernelSettings, Move, NodeId, Owner, PageFault, Placement,
    PlacementCounts, Policy, Position, Stack, ThpMode,
};

fn touch_all(world: &mut World) {
    (0..PAGES).for_each(|page| world.touch(0, page, true));
}

/// Pages of the guest's memory that are backed, and those of another colour than their own: what the
/// policy says where table t is the identity, worked out anew.
fn identity(world: &World) -> (u64, u64) {
    let second = world.stack.second_stage(world.guest);
    let (mut backed, mut wrong) = (0, 0);
    for (first, mapping) in second.mapped(second.everything()) {
        for page in (0..mapping.size.base_pages()).map(|i| first + i) {
            if let Some(behind) = world.stack.compose(world.guest, page) {
                let (real, own) = (colours().of(behind.frame).index(), colours().of(page).index());
                backed += 1;
                wrong += u64::from(real != own);
            }
        }
    }
    (backed, wrong)
}

/// A policy in whose kernels everybody takes huge pages wherever there are some, the host, too, and makes
/// them of base pages in the background.
struct WithHugePages(Box<dyn Policy>);

impl Policy for WithHugePages {
    fn settings(&mut self, at: Position) -> KernelSettings {
        KernelSettings { thp: ThpMode::Always, ..self.0.settings(at) }
    }

    fn place(&mut self, node: NodeId, kernel: &mut Kernel, fault: &PageFault) -> Placement {
        self.0.place(node, kernel, fault)
    }

    fn wants_backs(&self) -> bool {
        self.0.wants_backs()
    }

    fn mapped(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        fault: &PageFault,
        size: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        self.0.mapped(stack, node, fault, size)
    }

    fn second_stage_written(
        &mut self,
        stack: &mut Stack,
        vm: NodeId,
        page: Frame<Upper>,
        size: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        self.0.second_stage_written(stack, vm, page, size)
    }

    fn may_move(&mut self, stack: &Stack, asked: &Move) -> bool {
        self.0.may_move(stack, asked)
    }

    fn balloon_colours(&mut self, stack: &Stack, guest: NodeId) -> Vec<Colour<Lower>> {
        self.0.balloon_colours(stack, guest)
    }

    fn may_merge(
        &mut self,
        stack: &Stack,
        vm: NodeId,
        page: Frame<Upper>,
        frame: Frame<Lower>,
    ) -> bool {
        self.0.may_merge(stack, vm, page, frame)
    }

    fn placement(&self, stack: &Stack, guest: NodeId) -> Option<PlacementCounts> {
        self.0.placement(stack, guest)
    }
}

fn life_of(
    policy: &str,
    layers: usize,
    fragmentation: f64,
    huge_pages: bool,
    set: &[(&str, &str)],
) -> World {
    let policy = made(policy, set);
    let policy = if huge_pages { Box::new(WithHugePages(policy)) } else { policy };
    World::new(layers, fragmentation, policy)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// c.h' = t.c' for every backed page after every operation: touches, unmapping, copies on write,
    /// migration, collapse, compaction and huge pages, in guests, guest hypervisors, and the host.
    #[test]
    fn xplace_keeps_every_colour_at_every_moment(
        layers in 2usize..=4,
        fragmentation in prop_oneof![Just(0.0), Just(0.5), Just(1.0)],
        huge_pages: bool,
        seed in prop_oneof![Just(0u64), 1..100u64],
        copy: bool,
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let set = [("colours.table_seed", &*seed.to_string()), ("xplace.copy", &*copy.to_string())];
        let mut world = life_of("xplace", layers, fragmentation, huge_pages, &set);
        for op in &ops {
            world.apply(op);
            let counts = world.placement();
            prop_assert_eq!(counts.violations, 0, "{:?} after {:?}", counts, op);
            if seed == 0 {
                prop_assert_eq!(identity(&world), (counts.backed, 0));
            }
            world.check();
        }
        world.finish();
    }

    /// The same where the guest is told of fewer colours or more than there are: h' puts each page where table t
    /// has its virtual colour, and the policy's own count says so, too.
    #[test]
    fn a_guest_told_of_another_cache_has_its_colours_where_they_were_given(
        nested: bool,
        fragmentation in prop_oneof![Just(0.0), Just(0.5)],
        count in prop_oneof![Just(1u32), Just(4), Just(6), Just(32)],
        first in 0u32..40,
        ops in prop::collection::vec(op(), 1..30),
    ) {
        let cache = VirtualCache { colours: Colours::counted(count).unwrap(), first };
        let policy = if nested { "xplace" } else { "coplace" };
        let layers = 2 + usize::from(nested);
        let mut world = World::told(layers, fragmentation, cache, made(policy, &[]));
        for op in &ops {
            world.apply(op);
            let counts = world.placement();
            let out = counts.colour_was_out;
            prop_assert!(counts.violations <= out, "{:?} after {:?}", counts, op);
            let second = world.stack.second_stage(world.guest);
            let mapped = second.mapped(second.everything());
            let pages = mapped.flat_map(|(first, mapping)| {
                (0..mapping.size.base_pages()).map(move |i| first + i)
            });
            for page in pages {
                let Some(behind) = world.stack.compose(world.guest, page) else { continue };
                let own = cache.colours.of(page).index();
                let given = (first + own) % colours().count();
                let is_given = colours().of(behind.frame).index() == given;
                prop_assert!(is_given || out > 0, "{:?}", page);
            }
            world.check();
        }
        world.finish();
    }

    #[test]
    fn coplace_keeps_every_colour_of_a_vm_on_the_host(
        fragmentation in prop_oneof![Just(0.0), Just(0.5), Just(1.0)],
        huge_pages: bool,
        seed in prop_oneof![Just(0u64), 1..100u64],
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let set = [("colours.table_seed", &*seed.to_string())];
        let mut world = life_of("coplace", 2, fragmentation, huge_pages, &set);
        for op in &ops {
            world.apply(op);
            let counts = world.placement();
            prop_assert_eq!(counts.violations, 0, "{:?} after {:?}", counts, op);
            if seed == 0 {
                prop_assert_eq!(identity(&world), (counts.backed, 0));
            }
        }
        world.check();
        world.finish();
    }
}

/// What the host may do on its own: with table t the identity any region aligned to a huge page is as the
/// guest wants it; with another table no such region is, and the host is told so.
#[test]
fn the_host_makes_huge_pages_only_where_colours_stay() {
    let collapsed = |policy, seed| {
        let mut world = life_of(policy, 2, 0.0, false, &[("colours.table_seed", seed)]);
        touch_all(&mut world);
        for page in (0..PAGES).step_by(512) {
            world.apply(&Op::Collapse { above_host: 0, page });
        }
        let host = world.stack.nodes().next().unwrap();
        let (promotions, counts) =
            (world.stack.kernel(host).counters().promotions, world.placement());
        assert_eq!((counts.violations, counts.colour_was_out), (0, 0));
        world.finish();
        (promotions, counts.moves_refused)
    };
    for policy in ["coplace", "xplace"] {
        let (promotions, refused) = collapsed(policy, "0");
        assert!(promotions >= PAGES / 512 - 1 && refused == 0, "{policy}: {promotions}, {refused}");
        let (promotions, refused) = collapsed(policy, "7");
        assert!(promotions == 0 && refused >= PAGES / 512 - 1, "{policy}: {promotions}, {refused}");
    }
}

/// A base page goes where its colour is, and nowhere else.
#[test]
fn the_host_moves_base_pages_only_to_frames_of_their_colours() {
    for layers in [2, 3] {
        let mut world = life_of("xplace", layers, 0.0, false, &[]);
        touch_all(&mut world);
        let host = world.stack.nodes().next().unwrap();
        let before = world.stack.kernel(host).counters().migrated_pages;
        (0..512).for_each(|page| world.apply(&Op::Migrate { above_host: 0, page }));
        let counts = world.placement();
        let moved = world.stack.kernel(host).counters().migrated_pages - before;
        assert_eq!(counts.violations, 0);
        assert!(counts.moves_refused > 0 && counts.moves_refused + moved <= 512, "{counts:?}");
        world.finish();
    }
}

/// The host's compaction moves pages of the VM's, to frames of the colours that they have; where there is none
/// it leaves them where they are.
#[test]
fn compaction_on_the_host_keeps_colours() {
    for colour_is_out in [false, true] {
        let mut world = life_of("coplace", 2, 0.0, false, &[]);
        let host = world.stack.nodes().next().unwrap();
        // Somebody's movable pages in every region, so that there is no free huge page.
        let memory = world.stack.kernel_mut(host).memory_mut();
        let of_all_colours = |frame: &u64| (frame + frame / 16).is_multiple_of(4);
        let others = (0..memory.frames()).filter(of_all_colours).map(Frame::new);
        let others: Vec<_> = others.filter(|frame| memory.alloc_at(*frame, 0)).collect();
        others.iter().for_each(|frame| memory.set_owner(*frame, Owner::Movable.to_bits()));
        touch_all(&mut world);
        // Some of them go, and leave holes among the pages of the VM.
        let memory = world.stack.kernel_mut(host).memory_mut();
        for frame in others.into_iter().step_by(2) {
            memory.take_owner(frame);
            memory.free(frame, 0);
        }
        while colour_is_out && let Some(frame) = memory.take_coloured(colours().of(Frame::new(3))) {
            memory.set_owner(frame, Owner::Movable.to_bits());
        }
        // The last first: compaction begins with frames of the first ones.
        for page in (0..PAGES / 512).rev().map(|region| region * 512) {
            world.apply(&Op::Collapse { above_host: 0, page });
            touch_all(&mut world);
            let counts = world.placement();
            let found = (counts.backed >= PAGES, counts.violations, counts.colour_was_out);
            assert_eq!(found, (true, 0, 0), "{colour_is_out}: {counts:?}");
        }
        let counters = world.stack.kernel(host).counters();
        assert!(counters.compacted_regions > 0, "{colour_is_out}: {counters:?}");
        world.check();
    }
}

/// Where no frame of a colour is left a page gets another, which is counted, once.
#[test]
fn a_first_placement_whose_colour_is_out_is_counted() {
    let mut world = life_of("xplace", 2, 0.0, false, &[]);
    let host = world.stack.nodes().next().unwrap();
    let memory = world.stack.kernel_mut(host).memory_mut();
    let wanted = colours().of(Frame::new(3));
    while memory.take_coloured(wanted).is_some() {}
    touch_all(&mut world);
    let counts = world.placement();
    assert!(counts.violations > 0, "{counts:?}");
    assert_eq!(counts.colour_was_out, counts.violations);
}

#[test]
fn coplace_loses_the_colours_of_a_nested_guest_and_xplace_does_not() {
    for fragmentation in [0.0, 0.5] {
        let lost = |policy| {
            let mut world = life_of(policy, 3, fragmentation, false, &[]);
            touch_all(&mut world);
            let counts = world.placement();
            assert_eq!(identity(&world), (counts.backed, counts.violations));
            assert!(counts.backed >= PAGES);
            counts
        };
        let (coplace, xplace) = (lost("coplace"), lost("xplace"));
        assert!(coplace.violations > coplace.backed / 2, "{coplace:?}");
        assert_eq!((coplace.checks, coplace.replaced), (0, 0));
        assert_eq!(xplace.violations, 0);
        assert!(xplace.checks >= xplace.backed && xplace.replaced > 0, "{xplace:?}");
    }
}

/// Balloon pages of the guest by their virtual colour.
fn balloon_by_colour(world: &World) -> Vec<u64> {
    let kernel = world.stack.kernel(world.guest);
    let mut counts = vec![0; colours().count() as usize];
    for frame in (0..kernel.memory().frames()).map(Frame::new) {
        if kernel.owner(frame) == Owner::Balloon {
            counts[colours().of(frame).index() as usize] += 1;
        }
    }
    counts
}

#[test]
fn balloons_take_and_give_back_colour_by_colour() {
    for (policy, layers) in [("coplace", 2), ("xplace", 2), ("xplace", 3), ("xplace", 4)] {
        let mut world = life_of(policy, layers, 0.0, false, &[("colours.table_seed", "3")]);
        touch_all(&mut world);
        for (pages, held) in
            [(1000, 1000), (-333, 667), (500, 1167), (-1, 1166), (-9999, 0), (77, 77)]
        {
            world.balloon(pages);
            let counts = balloon_by_colour(&world);
            assert_eq!(counts.iter().sum::<u64>(), held);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{policy}, {pages}: {counts:?}");
            // Memory that was taken and comes back is placed like any other.
            world.apply(&Op::Exit { pid: 1 });
            world.apply(&Op::Fork { parent: 0 });
            (0..PAGES / 2).for_each(|page| world.touch(2, page, true));
            assert_eq!(world.placement().violations, 0, "{policy}, {pages}");
            world.apply(&Op::Exit { pid: 2 });
            world.check();
        }
        world.finish();
    }
}

/// Of colours that it holds as many pages of, a balloon takes the one that the host is shortest of.
#[test]
fn the_colours_that_the_host_is_short_of_are_taken_first() {
    for (policy, layers) in [("coplace", 2), ("xplace", 3)] {
        let mut world = life_of(policy, layers, 0.0, false, &[]);
        let scarce = [3, 8, 12];
        // The host is left few frames of these colours.
        let host = world.stack.kernel_mut(NodeId::HOST).memory_mut();
        for colour in scarce.map(Colour::new) {
            while host.free_of(colour) > 5 {
                host.take_coloured(colour).unwrap();
            }
        }
        world.balloon(scarce.len() as i64);
        let counts = balloon_by_colour(&world);
        let taken = (0..counts.len() as u32).filter(|at| counts[*at as usize] > 0);
        assert_eq!(taken.collect::<Vec<_>>(), scarce, "{policy}");
    }
}

/// A VM that comes later in the place of one that ended is not taken for it.
#[test]
fn what_a_vm_that_ended_was_told_is_forgotten() {
    for (name, layers) in [("coplace", 2), ("xplace", 3)] {
        let mut world = life_of(name, layers, 0.0, false, &[]);
        touch_all(&mut world);
        let mut policy = made(name, &[]);
        let guest = world.guest;
        assert_eq!(policy.placement(&world.stack, guest).unwrap().violations, 0);
        let one = VirtualCache { colours: Colours::counted(1).unwrap(), first: 0 };
        policy.told_of_cache(guest, one);
        assert!(policy.placement(&world.stack, guest).unwrap().violations > 0, "{name}");
        policy.ended(&mut world.stack, &[guest]);
        assert_eq!(policy.placement(&world.stack, guest).unwrap().violations, 0, "{name}");
    }
}

/// One of two VMs ends, and with it what is known of it. The other's memory is placed by colour as before.
#[test]
fn a_vm_keeps_its_colours_when_another_ends() {
    for (policy, tree) in [("coplace", TREES[0]), ("xplace", TREES[0]), ("xplace", TREES[2])] {
        let mut world = World::tree(tree, made(policy, &[]));
        world.act_in(1);
        let vm = world.stack.nodes().nth(1).unwrap();
        world.end_vm(vm);
        touch_all(&mut world);
        let counts = world.placement();
        assert!(counts.backed >= PAGES && counts.violations == 0, "{policy}: {counts:?}");
        world.finish();
    }
}

/// Equal pages share a frame for each colour that they must have, and no page another's.
#[test]
fn equal_pages_of_different_colours_stay_apart() {
    for (policy, layers) in [("coplace", 2), ("xplace", 2), ("xplace", 3), ("xplace", 4)] {
        for seed in ["0", "3"] {
            let mut world = life_of(policy, layers, 0.5, false, &[("colours.table_seed", seed)]);
            world.apply(&Op::Alike { pid: 0, page: 0, pages: 1000, content: 1 });
            world.ksm(u64::MAX);
            world.check();
            let counters = *world.stack.kernel(NodeId::HOST).counters();
            let colours = u64::from(colours().count());
            assert_eq!(counters.merged_pages, 1000 - colours, "{policy}");
            assert!(counters.kept_apart >= colours - 1, "{policy}");
            assert_eq!(world.placement().violations, 0, "{policy}");
            // A copy for a store is taken in the colour wanted, too.
            (0..1000).step_by(3).for_each(|page| world.touch(0, page, true));
            let counters = *world.stack.kernel(NodeId::HOST).counters();
            assert!(counters.unmerged_pages > 300, "{policy}");
            assert_eq!(world.placement().violations, 0, "{policy}");
            world.finish();
        }
    }
}

/// A page that must have another colour leaves those that it shares a frame with.
#[test]
fn a_merged_page_is_recoloured_alone() {
    let mut world = life_of("coplace", 2, 0.0, false, &[]);
    world.apply(&Op::Alike { pid: 0, page: 0, pages: 64, content: 1 });
    world.ksm(u64::MAX);
    let process = world.stack.vm_process(world.guest);
    let host = world.stack.kernel(NodeId::HOST);
    let table = host.space(process).unwrap().table();
    let shared = table.mapped(table.everything()).find(|(_, mapping)| !mapping.rights.write);
    let (page, mapping) = shared.unwrap();
    let Owner::Shared { mappings } = host.owner(mapping.frame) else { panic!("it is merged") };
    let other = Colour::new((colours().of(mapping.frame).index() + 1) % colours().count());
    let mut policy = made("coplace", &[]);
    let at = (process, page);
    assert!(world.stack.recolour(policy.as_mut(), NodeId::HOST, at, other, true).unwrap());
    let host = world.stack.kernel(NodeId::HOST);
    let now = host.frame_behind(process, page).unwrap();
    assert_eq!((host.owner(now), colours().of(now)), (Owner::Page(process, page), other));
    assert_eq!(host.owner(mapping.frame), Owner::Shared { mappings: mappings - 1 });
    world.finish();
}

#[test]
fn a_table_that_is_drawn_is_another_and_as_injective() {
    let mut world = life_of("xplace", 3, 0.0, false, &[("colours.table_seed", "7")]);
    touch_all(&mut world);
    let counts = world.placement();
    assert_eq!(counts.violations, 0);
    let (backed, moved) = identity(&world);
    assert!(moved > backed / 2, "{moved} of {backed} pages have another colour than their own");
}

#[test]
fn a_replacement_is_paid_for_as_a_copy_or_not() {
    let copied = |copy: &str| {
        let mut world = life_of("xplace", 3, 0.0, false, &[("xplace.copy", copy)]);
        touch_all(&mut world);
        let host = world.stack.nodes().next().unwrap();
        let counters = *world.stack.kernel(host).counters();
        (counters.copied_pages, counters.migrated_pages, world.placement().replaced)
    };
    let (copies, moves, replaced) = copied("true");
    assert_eq!((copies, moves), (replaced, replaced));
    assert_eq!(copied("false"), (0, replaced, replaced));
}
/// Merged pages that are stored to get frames of their own; where there is none of the right colour that is told.
#[test]
fn a_copy_of_a_merged_page_in_another_colour_is_counted() {
    let cache = VirtualCache { colours: Colours::counted(1).unwrap(), first: 0 };
    let mut world = World::told(3, 0.0, cache, made("xplace", &[]));
    // All of the guest's pages want one colour. There are 1,022 frames of it, and others take those that merging frees
    // before the merged pages are stored to.
    let merged = [
        Op::Alike { pid: 0, page: 3049, pages: 19, content: 0 },
        Op::Collapse { above_host: 2, page: 3067 },
        Op::Ksm { pages: 100_000 },
    ];
    merged.iter().for_each(|op| world.apply(op));
    assert_eq!(world.placement().backed, 6);
    world.apply(&Op::Sweep { pid: 0, region: 0 });
    world.apply(&Op::Sweep { pid: 0, region: 5 });
    let counts = world.placement();
    assert!(counts.violations > 0 && counts.violations <= counts.colour_was_out, "{counts:?}");
}
