//! Walks, one at a time: references, flags, faults at every position, entry sizes.

use crate::common::{self, ASID, GUEST_TABLES, OFFSET, World, check_sums};
use strata_addr::{Frame, Gva, PageSize, Vpn};
use strata_hardware::{
    Asid, Charge, CpuModel, Fault, HardwareCounters, Misaligned, WalkCaches, WalkPosition,
};
use strata_paging::{Rights, TableId, X86, index};

/// An address whose indices differ at every level.
const GVA: u64 = 0x1_2345_6789_a000;

fn default_model() -> CpuModel {
    CpuModel::preset(CpuModel::DEFAULT).unwrap()
}

fn counters(world: &World) -> &HardwareCounters {
    world.machine.counters(world.cpu)
}

/// A world that maps the page around [`GVA`] with these sizes; data at guest frame 0.
fn mapped(mut world: World, guest: PageSize, host: PageSize) -> World {
    let first = Vpn::new(GVA >> 12).floor(guest).get();
    world.map_guest(first, guest, 0, Rights::READ_WRITE);
    if world.second.is_some() {
        let gfn = (GVA & (guest.bytes() - 1)) >> 12 & !(host.base_pages() - 1);
        world.map_second(gfn, host, 1 << 18, Rights::READ_WRITE);
    }
    world
}

#[test]
fn references_of_every_combination_are_counted_and_named() {
    let model = default_model().without_caches();
    for (guest_levels, host_levels) in [(4, 4), (4, 5), (5, 4), (5, 5)] {
        for guest in PageSize::ALL {
            for host in PageSize::ALL {
                let world = World::with_levels(
                    &model,
                    Misaligned::Splinter,
                    guest_levels,
                    Some(host_levels),
                );
                let mut world = mapped(world, guest, host);
                world.access(GVA, 8, false).unwrap();
                let n = u64::from(guest_levels + 1 - guest.level());
                let m = u64::from(host_levels + 1 - host.level());
                // The guest's own tables lie in base pages of the host, all levels deep.
                let full = u64::from(host_levels);
                let counters = counters(&world);
                assert_eq!(counters.walk_refs, n * (full + 1) + m);
                assert!(counters.positions().all(|(_, found)| found.read.total() == 1));
                assert_eq!(counters.positions().count() as u64, counters.walk_refs);
                assert_eq!(counters.page_walker_loads_dtlb.total(), n);
                check_sums(&world.machine);
            }
        }
    }
    for levels in [4, 5] {
        for page in PageSize::ALL {
            let world = World::with_levels(&model, Misaligned::Splinter, levels, None);
            let mut world = mapped(world, page, page);
            world.access(GVA, 8, false).unwrap();
            assert_eq!(counters(&world).walk_refs, u64::from(levels + 1 - page.level()));
            assert_eq!(counters(&world).ept_walk_cycles, 0);
        }
    }
}

#[test]
fn each_step_of_walk_caches_leaves_more_out() {
    let refs = |cpu: &str, step| {
        let model = CpuModel::preset(cpu).unwrap().with_walk_caches(step);
        let mut world = World::new(&model, Misaligned::Splinter, true);
        world = mapped(world, PageSize::Base, PageSize::Base);
        world.map_guest((GVA >> 12) + 1, PageSize::Base, 1, Rights::READ_WRITE);
        world.map_second(1, PageSize::Base, 500, Rights::READ_WRITE);
        world.access(GVA, 8, false).unwrap();
        let cold = counters(&world).walk_refs;
        world.access(GVA + 4096, 8, false).unwrap();
        counters(&world).walk_refs - cold
    };
    // On the page beside, the guest's entry at level 2 is known. Its table's place is not on AMD's CPUs:
    // four references more without a nested walk cache, one with it, none with the nested TLB.
    assert_eq!(WalkCaches::ALL.map(|step| refs("zen3", step)), [24, 4 + 1 + 4, 1 + 1 + 1, 1 + 1]);
    assert_eq!(
        WalkCaches::ALL.map(|step| refs("broadwell-e5-2620v4", step)),
        [24, 1 + 4, 1 + 1, 1 + 1]
    );
}

#[test]
fn walk_caches_and_the_nested_tlb_leave_out_what_they_know() {
    let world = World::new(&default_model(), Misaligned::Splinter, true);
    let mut world = mapped(world, PageSize::Base, PageSize::Base);
    world.map_guest((GVA >> 12) + 1, PageSize::Base, 1, Rights::READ_WRITE);
    world.map_second(1, PageSize::Base, 500, Rights::READ_WRITE);
    world.access(GVA, 8, false).unwrap();
    let cold = counters(&world).walk_refs;
    // The guest's table pages are neighbours: after the first, only nL1 is read. The data is in
    // another part of the same 512 GiB: there, nL4 is left out.
    assert_eq!(cold, 24 - 3 * 3 - 1);
    world.access(GVA + 4096, 8, false).unwrap();
    // The leaf table is known with its host frame, and so is the way to nL1 of the data.
    assert_eq!(counters(&world).walk_refs - cold, 2);
    let positions: Vec<_> = counters(&world).positions().collect();
    assert_eq!(positions.len(), 24);
    let read = |position: &str| {
        let found = positions.iter().find(|(at, _)| at.to_string() == position);
        found.expect("a walk comes to it").1
    };
    assert!(positions.iter().all(|(_, found)| found.total() == 2), "two walks come to each");
    // The second walk reads the leaves alone, the first what its nested walks did not know.
    assert_eq!((read("g1").read.total(), read("dn1").read.total()), (2, 2));
    assert_eq!((read("g1n1").read.total(), read("g1n1").pwc), (1, 1));
    assert_eq!((read("g1n2").nested_pwc, read("g1n2").pwc), (1, 1));
    assert_eq!((read("g2").read.total(), read("g2").pwc), (1, 1));
}

/// A world after many walks over small pages, for loads and stores.
fn after_many_walks(model: &CpuModel) -> World {
    let mut world = World::new(model, Misaligned::Splinter, true);
    for page in 0..3000 {
        world.map_guest(page * 7, PageSize::Base, page, Rights::READ_WRITE);
        world.map_second(page, PageSize::Base, 5000 + page, Rights::READ_WRITE);
    }
    for access in 0..20_000u64 {
        let page = access * access % 3000 * 7;
        world.access(page << 12, 8, access % 3 == 0).unwrap();
    }
    world
}

/// Where all pages are small a walk comes to all 24 positions, and each is either read or saved by exactly
/// one cache; with a second stage of 2 MiB pages the nested TLB knows that there is no level 1.
#[test]
fn every_position_of_every_walk_is_read_or_saved_once() {
    for model in common::models() {
        for step in WalkCaches::ALL {
            let model = model.clone().with_walk_caches(step);
            let world = after_many_walks(&model);
            let counters = counters(&world);
            assert_eq!(counters.positions().count(), 24);
            for (position, found) in counters.positions() {
                assert_eq!(found.total(), counters.walks, "{position}: {found:?}");
                let is_saved = found.pwc + found.nested_pwc + found.ntlb > 0;
                assert!(!is_saved || step != WalkCaches::None, "{position}: {found:?}");
                assert!(found.ntlb == 0 || step == WalkCaches::TwoDimensionsAndNestedTlb);
                assert!(found.nested_pwc == 0 || step != WalkCaches::OneDimension);
            }
            check_sums(&world.machine);
        }
    }
    let mut world = World::new(&default_model(), Misaligned::Splinter, true);
    for region in 0..40 {
        world.map_guest(region * 513, PageSize::Base, region * 512, Rights::READ_WRITE);
        world.map_second(region * 512, PageSize::Huge, 65536 + region * 512, Rights::READ_WRITE);
    }
    for access in 0..2000u64 {
        world.access((access * access % 40 * 513) << 12, 8, false).unwrap();
        world.machine.invalidate_page(ASID, Vpn::new(access * access % 40 * 513));
    }
    let found: Vec<_> = counters(&world).positions().collect();
    assert!(found.iter().any(|(at, found)| at.to_string() == "dn2" && found.ntlb > 0));
    assert!(found.iter().all(|(at, _)| at.to_string() != "dn1"), "{found:?}");
}

#[test]
fn invalidating_a_page_drops_the_walk_caches_of_its_address_space_alone() {
    let world = World::new(&default_model(), Misaligned::Splinter, true);
    let mut world = mapped(world, PageSize::Base, PageSize::Base);
    let refs = |world: &mut World, asid| {
        let before = counters(world).walk_refs;
        world.access_on(world.cpu, asid, GVA, 8, false).unwrap();
        counters(world).walk_refs - before
    };
    let cold = refs(&mut world, ASID);
    refs(&mut world, Asid(2));
    world.machine.invalidate_page(ASID, Vpn::new(GVA >> 12));
    // The nested dimension is as it was: one reference for each level of the guest, from the root.
    assert_eq!(refs(&mut world, ASID), 4);
    world.machine.invalidate_page(ASID, Vpn::new(0));
    assert_eq!(refs(&mut world, Asid(2)), 0, "in the TLB still");
    world.machine.flush_all();
    assert_eq!(refs(&mut world, ASID), cold);
}

#[test]
fn sizes_that_differ_splinter_or_are_not_held() {
    for (guest, host, size) in [
        (PageSize::Huge, PageSize::Base, 0),
        (PageSize::Base, PageSize::Huge, 0),
        (PageSize::Giant, PageSize::Huge, 1),
        (PageSize::Huge, PageSize::Huge, 1),
        (PageSize::Giant, PageSize::Giant, 2),
    ] {
        let world = World::new(&default_model(), Misaligned::Splinter, true);
        let mut world = mapped(world, guest, host);
        world.access(GVA, 8, false).unwrap();
        assert_eq!(counters(&world).fills[size], 1);
        assert_eq!(counters(&world).splintered_fills, u64::from(host < guest));
        world.access(GVA + 8, 8, false).unwrap();
        assert_eq!(counters(&world).walks, 1);

        let world = World::new(&default_model(), Misaligned::NoFill, true);
        let mut world = mapped(world, guest, host);
        world.access(GVA, 8, false).unwrap();
        world.access(GVA + 8, 8, false).unwrap();
        let walks = if guest == host { 1 } else { 2 };
        assert_eq!(counters(&world).walks, walks);
        assert_eq!(counters(&world).unfilled_walks, if guest == host { 0 } else { 2 });
        check_sums(&world.machine);
    }
}

#[test]
fn a_page_held_in_pieces_is_invalidated_whole() {
    let world = World::new(&default_model(), Misaligned::Splinter, true);
    let mut world = mapped(world, PageSize::Huge, PageSize::Base);
    world.access(GVA, 8, false).unwrap();
    world.machine.invalidate_page(ASID, Vpn::new((GVA >> 12) ^ 5));
    world.access(GVA, 8, false).unwrap();
    assert_eq!(counters(&world).walks, 2);
}

#[test]
fn a_size_without_a_place_in_the_tlb_is_held_in_smaller_pieces() {
    let model = CpuModel::preset("i7-920").unwrap();
    let world = World::new(&model, Misaligned::Splinter, true);
    let mut world = mapped(world, PageSize::Giant, PageSize::Giant);
    world.access(GVA, 8, false).unwrap();
    assert_eq!(counters(&world).fills, [0, 1, 0]);
    assert_eq!(counters(&world).splintered_fills, 0, "neither table maps smaller");
}

#[test]
fn a_smashed_translation_comes_back_whole() {
    let world = World::new(&CpuModel::preset("zen2").unwrap(), Misaligned::Splinter, true);
    let mut world = mapped(world, PageSize::Giant, PageSize::Giant);
    world.access(GVA, 8, false).unwrap();
    // 64 other pages push it out of the first level.
    for page in 0..64 {
        world.map_guest(page, PageSize::Base, page, Rights::READ_WRITE);
    }
    for page in 0..64 {
        world.access(page * 4096, 8, false).unwrap();
    }
    let misses = counters(&world).l1_misses;
    assert_eq!(world.access(GVA, 8, false).unwrap(), world.expected(GVA).unwrap());
    assert_eq!((counters(&world).l1_misses, counters(&world).l2_hits), (misses + 1, 1));
    let other = (GVA & !((1 << 30) - 1)) + 12345;
    assert_eq!(world.access(other, 8, false).unwrap(), world.expected(other).unwrap());
    assert_eq!(counters(&world).l1_misses, misses + 1, "all of the 1 GiB page is back");
    world.machine.invalidate_page(ASID, Vpn::new(other >> 12));
    let walks = counters(&world).walks;
    world.access(GVA, 8, false).unwrap();
    assert_eq!(counters(&world).walks, walks + 1, "invalidated by any of its addresses");
}

/// Table and index of the guest's entry at each level on the way to an address.
fn path(world: &World, gva: u64) -> Vec<(u8, TableId, usize)> {
    let mut table = TableId::ROOT;
    let mut path = Vec::new();
    for level in (1..=world.guest.levels()).rev() {
        let at = index(gva, level);
        path.push((level, table, at));
        if level > 1 {
            table = world.guest.child(table, at);
        }
    }
    path
}

#[test]
fn every_missing_table_page_of_the_guest_faults_at_its_row_and_the_retry_completes() {
    for missing in 0..4 {
        let mut world = World::new(&default_model(), Misaligned::Splinter, true);
        world.map_guest(GVA >> 12, PageSize::Base, 0, Rights::READ_WRITE);
        world.map_second(0, PageSize::Base, 1 << 18, Rights::READ_WRITE);
        let (level, table, at) = path(&world, GVA)[missing];
        let gpa = world.guest.entry_addr(table, at);
        let second = world.second.as_mut().unwrap();
        second.unmap(gpa, &mut world.host_frames).unwrap();
        // With flags in the second stage, the use of a guest table is a write.
        let fault = Fault::SecondStage { gpa, store: true, during_walk: true };
        assert_eq!(world.access(GVA, 8, false), Err(fault), "level {level}");
        assert_eq!((counters(&world).accesses, counters(&world).walks), (0, 0));
        assert_eq!(counters(&world).faulted_walks, 1);
        let page = gpa.page().get();
        world.map_second(page, PageSize::Base, page + OFFSET, Rights::READ_WRITE);
        assert_eq!(world.access(GVA, 8, false).unwrap(), world.expected(GVA).unwrap());
        assert_eq!((counters(&world).accesses, counters(&world).walks), (1, 1));
        check_sums(&world.machine);
    }
}

#[test]
fn absent_entries_fault_at_every_level_of_the_guest() {
    for absent in 1..=4u8 {
        let mut world = World::new(&default_model(), Misaligned::Splinter, true);
        // A neighbour in the table above the absent entry, so that all levels above it exist.
        let neighbour = GVA ^ 1 << (12 + 9 * (absent - 1));
        world.map_guest(neighbour >> 12, PageSize::Base, 0, Rights::READ_WRITE);
        let fault = Fault::Guest { gva: Gva::new(GVA), store: false, present: false };
        assert_eq!(world.access(GVA, 8, false), Err(fault));
        let lowest = WalkPosition { guest: absent, nested: 0 };
        let rows: Vec<_> = counters(&world)
            .positions()
            .filter(|(position, _)| position.nested == 0)
            .map(|(position, _)| position)
            .collect();
        assert_eq!(rows.last(), Some(&lowest));
        assert_eq!(rows.len(), usize::from(5 - absent));
        check_sums(&world.machine);
    }
}

#[test]
fn a_load_sets_accessed_flags_and_a_store_dirty_flags() {
    let world = World::new(&default_model(), Misaligned::Splinter, true);
    let mut world = mapped(world, PageSize::Base, PageSize::Base);
    world.access(GVA, 8, false).unwrap();
    for (level, table, at) in path(&world, GVA) {
        let bits = world.guest.entry(table, at);
        assert_ne!(bits & 1 << 5, 0, "accessed at level {level}");
        assert_eq!(bits & 1 << 6, 0, "not dirty at level {level}");
    }
    let data = |world: &World| {
        let gpa = world.guest.translate(Gva::new(GVA)).unwrap();
        world.second.as_ref().unwrap().mapping(gpa).unwrap()
    };
    assert!(data(&world).accessed && !data(&world).dirty);
    // The second stage saw the guest's tables written: their flags were set.
    let root = Frame::new(GUEST_TABLES).addr();
    assert!(world.second.as_ref().unwrap().mapping(root).unwrap().dirty);
    assert_eq!(counters(&world).guest_flag_writes, 4);

    // The entry in the TLB is clean: the first store walks, the second does not.
    world.access(GVA, 8, true).unwrap();
    assert!(world.guest.mapping(Gva::new(GVA)).unwrap().dirty && data(&world).dirty);
    assert_eq!((counters(&world).dirty_walks, counters(&world).walks), (1, 2));
    world.access(GVA, 8, true).unwrap();
    assert_eq!((counters(&world).dirty_walks, counters(&world).l1_misses), (1, 1));

    // Each entry on the way was written once, and the leaves for the data again by the store. The second
    // stage has 3 entries above the leaves and 4 leaves for the guest's tables, and 3 below the root for
    // the data. What is set already is not written again.
    let written = |world: &World| {
        [counters(world).guest_flag_writes, counters(world).second_stage_flag_writes]
    };
    assert_eq!(written(&world), [4 + 1, 3 + 4 + 3 + 1]);
    world.machine.flush_all();
    world.access(GVA, 8, true).unwrap();
    assert_eq!(counters(&world).walks, 3);
    assert_eq!(written(&world), [4 + 1, 3 + 4 + 3 + 1]);
    check_sums(&world.machine);
}

#[test]
fn both_levels_learn_that_a_page_is_dirty() {
    let mut world = World::new(&default_model(), Misaligned::Splinter, true);
    for page in 0..16 {
        // All in one set of the first level; in many sets of the second.
        world.map_guest(page * 16, PageSize::Base, page, Rights::READ_WRITE);
        world.map_second(page, PageSize::Base, page, Rights::READ_WRITE);
    }
    world.access(0, 8, false).unwrap();
    world.access(0, 8, true).unwrap();
    assert_eq!(counters(&world).dirty_walks, 1);
    world.access(16 * 4096, 8, false).unwrap();
    world.access(0, 8, true).unwrap();
    assert_eq!((counters(&world).dirty_walks, counters(&world).l2_hits), (1, 0), "first level");
    for page in 1..16 {
        world.access(page * 16 * 4096, 8, false).unwrap();
    }
    world.access(0, 8, true).unwrap();
    assert_eq!((counters(&world).dirty_walks, counters(&world).l2_hits), (1, 1), "second level");
}

#[test]
fn a_freed_table_is_not_walked_even_without_an_invalidation() {
    let mut world = World::new(&default_model(), Misaligned::Splinter, false);
    world.map_guest(0, PageSize::Base, 7, Rights::READ_WRITE);
    world.map_guest(1, PageSize::Base, 8, Rights::READ_WRITE);
    world.access(0, 8, false).unwrap();
    // The leaf table goes, and its number with it to the table of another region.
    world
        .guest
        .collapse(Vpn::new(0), Frame::new(512), Rights::READ_WRITE, &mut world.guest_frames)
        .unwrap();
    world.map_guest(512 + 1, PageSize::Base, 99, Rights::READ_WRITE);
    assert_eq!(world.access(4096, 8, false).unwrap(), world.expected(4096).unwrap());
}

#[test]
fn without_flags_in_the_second_stage_only_real_writes_of_tables_need_permission() {
    let model = CpuModel::preset("i7-920").unwrap();
    let world = World::new(&model, Misaligned::Splinter, true);
    let mut world = mapped(world, PageSize::Base, PageSize::Base);
    let (_, table, at) = path(&world, GVA)[3];
    let gpa = world.guest.entry_addr(table, at);
    let set = |world: &mut World, rights| {
        world.second.as_mut().unwrap().update(gpa, |page| (page.frame, rights));
    };
    set(&mut world, Rights::READ);
    let fault = Fault::SecondStage { gpa, store: true, during_walk: true };
    assert_eq!(world.access(GVA, 8, false), Err(fault), "the accessed flag has to be written");
    // The violation itself invalidates what forbade: no flush is needed to allow more.
    set(&mut world, Rights::READ_WRITE);
    world.access(GVA, 8, false).unwrap();
    set(&mut world, Rights::READ);
    world.machine.flush_second_stage(world.vm);
    world.access(GVA, 8, false).unwrap();
    assert_eq!(world.access(GVA, 8, true), Err(fault), "the dirty flag has to be written");
    assert!(!world.guest.mapping(Gva::new(GVA)).unwrap().dirty);
    assert_eq!(counters(&world).second_stage_flag_writes, 0);
    check_sums(&world.machine);
}

#[test]
fn a_store_to_a_read_only_page_faults_and_walks_anew_once_it_is_allowed() {
    let mut world = World::new(&default_model(), Misaligned::Splinter, true);
    world.map_guest(GVA >> 12, PageSize::Base, 0, Rights::READ);
    world.map_second(0, PageSize::Base, 9, Rights::READ);
    world.access(GVA, 8, false).unwrap();
    let fault = Fault::Guest { gva: Gva::new(GVA), store: true, present: true };
    assert_eq!(world.access(GVA, 8, true), Err(fault));
    world.guest.update(Gva::new(GVA), |page| (page.frame, Rights::READ_WRITE));
    // No invalidation: an entry that forbids is not trusted.
    let gpa = world.guest.translate(Gva::new(GVA)).unwrap();
    let fault = Fault::SecondStage { gpa, store: true, during_walk: false };
    assert_eq!(world.access(GVA, 8, true), Err(fault));
    let second = world.second.as_mut().unwrap();
    second.update(gpa, |page| (page.frame, Rights::READ_WRITE));
    world.access(GVA, 8, true).unwrap();
    assert_eq!((counters(&world).loads, counters(&world).stores), (1, 1));
    assert_eq!(counters(&world).faulted_walks, 2);
    check_sums(&world.machine);
}

#[test]
fn an_access_across_pages_needs_both() {
    let world = World::new(&default_model(), Misaligned::Splinter, true);
    let mut world = mapped(world, PageSize::Base, PageSize::Base);
    let gva = GVA + 4092;
    let fault = Fault::Guest { gva: Gva::new(GVA + 4096), store: true, present: false };
    assert_eq!(world.access(gva, 8, true), Err(fault));
    assert_eq!((counters(&world).accesses, counters(&world).data.total()), (0, 0));
    world.map_guest((GVA >> 12) + 1, PageSize::Base, 5, Rights::READ_WRITE);
    world.map_second(5, PageSize::Base, 300, Rights::READ_WRITE);
    world.access(gva, 8, true).unwrap();
    let seen = counters(&world);
    assert_eq!((seen.accesses, seen.page_crossings, seen.l1_misses), (1, 1, 2));
    assert_eq!(seen.data.total(), 2);
    check_sums(&world.machine);
}

#[test]
fn an_access_across_lines_reads_both() {
    let world = World::new(&default_model(), Misaligned::Splinter, true);
    let mut world = mapped(world, PageSize::Base, PageSize::Base);
    world.access(GVA + 60, 8, false).unwrap();
    assert_eq!(counters(&world).data.memory, 2);
    world.access(GVA + 64, 1, false).unwrap();
    assert_eq!((counters(&world).data.l1, counters(&world).data.total()), (1, 3));
}

#[test]
fn an_access_across_pages_reads_the_lines_of_its_bytes_on_each() {
    let mut world = World::new(&default_model(), Misaligned::Splinter, true);
    // The second page lies elsewhere in the host than behind the first.
    for (page, host) in [(0, 300), (1, 500)] {
        world.map_guest((GVA >> 12) + page, PageSize::Base, page, Rights::READ_WRITE);
        world.map_second(page, PageSize::Base, host, Rights::READ_WRITE);
    }
    // 90 bytes in the last two lines of the first page, 10 in the first line of the second.
    world.access(GVA + 4096 - 90, 100, false).unwrap();
    assert_eq!(counters(&world).data.total(), 3);
    for (offset, in_l1) in [(4096 - 128, 1), (4096 - 64, 2), (4096, 3), (4096 + 64, 3)] {
        world.access(GVA + offset, 1, false).unwrap();
        assert_eq!(counters(&world).data.l1, in_l1, "the line at {offset}");
    }
}

#[test]
fn cycles_are_the_sum_of_what_the_constants_say() {
    let mut model = default_model();
    model.core.walk_overlap = 0.25;
    let world = World::new(&model, Misaligned::Splinter, true);
    let mut world = mapped(world, PageSize::Base, PageSize::Base);
    world.access(GVA, 8, false).unwrap();
    world.access(GVA + 4096, 8, false).expect_err("the guest maps one page");
    world.machine.retire(world.cpu, 1000);
    for (kind, cycles) in Charge::ALL.into_iter().zip([10, 20, 30, 40]) {
        world.machine.charge(world.cpu, kind, cycles);
    }
    let parts = world.machine.breakdown(world.cpu);
    assert_eq!(parts.base, 1000.0 * model.core.base_cpi);
    let memory = f64::from(model.cache.memory_cycles);
    assert_eq!(parts.data, memory * (1.0 - model.core.data_overlap));
    assert_eq!(parts.walk, counters(&world).walk_cycles as f64 * 0.75);
    assert_eq!(parts.faulted_walk, counters(&world).faulted_walk_cycles as f64 * 0.75);
    assert!(parts.walk > 0.0 && parts.faulted_walk > 0.0);
    assert_eq!(counters(&world).charged(Charge::Background), 30);
    assert_eq!(parts.charged, [10.0, 20.0, 30.0, 40.0]);
    let cycles = world.machine.cycles(world.cpu);
    assert_eq!(cycles, parts.total() as u64);
    assert_eq!(world.machine.total_breakdown(), parts);

    world.machine.reset_counters();
    assert_eq!(world.machine.cycles(world.cpu), 0);
    assert_eq!(*counters(&world), HardwareCounters::default());
    assert_eq!(world.machine.clock(world.cpu), cycles);
    world.access(GVA, 8, false).unwrap();
    assert_eq!(counters(&world).l1_misses, 0, "the TLBs are as they were");
    assert_eq!(counters(&world).data.l1, 1, "and so are the caches");
}

/// Where memory costs nothing, all that walks cost is what their caches cost that hit, and the second stage has
/// its part of it.
#[test]
fn a_hit_of_a_walk_cache_costs_cycles_of_the_stage_it_is_of() {
    let mut model = CpuModel::preset("zen3").unwrap();
    (model.walk.pwc_cycles, model.walk.ntlb_cycles) = (3, 7);
    let cache = &mut model.cache;
    for latency in [&mut cache.l1d.cycles, &mut cache.l2.cycles, &mut cache.llc.cycles] {
        *latency = 0;
    }
    cache.memory_cycles = 0;
    let world = after_many_walks(&model);
    let seen = counters(&world);
    assert!(seen.pwc.hits > 0 && seen.npwc.hits > 0 && seen.ntlb.hits > 0);
    assert_eq!(seen.ept_walk_cycles, 3 * seen.npwc.hits + 7 * seen.ntlb.hits);
    assert_eq!(seen.walk_cycles, seen.ept_walk_cycles + 3 * seen.pwc.hits);
}

#[test]
fn entries_say_present_as_the_machine_reads_them() {
    let world = World::new(&default_model(), Misaligned::Splinter, false);
    let mut world = mapped(world, PageSize::Huge, PageSize::Huge);
    world.access(GVA, 8, true).unwrap();
    let (_, table, at) = path_to_huge(&world);
    let bits = world.guest.entry(table, at);
    let used = <X86 as strata_paging::Format>::ACCESSED | <X86 as strata_paging::Format>::DIRTY;
    assert_eq!(bits & used, used);
}

fn path_to_huge(world: &World) -> (u8, TableId, usize) {
    let mut table = TableId::ROOT;
    for level in [4, 3] {
        table = world.guest.child(table, index(GVA, level));
    }
    (2, table, index(GVA, 2))
}
