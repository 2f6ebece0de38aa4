//! `docs/published.md` says what its program prints, and the order of the systems is that of the
//! papers wherever the document says so.

#[path = "../examples/published/conditions.rs"]
mod conditions;
#[path = "../examples/published/figures.rs"]
mod figures;
#[path = "../examples/published/tables.rs"]
mod tables;

use strata_engine::StackKind;
use strata_hardware::Misaligned;

const DOCUMENT: &str = include_str!("../../../../docs/published.md");

const REMEDY: &str = "docs/published.md is out of date or the model has changed; look at the \
                      difference, then make it anew as its head says";

fn stand_in(name: &str) -> &'static conditions::StandIn {
    conditions::STAND_INS.iter().find(|known| known.name == name).expect("a stand-in")
}

#[test]
fn a_small_set_gains_from_aligned_huge_pages_alone() {
    let (row, [_, guest, aligned]) = tables::microbenchmark_row(4, Misaligned::NoFill);
    assert!(DOCUMENT.contains(&row), "{REMEDY}: {row}");
    assert!(guest < 1.0 && 1.0 < aligned, "{row}");
    let (row, [host, guest, aligned]) = tables::microbenchmark_row(4, Misaligned::Splinter);
    assert!(DOCUMENT.contains(&row), "{REMEDY}: {row}");
    assert!(host <= 1.001 && guest <= 1.001 && 1.0 < aligned, "{row}");
}

#[test]
fn a_large_set_gains_from_misaligned_huge_pages_and_far_more_from_aligned_ones() {
    for misaligned in [Misaligned::NoFill, Misaligned::Splinter] {
        let (row, [host, guest, aligned]) = tables::microbenchmark_row(24, misaligned);
        assert!(DOCUMENT.contains(&row), "{REMEDY}: {row}");
        let best = host.max(guest);
        assert!(host > 1.0 && guest > 1.0 && aligned - 1.0 > 1.5 * (best - 1.0), "{row}");
    }
}

#[test]
fn linux_aligns_few_huge_pages_where_everything_was_backed_before() {
    let (row, [thp, gemini]) = tables::aligned_rate_row(stand_in("random, 24 MiB"));
    assert!(DOCUMENT.contains(&row), "{REMEDY}: {row}");
    assert!(thp < 0.33 && thp < gemini, "{row}");
}

#[test]
fn little_is_left_to_align_with_where_the_fragmenters_memory_stays() {
    let (row, [dual, xgemini, ..]) =
        tables::nested_row(stand_in("growing heap, 256 MiB"), conditions::Memory::Fragmented);
    assert!(DOCUMENT.contains(&row), "{REMEDY}: {row}");
    assert!((0.9..1.0).contains(&dual) && (0.8..dual).contains(&xgemini), "{row}");
}

#[test]
fn without_huge_pages_in_the_guest_hypervisor_only_xgemini_aligns() {
    let (row, [dual, xgemini, ..]) = tables::exhausted_l1_row(stand_in("zipf 0.99, 256 MiB"));
    assert!(DOCUMENT.contains(&row), "{REMEDY}: {row}");
    assert!(dual > 0.95 && xgemini < 0.8, "{row}");
}

#[test]
fn fewer_misses_are_shorter_latencies() {
    let silo = stand_in("random, 24 MiB");
    let (row, [thp, gemini, thp_p99, gemini_p99]) =
        tables::latency_row(silo, StackKind::Vm, conditions::Memory::Fragmented);
    assert!(DOCUMENT.contains(&row), "{REMEDY}: {row}");
    assert!(gemini < thp && thp < 0.5 && gemini_p99 < thp_p99 && thp_p99 < 0.5, "{row}");
}

/// Everything in the document; minutes, so only in a release build.
#[test]
#[ignore = "takes minutes; run it in release"]
fn the_document_is_what_the_program_prints() {
    let now = tables::document();
    let differs = now.lines().zip(DOCUMENT.lines()).find(|(now, then)| now != then);
    assert!(now == DOCUMENT, "{REMEDY}: {differs:?}");
}
