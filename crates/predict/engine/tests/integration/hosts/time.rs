//! Streams are merged by simulated time, and cores are had in turn.

use super::world::{Vm, common, host, hypervisor, of, run, together, vm};
use strata_engine::StackKind::{Deeper, Nested, Vm as OneLayer};
use strata_engine::{HostError, Setup};

const FAST: &str = "sequential:size=4MiB,accesses=200k";
const SLOW: &str = "random:size=192MiB,accesses=200k";

/// Both run until the slow one has ended once; each access of it takes longer.
#[test]
fn a_slow_vm_makes_fewer_accesses_in_the_same_time() {
    let vms = [vm("fast", OneLayer, "base", FAST).repeating(), vm("slow", Nested, "base", SLOW)];
    let outcome = together(common(), None, &vms);
    let (fast, slow) = (of(&outcome, "fast"), of(&outcome, "slow"));
    assert_eq!((slow.run.accesses, slow.rounds), (200_000, 1));
    assert!(fast.rounds > 3, "{}", fast.rounds);
    assert!(fast.run.accesses > 3 * slow.run.accesses, "{}", fast.run.accesses);
    let apart = (fast.run.elapsed_seconds - slow.run.elapsed_seconds).abs();
    assert!(apart < 1e-3, "they end within one step of each other: {apart}");
}

/// A core is never idle while somebody wants it, and gives both the same.
#[test]
fn two_vms_on_one_core_have_half_of_it_each() {
    let pair = ["a", "b"].map(|name| vm(name, OneLayer, "base", SLOW).on(0));
    let outcome = together(common(), None, &pair);
    let alone = |name| run(&[host(common(), None, &pair).alone(name)], &pair, 1).unwrap();
    let seconds = ["a", "b"].map(|name| of(&alone(name)[0], name).first_seconds);
    let (first, last) = (of(&outcome, "a").first_seconds, of(&outcome, "b").first_seconds);
    let whole = seconds[0] + seconds[1];
    let close = |time: f64, expected: f64| (time / expected - 1.0).abs() < 0.1;
    // Translations that the other one displaced are filled again at each turn.
    assert!(close(last, whole), "{last} {whole}");
    assert!(first > 0.85 * whole - 0.003 && first <= last, "{first} {last} {whole}");
}

/// Nobody is passed over: of those that wait, the one that waited longest has the core next.
#[test]
fn three_vms_on_one_core_advance_alike() {
    let three = ["a", "b", "c"].map(|name| vm(name, OneLayer, "base", SLOW).on(0));
    let outcome = together(common(), None, &three);
    let ends = ["a", "b", "c"].map(|name| of(&outcome, name).first_seconds);
    let last = ends.iter().copied().fold(0.0, f64::max);
    for end in ends {
        assert!(end > last - 3.0 * 0.003 - 0.1 * last, "{ends:?}");
    }
}

#[test]
fn a_longer_time_slice_makes_fewer_changes() {
    let misses = |slice: &str| {
        let pair =
            ["a", "b"].map(|name| vm(name, OneLayer, "base", "random:size=4MiB,accesses=2M").on(0));
        let overrides = vec![("host.time_slice".to_owned(), slice.to_owned())];
        let outcome = together(Setup { overrides, ..common() }, None, &pair);
        of(&outcome, "a").run.tlb.l2_misses
    };
    // Entries are tagged with their VM; there are fewer than both want.
    let (short, long) = (misses("0.0001"), misses("0.01"));
    assert!(short > long + long / 10, "{short} {long}");
}

#[test]
fn a_vm_starts_when_it_is_told_to() {
    let late = |start: f64| {
        let vms = [
            vm("early", OneLayer, "base", SLOW),
            vm("late", OneLayer, "base", FAST).starting(start),
        ];
        run(&[host(common(), None, &vms)], &vms, 1)
    };
    let at_once = late(0.0).unwrap();
    let later = late(0.005).unwrap();
    // Its own time does not begin before it does.
    assert_eq!(of(&at_once[0], "late").first_seconds, of(&later[0], "late").first_seconds);
    assert!(later[0].host.elapsed_seconds >= at_once[0].host.elapsed_seconds);
    let error = late(1000.0).unwrap_err();
    assert!(matches!(error, HostError::Setup(_)), "{error}");
    let message = error.to_string();
    assert!(
        message.contains("'late' starts at 1000 s") && message.contains("earlier"),
        "{message}"
    );
}

/// Two guests of one guest hypervisor, which is the host's only VM.
#[test]
fn two_nested_vms_share_their_hypervisor() {
    let workload = "random:size=32MiB,accesses=50k";
    let inner = ["a", "b"].map(|name| vm(name, OneLayer, "thp", workload).within("l1"));
    let vms: Vec<Vm> = inner.into_iter().chain([hypervisor("l1", "thp", None)]).collect();
    let outcome = together(common(), None, &vms);
    let names: Vec<_> = outcome.guests.iter().map(|guest| guest.vm.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    for guest in &outcome.guests {
        assert_eq!((guest.run.accesses, guest.run.out_of_memory), (50_000, false));
        assert_eq!(guest.run.stack, Nested);
        assert!(guest.run.faults.l1.is_some());
    }
}

/// Hypervisors in hypervisors, with guests at three levels.
#[test]
fn guests_of_every_depth_share_a_host() {
    let guest = |name| vm(name, OneLayer, "xgemini", "random:size=32MiB,accesses=50k");
    let vms = [
        hypervisor("l1", "xgemini", None),
        hypervisor("l2", "xgemini", Some("l1")),
        guest("deep").within("l2"),
        guest("nested").within("l1"),
        guest("plain"),
        vm("own", Deeper(5), "thp", "random:size=32MiB,accesses=50k"),
    ];
    let outcome = together(common(), None, &vms);
    let layers = |name| -> Vec<&str> {
        of(&outcome, name).run.faults.present().map(|(layer, _)| layer).collect()
    };
    assert_eq!(layers("deep"), ["guest", "l2", "l1", "host"]);
    assert_eq!(layers("nested"), ["guest", "l1", "host"]);
    assert_eq!(layers("plain"), ["guest", "host"]);
    assert_eq!(layers("own"), ["guest", "l3", "l2", "l1", "host"]);
    for guest in &outcome.guests {
        let run = &guest.run;
        assert_eq!((run.accesses, run.out_of_memory), (50_000, false), "{}", guest.vm);
        assert_eq!(run.stack.layers(), run.faults.present().count(), "{}", guest.vm);
        assert_eq!(run.layers.len(), run.stack.layers());
        assert_eq!(run.exits_by_layer.len(), run.stack.layers() - 1);
        // The kernel below each VM handles what is handed on, but for the host, which hands on.
        let handlers: Vec<_> = run
            .bill
            .iter()
            .filter_map(|item| item.name.strip_prefix("exits: handled by "))
            .collect();
        let between: Vec<_> = run.faults.present().map(|(layer, _)| layer).skip(1).collect();
        assert_eq!(handlers, between[..between.len() - 1], "{}", guest.vm);
        // Where each kernel has huge pages enough, so has their composition.
        assert_eq!(run.alignment.well_aligned, 16, "{}", guest.vm);
    }
}
