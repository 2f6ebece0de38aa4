//! VMs that share nothing they could want are as if alone, and no order matters.

use super::world::{MIB, Vm, common, host, of, own, preset, run, single, together, vm};
use proptest::prelude::*;
use strata_engine::StackKind::{Deeper, Nested, Vm as OneLayer};
use strata_engine::{GuestOutcome, HostSetup, LayerFmfi, Setup, StackKind};
use strata_stream::Source;
use strata_workloads::Generator;

const WORKLOADS: [&str; 5] = [
    "random:size=24MiB,accesses=30k",
    "zipf:size=16MiB,accesses=40k",
    "sequential:size=32MiB,accesses=50k",
    "churn:size=16MiB,accesses=30k",
    "heap:size=24MiB,accesses=30k",
];

/// Those that place by colour need a cache, which the first property does without.
const POLICIES: [&str; 5] = ["base", "thp", "gemini", "xgemini", "aligned"];

fn a_vm(name: &'static str) -> impl Strategy<Value = Vm> {
    let stacks = prop_oneof![Just(OneLayer), Just(Nested), Just(Deeper(4))];
    let policies = prop::sample::select(POLICIES.to_vec());
    (stacks, policies, prop::sample::select(WORKLOADS.to_vec()), 0..3u32).prop_map(
        move |(stack, policy, workload, start): (StackKind, &str, &str, u32)| {
            vm(name, stack, policy, workload).starting(f64::from(start) * 1e-4)
        },
    )
}

fn same(one: &GuestOutcome, other: &GuestOutcome) {
    let [left, right] = [one, other].map(|guest| format!("{:#?}", own(&guest.run)));
    let different = left.lines().zip(right.lines()).find(|(left, right)| left != right);
    assert!(left == right, "{}: {different:?}", one.vm);
    assert_eq!((one.rounds, one.first_seconds), (other.rounds, other.first_seconds), "{}", one.vm);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Cores of their own, memory for all, no caches: each VM's result is that of the VM alone.
    #[test]
    fn vms_with_enough_of_everything_are_as_if_alone(vms in (a_vm("a"), a_vm("b"), a_vm("c"))) {
        let vms = [vms.0, vms.1, vms.2];
        let shared = host(common(), None, &vms);
        let outcome = &run(std::slice::from_ref(&shared), &vms, 1).unwrap()[0];
        for Vm { setup, .. } in &vms {
            let alone = run(&[shared.alone(&setup.name)], &vms, 1).unwrap();
            same(of(outcome, &setup.name), of(&alone[0], &setup.name));
        }
    }

    /// With caches, fragmented memory, balloons, cores in turn and VMs that repeat as well.
    #[test]
    fn neither_the_order_of_vms_nor_the_number_of_hosts_at_once_matters(
        vms in (a_vm("a"), a_vm("b"), a_vm("c")),
        one_core in any::<bool>(),
        repeating in prop::sample::subsequence(vec![0usize, 1, 2], 0..3),
        ballooned in prop::sample::subsequence(vec![0usize, 1, 2], 0..3),
    ) {
        let common = Setup {
            cpu: preset(),
            fragmentation: LayerFmfi::everywhere(0.8),
            overrides: vec![("balloon.period".into(), "0.001".into())],
            ..common()
        };
        let mut vms = [vms.0, vms.1, vms.2];
        for index in repeating {
            vms[index].setup.repeat = true;
        }
        for index in ballooned {
            vms[index].setup.balloon = Some(16 * MIB);
        }
        if one_core {
            vms = vms.map(|vm| vm.on(1));
        }
        let reversed: Vec<_> = vms.iter().rev().cloned().collect();
        let hosts =
            [host(common.clone(), None, &vms), host(common, None, &reversed)];
        let one_by_one = run(&hosts, &vms, 1).unwrap();
        let at_once = run(&hosts, &vms, 2).unwrap();
        for outcome in one_by_one.iter().chain(&at_once) {
            prop_assert_eq!(&outcome.host, &one_by_one[0].host);
            for vm in &vms {
                let (one, other) = (of(outcome, &vm.setup.name), of(&one_by_one[0], &vm.setup.name));
                prop_assert_eq!(&one.run, &other.run);
            }
        }
    }
}

/// The twin of the first property: where they do share something, it shows.
#[test]
fn vms_that_share_a_last_level_cache_slow_each_other() {
    let common = Setup { cpu: preset(), ..common() };
    let workload = "random:size=16MiB,accesses=1M";
    let vms = ["a", "b", "c"].map(|name| vm(name, OneLayer, "thp", workload));
    let outcome = together(common.clone(), None, &vms);
    let alone = run(&[host(common, None, &vms).alone("a")], &vms, 1).unwrap();
    let seconds = |guest: &GuestOutcome| guest.first_seconds;
    let slowdown = seconds(of(&outcome, "a")) / seconds(of(&alone[0], "a"));
    assert!(slowdown > 1.1, "{slowdown}");
    assert_eq!(of(&outcome, "a").run.faults, of(&alone[0], "a").run.faults);
}

/// A VM alone on a host is the machine that has no other, as the path for one machine runs it: with caches,
/// colours and fragmented memory, under every policy.
#[test]
fn a_host_with_one_vm_is_one_machine() {
    let workload = WORKLOADS[4];
    let info = Generator::parse(workload).unwrap().info();
    let policies = POLICIES.iter().chain(&["coplace", "xplace"]);
    for (policy, stack) in policies.flat_map(|policy| StackKind::ALL.map(|stack| (policy, stack))) {
        let setup = Setup {
            stack,
            policy: (*policy).to_owned(),
            cpu: preset(),
            fragmentation: LayerFmfi::everywhere(0.8),
            ..common()
        };
        let host = HostSetup::single(&setup, &info);
        let on_host = Vm { setup: host.vms[0].clone(), workload: workload.to_owned() };
        let outcome = run(&[host], &[on_host], 1).unwrap();
        let mut expected = single(&setup, workload);
        let found = &outcome[0].guests[0].run;
        expected.samples.clone_from(&found.samples);
        assert!(*found == expected, "{policy} {stack}: {found:#?}, not {expected:#?}");
    }
}
