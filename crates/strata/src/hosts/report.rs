//! What `strata run --vm` found, as a report.

use super::Alone;
use super::plan::Plan;
use crate::again;
use crate::interrupt::Interrupt;
use crate::vm_args::VmArgs;
use crate::workload::part_taken;
use std::collections::BTreeMap;
use strata_engine::report::VmReport;
use strata_engine::requests;
use strata_engine::{GuestOutcome, HostCutShort, HostOutcome, Report};
use strata_workloads::Part;

/// The report of what happened on all hosts, and what failed, if anything did.
pub fn report(
    plan: &Plan,
    interrupt: &Interrupt,
    outcomes: Vec<Option<HostOutcome>>,
    alone: &Alone,
) -> (Report, Option<String>) {
    let mut failed = None;
    let mut hosts = Vec::new();
    let mut guests: BTreeMap<&str, Vec<&GuestOutcome>> = BTreeMap::new();
    let complete = outcomes.iter().all(Option::is_some);
    for (outcome, setup) in outcomes.iter().zip(&plan.setups) {
        let Some(outcome) = outcome else { continue };
        if let Some(cut @ HostCutShort::Failed { .. }) = &outcome.cut_short {
            failed.get_or_insert_with(|| cut.to_string());
        }
        let mut host = outcome.host.clone();
        host.stack = (!plan.own.0).then_some(setup.stack);
        host.policy = (!plan.own.1).then(|| setup.policy.clone());
        hosts.push(host);
        for guest in &outcome.guests {
            guests.entry(&guest.vm).or_default().push(guest);
        }
    }
    let of_alone = |vm: &VmArgs| -> Vec<&GuestOutcome> {
        let places = alone.get(&vm.name).into_iter().flatten();
        places.filter_map(|place| Some(&outcomes[*place].as_ref()?.guests[0])).collect()
    };
    let vms = plan.vms.iter().filter(|vm| vm.input.is_some()).map(|vm| {
        let together = guests.remove(vm.name.as_str()).unwrap_or_default();
        let mut workload =
            together.last().map_or_else(|| vm.live_info(), |guest| guest.workload.clone());
        workload.notes.extend(shared_hypervisor(plan, vm));
        workload.notes.extend(part_taken(Part { limit: plan.options.limit, ..plan.part }));
        let mut report = VmReport::new(vm.name.clone(), workload, &together, &of_alone(vm));
        let VmReport { runs, alone, .. } = &mut report;
        requests::relate(runs, alone, &plan.request_load, plan.setups[0].seed);
        report
    });
    let mut report = Report::of_hosts(vms.collect(), hosts);
    report.seed = plan.setups[0].seed;
    report.warmup = plan.setups[0].warmup;
    again::note(&mut report, plan.options.clone(), None);
    let mut reasons: Vec<String> = failed.iter().cloned().collect();
    if failed.is_none() && (interrupt.happened() || !complete) {
        reasons.push(interrupt.reason());
    }
    reasons.extend(report.partial_reason.take());
    report.partial_reason = (!reasons.is_empty()).then(|| reasons.join("; "));
    report.partial = report.partial_reason.is_some();
    (report, failed)
}

/// Whose faults and exits a guest hypervisor's are, if it has several guests.
fn shared_hypervisor(plan: &Plan, vm: &VmArgs) -> Option<String> {
    let within = vm.within.as_ref()?;
    let others = plan.vms.iter().filter(|other| other.within.as_ref() == Some(within)).count();
    (others > 1).then(|| {
        format!(
            "faults and exits of the guest hypervisor are those of all VMs in '{within}' together"
        )
    })
}
