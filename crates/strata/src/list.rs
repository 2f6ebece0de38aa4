//! What can be chosen, one line each.

use crate::args::Listing;
use crate::failure::Failure;
use crate::output::to_stdout;
use std::fmt::Write;
use strata_engine::Catalogue;
use strata_hardware::CpuModel;
use strata_lab::Scenario;
use strata_params::{Parameter, Parameters};
use strata_workloads::generate;

/// Prints a list.
///
/// # Errors
/// When standard output cannot be written.
pub fn list(what: Listing, catalogue: &Catalogue) -> Result<(), Failure> {
    let rows = match what {
        Listing::Policies => policies(catalogue),
        Listing::Cpus => cpus(),
        Listing::Workloads => workloads(),
        Listing::Parameters => parameters(catalogue),
        Listing::Scenarios => scenarios(),
    };
    to_stdout(columns(&rows).as_bytes())
}

/// A name and what is to be said of it.
type Row = (String, String);

fn columns(rows: &[Row]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, about) in rows {
        let _ = writeln!(out, "{name:width$}  {about}");
    }
    out
}

fn policies(catalogue: &Catalogue) -> Vec<Row> {
    let row = |policy: &strata_engine::PolicyInfo| {
        (policy.name.to_string(), format!("{} [{}]", policy.about, policy.paper))
    };
    catalogue.policies.iter().map(row).collect()
}

fn scenarios() -> Vec<Row> {
    let about = |name| Scenario::load(name).map_or_else(|error| error.to_string(), |s| s.about);
    strata_lab::names().map(|name| (name.to_owned(), about(name))).collect()
}

fn cpus() -> Vec<Row> {
    CpuModel::presets().into_iter().map(|preset| (preset.name.to_owned(), preset.about)).collect()
}

/// Sources of streams that are no generators.
const OTHERS: [(&str, &str); 5] = [
    ("-- PROGRAM", "live: any x86-64 Linux program, with its threads and children"),
    ("FILE (recording)", "what 'strata record' wrote"),
    ("FILE (champsim)", "ChampSim trace, 64-byte instructions; raw, .gz or .xz"),
    ("FILE (cloudsuite)", "ChampSim trace of CloudSuite, 96-byte instructions; raw, .gz or .xz"),
    ("FILE (lackey)", "text of valgrind --tool=lackey --trace-mem=yes"),
];

fn workloads() -> Vec<Row> {
    let others = OTHERS.iter().map(|(name, about)| ((*name).to_owned(), (*about).to_owned()));
    let generators = generate::list().iter().map(|kind| {
        let keys = kind.keys.iter().map(|key| match key.default {
            "" => key.name.to_owned(),
            default => format!("{}={default}", key.name),
        });
        let keys = keys.collect::<Vec<_>>().join(",");
        (kind.name.to_owned(), format!("{} [{keys}]", kind.explanation))
    });
    generators.chain(others).collect()
}

fn parameters(catalogue: &Catalogue) -> Vec<Row> {
    let preset = CpuModel::preset(CpuModel::DEFAULT).expect("the default preset exists");
    let row = |parameter: &Parameter| {
        let about = parameter.doc.split_whitespace().collect::<Vec<_>>().join(" ");
        let unit = parameter.unit;
        let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
        let doubt = if parameter.confirmed { "" } else { " [not confirmed]" };
        (parameter.name.to_string(), format!("{}{unit}: {about}{doubt}", parameter.value))
    };
    catalogue.parameters.iter().chain(&preset.parameters()).map(row).collect()
}
