//! `strata run --vm`: several VMs on one host.

pub(crate) mod plan;
mod report;
mod streams;
mod text;

use crate::args::RunArgs;
use crate::failure::{FAILED, Failure, USAGE};
use crate::interrupt::Interrupt;
use crate::vm_args::VmArgs;
use crate::workload::{nothing_left, unopened};
use crate::{bill, progress, room};
use plan::Plan;
use std::collections::BTreeMap;
use std::io::{IsTerminal, stderr, stdout};
use strata_engine::{
    Catalogue, HostError, HostSetup, Hosts, OpenError, Progress, Report, Setup, StackKind, Stop,
    VmSetup, run_hosts,
};
use strata_stream::WorkloadInfo;
use streams::Streams;

/// The place of a host with one VM alone, by VM and by host with all of them.
type Alone = BTreeMap<String, Vec<usize>>;

/// Runs everything asked for and reports. Gives the exit status.
///
/// # Errors
/// When the options make no sense, a workload cannot be opened or a result not written.
pub fn run(args: RunArgs, catalogue: &Catalogue) -> Result<u8, Failure> {
    let plan = plan::plan(args, catalogue)?;
    plan.results.check()?;
    let interrupt = Interrupt::watch_all();
    let (report, failed) = measure(&plan, &interrupt)?;
    let counted = report.vms.iter().flat_map(|vm| &vm.runs).any(|run| run.accesses > 0);
    if !counted && !report.partial && failed.is_none() {
        let why = nothing_left(plan.part, report.warmup);
        return Err(Failure::failed(format!("in no VM anything counts: {why}")));
    }
    plan.results.write(&report)?;
    plan.results.text.styled(&table(&plan, &report))?;
    let out_of_memory = report.vms.iter().flat_map(|vm| &vm.runs).any(|run| run.out_of_memory);
    Ok(match failed {
        Some(message) => {
            crate::complain::complain(&message);
            FAILED
        }
        None if out_of_memory => FAILED,
        None if interrupt.happened() => interrupt.status(),
        None => 0,
    })
}

/// What is printed.
pub fn table(plan: &Plan, report: &Report) -> String {
    let mut text = text::render(report, plan.results.text.width());
    if plan.bill {
        let runs = report.vms.iter().flat_map(|vm| {
            let several = vm.runs.iter().any(|run| run.stack != vm.runs[0].stack);
            vm.runs.iter().zip(report.names_of_runs(vm)).map(move |(run, name)| {
                let stack = if several { format!("{} ", run.stack) } else { String::new() };
                (format!("{} {stack}{name}", vm.name), run)
            })
        });
        text += &bill::render(&runs.collect::<Vec<_>>());
    }
    text
}

/// The report, and what failed on the way to it.
///
/// # Errors
/// When nothing was found.
pub fn measure(plan: &Plan, interrupt: &Interrupt) -> Result<(Report, Option<String>), Failure> {
    let recordings = streams::record(plan, interrupt)?;
    let streams = Streams { plan, interrupt, recordings };
    let mut known = BTreeMap::new();
    for vm in plan.vms.iter().filter(|vm| vm.input.is_some()) {
        let source = streams.open(&vm.name).map_err(|error| {
            unopened(&OpenError(format!("VM '{}': {error}", vm.name)), interrupt)
        })?;
        known.insert(vm.name.clone(), source.info());
    }
    let together: Vec<HostSetup> =
        plan.setups.iter().map(|setup| host(plan, setup, &known)).collect::<Result<_, _>>()?;
    let (all, alone) = with_alone(plan, &together);
    let at_once = room::hosts(&all, plan.jobs, plan.threads)?;
    let (stop, progress) = (Stop(interrupt.flag.clone()), Progress::default());
    let names: Vec<String> = all.iter().map(label).collect();
    let total: Option<u64> = known.values().map(|info| info.accesses).sum();
    let total = total.map(|total| total * together.len() as u64 * if plan.alone { 2 } else { 1 });
    let visible = !interrupt.is_told()
        && stderr().is_terminal()
        && !(plan.vms.iter().any(VmArgs::is_live) && stdout().is_terminal());
    let open = |name: &str| streams.open(name);
    let outcomes = progress::shown(&progress, total, &names, visible, || {
        let hosts = Hosts { setups: &all, open: &open, at_once, stop: &stop, progress: &progress };
        run_hosts(&hosts)
    });
    let outcomes = outcomes.map_err(|error| match error {
        HostError::Setup(error) => Failure { message: error.to_string(), status: USAGE },
        HostError::Open { .. } => unopened(&OpenError(error.to_string()), interrupt),
    })?;
    if interrupt.happened() && outcomes.iter().all(Option::is_none) {
        let message = format!("{} before a host was set up", interrupt.reason());
        return Err(Failure { message, status: interrupt.status() });
    }
    Ok(report::report(plan, interrupt, outcomes, &alone))
}

/// A host with all VMs.
fn host(
    plan: &Plan,
    setup: &Setup,
    known: &BTreeMap<String, WorkloadInfo>,
) -> Result<HostSetup, Failure> {
    let vms = plan.vms.iter().map(|vm| {
        let workload = known.get(&vm.name).cloned();
        let runs_vms = plan.vms.iter().any(|other| other.within.as_ref() == Some(&vm.name));
        let policy = plan.below(vm).find_map(|vm| vm.policy.clone());
        let by_place = (vm.within.is_some() || runs_vms).then_some(StackKind::Vm);
        if let Some(key) = runs_vms.then(|| vm.key_of_programs()).flatten() {
            return Err(Failure::usage(format!(
                "VM '{}' runs VMs and no program, which {key} is for: give it to the VMs in it",
                vm.name
            )));
        }
        let nothing = WorkloadInfo::default();
        let option = format!("VM '{}': memory=", vm.name);
        let known = workload.as_ref().unwrap_or(&nothing);
        let memory = vm.memory.map(|memory| memory.in_bytes(&option, known));
        Ok(VmSetup {
            name: vm.name.clone(),
            stack: vm.stack.or(by_place).unwrap_or(setup.stack),
            policy: policy.unwrap_or_else(|| setup.policy.clone()),
            memory: memory.transpose()?,
            cores: vm.cores.clone(),
            start: vm.start,
            repeat: vm.repeat,
            placement: vm.placement.unwrap_or(setup.placement),
            llc_ways: vm.llc_ways,
            vllc: vm.vllc.or(setup.llc.vllc.filter(|_| vm.input.is_some())),
            balloon: vm.balloon,
            within: vm.within.clone(),
            seed: 0,
            workload,
        })
    });
    let vms = vms.collect::<Result<_, Failure>>()?;
    HostSetup::shared(setup.clone(), plan.host_memory, vms)
        .map_err(|error| Failure::usage(error.to_string()))
}

/// All hosts to run: those with all VMs, then, if asked for, those with one alone. The same one is run
/// once, whatever the others have.
fn with_alone(plan: &Plan, together: &[HostSetup]) -> (Vec<HostSetup>, Alone) {
    let mut all = together.to_vec();
    let mut places = Alone::new();
    for vm in plan.vms.iter().filter(|vm| plan.alone && vm.input.is_some()) {
        let mut of_vm: Vec<usize> = Vec::new();
        for host in together {
            let alone = host.alone(&vm.name);
            let alike = |other: &&usize| {
                let other = &all[**other];
                let machine = |host: &HostSetup| {
                    let vms = host.vms.iter();
                    vms.map(|vm| (vm.stack, vm.policy.clone())).collect::<Vec<_>>()
                };
                (machine(other), other.memory) == (machine(&alone), alone.memory)
                    && other.common.fragmentation == alone.common.fragmentation
            };
            let place = of_vm.iter().find(alike).copied().unwrap_or(all.len());
            if place == all.len() {
                all.push(alone);
            }
            of_vm.push(place);
        }
        places.insert(vm.name.clone(), of_vm);
    }
    (all, places)
}

/// What a host is called while it is set up.
fn label(host: &HostSetup) -> String {
    let vms: Vec<_> = host.vms.iter().map(|vm| format!("{}/{}", vm.name, vm.policy)).collect();
    vms.join("+")
}
