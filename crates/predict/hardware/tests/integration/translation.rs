//! What the machine translates, against what the tables say, while the tables change.

use crate::common::{ASID, GUEST_TABLES, World, check_sums, models};
use proptest::prelude::*;
use strata_addr::{Frame, Gva, Hpa, PageSize, Range, Vpn};
use strata_hardware::{Asid, CpuId, CpuModel, Fault, Misaligned, VmTag};
use strata_paging::{Region, Rights};

/// 8 HPAS regions of virtual memory over 4 of guest memory over 16 of host memory.
const VIRTUAL: u64 = 8 * 512;
const GUEST: u64 = 4;
const HOST: u64 = 16;

#[derive(Clone, Debug)]
enum Op {
    Access {
        page: u64,
        offset: u64,
        store: bool,
        cpu: u32,
    },
    /// The guest unmaps what maps the page, and maps it anew.
    Guest {
        page: u64,
        huge: bool,
        gfn: u64,
        write: bool,
    },
    GuestSplit {
        region: u64,
    },
    /// The host does the same for a guest physical page.
    Host {
        gfn: u64,
        huge: bool,
        hfn: u64,
        write: bool,
    },
    HostSplit {
        region: u64,
    },
    /// The host moves a page of the guest's tables.
    MoveTable {
        page: u64,
        hfn: u64,
    },
    Forget {
        how: u8,
    },
}

fn page(regions: u64) -> impl Strategy<Value = u64> {
    let offset = prop_oneof![0u64..4, 508u64..512];
    (0..regions, offset).prop_map(|(region, offset)| region * 512 + offset)
}

fn op() -> impl Strategy<Value = Op> {
    let huge = || prop_oneof![2 => Just(false), 1 => Just(true)];
    let write = || prop_oneof![3 => Just(true), 1 => Just(false)];
    prop_oneof![
        30 => (page(8), 0u64..4096, any::<bool>(), 0u32..2)
            .prop_map(|(page, offset, store, cpu)| Op::Access { page, offset, store, cpu }),
        8 => (page(8), huge(), page(GUEST), write())
            .prop_map(|(page, huge, gfn, write)| Op::Guest { page, huge, gfn, write }),
        1 => (0u64..8).prop_map(|region| Op::GuestSplit { region }),
        6 => (page(GUEST), huge(), page(HOST), write())
            .prop_map(|(gfn, huge, hfn, write)| Op::Host { gfn, huge, hfn, write }),
        1 => (0u64..GUEST).prop_map(|region| Op::HostSplit { region }),
        1 => (0u64..8, page(HOST)).prop_map(|(page, hfn)| Op::MoveTable { page, hfn }),
        1 => (0u8..4).prop_map(|how| Op::Forget { how }),
    ]
}

fn rights(write: bool) -> Rights {
    Rights { write, execute: false }
}

/// Unmaps all of a region, or the one page.
fn clear_guest(world: &mut World, page: u64, huge: bool) {
    let first = if huge { page & !511 } else { page };
    for page in first..first + if huge { 512 } else { 1 } {
        world.guest.unmap(Vpn::new(page).addr(), &mut world.guest_frames);
    }
}

fn clear_host(world: &mut World, gfn: u64, huge: bool) {
    let first = if huge { gfn & !511 } else { gfn };
    let second = world.second.as_mut().unwrap();
    for page in first..first + if huge { 512 } else { 1 } {
        second.unmap(Frame::new(page).addr(), &mut world.host_frames);
    }
}

fn apply(world: &mut World, op: &Op, step: usize) {
    match *op {
        Op::Access { page, offset, store, cpu } => {
            let gva = page * 4096 + offset;
            let result = world.access_on(CpuId(cpu), ASID, gva, 1, store);
            check(world, gva, store, result);
        }
        Op::Guest { page, huge, gfn, write } => {
            clear_guest(world, page, huge);
            let size = if huge { PageSize::Huge } else { PageSize::Base };
            let gfn = if huge { gfn & !511 } else { gfn };
            world.map_guest(page & !(size.base_pages() - 1), size, gfn, rights(write));
            // Single pages and ranges are invalidated by turns, as a kernel does either.
            let first = Vpn::new(page).floor(size);
            if huge || step.is_multiple_of(2) {
                let range = Range::sized(first.addr(), PageSize::Huge.bytes());
                world.machine.invalidate_range(ASID, range);
            } else {
                world.machine.invalidate_page(ASID, first);
            }
        }
        Op::GuestSplit { region } => {
            let first = Vpn::new(region * 512);
            if matches!(world.guest.region(first), Region::Huge(_)) {
                world.guest.split(first, &mut world.guest_frames).unwrap();
                world.machine.invalidate_page(ASID, first);
            }
        }
        Op::Host { gfn, huge, hfn, write } => {
            let Some(_) = world.second else { return };
            clear_host(world, gfn, huge);
            let size = if huge { PageSize::Huge } else { PageSize::Base };
            let (gfn, hfn) = if huge { (gfn & !511, hfn & !511) } else { (gfn, hfn) };
            world.map_second(gfn, size, hfn, rights(write));
            world.machine.flush_second_stage(world.vm);
        }
        Op::HostSplit { region } => {
            let Some(second) = &mut world.second else { return };
            if matches!(second.region(Frame::new(region * 512)), Region::Huge(_)) {
                second.split(Frame::new(region * 512), &mut world.host_frames).unwrap();
                world.machine.flush_second_stage(world.vm);
            }
        }
        Op::MoveTable { page, hfn } => {
            let Some(second) = &mut world.second else { return };
            let page = Frame::new(GUEST_TABLES + page).addr();
            assert!(second.update(page, |old| (Frame::new(hfn), old.rights)));
            world.machine.flush_second_stage(world.vm);
        }
        Op::Forget { how: 0 } => world.machine.flush_asid(ASID),
        Op::Forget { how: 1 } => world.machine.flush_asid(Asid(2)),
        Op::Forget { how: 2 } => world.machine.flush_all(),
        Op::Forget { .. } => {
            let all = Range::sized(Gva::new(0), VIRTUAL * 4096);
            world.machine.invalidate_range(ASID, all);
        }
    }
}

/// A completed access found the right place and had the right to; a fault is the tables' fault.
fn check(world: &World, gva: u64, store: bool, result: Result<Hpa, Fault>) {
    let guest = world.guest.mapping(Gva::new(gva));
    let second = guest.and_then(|page| {
        let gpa = page.frame.addr() + Gva::new(gva).offset(page.size);
        world.second.as_ref()?.mapping(gpa)
    });
    match result {
        Ok(hpa) => {
            assert_eq!(Some(hpa), world.expected(gva), "stale translation of {gva:#x}");
            let guest = guest.expect("translated, so mapped");
            assert!(guest.accessed);
            if store {
                assert!(guest.rights.write && guest.dirty);
                assert!(world.second.is_none() || second.is_some_and(|page| page.rights.write));
            }
        }
        Err(Fault::Guest { gva: at, store: was_store, present }) => {
            assert_eq!((at.get(), was_store), (gva, store));
            assert_eq!(present, guest.is_some());
            assert!(guest.is_none_or(|page| store && !page.rights.write));
        }
        Err(Fault::SecondStage { gpa, store: was_store, during_walk }) => {
            assert!(!during_walk, "the guest's tables are mapped and writable");
            assert_eq!(was_store, store);
            assert_eq!(Some(gpa), world.guest.translate(Gva::new(gva)));
            assert!(second.is_none_or(|page| store && !page.rights.write));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn no_stale_translation_is_ever_used(
        ops in prop::collection::vec(op(), 1..250),
        model in 0usize..8,
        no_fill: bool,
        nested in prop_oneof![3 => Just(true), 1 => Just(false)],
    ) {
        let misaligned = if no_fill { Misaligned::NoFill } else { Misaligned::Splinter };
        let mut world = World::new(&models()[model], misaligned, nested);
        world.machine.add_cpu();
        for (step, op) in ops.iter().enumerate() {
            apply(&mut world, op, step);
        }
        check_sums(&world.machine);
    }
}

/// A world with page 0 mapped through all stages and known to the TLBs.
fn warm() -> World {
    let mut world =
        World::new(&CpuModel::preset(CpuModel::DEFAULT).unwrap(), Misaligned::Splinter, true);
    world.map_guest(0, PageSize::Base, 7, Rights::READ_WRITE);
    world.map_second(7, PageSize::Base, 70, Rights::READ_WRITE);
    assert_eq!(world.access(0, 8, false).unwrap().get(), 70 << 12);
    world
}

#[test]
fn a_change_without_invalidation_leaves_the_old_translation_in_use() {
    let mut world = warm();
    world.guest.update(Gva::new(0), |_| (Frame::new(8), Rights::READ_WRITE));
    world.map_second(8, PageSize::Base, 80, Rights::READ_WRITE);
    let stale = world.access(0, 8, false).unwrap();
    assert_ne!(Some(stale), world.expected(0), "so the check above would see it");
    world.machine.invalidate_page(ASID, Vpn::new(0));
    assert_eq!(Some(world.access(0, 8, false).unwrap()), world.expected(0));
}

#[test]
fn a_change_of_the_second_stage_without_invalidation_too() {
    let mut world = warm();
    let second = world.second.as_mut().unwrap();
    second.update(Frame::new(7).addr(), |_| (Frame::new(90), Rights::READ_WRITE));
    assert_ne!(Some(world.access(0, 8, false).unwrap()), world.expected(0));
    // Invalidating the guest's page is not enough: the nested TLB still knows the old frame.
    world.machine.invalidate_page(ASID, Vpn::new(0));
    assert_ne!(Some(world.access(0, 8, false).unwrap()), world.expected(0));
    world.machine.flush_second_stage(world.vm);
    assert_eq!(Some(world.access(0, 8, false).unwrap()), world.expected(0));
}

#[test]
fn address_spaces_do_not_see_each_other() {
    let mut world = warm();
    world.guest.update(Gva::new(0), |_| (Frame::new(8), Rights::READ_WRITE));
    world.map_second(8, PageSize::Base, 80, Rights::READ_WRITE);
    let other = world.access_on(world.cpu, Asid(2), 0, 8, false).unwrap();
    assert_eq!(other.get(), 80 << 12);
    assert_eq!(world.access(0, 8, false).unwrap().get(), 70 << 12, "its own entry");
    world.machine.flush_asid(Asid(2));
    assert_eq!(world.access(0, 8, false).unwrap().get(), 70 << 12, "still");
}

#[test]
fn an_invalidation_reaches_every_cpu() {
    let mut world = warm();
    let other = world.machine.add_cpu();
    world.access_on(other, ASID, 0, 8, false).unwrap();
    world.guest.update(Gva::new(0), |_| (Frame::new(8), Rights::READ_WRITE));
    world.map_second(8, PageSize::Base, 80, Rights::READ_WRITE);
    world.machine.invalidate_page(ASID, Vpn::new(0));
    for cpu in [world.cpu, other] {
        assert_eq!(world.access_on(cpu, ASID, 0, 8, false).unwrap().get(), 80 << 12);
    }
}

#[test]
fn a_vm_that_has_not_run_yet_takes_nothing_from_the_first() {
    let mut world = warm();
    let before = world.machine.counters(world.cpu).clone();
    world.machine.flush_second_stage(VmTag(world.vm.0 + 1));
    world.access(0, 8, false).unwrap();
    let after = world.machine.counters(world.cpu);
    assert_eq!((after.l2_misses, after.ntlb.misses), (before.l2_misses, before.ntlb.misses));
}

#[test]
fn what_a_walk_learned_before_it_faulted_is_dropped_too() {
    let model = CpuModel::preset(CpuModel::DEFAULT).unwrap();
    let mut world = World::new(&model, Misaligned::Splinter, true);
    let mut misses = |flush: bool| {
        if flush {
            world.machine.flush_second_stage(world.vm);
        }
        world.access(0, 8, false).expect_err("the guest maps nothing");
        world.machine.counters(world.cpu).ntlb.misses
    };
    // The nested TLB learns where the guest's root table is; no walk has ended well yet.
    assert_eq!([misses(false), misses(false), misses(true)], [1, 1, 2]);
    // Nor does it stop another VM, the first to end a walk well, from keeping it.
    let mut other = World::new(&model, Misaligned::Splinter, true);
    std::mem::swap(&mut other.machine, &mut world.machine);
    other.vm = VmTag(world.vm.0 + 1);
    other.map_guest(0, PageSize::Base, 7, Rights::READ_WRITE);
    other.map_second(7, PageSize::Base, 70, Rights::READ_WRITE);
    other.access_on(other.cpu, Asid(2), 0, 8, false).unwrap();
    other.machine.flush_second_stage(other.vm);
    std::mem::swap(&mut other.machine, &mut world.machine);
    let before = world.machine.counters(world.cpu).ntlb.misses;
    world.access(0, 8, false).expect_err("the guest maps nothing");
    assert_eq!(world.machine.counters(world.cpu).ntlb.misses, before);
}

#[test]
fn two_vms_with_the_same_addresses_are_told_apart() {
    const PAGES: u64 = 3000;
    for model in models() {
        // Two guests alike, whose memory lies elsewhere, take turns on one machine.
        let mut worlds = [0u16, 1].map(|vm| {
            let mut world = World::new(&model, Misaligned::Splinter, true);
            world.vm = VmTag(vm);
            for page in 0..PAGES {
                world.map_guest(page, PageSize::Base, page, Rights::READ_WRITE);
                let host = page + u64::from(vm) * PAGES;
                world.map_second(page, PageSize::Base, host, Rights::READ_WRITE);
            }
            world
        });
        let mut access = |vm: usize, page: u64| {
            let [first, second] = &mut worlds;
            if vm == 1 {
                std::mem::swap(&mut first.machine, &mut second.machine);
            }
            let world = if vm == 0 { &mut *first } else { &mut *second };
            let hpa = world.access_on(world.cpu, Asid(7 + vm as u16), page * 4096, 8, false);
            assert_eq!(hpa.unwrap().page().get(), page + vm as u64 * PAGES, "VM {vm}");
            let misses = world.machine.counters(world.cpu).l2_misses;
            if vm == 1 {
                std::mem::swap(&mut first.machine, &mut second.machine);
            }
            misses
        };
        for step in 0..20_000u64 {
            access((step * 31 % 7 % 2) as usize, step * 2_654_435_761 % PAGES);
        }
        // What is dropped of one VM's second stage stays known of the other's.
        access(0, 5);
        let before = access(1, 5);
        let machine = &mut worlds[0].machine;
        machine.flush_second_stage(VmTag(0));
        let mut misses = |vm: usize| {
            let [first, second] = &mut worlds;
            std::mem::swap(&mut first.machine, &mut second.machine);
            second.access_on(second.cpu, Asid(7 + vm as u16), 5 * 4096, 8, false).unwrap();
            let misses = second.machine.counters(second.cpu).l2_misses;
            std::mem::swap(&mut first.machine, &mut second.machine);
            misses
        };
        assert_eq!(misses(1), before, "kept");
        assert_eq!(misses(0), before + 1, "dropped");
    }
}
