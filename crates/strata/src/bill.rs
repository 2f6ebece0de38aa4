//! The bill as text: where every cycle of each run went, side by side.

use crate::lines::{Line, mark, print};
use std::fmt::Write;
use strata_engine::RunResult;
use strata_engine::report::BillItem;
use strata_text::number::{count, percent};

/// Runs in one table at most, so that it stays readable.
const COLUMNS: usize = 5;

/// Over lines of a sampled stream of which the cycles are estimated.
const ESTIMATED: &str = "share of cycles, estimated";

/// Over those of which they are not. A share of what is estimated is, all the same.
const ADDED_UP: &str = "share, cycles added up";

/// The bills of runs, each with what it is called by.
pub fn render(runs: &[(String, &RunResult)]) -> String {
    let mut out = String::new();
    for runs in runs.chunks(COLUMNS) {
        let mut lines = vec![row("cycles", runs, |run| mark(run, count(run.cycles)))];
        let (estimated, added_up) =
            names(runs).into_iter().partition(|name| is_estimated(runs, *name));
        let both: [(&str, Vec<(&str, &str)>); 2] =
            match runs.iter().any(|(_, run)| run.sampled.is_some()) {
                true => [(ESTIMATED, estimated), (ADDED_UP, added_up)],
                false => [("share of cycles", added_up), ("", Vec::new())],
            };
        for (label, names) in both.into_iter().filter(|(_, names)| !names.is_empty()) {
            lines.push(Line { label: label.to_owned(), cells: Vec::new() });
            for (name, level) in names {
                let label = format!("{name} ({level})");
                lines.push(share(&label, runs, |item| item.name == name && item.level == level));
            }
        }
        lines.push(Line { label: "of which".to_owned(), cells: Vec::new() });
        lines.push(share("translation", runs, is_translation));
        lines.push(share("virtualisation", runs, is_virtualisation));
        let _ = writeln!(out, "\nbill");
        print(&mut out, &lines, runs.iter().map(|(name, _)| name.as_str()));
    }
    out
}

fn row(label: &str, runs: &[(String, &RunResult)], cell: impl Fn(&RunResult) -> String) -> Line {
    let cells = runs.iter().map(|(_, run)| cell(run)).collect();
    Line { label: format!("  {label}"), cells }
}

fn share(label: &str, runs: &[(String, &RunResult)], belongs: impl Fn(&BillItem) -> bool) -> Line {
    row(label, runs, |run| {
        let items = run.bill.iter().filter(|item| belongs(item));
        let cycles: u64 = items.map(|item| item.cycles).sum();
        match (cycles, run.cycles) {
            (0, _) | (_, 0) => "-".to_owned(),
            (part, all) => mark(run, percent(part as f64 / all as f64)),
        }
    })
}

/// What is on any of the bills, in their order.
fn names<'a>(runs: &[(String, &'a RunResult)]) -> Vec<(&'a str, &'a str)> {
    let mut names = Vec::new();
    // The longest first: it has most of the order.
    let mut bills: Vec<&[BillItem]> = runs.iter().map(|(_, run)| &run.bill[..]).collect();
    bills.sort_by_key(|bill| std::cmp::Reverse(bill.len()));
    for item in bills.into_iter().flatten() {
        let name = (item.name.as_str(), item.level.as_str());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Whether cycles of a line are estimated in any of the runs.
fn is_estimated(runs: &[(String, &RunResult)], (name, level): (&str, &str)) -> bool {
    let items = runs.iter().flat_map(|(_, run)| &run.bill);
    items.filter(|item| item.name == name && item.level == level).any(|item| item.estimated)
}

/// Cycles that address translation takes in hardware (VEE'16).
fn is_translation(item: &BillItem) -> bool {
    item.name.starts_with("walks, ") || item.name == "second-level TLB"
}

/// Cycles that there would not be without a VM: second-stage walks, exits, faults of hypervisors.
fn is_virtualisation(item: &BillItem) -> bool {
    item.name == "walks, second stage"
        || item.name.starts_with("exits: ")
        || item.name.starts_with("page faults") && item.level != "guest"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str, level: &str, cycles: u64) -> BillItem {
        BillItem { name: name.to_owned(), level: level.to_owned(), cycles, ..BillItem::default() }
    }

    #[test]
    fn bills_stand_beside_each_other_with_their_sums() {
        let native = RunResult {
            cycles: 100,
            bill: vec![item("useful work", "guest", 90), item("walks, guest's table", "guest", 10)],
            ..RunResult::default()
        };
        let vm = RunResult {
            cycles: 200,
            bill: vec![
                item("useful work", "guest", 90),
                item("walks, guest's table", "guest", 20),
                item("walks, second stage", "host", 40),
                item("page faults", "host", 30),
                item("exits: second stage violation", "guest", 20),
            ],
            ..RunResult::default()
        };
        let text = render(&[("native".to_owned(), &native), ("vm".to_owned(), &vm)]);
        let text = anstream::adapter::strip_str(&text).to_string();
        let cells = |label: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.trim_start().starts_with(label));
            let line = line.unwrap_or_else(|| panic!("{label}: {text}"));
            let rest = line.trim_start().strip_prefix(label).unwrap();
            rest.replace(" %", "%").split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(cells("useful work (guest)"), ["90%", "45%"]);
        assert_eq!(cells("walks, second stage (host)"), ["-", "20%"]);
        assert_eq!(cells("translation"), ["10%", "30%"]);
        assert_eq!(cells("virtualisation"), ["-", "45%"]);
    }

    #[test]
    fn what_is_estimated_stands_apart_from_what_is_added_up() {
        let run = |is_sampled: bool| RunResult {
            cycles: 100,
            bill: vec![
                BillItem { estimated: is_sampled, ..item("useful work", "guest", 90) },
                item("page faults", "guest", 10),
            ],
            sampled: is_sampled.then(Default::default),
            ..RunResult::default()
        };
        let lines = |run: &RunResult| -> Vec<String> {
            let text = render(&[("base".to_owned(), run)]);
            let text = anstream::adapter::strip_str(&text).to_string();
            text.lines().map(|line| line.trim_start().to_owned()).collect()
        };
        let place = |lines: &[String], begin: &str| {
            lines.iter().position(|line| line.starts_with(begin)).unwrap_or(usize::MAX)
        };
        let sampled = lines(&run(true));
        let order = [ESTIMATED, "useful work", ADDED_UP, "page faults", "of which"];
        let places = order.map(|begin| place(&sampled, begin));
        assert!(places.is_sorted() && places[4] < usize::MAX, "{sampled:?}");
        let whole = lines(&run(false));
        let places = ["share of cycles", "useful work", "page faults", ADDED_UP]
            .map(|begin| place(&whole, begin));
        assert!(places.is_sorted() && places[3] == usize::MAX, "{whole:?}");
    }
}
