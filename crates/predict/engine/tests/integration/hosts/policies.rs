//! Guests of one guest hypervisor with policies of their own.

use super::world::{Vm, common, host, hypervisor, of, preset, run, together, vm};
use proptest::prelude::*;
use strata_engine::StackKind::Vm as OneLayer;
use strata_engine::{HostSetup, LayerFmfi, Setup};

/// Large enough for huge pages, long enough for background work.
const WORKLOAD: &str = "random:size=48MiB,accesses=300k";

/// A guest hypervisor and a guest of each of these policies in it, called by its policy.
fn guests_in(hypervisors: &str, guests: &[&str]) -> Vec<Vm> {
    let guests = guests.iter().map(|policy| vm(policy, OneLayer, policy, WORKLOAD).within("l1"));
    std::iter::once(hypervisor("l1", hypervisors, None)).chain(guests).collect()
}

/// Memory in pieces, so that nothing is aligned by itself, with time passing fast enough for scans.
fn scattered() -> Setup {
    let overrides = vec![("time.scale".to_owned(), "2000".to_owned())];
    Setup { cpu: preset(), fragmentation: LayerFmfi::everywhere(0.9), overrides, ..common() }
}

/// xGemini needs the guest (IV.B) and the host (IV.C): the host makes pseudo huge pages of the memory of a
/// guest that takes part, and leaves that of one that does not to the guest hypervisor and to itself.
#[test]
fn a_guest_beside_one_with_xgemini_may_be_stock() {
    let mut common = scattered();
    // Then no huge page is well aligned but for the host's doing.
    common.overrides.push(("xgemini.l1_thp".to_owned(), "false".to_owned()));
    let outcome = together(common, None, &guests_in("xgemini", &["xgemini", "thp"]));
    let [with, without] = ["xgemini", "thp"].map(|policy| &of(&outcome, policy).run.alignment);
    assert!(with.pseudo_huge > 0 && with.well_aligned > with.guest_huge / 2, "{with:?}");
    assert!(without.guest_huge > 0, "{without:?}");
    assert_eq!((without.pseudo_huge, without.well_aligned), (0, 0), "{without:?}");
}

#[test]
fn a_guest_beside_one_with_gemini_or_huge_pages_may_have_base_pages() {
    for policy in ["thp", "gemini"] {
        let outcome = together(common(), None, &guests_in(policy, &[policy, "base"]));
        assert!(of(&outcome, policy).run.alignment.guest_huge > 0, "{policy}");
        assert_eq!(of(&outcome, "base").run.alignment.guest_huge, 0, "{policy}");
    }
}

/// The host colours the memory of guests that wish it, and only theirs.
#[test]
fn colours_are_kept_for_the_guests_that_wish_it() {
    let common = Setup { cpu: preset(), ..common() };
    let outcome = together(common, None, &guests_in("xplace", &["xplace", "base"]));
    let placed = |policy: &str| {
        let counters = &of(&outcome, policy).run.counters;
        counters.get("strata.coloured_pages").copied().zip(counters.get("strata.colour_violations"))
    };
    let (pages, violations) = placed("xplace").expect("its colours are counted");
    assert!(pages > 10_000 && *violations == 0, "{pages} {violations}");
    assert_eq!(placed("base"), None);
}

/// What works across layers has to be in all of them.
#[test]
fn a_policy_across_layers_cannot_do_without_the_guest_hypervisors() {
    let refusal = |hypervisors: &str, guest: &str| {
        let vms = guests_in(hypervisors, &[guest]).into_iter().map(|vm| vm.setup).collect();
        HostSetup::shared(common(), None, vms).expect_err("it cannot be").to_string()
    };
    for (hypervisors, guest) in [("thp", "gemini"), ("gemini", "xgemini"), ("base", "xplace")] {
        let why = refusal(hypervisors, guest);
        let both = format!("give 'l1' the policy {guest} too, or '{guest}' one of base, thp");
        assert!(why.contains(&both), "{why}");
    }
    let chain = [hypervisor("l1", "thp", None), hypervisor("l2", "base", Some("l1"))];
    let vms = chain.into_iter().chain([vm("guest", OneLayer, "base", WORKLOAD).within("l2")]);
    let vms = vms.map(|vm| vm.setup).collect();
    let why = HostSetup::shared(common(), None, vms).expect_err("it cannot be").to_string();
    assert!(why.contains("one policy governs all guest hypervisors"), "{why}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// Guests come and go in any mixture, and their order changes nothing.
    #[test]
    fn mixtures_run_in_any_order(
        hypervisors in prop::sample::select(vec![
            "base", "thp", "gemini", "xgemini", "coplace", "xplace", "xgemini+xplace",
        ]),
        own in prop::sample::subsequence(vec![0usize, 1, 2, 3], 1..4),
        plain in prop::sample::select(vec!["base", "thp"]),
        repeating in prop::sample::subsequence(vec![0usize, 1, 2, 3], 0..4),
    ) {
        let names = ["a", "b", "c", "d"];
        let mut vms = vec![hypervisor("l1", hypervisors, None)];
        for (index, name) in names.into_iter().enumerate() {
            let policy = if own.contains(&index) { hypervisors } else { plain };
            let workload = format!("churn:size=8MiB,accesses={}k", 20 * (index + 1));
            vms.push(vm(name, OneLayer, policy, &workload).within("l1").starting(index as f64 * 1e-3));
        }
        for index in repeating {
            vms[1 + index].setup.repeat = true;
        }
        let reversed: Vec<Vm> = vms.iter().rev().cloned().collect();
        let hosts = [host(scattered(), None, &vms), host(scattered(), None, &reversed)];
        let outcomes = run(&hosts, &vms, 1).unwrap();
        for name in names {
            prop_assert_eq!(&of(&outcomes[0], name).run, &of(&outcomes[1], name).run);
        }
    }
}
