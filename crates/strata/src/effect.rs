//! Options that would change nothing, beside the others that were given: refused, with what would give them
//! an effect.

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::vm_args::VmArgs;
use std::iter;
use strata_engine::{Catalogue, PagePlacement, Paging, StackKind};
use strata_hardware::{CpuModel, SliceHash};

/// What places pages by cache colour, for messages.
const PLACES: &str =
    "add --placement, such as --placement colouring, or a policy that does, such as xplace";

/// Checks options by themselves, beside the policies that are used and the CPU with its constants set.
///
/// # Errors
/// When one would do nothing.
pub fn check(
    args: &RunArgs,
    catalogue: &Catalogue,
    policies: &[&String],
    cpu: &CpuModel,
) -> Result<(), Failure> {
    let nothing =
        |what: &str, why: &str| Err(Failure::usage(format!("{what} has no effect {why}")));
    let native = |stacks: &[StackKind]| stacks.iter().all(|stack| *stack == StackKind::Native);
    let is_native = args.vm.is_empty() && args.stack.as_deref().is_some_and(native);
    if args.vllc.is_some() && is_native {
        let why = "on native programs, which are told of the real last-level cache; add vm or nested to --stack";
        return nothing("--vllc", why);
    }
    let by_colour = is_placed(args.placement)
        || args.vm.iter().any(|vm| is_placed(vm.placement))
        || policies.iter().any(|policy| is_by_colour(catalogue, policy));
    let without_colours = format!("where nothing places pages by cache colour; {PLACES}");
    let of_colours = [(args.vllc.is_some(), "--vllc"), (args.colours_of.is_some(), "--colours-of")];
    if let Some((_, what)) = of_colours.into_iter().find(|(given, _)| *given && !by_colour) {
        return nothing(what, &without_colours);
    }
    let is_set = |name: &str, value: &str| args.set.iter().any(|(n, v)| n == name && v == value);
    let ksm = is_set("ksm.run", "true");
    let size = |(name, value): &(String, String)| name == "balloon.size" && value != "0";
    let balloon = args.set.iter().any(size) || args.vm.iter().any(|vm| vm.balloon.is_some());
    let in_no_vm = "on native programs, which are in no VM; add vm or nested to --stack";
    for (given, what) in [
        (args.tick_hz.is_some(), "--tick-hz"),
        (args.io_hz.is_some(), "--io-hz"),
        (args.paging.is_some_and(Paging::has_shadows), "--paging"),
    ] {
        if given && is_native {
            return nothing(what, in_no_vm);
        }
    }
    if let Some(paging) = args.paging.filter(|paging| paging.has_shadows() && !args.vm.is_empty()) {
        return Err(Failure::usage(format!(
            "--paging {} is for one VM, not for several on one host; leave out --vm, or --paging",
            paging.name()
        )));
    }
    let ticks = |(name, value): &(String, String)| name == "rate.tick" && value != "0";
    let ticks = args.tick_hz.is_some_and(|hertz| hertz > 0) || args.set.iter().any(ticks);
    for (name, _) in &args.set {
        let why = match name.split_once('.') {
            Some(("colours", "batch" | "high" | "contiguity")) if !by_colour => &without_colours,
            Some(("ksm", "run") | ("balloon", "size") | ("rate", _)) if is_native => in_no_vm,
            Some(("nested", "direct_timers")) if !ticks => {
                "where no timer ticks; add --tick-hz, such as --tick-hz 250"
            }
            Some(("ksm", own)) if own != "run" && !ksm => {
                "where the host merges no pages; add --set ksm.run=true"
            }
            Some(("balloon", "period" | "exit")) if !balloon => {
                "without balloons; add --set balloon.size=, such as --set balloon.size=64"
            }
            Some(("cache", "l4.cycles" | "l4.ways")) if cpu.cache.l4.bytes == 0 => {
                "where there is no cache at the memory; add one with --l4, such as --l4 1GiB"
            }
            Some(("cache", "llc_design.slices"))
                if cpu.cache.llc_design.hash == SliceHash::None =>
            {
                "on a last-level cache of one piece; add --set cache.llc_design.hash=even"
            }
            _ => continue,
        };
        return nothing(&format!("--set {name}"), why);
    }
    Ok(())
}

/// Checks the keys of a VM, beside those of the VMs that it is in and the options for all.
///
/// # Errors
/// When one would do nothing.
pub fn check_vm(vm: &VmArgs, args: &RunArgs, catalogue: &Catalogue) -> Result<(), Failure> {
    let is_by_colour = |policy: &String| is_by_colour(catalogue, policy);
    let below = |vm: &&VmArgs| args.vm.iter().find(|other| vm.within.as_ref() == Some(&other.name));
    let own = |vm: &VmArgs| match &vm.policy {
        Some(policy) => is_by_colour(policy),
        None => vm.within.is_none() && args.policy.iter().flatten().any(is_by_colour),
    };
    // One that is in itself is refused later.
    let mut path = iter::successors(Some(vm), below).take(args.vm.len());
    let by_colour = is_placed(vm.placement.or(args.placement)) || path.any(own);
    if vm.vllc.is_none() || by_colour || vm.key_of_programs().is_some() && vm.input.is_none() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "VM '{}': vllc has no effect where nothing places pages by cache colour; give it placement=, such as \
         placement=colouring, or a policy that does, such as xplace",
        vm.name
    )))
}

/// Whether a kernel places pages by colour.
fn is_placed(placement: Option<PagePlacement>) -> bool {
    placement.is_some_and(|placement| placement != PagePlacement::Linux)
}

/// Whether the host does under a policy.
fn is_by_colour(catalogue: &Catalogue, policy: &str) -> bool {
    catalogue.policy(policy).is_some_and(|policy| policy.by_colour)
}
