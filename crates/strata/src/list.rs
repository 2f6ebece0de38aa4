//! What can be chosen, one line each.

use crate::args::Listing;
use crate::failure::Failure;
use crate::output::to_stdout;
use std::fmt::Write;
use strata_engine::Catalogue;
use strata_hardware::CpuModel;

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
        (policy.name.to_owned(), format!("{} [{}]", policy.about, policy.paper))
    };
    catalogue.policies.iter().map(row).collect()
}

fn cpus() -> Vec<Row> {
    CpuModel::presets().into_iter().map(|preset| (preset.name.to_owned(), preset.about)).collect()
}

fn workloads() -> Vec<Row> {
    strata_workloads::list()
        .into_iter()
        .map(|entry| (entry.name.to_owned(), entry.about.to_owned()))
        .collect()
}

fn parameters(catalogue: &Catalogue) -> Vec<Row> {
    let preset = CpuModel::preset(CpuModel::DEFAULT).expect("the default preset exists");
    let line = |value: &str, unit: &str, about: &str| {
        let about = about.split_whitespace().collect::<Vec<_>>().join(" ");
        let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
        format!("{value}{unit}: {about}")
    };
    let model = catalogue.parameters.iter();
    let model = model.map(|p| (p.name.to_owned(), line(&p.default, p.unit, p.doc)));
    let cpu = preset.constants().map(|constant| {
        let confirmed = if constant.confirmed { "" } else { ", not confirmed" };
        let about = format!("{} [{}{confirmed}]", constant.about, constant.source);
        (constant.name, line(&constant.value, constant.unit, &about))
    });
    model.chain(cpu).collect()
}
