//! `strata join`: the snapshots of a stack become one account.

use crate::failure::Failure;
use crate::gain;
use crate::inspect_args::JoinArgs;
use crate::output::{self, Target};
use crate::{drawn, plan, snapshot_text};
use serde::Serialize;
use std::path::Path;
use strata_engine::gain::Gain;
use strata_hardware::CpuModel;
use strata_inspect::join::prometheus;
use strata_inspect::join::regions::{Regions, regions};
use strata_inspect::{Join, Options, Snapshot, join as compose, read};

/// What the JSON holds.
#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    join: &'a Join,
    #[serde(skip_serializing_if = "Option::is_none")]
    gain: Option<&'a Gain>,
    #[serde(skip_serializing_if = "Option::is_none")]
    regions: Option<Regions>,
}

/// Joins.
///
/// # Errors
/// When a snapshot cannot be read, they do not belong together, or a result cannot be written.
pub fn join(args: JoinArgs) -> Result<(), Failure> {
    let dash = Path::new("-");
    if args.snapshots.iter().filter(|path| *path == dash).count() > 1 {
        return Err(Failure::usage(
            "only one snapshot can come from the standard input; use files",
        ));
    }
    let named = |path: &Option<std::path::PathBuf>| path.as_deref().map(Target::named);
    let (json, html) = (named(&args.json), named(&args.html));
    let (metrics, table) = (named(&args.prometheus), named(&args.output));
    let results = [&json, &html, &metrics, &table];
    if results.iter().filter(|target| ***target == Some(Target::Stdout)).count() > 1 {
        return Err(Failure::usage("only one result can go to the standard output; name a file"));
    }
    let names = ["--json", "--html", "--prometheus", "--output"];
    let outputs =
        names.into_iter().zip(results).filter_map(|(name, target)| Some((name, target.as_ref()?)));
    let inputs = args.snapshots.iter().map(|path| ("the snapshot", path.as_path()));
    output::apart(&outputs.collect::<Vec<_>>(), &inputs.collect::<Vec<_>>())?;
    for target in results.into_iter().flatten() {
        target.check()?;
    }
    let cpu = args.gain.then(|| plan::cpu(args.cpu.as_deref().unwrap_or(CpuModel::DEFAULT)));
    let cpu = cpu.transpose()?;
    let snapshots: Vec<Snapshot> = args
        .snapshots
        .iter()
        .map(|path| read(path))
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::failed(error.to_string()))?;
    let options = Options { vms: args.vm, force: args.force, taken_at: None };
    let report = compose(&snapshots, &options).map_err(|e| Failure::failed(e.to_string()))?;
    let estimate = |cpu| strata_engine::gain::gain(&snapshots, &options, &cpu);
    let gain = cpu.map(estimate).transpose().map_err(|e| Failure::failed(e.to_string()))?;
    if json.is_some() || html.is_some() {
        let detail = args.detail || html.is_some();
        let regions = detail.then(|| regions(&snapshots, &options)).transpose();
        let regions = regions.map_err(|error| Failure::failed(error.to_string()))?;
        let mut text =
            serde_json::to_string_pretty(&Json { join: &report, gain: gain.as_ref(), regions })
                .map_err(|error| Failure::failed(format!("cannot write the JSON: {error}")))?;
        text.push('\n');
        json.as_ref().map_or(Ok(()), |target| target.plain(text.as_bytes()))?;
        html.as_ref().map_or(Ok(()), |target| target.plain(drawn::of(&text)?.as_bytes()))?;
    }
    if let Some(target) = &metrics {
        target.plain(prometheus::text(&report).as_bytes())?;
    }
    // Who asked for another form on standard output wants nothing else there.
    let taken = [&json, &html, &metrics].iter().any(|target| **target == Some(Target::Stdout));
    match (&table, taken) {
        (None, true) => Ok(()),
        (table, _) => {
            let target = table.as_ref().unwrap_or(&Target::Stdout);
            let width = target.width();
            let gain = gain.map_or_else(String::new, |gain| gain::text(&gain, width));
            target.styled(&(snapshot_text::joined(&report, width) + &gain))
        }
    }
}
