//! The host's memory: what an ended VM gives back, who is killed when there is none left, and what
//! all of it takes of this computer.

use super::world::{MIB, common, host, of, run, together, vm};
use strata_engine::StackKind::{Nested, Vm as OneLayer};
use strata_engine::{HostOutcome, HostSetup, LayerFmfi, Setup};

/// Bytes of the host that hold one of the VMs below at a time, and never both.
const HOST: u64 = 300 * MIB;

#[test]
fn a_vm_that_ends_gives_its_memory_back() {
    let filling = "sequential:size=160MiB,stride=4KiB,passes=4";
    let outcome = |start| {
        let vms = [
            vm("first", OneLayer, "base", filling),
            vm("second", OneLayer, "base", filling).starting(start),
            // Somebody has to be there all the time.
            vm("small", OneLayer, "base", "random:size=4MiB,accesses=100k").repeating(),
        ];
        together(common(), Some(HOST), &vms)
    };
    let ended =
        |outcome: &HostOutcome| ["first", "second"].map(|name| of(outcome, name).run.out_of_memory);
    let first = of(&outcome(0.0), "first").run.elapsed_seconds;
    let in_turn = outcome(10.0 * first + 0.5);
    assert_eq!(ended(&in_turn), [false, false]);
    let together = outcome(0.0);
    assert!(ended(&together).contains(&true), "both do not fit");
}

#[test]
fn a_host_without_memory_kills_its_largest_vm_and_the_others_go_on() {
    let vms = [
        vm("large", OneLayer, "base", "sequential:size=200MiB,stride=4KiB,passes=20"),
        vm("small", Nested, "thp", "random:size=16MiB,accesses=100k"),
        vm("hungry", OneLayer, "base", "sequential:size=120MiB,stride=4KiB,passes=60"),
    ];
    let outcome = together(common(), Some(HOST), &vms);
    let large = &of(&outcome, "large").run;
    assert!(large.out_of_memory && large.partial);
    for name in ["small", "hungry"] {
        let other = of(&outcome, name);
        assert!(!other.run.out_of_memory, "{name}");
        assert_eq!(other.rounds, 1, "{name}");
    }
}

/// A tree needs what its parts need.
#[test]
fn the_estimate_of_a_host_is_the_sum_of_its_vms() {
    let one = vm("a", Nested, "xgemini", "random:size=64MiB,accesses=10k");
    let two = vm("b", OneLayer, "thp", "random:size=128MiB,accesses=10k");
    let both = host(common(), None, &[one, two]);
    let need = |host: &HostSetup| host.need().expect("it can be built");
    let (a, b) = (need(&both.alone("a")), need(&both.alone("b")));
    // What both alone have besides: the host's own memory and CPU.
    let besides = 2 * MIB;
    let sum = a.likely + b.likely;
    let whole = need(&both).likely;
    assert!(whole <= sum && whole + besides + sum / 50 >= sum, "{whole} {sum}");
    assert!(need(&both).least <= whole);
}

/// Of what the host has in huge blocks, a neighbour that came first leaves less.
#[test]
fn a_memory_hungry_neighbour_takes_the_huge_pages() {
    let quiet = vm("quiet", OneLayer, "thp", "random:size=64MiB,accesses=200k").starting(0.05);
    let hungry = vm("hungry", OneLayer, "thp", "sequential:size=160MiB,stride=4KiB,passes=50");
    let common =
        Setup { fragmentation: LayerFmfi { host: 0.7, ..LayerFmfi::default() }, ..common() };
    let vms = [quiet, hungry];
    let shared = host(common, Some(640 * MIB), &vms);
    let beside = run(std::slice::from_ref(&shared), &vms, 1).unwrap();
    let alone = run(&[shared.alone("quiet")], &vms, 1).unwrap();
    let aligned = |outcome: &HostOutcome| of(outcome, "quiet").run.alignment.well_aligned;
    let (beside, alone) = (aligned(&beside[0]), aligned(&alone[0]));
    assert!(beside < alone, "{beside} {alone}");
}

/// The host takes memory of those VMs that are told so, and the frames are there for the others.
#[test]
fn each_vm_has_a_balloon_of_its_own_size() {
    let mut vms = ["none", "all"]
        .map(|name| vm(name, OneLayer, "base", "sequential:size=64MiB,stride=4KiB,passes=4"));
    vms[0].setup.balloon = Some(0);
    let common = Setup { overrides: vec![("balloon.size".into(), "8".into())], ..common() };
    let outcome = together(common.clone(), None, &vms);
    let taken = |vm| of(&outcome, vm).run.counters["strata.balloon_taken"];
    assert_eq!(taken("none"), 0);
    assert!(taken("all") > 0 && taken("all").is_multiple_of(2048), "{}", taken("all"));
    // A hypervisor's memory is its guests'.
    let mut inner = vm("inner", OneLayer, "base", "random:size=8MiB,accesses=1k");
    inner.setup.within = Some("outer".to_owned());
    let mut outer = inner.clone();
    outer.setup.name = "outer".to_owned();
    (outer.setup.within, outer.setup.workload, outer.setup.balloon) = (None, None, Some(MIB));
    let setups = vec![inner.setup, outer.setup];
    let refused = HostSetup::shared(common, None, setups).unwrap_err().to_string();
    assert!(refused.contains("'outer'") && refused.contains("balloon"), "{refused}");
}
