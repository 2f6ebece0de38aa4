//! From what machines found to a report: runs related to each other, and what a reader must know.

use crate::options::{Options, Version};
use crate::report::{Bounds, HostRun, Report, RunResult, VERSION, VmReport, Workload};
use crate::room::{self, Place};
use crate::sampling::Windows;
use crate::simulation::together::GuestOutcome;
use std::collections::BTreeMap;
use strata_stream::WorkloadInfo;

impl VmReport {
    /// A report of a VM, with throughput related to its first run of each stack, and time, run by run,
    /// to those `alone`, if there are any.
    pub fn new(
        name: String,
        workload: WorkloadInfo,
        together: &[&GuestOutcome],
        alone: &[&GuestOutcome],
    ) -> Self {
        let both = || together.iter().zip(alone);
        let slowdown = both().map(|(together, alone)| slowdown(together, alone));
        let slowdown_estimated = both().map(|(together, _)| together.rounds == 0).collect();
        let runs = |guests: &[&GuestOutcome]| -> Vec<RunResult> {
            guests.iter().map(|guest| guest.run.clone()).collect()
        };
        let rounds = together.iter().map(|guest| guest.rounds).collect();
        let slowdown = slowdown.collect();
        // Each run has what it touched itself: how far a program comes depends on the others.
        let mut related = runs(together);
        relate(&mut related);
        room::remark(&mut related, Place::SharedHost);
        Self {
            name,
            workload: workload.into(),
            runs: related,
            alone: runs(alone),
            rounds,
            slowdown,
            slowdown_estimated,
        }
    }
}

/// The time of a program, run for the first time, over that without other VMs. Of one that did not come to
/// its end, as of a neighbour that repeats until the others have ended, the time until then over that of as
/// many accesses alone, to which a line between two samples leads; before the first of these nothing is said.
fn slowdown(together: &GuestOutcome, alone: &GuestOutcome) -> Option<f64> {
    if [together, alone].iter().any(|guest| guest.run.out_of_memory) || alone.rounds == 0 {
        return None;
    }
    let slowdown = match together.rounds {
        0 => together.run.elapsed_seconds / seconds_until(&alone.run, together.run.accesses)?,
        _ => together.first_seconds / alone.first_seconds,
    };
    slowdown.is_finite().then_some(slowdown)
}

/// Simulated seconds that a run took for its first accesses; `None` before its first sample and after its end.
fn seconds_until(run: &RunResult, accesses: u64) -> Option<f64> {
    let samples = run.samples.iter().map(|sample| (sample.accesses, sample.seconds));
    let points: Vec<(u64, f64)> = samples.chain([(run.accesses, run.elapsed_seconds)]).collect();
    let after = points.iter().position(|(made, _)| *made >= accesses)?;
    let (made, seconds) = points[after];
    if made == accesses {
        return Some(seconds);
    }
    let (before, earlier) = points[after.checked_sub(1)?];
    let part = (accesses - before) as f64 / (made - before) as f64;
    Some(earlier + part * (seconds - earlier))
}

impl Report {
    /// A report over `runs`, with throughput related to the first run of each stack.
    pub fn new(workload: WorkloadInfo, mut runs: Vec<RunResult>) -> Self {
        relate(&mut runs);
        room::remark(&mut runs, Place::OneMachine);
        // Every run saw the same accesses, so what was counted on the way is true of each; what a
        // run was told before it began may have been an upper bound.
        if let Some(touched) = workload.footprint_bytes {
            runs.iter_mut().for_each(|run| run.memory.touched_bytes = touched);
        }
        let partial_reason = out_of_memory(&runs, Place::OneMachine);
        Self {
            strata: VERSION,
            version: Version::default(),
            command: Vec::new(),
            options: Options::default(),
            partial: partial_reason.is_some(),
            partial_reason,
            workload: workload.into(),
            seed: 0,
            warmup: 0,
            tables: None,
            runs,
            vms: Vec::new(),
            hosts: Vec::new(),
        }
    }

    /// A report over VMs that shared `hosts`.
    pub fn of_hosts(vms: Vec<VmReport>, hosts: Vec<HostRun>) -> Self {
        let ended: Vec<_> = vms
            .iter()
            .filter_map(|vm| {
                Some(format!("VM '{}': {}", vm.name, out_of_memory(&vm.runs, Place::SharedHost)?))
            })
            .collect();
        let names: Vec<_> = vms.iter().map(|vm| vm.name.as_str()).collect();
        Self {
            partial: !ended.is_empty(),
            partial_reason: (!ended.is_empty()).then(|| ended.join("; ")),
            workload: Workload {
                name: names.join(", "),
                kind: "VMs on one host".to_owned(),
                ..Workload::default()
            },
            vms,
            hosts,
            ..Self::new(WorkloadInfo::default(), Vec::new())
        }
    }
}

/// What is said of a VM that the host killed.
const KILLED_BY_HOST: &str = "host killed";

/// Which runs ended for want of memory and say nothing of their policies, if any did.
fn out_of_memory(runs: &[RunResult], place: Place) -> Option<String> {
    let several = runs.iter().any(|run| run.stack != runs[0].stack);
    let mut ended: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.out_of_memory) {
        let stack = if several { format!("{} ", run.stack) } else { String::new() };
        let name = format!("{stack}{}", run.policy);
        ended.entry(run.killed.join(", ")).or_default().push(name);
    }
    let by_host = ended.keys().any(|killed| killed.contains(KILLED_BY_HOST));
    let remedy = match place {
        Place::OneMachine => "raise --memory",
        Place::SharedHost if by_host => "raise --host-memory",
        Place::SharedHost => "give the VM more memory=",
    };
    let ended: Vec<_> = ended
        .into_iter()
        .map(|(killed, names)| match &killed[..] {
            "" => names.join(", "),
            killed => format!("{} ({killed})", names.join(", ")),
        })
        .collect();
    (!ended.is_empty()).then(|| {
        let ended = ended.join(", ");
        format!("memory ran out under {ended}, so that nothing compares with it: {remedy}")
    })
}

fn relate(runs: &mut [RunResult]) {
    let mut first = BTreeMap::new();
    let mut first_windows = BTreeMap::new();
    for run in runs {
        let own = run.throughput().filter(|_| !run.out_of_memory);
        let (base, accesses) = *first.entry(run.stack).or_insert((own, run.accesses));
        // Runs that saw different parts of the stream cannot be compared.
        let comparable = own.zip(base).filter(|_| run.accesses == accesses);
        run.relative_throughput = comparable.map(|(own, base)| own / base);
        bound_relation(run, first_windows.entry(run.stack).or_insert_with(|| run.windows.clone()));
    }
}

/// Bounds of the throughput relative to the first run of the stack, where the stream is sampled.
fn bound_relation(run: &mut RunResult, base: &Option<Windows>) {
    let (Some(value), Some(own), Some(base), Some(said)) =
        (run.relative_throughput, &run.windows, base, &mut run.sampled)
    else {
        return;
    };
    if let Some(half) = own.strata.relative(&base.strata, own.elapsed, base.elapsed) {
        let bounds = Bounds { low: (value - half).max(0.0), high: value + half };
        said.bounds.insert("relative_throughput".to_owned(), bounds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{PerLayer, StackKind};
    use crate::report::Sample;

    fn run(stack: StackKind, policy: &str, elapsed_cycles: u64) -> RunResult {
        RunResult {
            stack,
            policy: policy.to_owned(),
            accesses: 100,
            elapsed_cycles,
            ..RunResult::default()
        }
    }

    #[test]
    fn throughput_relates_to_the_first_run_of_the_same_stack() {
        let report = Report::new(
            WorkloadInfo::default(),
            vec![
                run(StackKind::Nested, "base", 1000),
                run(StackKind::Vm, "base", 800),
                run(StackKind::Nested, "xgemini", 500),
                run(StackKind::Vm, "xgemini", 1600),
                run(StackKind::Native, "base", 0),
                run(StackKind::Native, "thp", 10),
            ],
        );
        let relative: Vec<_> = report.runs.iter().map(|run| run.relative_throughput).collect();
        assert_eq!(relative, [Some(1.0), Some(1.0), Some(2.0), Some(0.5), None, None]);
        let stacks: Vec<_> = report.by_stack().iter().map(|(s, runs)| (*s, runs.len())).collect();
        assert_eq!(stacks, [(StackKind::Nested, 2), (StackKind::Vm, 2), (StackKind::Native, 2)]);
    }

    #[test]
    fn json_reads_back_as_written_and_names_absent_layers() {
        let mut result = run(StackKind::Vm, "thp", 7);
        result.fmfi = PerLayer::new(0.25, None, Some(0.5));
        result.exits.insert("ept_violation".to_owned(), 3);
        result.samples.push(Sample { seconds: 0.1, ..Sample::default() });
        let report = Report::new(WorkloadInfo::default(), vec![result]);
        let text = serde_json::to_string(&report).unwrap();
        assert!(text.starts_with(r#"{"strata":1,"#), "{text}");
        assert!(text.contains(r#""fmfi":{"guest":0.25,"l1":null,"host":0.5}"#), "{text}");
        assert!(text.contains(r#""stack":"vm""#), "{text}");
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
