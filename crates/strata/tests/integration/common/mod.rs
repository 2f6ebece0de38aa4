//! What the tests share: the program under test and a report with plausible numbers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};
use strata_engine::options::{Options, Version};
use strata_engine::report::{
    Alignment, BillItem, Cause, CpuTotals, Cycles, LastLevel, LayerExits, LayerMemory, Memory,
    MissCauses, PerLayer, Sample, Tlb, WalkPosition,
};
use strata_engine::{Report, RunResult, StackKind};
use strata_stream::WorkloadInfo;

/// Where the program under test is.
pub fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_strata"))
}

/// The program with the words of `line` as arguments.
pub fn strata(line: &str) -> Command {
    let mut command = Command::new(program());
    command.args(line.split_whitespace());
    command
}

/// Runs it to its end.
pub fn run(line: &str) -> Output {
    strata(line).output().unwrap()
}

/// What it wrote to standard error.
pub fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts that a command was refused with this status, in one line that contains `expected`.
pub fn refused(output: &Output, status: i32, expected: &str) {
    let complaint = complaint(output);
    assert_eq!(output.status.code(), Some(status), "{complaint}");
    assert!(complaint.contains(expected), "{complaint:?} lacks {expected:?}");
    assert_eq!(complaint.trim_end().lines().count(), 1, "{complaint}");
    assert!(complaint.starts_with("strata: "), "{complaint}");
}

/// What one run is to look like.
pub struct Shape {
    pub policy: &'static str,
    /// Share of accesses that walk.
    pub misses: f64,
    pub references_per_walk: f64,
    pub guest_huge: u64,
    pub well_aligned: u64,
    pub pseudo_huge: u64,
}

/// The five policies as they might come out.
pub const FIVE: [Shape; 5] = [
    shape("base", 0.020, 21.5, 0, 0, 0),
    shape("thp", 0.015, 19.75, 500, 60, 0),
    shape("gemini", 0.008, 17.0, 480, 320, 0),
    shape("xgemini", 0.004, 16.0, 470, 440, 400),
    shape("aligned", 0.002, 15.0, 512, 512, 0),
];

const fn shape(
    policy: &'static str,
    misses: f64,
    references_per_walk: f64,
    guest_huge: u64,
    well_aligned: u64,
    pseudo_huge: u64,
) -> Shape {
    Shape { policy, misses, references_per_walk, guest_huge, well_aligned, pseudo_huge }
}

/// A run of this shape over 50 million accesses.
pub fn result(stack: StackKind, shape: &Shape) -> RunResult {
    let accesses = 50_000_000;
    let l2_misses = (accesses as f64 * shape.misses) as u64;
    let walk_refs = (l2_misses as f64 * shape.references_per_walk) as u64;
    let nested = stack == StackKind::Nested;
    let virtual_machine = stack != StackKind::Native;
    let misaligned = shape.guest_huge - shape.well_aligned;
    let alignment = Alignment {
        guest_huge: shape.guest_huge,
        well_aligned: shape.well_aligned,
        type1: misaligned / 3,
        type2: misaligned - misaligned / 3,
        pseudo_huge: shape.pseudo_huge,
    };
    let faults = PerLayer::new(
        262_144 - 500 * shape.guest_huge,
        nested.then_some(4_000),
        virtual_machine.then_some(262_144),
    );
    let mut exits = BTreeMap::new();
    if virtual_machine {
        exits.insert("ept_violation".to_owned(), faults.host.unwrap());
    }
    if nested {
        exits.insert("l1_ept_write".to_owned(), 20_000);
    }
    let cycles_by_kind = Cycles {
        execution: 100_000_000,
        data: 60_000_000,
        walks: walk_refs * 12,
        faults: faults.guest * 300,
        exits: exits.values().sum::<u64>() * 250,
        shootdowns: 500_000,
        background: shape.guest_huge * 10_000,
    };
    let cycles = cycles_by_kind.total();
    RunResult {
        stack,
        policy: shape.policy.to_owned(),
        cpu: "broadwell-e5-2620v4".to_owned(),
        accesses,
        instructions: 150_000_000,
        tlb: Tlb { l1_misses: l2_misses * 3, l2_misses, fills: map(&[("4k", 5), ("2m", 7)]) },
        walks: l2_misses,
        walk_refs,
        walk_positions: vec![WalkPosition {
            position: "g4n4".to_owned(),
            references: 10,
            ..WalkPosition::default()
        }],
        walk_cycles: cycles_by_kind.walks,
        cycles,
        elapsed_cycles: cycles,
        elapsed_seconds: cycles as f64 / 2.1e9,
        cycles_by_kind,
        bill: vec![BillItem { cycles, ..BillItem::default() }],
        alignment,
        faults,
        exits,
        exits_by_layer: exits_by_layer(stack),
        migrated_pages: misaligned * 100,
        promotions: shape.guest_huge,
        demotions: misaligned / 10,
        fmfi: PerLayer::new(0.75, nested.then_some(0.8), virtual_machine.then_some(0.5)),
        memory: Memory { touched_bytes: 1 << 30, used_bytes: (1 << 30) + (shape.guest_huge << 18) },
        layers: vec![LayerMemory { layer: "guest".to_owned(), ..LayerMemory::default() }],
        counters: map(&[("ept.walk_cycles", 1)]),
        cpus: vec![CpuTotals::default()],
        samples: vec![Sample { seconds: 0.5, ..Sample::default() }],
        parameters: [("thp.scan_sleep".to_owned(), "10".to_owned())].into(),
        ..RunResult::default()
    }
}

fn exits_by_layer(stack: StackKind) -> Vec<LayerExits> {
    let layer = |name: &str, exits| LayerExits { layer: name.to_owned(), exits };
    let guest = layer("guest", map(&[("handed_on", 1)]));
    match stack {
        StackKind::Native => Vec::new(),
        StackKind::Vm => vec![guest],
        StackKind::Nested | StackKind::Deeper(_) => {
            vec![guest, layer("l1", map(&[("vmread", 0), ("vmresume", 1)]))]
        }
    }
}

fn map(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// A report over these stacks with the five policies.
pub fn report(stacks: &[StackKind]) -> Report {
    let info = WorkloadInfo {
        name: "random:size=1GiB,accesses=50M".to_owned(),
        kind: "generator",
        ..WorkloadInfo::default()
    };
    let runs = stacks.iter().flat_map(|&stack| FIVE.iter().map(move |shape| result(stack, shape)));
    let mut report = Report::new(info, runs.collect());
    let commit = Some("0123456789abcdef0123456789abcdef01234567".to_owned());
    report.version = Version { package: "0.1.0".to_owned(), commit };
    report.options = Options {
        stack: stacks.to_vec(),
        policy: FIVE.iter().map(|shape| shape.policy.to_owned()).collect(),
        cpu: "broadwell-e5-2620v4".to_owned(),
        levels: Some(4),
        memory_bytes: Some(PerLayer::new(8 << 30, Some(9 << 30), Some(10 << 30))),
        fragmentation: Some(PerLayer::new(0.8, Some(0.8), Some(0.8))),
        reused: Some(false),
        tlb_misaligned: "splinter".to_owned(),
        seed: 1,
        ..Options::default()
    };
    report
}

/// A report cut short, with notes and explanations.
pub fn partial_report() -> Report {
    let mut report = report(&[StackKind::Nested]);
    report.partial = true;
    report.partial_reason = Some("interrupted by Ctrl-C".to_owned());
    report.options.explain = true;
    report.options.memory = Some("2GiB".to_owned());
    report.workload.notes.push("mappings inferred from the addresses touched".to_owned());
    for run in &mut report.runs {
        run.partial = true;
    }
    let thp = &mut report.runs[1];
    thp.notes.push("12 pages were touched outside every known mapping".to_owned());
    let ranges = (0..6).map(|i| [0x7f00_0000_0000 + (i << 30), 0x7f00_0040_0000 + (i << 30)]);
    thp.explain.push(Cause {
        layer: "l1".to_owned(),
        cause: "backs the region with base pages: no free huge page when it faulted".to_owned(),
        huge_pages: 440,
        ranges: ranges.collect(),
    });
    report
}

/// What a VM did in a last-level cache with everything that can be told.
pub fn last_level() -> LastLevel {
    let causes = |cold, capacity, conflict| Some(MissCauses { cold, capacity, conflict });
    LastLevel {
        mask: "0x3f".to_owned(),
        ways: 6,
        reads: 2_500_000,
        misses: 1_000_000,
        data_misses: causes(200_000, 500_000, 250_000),
        walk_misses: causes(20_000, 25_000, 5_000),
        lucky_hits: Some(12_345),
        evicted_own: 900_000,
        evicted_others: [("b".to_owned(), 1_700)].into(),
        inclusion_victims: 31_000,
        held_bytes: 6 << 20,
    }
}
