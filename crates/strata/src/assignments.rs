//! What `--set`, and options that stand for one, assign: constants of the CPU, parameters of the model and of
//! policies.

use crate::args::RunArgs;
use crate::cpu::{cpu, models_llc};
use crate::failure::{Failure, unknown};
use crate::values::SizeAndWays;
use strata_engine::{Catalogue, ColouredCache, Paging};
use strata_hardware::{CpuModel, WalkCaches};
use strata_nested::{Access, ExitReason, Instructions};
use strata_params::{Parameter, Parameters, Value};

/// The parameter that lets page faults go to the guest without an exit.
const PAGE_FAULT_BYPASS: &str = "nested.page_fault_bypass";

/// The CPU with its constants set, and the assignments that are for the model and the policies.
///
/// # Errors
/// When a name or a value is none, or has no effect on what is run.
pub fn assigned(
    args: &RunArgs,
    catalogue: &Catalogue,
    policies: &[&String],
) -> Result<(CpuModel, Vec<(String, String)>), Failure> {
    let mut cpu = cpu(args.cpu.as_deref().unwrap_or(CpuModel::DEFAULT))?;
    if let Some(SizeAndWays { bytes, ways }) = args.l4 {
        let values = [bytes.to_string(), ways.to_string()];
        let set = [("cache.l4.bytes", &*values[0]), ("cache.l4.ways", &*values[1])];
        cpu.set_all(set).map_err(|error| Failure::usage(format!("--l4: {error}")))?;
    }
    let of_l4 = args.colours_of == Some(ColouredCache::L4);
    if of_l4
        && cpu.cache.l4.bytes == 0
        && !args.set.iter().any(|(name, _)| name == "cache.l4.bytes")
    {
        return Err(Failure::usage(
            "--colours-of l4: there is no such cache; add one with --l4, such as --l4 1GiB",
        ));
    }
    let step = args.walk_caches.as_deref();
    if let Some(step) = WalkCaches::ALL.into_iter().find(|known| Some(known.name()) == step) {
        cpu = cpu.with_walk_caches(step);
    }
    let names = |all: &[Parameter]| all.iter().map(|p| p.name.to_string()).collect::<Vec<_>>();
    let (constants, parameters) = (names(&cpu.parameters()), names(&catalogue.parameters));
    let (mut of_cpu, mut overrides) = (Vec::new(), Vec::new());
    let rates = [
        ("rate.tick", args.tick_hz.map(|hertz| hertz.to_string())),
        ("rate.io", args.io_hz.clone()),
    ];
    for (name, value) in rates {
        overrides.extend(value.map(|value| (name.to_owned(), value)));
    }
    for (name, value) in &args.set {
        if name.starts_with("cache.llc_design.") && !models_llc(args) {
            return Err(Failure::usage(format!(
                "--set {name} has no effect on the plain last-level cache; add --llc cpu"
            )));
        }
        let costs_what = name
            .strip_prefix("exit.")
            .and_then(|reason| ExitReason::ALL.into_iter().find(|known| known.name() == reason));
        let is_shadowed = args.paging.is_some_and(Paging::has_shadows);
        if costs_what.is_some_and(|reason| reason.is_of_shadow_paging() && !is_shadowed) {
            return Err(Failure::usage(format!(
                "--set {name} has no effect where no VM has shadow paging; add --paging shadow"
            )));
        }
        if name == PAGE_FAULT_BYPASS && value == "true" && !is_shadowed {
            return Err(Failure::usage(format!(
                "--set {name} concerns page faults that exit, and with second stages none does; add --paging shadow, or \
                 --paging shadow-on-shadow for a nested VM"
            )));
        }
        if constants.contains(name) {
            of_cpu.push((name.as_str(), value.as_str()));
        } else if parameters.contains(name) {
            let readers = catalogue.readers(name);
            if !readers.is_empty() && !policies.iter().any(|used| readers.contains(&used.as_str()))
            {
                return Err(Failure::usage(format!(
                    "--set {name} has no effect without policy {}; add it to --policy",
                    readers.join(" or ")
                )));
            }
            overrides.push((name.clone(), value.clone()));
        } else if let Some(remedy) = strata_nested::replacement(name) {
            return Err(Failure::usage(format!(
                "--set {name}: there is no such parameter any more; {remedy}"
            )));
        } else {
            let all = constants.iter().chain(&parameters).map(String::as_str);
            let message = unknown("parameter", name, all, "'strata list parameters' shows all");
            return Err(Failure::usage(message));
        }
    }
    cpu.set_all(of_cpu).map_err(|error| Failure::usage(format!("--set: {error}")))?;
    let bypasses =
        overrides.iter().any(|(name, value)| name == PAGE_FAULT_BYPASS && value == "true");
    if bypasses && cpu.virtualization.instructions == Instructions::Svm {
        return Err(Failure::usage(format!(
            "--set {PAGE_FAULT_BYPASS}=true: {} has AMD's instructions, with whose VMCB all page faults exit or \
             none; leave it out, or take an Intel CPU",
            cpu.name
        )));
    }
    for (name, value) in overrides.iter().filter(|(name, _)| name == "nested.vmcs_access") {
        let access = Access::parse(name, value, "");
        if access.is_ok_and(|access| !access.fits(cpu.virtualization.instructions)) {
            return Err(Failure::usage(format!(
                "--set {name}={value}: {} has AMD's instructions, whose VMCB is plain memory to begin \
                 with; leave it out, or take an Intel CPU",
                cpu.name
            )));
        }
    }
    Ok((cpu, overrides))
}
