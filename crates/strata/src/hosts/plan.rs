//! What `strata run --vm` is asked for, checked.

use crate::args::{Input as InputArgs, RunArgs};
use crate::failure::{Failure, unknown};
use crate::guest_memory::GuestMemory;
use crate::pairs::cross_product;
use crate::plan::{apart, request_load, setups};
use crate::run_results::Results;
use crate::vm_args::VmArgs;
use crate::workload::Input;
use crate::{again, effect};
use std::iter;
use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;
use strata_engine::options::Options;
use strata_engine::{Catalogue, RequestLoad, Setup, StackKind};
use strata_workloads::Part;

/// What `strata run --vm` is going to do.
pub struct Plan {
    /// The VMs, in the order of the report.
    pub vms: Vec<VmArgs>,
    /// What the hosts have in common each, in the order of the report.
    pub setups: Vec<Setup>,
    /// The part of each stream.
    pub part: Part,
    /// Whether every VM has a stack and a policy of its own.
    pub own: (bool, bool),
    /// Bytes of the host's memory, if they were said.
    pub host_memory: Option<u64>,
    /// Run each VM without the others as well.
    pub alone: bool,
    /// How often requests arrive.
    pub request_load: RequestLoad,
    /// What the report says was asked for.
    pub options: Options,
    /// Most hosts to hold in memory at once.
    pub jobs: Option<NonZeroUsize>,
    /// Threads to use.
    pub threads: NonZeroUsize,
    /// The bills follow the tables.
    pub bill: bool,
    /// Where everything goes.
    pub results: Results,
}

impl Plan {
    /// A VM and those that it is in, the next first.
    pub fn below<'a>(&'a self, vm: &'a VmArgs) -> impl Iterator<Item = &'a VmArgs> {
        let below =
            |vm: &&'a VmArgs| self.vms.iter().find(|other| vm.within.as_ref() == Some(&other.name));
        // One that is in itself is refused later.
        iter::successors(Some(vm), below).take(self.vms.len())
    }
}

/// Checks the options against each other and against what there is.
pub fn plan(mut args: RunArgs, catalogue: &Catalogue) -> Result<Plan, Failure> {
    let results = Results::of(&args)?;
    let traces = args.vm.iter().filter_map(|vm| match &vm.input {
        Some(Input::Trace(path, _)) => Some(("the trace", path.as_path())),
        _ => None,
    });
    apart(&args, &results, traces.collect())?;
    let InputArgs { trace, workload, program, format, .. } = &args.input;
    let refused = [
        (trace.is_some(), "a trace"),
        (workload.is_some(), "--workload"),
        (!program.is_empty(), "a program"),
        (format.is_some(), "--format"),
        (args.memory.is_some(), "--memory"),
    ];
    if let Some((_, what)) = refused.iter().find(|(given, _)| *given) {
        return Err(Failure::usage(format!(
            "{what} is for one machine, and --vm for several: give it as a key of a VM, or leave one \
             of the two out"
        )));
    }
    if args.tables.is_some() {
        return Err(Failure::usage(
            "--tables is for one machine, whose page tables were captured: leave out --vm",
        ));
    }
    args.host_memory.map_or(Ok(()), |size| GuestMemory::Size(size).check("--host-memory "))?;
    for vm in &args.vm {
        check(vm, catalogue)?;
        effect::check_vm(vm, &args, catalogue)?;
    }
    let own = match are_on_the_host(&args.vm) {
        true => (own_stacks(&mut args)?, own_policies(&mut args)?),
        false => (false, false),
    };
    let mut remarks = Vec::new();
    let pairs = cross_product(&args, catalogue, &mut remarks)?;
    let besides: Vec<String> = args.vm.iter().filter_map(|vm| vm.policy.clone()).collect();
    let mut all = pairs.clone();
    // A VM may have a policy of its own on any stack.
    all.extend(besides.iter().map(|policy| (pairs[0].0, policy.clone())));
    let request_load = request_load(&args, &all)?;
    let (setups, part) = setups(&args, catalogue, pairs, &besides)?;
    let mut options = again::options(&args, &setups);
    if own.0 {
        options.stack.clear();
    }
    if own.1 {
        options.policy.clear();
    }
    Ok(Plan {
        setups,
        part,
        own,
        request_load,
        host_memory: args.host_memory,
        alone: args.alone.unwrap_or(false),
        options,
        jobs: args.jobs,
        threads: args.threads.or_else(|| thread::available_parallelism().ok()).unwrap_or(ONE),
        bill: args.bill.unwrap_or(false),
        results,
        vms: args.vm,
    })
}

const ONE: NonZeroUsize = NonZeroUsize::MIN;

/// What is wrong with a VM by itself.
fn check(vm: &VmArgs, catalogue: &Catalogue) -> Result<(), Failure> {
    let name = &vm.name;
    if let Some(policy) = &vm.policy
        && catalogue.policy(policy).is_none()
    {
        let names = catalogue.policies.iter().map(|policy| &*policy.name);
        let why = unknown("policy", policy, names, "'strata list policies' shows all");
        return Err(Failure::usage(format!("VM '{name}': {why}")));
    }
    match &vm.input {
        Some(Input::Trace(..)) | None => {}
        _ if vm.format.is_some() => {
            return Err(Failure::usage(format!("VM '{name}': format is for traces; leave it out")));
        }
        _ => {}
    }
    if let Some(Input::Trace(path, _)) = &vm.input
        && path != Path::new("-")
    {
        let metadata = path.metadata().map_err(|error| {
            Failure::failed(format!(
                "VM '{name}': cannot open {}: {error}; name a recording or trace, or give program= to run \
                 a program",
                path.display()
            ))
        })?;
        if metadata.is_dir() {
            return Err(Failure::failed(format!(
                "VM '{name}': '{}' is a directory; name a file in it",
                path.display()
            )));
        }
    }
    if let Some(input) = vm.input.as_ref().filter(|input| !input.is_live())
        && !input.is_repeatable()
    {
        return Err(Failure::usage(format!(
            "VM '{name}': its trace can be read only once, and every machine reads it anew; save it \
             to a file first"
        )));
    }
    Ok(())
}

/// Whether every VM is on the host, by those that it is in. Where one is not, the engine says why.
fn are_on_the_host(vms: &[VmArgs]) -> bool {
    vms.iter().all(|vm| {
        let below = |vm: &&VmArgs| vms.iter().find(|other| vm.within.as_ref() == Some(&other.name));
        // With as many below as there are VMs it is in itself.
        let last = iter::successors(Some(vm), below).take(vms.len()).last();
        last.is_some_and(|last| last.within.is_none())
    })
}

/// Whether every VM has a stack of its own, so that none is chosen for all.
fn own_stacks(args: &mut RunArgs) -> Result<bool, Failure> {
    let nested: Vec<&String> = args.vm.iter().filter_map(|vm| vm.within.as_ref()).collect();
    let has = |vm: &VmArgs| vm.stack.is_some() || vm.within.is_some() || nested.contains(&&vm.name);
    let all = args.vm.iter().all(has);
    match (all, &args.stack) {
        (true, Some(_)) => Err(Failure::usage(
            "every VM has a stack of its own; leave out --stack, or the stack of those that it is for",
        )),
        (true, None) => {
            let nested =
                |vm: &VmArgs| vm.within.is_some() || vm.stack.is_some_and(StackKind::is_nested);
            let deep = args.vm.iter().any(nested);
            args.stack = Some(vec![if deep { StackKind::Nested } else { StackKind::Vm }]);
            Ok(true)
        }
        (false, _) => Ok(false),
    }
}

/// The same for policies.
fn own_policies(args: &mut RunArgs) -> Result<bool, Failure> {
    // One that is in another VM has that one's.
    let has = |vm: &VmArgs| vm.policy.is_some() || vm.within.is_some();
    match (args.vm.iter().all(has), &args.policy) {
        (true, Some(_)) => Err(Failure::usage(
            "every VM has a policy of its own; leave out --policy, or the policy of those that it is \
             for",
        )),
        (true, None) => {
            let first = args.vm.iter().find_map(|vm| vm.policy.clone());
            args.policy = first.map(|policy| vec![policy]);
            Ok(true)
        }
        (false, _) => Ok(false),
    }
}
