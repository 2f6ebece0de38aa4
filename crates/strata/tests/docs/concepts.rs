//! `docs/concepts.md` explains every word of the program's output.

use crate::{common, page, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use strata::report_text::render;
use strata::terms;
use strata_engine::StackKind;

/// The page says what this is: in bold, as code, or as the first cell of a row.
fn is_explained(page: &str, name: &str) -> bool {
    [format!("**{name}**"), format!("`{name}`"), format!("\n| {name} |")]
        .iter()
        .any(|written| page.contains(written))
}

fn assert_explained(names: &BTreeSet<String>) {
    let page = page("docs/concepts.md");
    let missing: Vec<_> = names.iter().filter(|name| !is_explained(&page, name)).collect();
    assert!(missing.is_empty(), "docs/concepts.md does not explain {missing:#?}");
}

#[test]
fn every_term_is_explained() {
    // Some name two things, and one stands for what another command lists.
    let pairs = |name: &'static str| match name {
        "throughput, estimated" => vec![name],
        "other policies" => Vec::new(),
        _ => name.split(", ").collect(),
    };
    let names: BTreeSet<_> = terms::names().flat_map(pairs).map(str::to_owned).collect();
    assert!(names.len() > 70, "{names:?}");
    assert_explained(&names);
}

/// Headings and labels of the tables in a report, without numbers, policies, layers and VMs.
fn labels(text: &str) -> BTreeSet<String> {
    let mut labels = BTreeSet::new();
    let tables = text.split("\n\n").filter(|part| part.contains("   "));
    for line in tables.flat_map(str::lines).filter(|line| !line.starts_with("   ")) {
        let cells = line.contains("   ");
        let label = line.split("   ").next().unwrap_or_default().trim();
        let label = label.split_once(": ").map_or(label, |(_, label)| label);
        let label = label.strip_suffix(" per 1000").unwrap_or(label);
        let begins = ["FMFI", "time relative to", "relative to"];
        let begun = begins.into_iter().find(|start| label.starts_with(&format!("{start} ")));
        let label = begun.unwrap_or(label);
        // Titles: of a stack, of a VM, of the host; and the name of a stack.
        let title = !cells && ["VM ", "host"].iter().any(|start| label.starts_with(start));
        if !title && !label.contains(" on ") && !["native", "vm", "nested"].contains(&label) {
            labels.insert(label.to_owned());
        }
    }
    labels
}

#[test]
fn every_row_of_the_tables_is_explained() {
    let mut report = common::report(&StackKind::ALL);
    report.runs.iter_mut().for_each(|run| run.llc = Some(common::last_level()));
    for reason in ["ept_violation", "l1_ept_violation", "l1_ept_write", "l1_invept", "reflected"] {
        report.runs.last_mut().unwrap().exits.insert(reason.to_owned(), 1);
    }
    report.runs.iter_mut().for_each(|run| run.requests = Some(Default::default()));
    let text = anstream::adapter::strip_str(&render(&report, 120)).to_string();
    let (_, tables) = text.split_once("\n\n").expect("a head");
    let mut names = labels(tables);
    let vm = "workload=random:size=4MiB,accesses=50k";
    let hosts = format!("run --stack vm --policy base --alone --vm a:{vm} --vm b:repeat=true,{vm}");
    let output = common::run(&hosts);
    assert!(output.status.success(), "{}", common::complaint(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, host) = text.split_once("\nhost\n").expect("the host's table");
    names.extend(labels(host.split_once("\n\n").expect("its end").0));
    assert!(names.len() > 35, "{names:?}");
    assert_explained(&names);
}

#[test]
fn every_column_of_the_tables_is_explained() {
    let mut names = BTreeSet::new();
    for source in sources(&root().join("crates/strata/src")) {
        let text = fs::read_to_string(source).unwrap();
        for (at, start) in text.match_indices("Cells::new([") {
            let columns = text[at + start.len()..].split(']').next().unwrap_or_default();
            names.extend(columns.split('"').skip(1).step_by(2).map(str::to_owned));
        }
    }
    assert!(names.len() > 15, "{names:?}");
    assert_explained(&names);
}

/// All files in a directory and those below it.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    files.flatten().collect()
}
