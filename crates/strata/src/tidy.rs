//! A result of `strata run` as one table: a row per run, stack and policy, a column per figure with its
//! unit in its name. `docs/python.md` lists the columns.

use crate::digest;
use serde_json::json;
use strata_engine::report::{Bounds, PerLayer};
use strata_engine::{Report, RunResult};

/// The cells of a column, all of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Cells {
    /// Whole numbers.
    Whole(Vec<Option<i64>>),
    /// Any numbers.
    Real(Vec<Option<f64>>),
    /// Texts.
    Text(Vec<Option<String>>),
}

impl Cells {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(cells) => cells.len(),
            Self::Real(cells) => cells.len(),
            Self::Text(cells) => cells.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A cell as text; empty where there is nothing.
    pub fn text(&self, row: usize) -> String {
        match self {
            Self::Whole(cells) => cells[row].map(|cell| cell.to_string()),
            Self::Real(cells) => cells[row].map(|cell| cell.to_string()),
            Self::Text(cells) => cells[row].clone(),
        }
        .unwrap_or_default()
    }
}

/// A column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What is in it.
    pub cells: Cells,
}

/// What a row is about.
struct Row<'a> {
    report: &'a Report,
    input_sha256: Option<&'a str>,
    vm: &'a str,
    workload: &'a str,
    run: &'a RunResult,
}

/// What a column has of a row, by its type.
enum Figure {
    Whole(fn(&Row) -> Option<u64>),
    Real(fn(&Row) -> Option<f64>),
    Text(fn(&Row) -> Option<String>),
}

use Figure::{Real, Text, Whole};

/// Every column, in order.
const COLUMNS: &[(&str, Figure)] = &[
    ("workload", Text(|row| Some(row.workload.to_owned()))),
    ("vm", Text(|row| Some(row.vm.to_owned()))),
    ("stack", Text(|row| Some(row.run.stack.name().to_owned()))),
    ("policy", Text(|row| Some(row.run.policy.clone()))),
    ("cpu", Text(|row| Some(row.run.cpu.clone()))),
    ("partial", Whole(|row| Some(u64::from(row.report.partial || row.run.partial)))),
    ("sampled", Whole(|row| Some(u64::from(row.run.sampled.is_some())))),
    ("accesses", Whole(|row| Some(row.run.accesses))),
    ("instructions", Whole(|row| Some(row.run.instructions))),
    ("elapsed_seconds", Real(|row| Some(row.run.elapsed_seconds))),
    ("elapsed_cycles", Whole(|row| Some(row.run.elapsed_cycles))),
    ("cycles", Whole(|row| Some(row.run.cycles))),
    ("cycles_per_access", Real(|row| per_access(row.run.cycles, row.run))),
    ("walk_cycles_per_access", Real(|row| per_access(row.run.walk_cycles, row.run))),
    ("relative_throughput", Real(|row| row.run.relative_throughput)),
    ("execution_cycles", Whole(|row| Some(row.run.cycles_by_kind.execution))),
    ("data_cycles", Whole(|row| Some(row.run.cycles_by_kind.data))),
    ("walk_cycles", Whole(|row| Some(row.run.cycles_by_kind.walks))),
    ("fault_cycles", Whole(|row| Some(row.run.cycles_by_kind.faults))),
    ("exit_cycles", Whole(|row| Some(row.run.cycles_by_kind.exits))),
    ("shootdown_cycles", Whole(|row| Some(row.run.cycles_by_kind.shootdowns))),
    ("background_cycles", Whole(|row| Some(row.run.cycles_by_kind.background))),
    ("l1_tlb_misses", Whole(|row| Some(row.run.tlb.l1_misses))),
    ("l2_tlb_misses", Whole(|row| Some(row.run.tlb.l2_misses))),
    ("walk_references", Whole(|row| Some(row.run.walk_refs))),
    ("guest_huge_pages", Whole(|row| Some(row.run.alignment.guest_huge))),
    ("well_aligned_huge_pages", Whole(|row| Some(row.run.alignment.well_aligned))),
    ("type1_huge_pages", Whole(|row| Some(row.run.alignment.type1))),
    ("type2_huge_pages", Whole(|row| Some(row.run.alignment.type2))),
    ("pseudo_huge_pages", Whole(|row| Some(row.run.alignment.pseudo_huge))),
    ("aligned_share", Real(|row| aligned(row.run))),
    ("guest_faults", Whole(|row| of_layer(&row.run.faults, "guest"))),
    ("l1_faults", Whole(|row| of_layer(&row.run.faults, "l1"))),
    ("host_faults", Whole(|row| of_layer(&row.run.faults, "host"))),
    ("exits", Whole(|row| Some(row.run.exits.values().sum()))),
    ("migrated_pages", Whole(|row| Some(row.run.migrated_pages))),
    ("promotions", Whole(|row| Some(row.run.promotions))),
    ("demotions", Whole(|row| Some(row.run.demotions))),
    ("guest_fmfi", Real(|row| of_layer(&row.run.fmfi, "guest"))),
    ("l1_fmfi", Real(|row| of_layer(&row.run.fmfi, "l1"))),
    ("host_fmfi", Real(|row| of_layer(&row.run.fmfi, "host"))),
    ("touched_bytes", Whole(|row| Some(row.run.memory.touched_bytes))),
    ("used_bytes", Whole(|row| Some(row.run.memory.used_bytes))),
    ("accesses_low", Real(|row| low(row.run, "accesses"))),
    ("accesses_high", Real(|row| high(row.run, "accesses"))),
    ("elapsed_cycles_low", Real(|row| low(row.run, "elapsed_cycles"))),
    ("elapsed_cycles_high", Real(|row| high(row.run, "elapsed_cycles"))),
    ("cycles_low", Real(|row| low(row.run, "cycles"))),
    ("cycles_high", Real(|row| high(row.run, "cycles"))),
    ("relative_throughput_low", Real(|row| low(row.run, "relative_throughput"))),
    ("relative_throughput_high", Real(|row| high(row.run, "relative_throughput"))),
    ("l1_tlb_misses_low", Real(|row| low(row.run, "tlb.l1_misses"))),
    ("l1_tlb_misses_high", Real(|row| high(row.run, "tlb.l1_misses"))),
    ("l2_tlb_misses_low", Real(|row| low(row.run, "tlb.l2_misses"))),
    ("l2_tlb_misses_high", Real(|row| high(row.run, "tlb.l2_misses"))),
    ("walk_references_low", Real(|row| low(row.run, "walk_refs"))),
    ("walk_references_high", Real(|row| high(row.run, "walk_refs"))),
    ("seed", Whole(|row| Some(row.report.seed))),
    ("version", Text(|row| Some(crate::version::line(&row.report.version)))),
    ("configuration_sha256", Text(|row| Some(configuration(row.report, row.run)))),
    ("input_sha256", Text(|row| row.input_sha256.map(str::to_owned))),
];

fn of_layer<T: Copy>(figures: &PerLayer<T>, layer: &str) -> Option<T> {
    figures.present().find(|(name, _)| *name == layer).map(|(_, figure)| figure)
}

/// The bounds of a figure of a sampled run, by its name there.
fn bounds<'a>(run: &'a RunResult, name: &str) -> Option<&'a Bounds> {
    run.sampled.as_ref()?.bounds.get(name)
}

fn low(run: &RunResult, name: &str) -> Option<f64> {
    bounds(run, name).map(|bounds| bounds.low)
}

fn high(run: &RunResult, name: &str) -> Option<f64> {
    bounds(run, name).map(|bounds| bounds.high)
}

fn per_access(cycles: u64, run: &RunResult) -> Option<f64> {
    (run.accesses > 0).then(|| cycles as f64 / run.accesses as f64)
}

fn aligned(run: &RunResult) -> Option<f64> {
    let of = run.alignment.guest_huge;
    (of > 0).then(|| run.alignment.well_aligned as f64 / of as f64)
}

/// Of everything that a run was made with, but for its input: equal ones were asked for the same, whatever
/// they were run beside.
fn configuration(report: &Report, run: &RunResult) -> String {
    let mut options = serde_json::to_value(&report.options).expect("options are plain data");
    options["stack"] = json!(run.stack);
    options["policy"] = json!(run.policy);
    options["parameters"] = json!(run.parameters);
    options["warmup"] = json!(report.warmup);
    digest::text(&[&options.to_string()])
}

/// The table of some results, each with the hash of its input if that is known. `None` stands for a result
/// that is missing, and gives a row of nothing.
pub fn table<'a>(
    reports: impl IntoIterator<Item = Option<(&'a Report, Option<&'a str>)>>,
) -> (Vec<Column>, Vec<usize>) {
    let mut rows: Vec<Option<Row>> = Vec::new();
    let mut of = Vec::new();
    for (index, given) in reports.into_iter().enumerate() {
        match given {
            None => rows.push(None),
            Some((report, input_sha256)) => {
                let row = |vm, workload, run| Row { report, input_sha256, vm, workload, run };
                let own = report.runs.iter().map(|run| row("", &*report.workload.name, run));
                rows.extend(own.map(Some));
                let vms = report.vms.iter().flat_map(|vm| vm.runs.iter().map(move |run| (vm, run)));
                rows.extend(vms.map(|(vm, run)| Some(row(&vm.name, &*vm.workload.name, run))));
            }
        }
        of.resize(rows.len(), index);
    }
    let rows = || rows.iter().map(Option::as_ref);
    let columns = COLUMNS.iter().map(|(name, figure)| Column {
        name: (*name).to_owned(),
        cells: match figure {
            // No count comes near what no signed number holds.
            Whole(of) => Cells::Whole(
                rows().map(|row| of(row?).and_then(|count| i64::try_from(count).ok())).collect(),
            ),
            Real(of) => Cells::Real(rows().map(|row| of(row?)).collect()),
            Text(of) => Cells::Text(rows().map(|row| of(row?)).collect()),
        },
    });
    (columns.collect(), of)
}

/// Columns as comma-separated values (RFC 4180, with the ends of lines of Unix).
pub fn csv(columns: &[Column]) -> String {
    let quoted = |text: String| match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    };
    let names = columns.iter().map(|column| quoted(column.name.clone()));
    let mut text = names.collect::<Vec<_>>().join(",") + "\n";
    for row in 0..columns.first().map_or(0, |column| column.cells.len()) {
        let cells = columns.iter().map(|column| quoted(column.cells.text(row)));
        text += &(cells.collect::<Vec<_>>().join(",") + "\n");
    }
    text
}

/// The column that is 1 where a row has estimates.
const SAMPLED: &str = "sampled";

/// The columns that are estimates there; all others are of the whole stream.
const ESTIMATED: [&str; 13] = [
    "accesses",
    "elapsed_seconds",
    "elapsed_cycles",
    "cycles",
    "cycles_per_access",
    "walk_cycles_per_access",
    "relative_throughput",
    "execution_cycles",
    "data_cycles",
    "walk_cycles",
    "l1_tlb_misses",
    "l2_tlb_misses",
    "walk_references",
];

/// Whether a cell of a table is an estimate from windows of a sampled stream.
pub fn is_estimated(columns: &[Column], name: &str, row: usize) -> bool {
    let sampled = columns.iter().find(|column| column.name == SAMPLED);
    let sampled = sampled.is_some_and(|column| column.cells.text(row) == "1");
    sampled && ESTIMATED.contains(&name)
}

/// The names of all columns.
pub fn names() -> impl Iterator<Item = &'static str> {
    COLUMNS.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_engine::report::Sampled;

    #[test]
    fn the_page_lists_every_column() {
        let page = include_str!("../../../docs/python.md");
        for name in names() {
            assert!(page.contains(&format!("| `{name}` |")), "docs/python.md has no {name}");
        }
    }

    #[test]
    fn the_page_says_which_columns_are_estimates() {
        let page = include_str!("../../../docs/python.md");
        let (_, said) = page.split_once("Where `sampled` is 1, ").expect("it is said");
        let (said, _) = said.split_once(" are estimates").expect("the sentence goes on");
        for name in ESTIMATED {
            assert!(names().any(|column| column == name), "there is no {name}");
            assert!(
                said.contains(&format!("`{name}`")),
                "docs/python.md does not say it of {name}"
            );
        }
        assert_eq!(said.matches('`').count(), 2 * ESTIMATED.len());
    }

    #[test]
    fn rows_of_sampled_runs_say_so_and_have_bounds() {
        let run = |sampled| RunResult { cycles: 1000, sampled, ..RunResult::default() };
        let bounds = [("cycles".to_owned(), Bounds { low: 900.0, high: 1200.0 })].into();
        let sampled = Sampled { bounds, ..Sampled::default() };
        let report = Report { runs: vec![run(Some(sampled)), run(None)], ..Report::default() };
        let (columns, _) = table([Some((&report, None))]);
        let cell = |name: &str, row| {
            let column = columns.iter().find(|column| column.name == name);
            column.expect("it is there").cells.text(row)
        };
        let row =
            |row| ["sampled", "cycles", "cycles_low", "cycles_high"].map(|name| cell(name, row));
        assert_eq!(row(0), ["1", "1000", "900", "1200"]);
        assert_eq!(row(1), ["0", "1000", "", ""]);
        let estimated = |name, row| is_estimated(&columns, name, row);
        assert!(estimated("cycles", 0) && !estimated("cycles", 1) && !estimated("guest_faults", 0));
    }

    #[test]
    fn what_has_a_comma_is_quoted() {
        let text = Cells::Text(vec![Some("a,\"b\"".to_owned()), None]);
        let columns = [
            Column { name: "x".to_owned(), cells: text },
            Column { name: "y".to_owned(), cells: Cells::Real(vec![Some(0.5), None]) },
        ];
        assert_eq!(csv(&columns), "x,y\n\"a,\"\"b\"\"\",0.5\n,\n");
    }
}
