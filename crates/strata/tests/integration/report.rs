//! The text report against checked-in files. `UPDATE_GOLDEN=1 cargo test -p strata --test integration report`
//! writes them anew.

use crate::common::{self, partial_report, report, result};
use std::collections::BTreeSet;
use std::path::Path;
use strata::report_text::render;
use strata::terms;
use strata::verdict::sentences;
use strata_engine::report::{Cycles, LastLevel};
use strata_engine::{Report, RunResult, StackKind};

fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, expected, "{name} differs");
}

fn plain(report: &Report) -> String {
    anstream::adapter::strip_str(&render(report, 80)).to_string()
}

#[test]
fn five_policies_nested() {
    golden("nested.txt", &plain(&report(&[StackKind::Nested])));
}

#[test]
fn three_stacks_are_three_sections_and_a_comparison() {
    golden("stacks.txt", &plain(&report(&StackKind::ALL)));
}

#[test]
fn a_last_level_cache_in_detail_has_a_section_of_its_own() {
    let mut report = report(&[StackKind::Vm]);
    report.runs.truncate(2);
    report.runs[0].llc = Some(common::last_level());
    let told = LastLevel { data_misses: None, walk_misses: None, ..common::last_level() };
    report.runs[1].llc = Some(LastLevel { lucky_hits: None, ..told });
    golden("last-level.txt", &plain(&report));
}

#[test]
fn estimates_have_a_mark_and_what_is_of_the_whole_stream_has_none() {
    let mut report = report(&[StackKind::Nested]);
    report.runs.truncate(2);
    let without = plain(&report);
    assert!(!without.contains('~'), "{without}");
    for run in &mut report.runs {
        let told = LastLevel { data_misses: None, walk_misses: None, ..common::last_level() };
        run.l4 = Some(LastLevel { lucky_hits: None, ..told });
        run.sampled = Some(Default::default());
    }
    let text = plain(&report);
    let marks = |text: &str, label: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(label));
        line.unwrap_or_else(|| panic!("{label}: {text}")).matches('~').count()
    };
    for label in [
        "L2 TLB misses per 1000",
        "references per walk",
        "references ",
        "share of them",
        "memory used / touched",
    ] {
        assert_eq!(marks(&text, label), 2, "{label}: {text}");
    }
    for label in ["type-1 misaligned", "promotions", "ept_violation", "memory used  "] {
        assert_eq!(marks(&text, label), 0, "{label}: {text}");
    }
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("figures with ~ are estimated from windows"), "{text}");
    assert!(words.contains("such as promotions, follows the estimated one"), "{text}");
    // Where something exits by the clock, exits do.
    let sampled = report.runs.iter_mut().filter_map(|run| run.sampled.as_mut());
    sampled.for_each(|sampled| sampled.estimated = vec!["exits".to_owned()]);
    let text = plain(&report);
    for label in ["ept_violation", "l1_ept_write", "l1_instructions", "all  "] {
        assert_eq!(marks(&text[text.find("\nexits").unwrap()..], label), 2, "{label}: {text}");
    }
}

#[test]
fn a_partial_result_says_so_and_explanations_follow() {
    golden("partial.txt", &plain(&partial_report()));
}

#[test]
fn every_row_of_the_table_has_a_term_and_a_name_of_its_own() {
    let mut report = report(&StackKind::ALL);
    report.runs.iter_mut().for_each(|run| run.llc = Some(common::last_level()));
    for reason in ["ept_violation", "l1_ept_violation", "l1_ept_write", "l1_invept", "reflected"] {
        report.runs.last_mut().unwrap().exits.insert(reason.to_owned(), 1);
    }
    report.runs.iter_mut().for_each(|run| run.requests = Some(Default::default()));
    let text = plain(&report);
    let (mut headings, mut rows) = (0, 0);
    let mut seen = BTreeSet::new();
    for section in text.split("\n\n").filter(|section| section.contains("relative to base\n")) {
        seen.clear();
        for line in section.lines().skip(2) {
            match line.strip_prefix("  ") {
                Some(row) => {
                    let label = row[..row.len().min(25)].trim();
                    assert!(terms::find(label).is_some(), "'{label}' is no term");
                    rows += 1;
                    // Layers and sums come in several sections.
                    let again = ["guest", "l1", "host", "all"].contains(&label);
                    assert!(seen.insert(label) || again, "'{label}' comes twice");
                }
                None => headings += 1,
            }
        }
    }
    assert!(headings >= 15 && rows > 60, "{headings} headings, {rows} rows");
    let listed = terms::text();
    assert!(
        seen.iter().all(|label| !label.starts_with("L1 TLB") || listed.contains("L1 TLB misses"))
    );
}

#[test]
fn no_line_is_wider_than_asked() {
    let mut report = partial_report();
    report.runs.extend(common::FIVE.iter().map(|shape| {
        let policy = format!("{}_two", shape.policy);
        RunResult { policy, ..result(StackKind::Nested, shape) }
    }));
    for width in [60, 80, 132] {
        let text = anstream::adapter::strip_str(&render(&report, width)).to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
        assert!(text.contains("xgemini_two"), "{width}");
    }
}

#[test]
fn styles_are_only_ansi_around_the_plain_text() {
    let styled = render(&partial_report(), 80);
    assert!(styled.contains("\x1b[1m"));
    assert!(!plain(&partial_report()).contains('\x1b'));
}

/// Sentences over runs that spend their cycles like this.
fn verdict(runs: &[(&str, Cycles)]) -> String {
    let runs = runs.iter().map(|(policy, cycles_by_kind)| RunResult {
        stack: StackKind::Nested,
        policy: (*policy).to_owned(),
        accesses: 1000,
        cycles: cycles_by_kind.total(),
        elapsed_cycles: cycles_by_kind.total(),
        cycles_by_kind: *cycles_by_kind,
        ..RunResult::default()
    });
    let report = Report::new(Default::default(), runs.collect());
    sentences(&report.runs.iter().collect::<Vec<_>>()).join(" ")
}

#[test]
fn the_verdict_names_what_dominates() {
    let base = Cycles { execution: 100, ..Cycles::default() };
    let cases = [
        (
            Cycles { walks: 50, data: 20, ..base },
            "TLB misses take 29 % of the cycles, against 12 %",
        ),
        (Cycles { data: 90, ..base }, "Huge pages cannot help with those"),
        (Cycles { faults: 20, exits: 30, walks: 40, ..base }, "faults and exits take 26 %"),
        (Cycles { background: 30, ..base }, "Scanning less often"),
        (Cycles { shootdowns: 30, ..base }, "TLB shootdowns take 23 %"),
        (base, "the program computes"),
    ];
    for (cycles, expected) in cases {
        let text = verdict(&[("base", cycles)]);
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("fastest"), "one run has no rival: {text}");
    }
}

#[test]
fn the_verdict_prefers_the_plainest_of_equals() {
    let cycles = |walks| Cycles { execution: 1000, walks, ..Cycles::default() };
    let text = verdict(&[("base", cycles(1000)), ("thp", cycles(101)), ("gemini", cycles(100))]);
    let expected = "thp is 1.82 times as fast as base, gemini within 2.0 % of that: it saves 90 %";
    assert!(text.contains(expected), "{text}");
    let all = [("base", 1000), ("thp", 200), ("gemini", 101), ("xgemini", 100), ("other", 102)];
    let text = verdict(&all.map(|(policy, walks)| (policy, cycles(walks))));
    let expected = "gemini is 1.82 times as fast as base, xgemini and other within 2.0 % of that";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn the_verdict_says_why_xgemini_is_behind_where_there_is_no_guest_hypervisor() {
    for (stack, faults, expected) in
        [(StackKind::Vm, 500, true), (StackKind::Vm, 0, false), (StackKind::Nested, 500, false)]
    {
        let runs = [("gemini", 0), ("xgemini", faults)].map(|(policy, faults)| {
            let cycles_by_kind = Cycles { execution: 1000, faults, ..Cycles::default() };
            let (cycles, elapsed_cycles) = (cycles_by_kind.total(), cycles_by_kind.total());
            let policy = policy.to_owned();
            let accesses = 1000;
            let rest = RunResult::default();
            RunResult { stack, policy, accesses, cycles, elapsed_cycles, cycles_by_kind, ..rest }
        });
        let report = Report::new(Default::default(), runs.into());
        let text = sentences(&report.runs.iter().collect::<Vec<_>>()).join(" ");
        assert_eq!(text.contains("huge pages follow touch"), expected, "{text}");
    }
}

#[test]
fn an_explanation_says_when_there_is_nothing_to_explain() {
    let mut report = report(&[StackKind::Nested]);
    assert!(!plain(&report).contains("misaligned under"), "nobody asked");
    for run in &mut report.runs {
        run.explained = true;
        run.explain.clear();
    }
    let text = plain(&report).replace('\n', " ");
    let expected = "No huge page is misaligned under thp, gemini, xgemini, aligned. The guest has \
                    no huge page under base.";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn the_verdict_names_what_helps_and_what_could() {
    let cycles = |walks| Cycles { execution: 100, walks, ..Cycles::default() };
    let text = verdict(&[("base", cycles(100)), ("thp", cycles(60)), ("aligned", cycles(10))]);
    assert!(
        text.contains("thp is fastest, 1.25 times base: it saves 40 % of the cycles of TLB misses")
    );
    assert!(text.contains("Perfect alignment would give 1.82 times."), "{text}");
    let text = verdict(&[("base", cycles(100)), ("thp", cycles(11)), ("aligned", cycles(10))]);
    assert!(text.contains("That is all that perfect alignment can give"), "{text}");
    let text = verdict(&[("base", cycles(0)), ("thp", cycles(1)), ("aligned", cycles(0))]);
    assert!(text.contains("No policy is notably faster than base."), "{text}");
    assert!(text.contains("not bound by translation"), "{text}");
}

/// Runs over 1000 pages that spend their cycles like this, with so many faults of the guest.
fn touching(runs: &[(&str, Cycles, u64)]) -> String {
    let runs = runs.iter().map(|(policy, cycles_by_kind, faults)| {
        let mut run = result(StackKind::Nested, &common::FIVE[0]);
        run.policy = (*policy).to_owned();
        (run.cycles, run.elapsed_cycles) = (cycles_by_kind.total(), cycles_by_kind.total());
        (run.cycles_by_kind, run.faults.guest) = (*cycles_by_kind, *faults);
        run.memory.touched_bytes = 1000 * 4096;
        run
    });
    let report = Report::new(Default::default(), runs.collect());
    sentences(&report.runs.iter().collect::<Vec<_>>()).join(" ")
}

#[test]
fn first_touch_and_steady_state_are_told_apart() {
    let cycles = |faults, walks| Cycles { execution: 100, faults, walks, ..Cycles::default() };
    let text = touching(&[("base", cycles(100, 50), 1000), ("thp", cycles(10, 20), 10)]);
    assert!(text.contains("come mostly with the first touch of memory, once"), "{text}");
    let steady =
        "In the steady state, the cycles without faults and exits, thp is 1.25 times as fast";
    assert!(text.contains("thp is fastest, 1.92 times base"), "{text}");
    assert!(text.contains(steady), "{text}");
    // Memory that is given back and touched again is no first touch.
    let text = touching(&[("base", cycles(100, 50), 2500), ("thp", cycles(10, 20), 10)]);
    assert!(text.contains("The guest took 2.50 faults for each page"), "{text}");
    assert!(!text.contains("once"), "{text}");
    // Where nothing faults there is nothing to tell apart.
    let text = touching(&[("base", cycles(0, 50), 0), ("thp", cycles(0, 20), 0)]);
    assert!(!text.contains("steady") && !text.contains("first touch"), "{text}");
}

#[test]
fn memory_used_below_what_was_touched_is_explained() {
    let mut report = report(&[StackKind::Nested]);
    assert!(!plain(&report).contains("less memory used"));
    report.runs[1].memory.used_bytes = 900 << 20;
    let text = plain(&report).replace('\n', " ");
    assert!(text.contains("thp: less memory used than touched: what was given back"), "{text}");
}

#[test]
fn nothing_counted_is_said() {
    assert!(verdict(&[("base", Cycles::default())]).contains("no access came after the warm-up"));
}
