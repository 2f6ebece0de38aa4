//! Runs of accesses against single accesses, and one run against the same again.

use crate::common::{ASID, World, check_sums, models};
use proptest::prelude::*;
use strata_addr::{Gva, PageSize};
use strata_hardware::{CpuModel, Fault, Machine, Misaligned, Request, RunFault, Tables};
use strata_paging::Rights;
use strata_stream::{Access, AccessKind};

/// 64 pages in each of 16 regions: by region, every combination of base and huge pages; one
/// region in 16 is not mapped at first.
fn world(model: &CpuModel, nested: bool) -> World {
    let mut world = World::new(model, Misaligned::Splinter, nested);
    for region in 0..15u64 {
        let first = region * 512;
        let pages = first..first + 64;
        if region % 4 >= 2 {
            world.map_guest(first, PageSize::Huge, first, Rights::READ_WRITE);
        } else {
            pages.clone().for_each(|p| world.map_guest(p, PageSize::Base, p, Rights::READ_WRITE));
        }
        if !nested {
            continue;
        }
        if region % 2 == 1 {
            world.map_second(first, PageSize::Huge, first, Rights::READ_WRITE);
        } else {
            pages.for_each(|p| world.map_second(p, PageSize::Base, p, Rights::READ_WRITE));
        }
    }
    world
}

fn access() -> impl Strategy<Value = Access> {
    let region = prop_oneof![40 => 0u64..15, 1 => Just(15)];
    (region, 0u64..63, 0u64..4096, 0u32..8, any::<bool>()).prop_map(
        |(region, page, offset, log2, store)| {
            let kind = if store { AccessKind::Store } else { AccessKind::Load };
            let gva = Gva::new((region * 512 + page) * 4096 + offset);
            Access::new(kind, gva, 1 << log2)
        },
    )
}

/// Maps what a fault asks for.
fn handle(world: &mut World, fault: Fault) {
    match fault {
        Fault::Guest { gva, .. } => {
            let page = gva.page().get();
            world.map_guest(page, PageSize::Base, page, Rights::READ_WRITE);
        }
        Fault::SecondStage { gpa, .. } => {
            let page = gpa.page().get();
            world.map_second(page, PageSize::Base, page, Rights::READ_WRITE);
        }
    }
}

fn one_by_one(world: &mut World, accesses: &[Access]) {
    for access in accesses {
        let (gva, bytes, store) = (access.addr(), access.size(), access.is_store());
        let request = Request { asid: ASID, gva, bytes, store };
        loop {
            let mut tables =
                Tables { vm: world.vm, guest: &mut world.guest, second: world.second.as_mut() };
            match world.machine.access(world.cpu, request, &mut tables) {
                Ok(()) => break,
                Err(fault) => handle(world, fault),
            }
        }
    }
}

fn in_runs(world: &mut World, accesses: &[Access], length: usize) {
    for mut run in accesses.chunks(length) {
        loop {
            let mut tables =
                Tables { vm: world.vm, guest: &mut world.guest, second: world.second.as_mut() };
            match world.machine.access_run(world.cpu, ASID, run, &mut tables) {
                Ok(()) => break,
                Err(RunFault { completed, fault }) => {
                    run = &run[completed..];
                    handle(world, fault);
                }
            }
        }
    }
}

/// Everything a machine tells.
fn told(machine: &Machine) -> String {
    format!("{:?} {:?}", machine.totals(), machine.total_breakdown())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_run_is_the_same_as_its_accesses_one_by_one(
        accesses in prop::collection::vec(access(), 1..1500),
        length in 1usize..300,
        model in 0usize..8,
        nested: bool,
    ) {
        let model = &models()[model];
        let mut single = world(model, nested);
        let mut runs = world(model, nested);
        one_by_one(&mut single, &accesses);
        in_runs(&mut runs, &accesses, length);
        prop_assert_eq!(told(&single.machine), told(&runs.machine));
        prop_assert_eq!(runs.machine.totals().accesses, accesses.len() as u64);
        check_sums(&runs.machine);
    }
}

#[test]
fn the_same_accesses_give_the_same_numbers() {
    let model = CpuModel::preset(CpuModel::DEFAULT).unwrap();
    let accesses: Vec<_> = (0..20_000u64)
        .map(|i| Access::load(Gva::new((i * i * 4159 % (15 << 21)) & !(448 << 12)), 8))
        .collect();
    let run = || {
        let mut world = world(&model, true);
        in_runs(&mut world, &accesses, 256);
        told(&world.machine)
    };
    assert_eq!(run(), run());
}
