//! `strata join`: the snapshots of a stack become one account.

use crate::failure::Failure;
use crate::gain;
use crate::inspect_args::JoinArgs;
use crate::results::{Places, json};
use crate::{cpu, remote, snapshot_text};
use serde::Serialize;
use std::path::Path;
use strata_engine::gain::Gain;
use strata_hardware::CpuModel;
use strata_inspect::join::prometheus;
use strata_inspect::join::regions::{Regions, regions};
use strata_inspect::{Join, Options, Tree, join as compose, read, scan};

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
    let inputs: Vec<_> = args.snapshots.iter().map(|path| ("the snapshot", &**path)).collect();
    let places = Places::new(&args.results, args.html.as_deref(), &inputs)?;
    let cpu = args.gain.then(|| cpu::cpu(args.cpu.as_deref().unwrap_or(CpuModel::DEFAULT)));
    let cpu = cpu.transpose()?;
    let mut snapshots = match &args.key {
        Some(key) => remote::snapshots(&args.from, key)?,
        None => Vec::new(),
    };
    let failed = |error: strata_inspect::Error| Failure::failed(error.to_string());
    for path in &args.snapshots {
        snapshots.push(read(path).map_err(failed)?);
    }
    if args.snapshots.is_empty() {
        snapshots.push(scan(&Tree::new("/"), None).map_err(failed)?);
    }
    let options = Options { vms: args.vm, force: args.force, taken_at: None };
    let report = compose(&snapshots, &options).map_err(|e| Failure::failed(e.to_string()))?;
    let estimate = |cpu| strata_engine::gain::gain(&snapshots, &options, &cpu);
    let gain = cpu.map(estimate).transpose().map_err(|e| Failure::failed(e.to_string()))?;
    let written = || {
        let detail = args.detail || args.html.is_some();
        let regions = detail.then(|| regions(&snapshots, &options)).transpose();
        let regions = regions.map_err(|error| Failure::failed(error.to_string()))?;
        json(&Json { join: &report, gain: gain.as_ref(), regions })
    };
    places.write(
        written,
        || prometheus::text(&report),
        |width| {
            let gain = gain.as_ref().map_or_else(String::new, |gain| gain::text(gain, width));
            snapshot_text::joined(&report, width) + &gain
        },
    )
}
