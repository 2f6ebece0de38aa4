//! The tables of `docs/published.md`.

use crate::conditions::{
    Memory, PAIRS, Pair, STAND_INS, StandIn, microbenchmark, pair, relative_latency,
    relative_misses, relative_throughput, servers, serving, stand_in,
};
use crate::figures::{self, averages};
use strata_engine::{RunResult, StackKind};
use strata_hardware::Misaligned;

/// Sizes of the micro-benchmark in MiB: within the reach of 1536 base pages of the L2 TLB, four
/// times as large, and far larger.
pub const SETS: [u64; 3] = [4, 24, 1024];

/// All of it.
pub fn document() -> String {
    let mut out = String::from(include_str!("head.md"));
    out += "\n## A micro-benchmark in a VM (Gemini, Fig. 2)\n\n";
    out += include_str!("microbenchmark.md");
    out += "\n| set | misaligned pages | host-huge | guest-huge | aligned |\n";
    out += "| --- | --- | ---: | ---: | ---: |\n";
    for (set, values) in figures::MICROBENCHMARK {
        out += &row(&[&format!("**{set}**"), "**published**"], &values.map(percent));
    }
    for size in SETS {
        for misaligned in [Misaligned::NoFill, Misaligned::Splinter] {
            out += &microbenchmark_row(size, misaligned).0;
        }
    }
    out += &aligned_rates();
    out += &nested(Memory::Fragmented);
    out += &nested(Memory::Clean);
    out += &movable();
    out += &exhausted_l1();
    out += &colocated();
    out += &latencies();
    out += include_str!("differences.md");
    out
}

/// One row of the micro-benchmark, and its values: throughput relative to base pages of huge pages
/// in the host, in the guest and in both.
pub fn microbenchmark_row(mebibytes: u64, misaligned: Misaligned) -> (String, [f64; 3]) {
    let policies = ["base", "host-huge", "guest-huge", "aligned"];
    let runs = microbenchmark(&policies, mebibytes, misaligned);
    let values = [1, 2, 3].map(|i| relative_throughput(&runs[i], &runs[0]));
    let size = format!("{mebibytes} MiB");
    let filling = match misaligned {
        Misaligned::NoFill => "no-fill",
        Misaligned::Splinter => "splinter",
    };
    (row(&[&size, filling], &values.map(percent)), values)
}

/// Rates of well-aligned huge pages and TLB misses in a VM.
fn aligned_rates() -> String {
    let mut out = String::from("\n## Well-aligned huge pages in a fragmented VM ");
    out += "(Gemini, Tables 1 and 3, Fig. 11)\n\n";
    out += include_str!("aligned_rates.md");
    out += "\n| stand-in | beside | well aligned: thp | gemini | TLB misses / gemini's: base | thp |\n";
    out += "| --- | --- | ---: | ---: | ---: | ---: |\n";
    for stand_in in &STAND_INS {
        out += &aligned_rate_row(stand_in).0;
    }
    let [others, gemini] = averages::RATES.map(percent);
    let [base, thp] = averages::GEMINI_TLB.map(ratio);
    out + &format!("| **published averages** | | at most {others} | {gemini} | {base} | {thp} |\n")
}

/// Share of the guest's huge pages that are well aligned.
fn share(run: &RunResult) -> f64 {
    run.alignment.well_aligned as f64 / run.alignment.guest_huge.max(1) as f64
}

/// The same for a reader.
fn rate(run: &RunResult) -> String {
    match run.alignment.guest_huge {
        0 => "no huge pages".to_owned(),
        huge => format!("{} of {huge}", percent(share(run))),
    }
}

/// The fragmented rows of some stand-ins, with fragmenting programs whose memory can be moved.
fn movable() -> String {
    let mut out =
        String::from("\n## The same, where the fragmenting programs' memory can be moved\n\n");
    out += include_str!("movable.md");
    out += "\n| stand-in | VM, well aligned: thp | gemini | nested, TLB misses: gemini | xgemini | \
            throughput: gemini | xgemini |\n";
    out += "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n";
    for stand_in in STAND_INS.iter().filter(|known| SOME.contains(&known.name)) {
        out += &movable_row(stand_in);
    }
    out
}

fn movable_row(of: &StandIn) -> String {
    let runs = stand_in(of, StackKind::Vm, Memory::FragmentedMovable, &["thp", "gemini"]);
    let mut cells: Vec<String> = runs.iter().map(rate).collect();
    cells.extend(nested_values(of, Memory::FragmentedMovable).map(percent));
    row(&[of.name], &cells)
}

/// One row of that table, and the shares that are well aligned under THP and under Gemini.
pub fn aligned_rate_row(of: &StandIn) -> (String, [f64; 2]) {
    let runs = stand_in(of, StackKind::Vm, Memory::Fragmented, &["base", "thp", "gemini"]);
    let (rates, misses) = figures::gemini(of.gemini_kin);
    let beside = |ours: String, published: String| format!("{ours} ({published})");
    let text = row(
        &[of.name, of.gemini_kin],
        &[
            beside(rate(&runs[1]), percent(rates[0])),
            beside(rate(&runs[2]), percent(rates[1])),
            beside(ratio(relative_misses(&runs[0], &runs[2])), ratio(misses[0])),
            beside(ratio(relative_misses(&runs[1], &runs[2])), ratio(misses[1])),
        ],
    );
    (text, [share(&runs[1]), share(&runs[2])])
}

/// TLB misses and throughput in a nested VM.
fn nested(memory: Memory) -> String {
    let (state, averages) = match memory {
        Memory::Clean => ("not fragmented", averages::XGEMINI),
        _ => ("fragmented", averages::XGEMINI_FRAGMENTED),
    };
    let mut out = format!("\n## A nested VM, memory {state} (xGemini, Figs. 12 and 11)\n\n");
    out += "| stand-in | beside | TLB misses: gemini | xgemini | throughput: gemini | xgemini |\n";
    out += "| --- | --- | ---: | ---: | ---: | ---: |\n";
    let mut sums = [0.0; 4];
    for stand_in in &STAND_INS {
        let (text, values) = nested_row(stand_in, memory);
        out += &text;
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value / STAND_INS.len() as f64;
        }
    }
    let mut cells = sums.map(percent);
    for (cell, published) in cells.iter_mut().zip(averages) {
        *cell += &format!(" ({})", percent(published));
    }
    out + &row(&["**average**", "**average of all bars**"], &cells)
}

/// Stand-ins of the sections added later: one filled in one go, one with hot
/// and cold pages, one that grows.
const SOME: [&str; 3] = ["random, 384 MiB", "zipf 0.99, 256 MiB", "growing heap, 256 MiB"];

/// TLB misses and throughput where the guest hypervisor has no free huge page.
fn exhausted_l1() -> String {
    let mut out = String::from("\n## A nested VM whose guest hypervisor has no free huge page\n\n");
    out += include_str!("exhausted_l1.md");
    out += "\n| stand-in | TLB misses: gemini | xgemini | throughput: gemini | xgemini |\n";
    out += "| --- | ---: | ---: | ---: | ---: |\n";
    for stand_in in STAND_INS.iter().filter(|known| SOME.contains(&known.name)) {
        out += &exhausted_l1_row(stand_in).0;
    }
    out
}

/// One row of that section, and its values as in [`nested_row`].
pub fn exhausted_l1_row(of: &StandIn) -> (String, [f64; 4]) {
    let values = nested_values(of, Memory::ExhaustedL1);
    (row(&[of.name], &values.map(percent)), values)
}

/// Throughput of a VM beside another one on the same host.
fn colocated() -> String {
    let mut out = String::from("\n## Two VMs on one host ");
    out += "(Gemini, Fig. 17; xGemini, Fig. 14)\n\n";
    out += include_str!("colocated.md");
    out += "\n| measured | beside | stack | thp | gemini | xgemini | gemini beside thp |\n";
    out += "| --- | --- | --- | ---: | ---: | ---: | ---: |\n";
    for stack in [StackKind::Vm, StackKind::Nested] {
        for of in &PAIRS {
            out += &pair_row(of, stack).0;
        }
    }
    out
}

/// One row of that section, and its values: throughput relative to base pages.
pub fn pair_row(of: &Pair, stack: StackKind) -> (String, [f64; 4]) {
    let runs = pair(of, stack);
    let values = [1, 2, 3, 4].map(|run| relative_throughput(&runs[run], &runs[0]));
    let beside = format!("{}: {}", of.beside, of.what);
    (row(&[of.measured, &beside, &stack.to_string()], &values.map(percent)), values)
}

/// Latencies of the stand-ins that serve requests.
fn latencies() -> String {
    let mut out = String::from("\n## Latency (Gemini, Figs. 9 and 10; xGemini, Fig. 13)\n\n");
    out += include_str!("latency.md");
    for stack in [StackKind::Vm, StackKind::Nested] {
        let [one, other] = systems(stack);
        let of = if stack == StackKind::Vm { "In a VM" } else { "In a nested VM" };
        out += &format!(
            "\n| {of} | beside | memory | mean: {one} | {other} | p99: {one} | {other} |\n"
        );
        out += "| --- | --- | --- | ---: | ---: | ---: | ---: |\n";
        for stand_in in servers() {
            for memory in [Memory::Fragmented, Memory::Clean] {
                out += &latency_row(stand_in, stack, memory).0;
            }
        }
    }
    out
}

/// The systems whose latencies the papers have, beside base pages.
fn systems(stack: StackKind) -> [&'static str; 2] {
    if stack == StackKind::Vm { ["thp", "gemini"] } else { ["gemini", "xgemini"] }
}

/// One row of latencies beside the published ones, and its values, relative to base pages: the means of
/// both systems, then the 99th percentiles.
pub fn latency_row(of: &StandIn, stack: StackKind, memory: Memory) -> (String, [f64; 4]) {
    let [one, other] = systems(stack);
    let runs = serving(of, stack, memory, &["base", one, other]);
    let [[mean, p99], [other_mean, other_p99]] =
        [1, 2].map(|system| relative_latency(&runs[system], &runs[0]));
    let values = [mean, other_mean, p99, other_p99];
    let fragmented = memory != Memory::Clean;
    let published = match stack {
        StackKind::Vm => figures::gemini_latency(of.gemini_kin, fragmented),
        _ => figures::xgemini_latency(of.gemini_kin, fragmented),
    };
    let cells: Vec<String> = values
        .iter()
        .zip(published.as_flattened())
        .map(|(ours, published)| format!("{} ({})", percent(*ours), percent(*published)))
        .collect();
    let state = if fragmented { "fragmented" } else { "not fragmented" };
    (row(&[of.name, of.gemini_kin, state], &cells), values)
}

/// TLB misses, then throughput, of dual Gemini and xGemini, relative to base pages.
fn nested_values(of: &StandIn, memory: Memory) -> [f64; 4] {
    let runs = stand_in(of, StackKind::Nested, memory, &["base", "gemini", "xgemini"]);
    [
        relative_misses(&runs[1], &runs[0]),
        relative_misses(&runs[2], &runs[0]),
        relative_throughput(&runs[1], &runs[0]),
        relative_throughput(&runs[2], &runs[0]),
    ]
}

/// One row for a nested VM beside the published values, and its values: TLB misses, then
/// throughput, of dual Gemini and xGemini, relative to base pages.
pub fn nested_row(of: &StandIn, memory: Memory) -> (String, [f64; 4]) {
    let values = nested_values(of, memory);
    let (misses, throughput) = figures::xgemini(of.xgemini_kin, memory != Memory::Clean);
    let published = [misses[0], misses[1], throughput[0], throughput[1]];
    let mut cells = values.map(percent);
    for (cell, published) in cells.iter_mut().zip(published) {
        *cell += &format!(" ({})", percent(published));
    }
    (row(&[of.name, of.xgemini_kin], &cells), values)
}

fn row(names: &[&str], values: &[String]) -> String {
    format!("| {} | {} |\n", names.join(" | "), values.join(" | "))
}

fn percent(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}

fn ratio(value: f64) -> String {
    // Next to no misses on one side: a ratio would be noise.
    if value > 100.0 { "> 100".to_owned() } else { format!("{value:.2}") }
}
