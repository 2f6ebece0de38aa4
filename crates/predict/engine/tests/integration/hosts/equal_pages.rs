//! Two VMs run the same program, and the host merges what is equal.

use super::world::{common, of, preset, together, vm};
use strata_engine::StackKind::{self, Nested, Vm as OneLayer};
use strata_engine::{HostOutcome, Setup};

/// Pages of the program.
const PAGES: u64 = 4096;
const SHARE: f64 = 0.3;

fn outcome(
    stack: StackKind,
    policy: &str,
    stores: &str,
    overrides: &[(&str, &str)],
) -> HostOutcome {
    let workload = format!("random:size=16MiB,accesses=400k,stores={stores}");
    let vms = ["one", "two"].map(|name| vm(name, stack, policy, &workload));
    let ksm = [
        ("ksm.run", "true"),
        ("ksm.pages_to_scan", "2000"),
        ("ksm.sleep", "0.0005"),
        ("ksm.duplicates", "0.3"),
    ];
    let cpu = if policy == "xplace" { preset() } else { common().cpu };
    let set = ksm.iter().chain(overrides).map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
    together(Setup { cpu, overrides: set.collect(), ..common() }, None, &vms)
}

fn count(outcome: &HostOutcome, name: &str) -> u64 {
    let of = |vm| of(outcome, vm).run.counters[&format!("strata.{name}")];
    of("one") + of("two")
}

#[test]
fn pages_that_are_equal_and_only_read_are_merged_once() {
    for (stack, policy) in
        [(OneLayer, "base"), (OneLayer, "thp"), (Nested, "base"), (Nested, "xplace")]
    {
        let outcome = outcome(stack, policy, "0", &[]);
        let merged = count(&outcome, "ksm_merged");
        // Binomial, five standard deviations.
        let (mean, deviation) =
            (PAGES as f64 * SHARE, (PAGES as f64 * SHARE * (1.0 - SHARE)).sqrt());
        assert!((merged as f64 - mean).abs() < 5.0 * deviation, "{policy}: {merged} of {mean}");
        assert_eq!(count(&outcome, "ksm_unmerged"), 0, "{policy}");
        if policy == "xplace" {
            assert_eq!(count(&outcome, "colour_violations"), 0);
        }
    }
}

#[test]
fn a_store_parts_what_was_merged_for_good() {
    let outcome = outcome(Nested, "base", "0.01", &[]);
    let (merged, parted) = (count(&outcome, "ksm_merged"), count(&outcome, "ksm_unmerged"));
    assert!(parted > 100 && merged >= parted / 2, "{merged}, {parted}");
}

/// With a table of its own each VM has the same page in another colour.
#[test]
fn pages_of_other_colours_are_not_merged() {
    let alike = outcome(Nested, "xplace", "0", &[]);
    let apart = outcome(Nested, "xplace", "0", &[("colours.table_seed", "5")]);
    assert_eq!(count(&alike, "ksm_kept_apart"), 0);
    assert!(count(&apart, "ksm_kept_apart") > 500);
    assert!(count(&apart, "ksm_merged") < count(&alike, "ksm_merged") / 10);
    assert_eq!(count(&apart, "colour_violations"), 0);
}

#[test]
fn nothing_is_merged_unless_asked_for() {
    let outcome = outcome(OneLayer, "base", "0", &[("ksm.run", "false")]);
    assert_eq!(count(&outcome, "ksm_merged"), 0);
}
