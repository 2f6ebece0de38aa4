//! The options in force, and the command line that gives the same again.

use crate::args::{Fragmentation, RunArgs};
use crate::defaults::{DEFAULT_FMFI, DEFAULT_LEVELS, DEFAULT_SEED, DEFAULT_STACK};
use crate::workload::Input;
use strata_engine::options::Options;
use strata_engine::report::PerLayer;
use strata_engine::{Report, RunResult, Setup, StackKind, default_policies};
use strata_hardware::{CpuModel, Misaligned};
use strata_params::Parameters;
use strata_text::number::exact_size;

/// What the TLB does with a misaligned huge page unless something else is said.
const SPLINTER: &str = "splinter";

/// The last-level cache unless something else is said.
const PLAIN: &str = "plain";

/// The options in force before anything runs. `setups` are the machines that the other arguments
/// ask for.
pub fn options(args: &RunArgs, setups: &[Setup]) -> Options {
    let first = &setups[0];
    let captured = args.tables.is_some();
    let (mut stack, mut policy) = (Vec::new(), Vec::new());
    if captured {
        // What the tables are compared with is no choice.
        stack.push(first.stack);
        policy.extend(setups.iter().map(|setup| setup.policy.clone()));
    } else {
        stack.extend(args.stack.clone().unwrap_or_else(|| vec![DEFAULT_STACK]));
        policy.extend(args.policy.clone().unwrap_or_else(default_policies));
    }
    let constants: Vec<_> = first.cpu.parameters();
    // As the model prints them, so that equal values look equal.
    let printed = |name: &str, value: &str| {
        let constant = constants.iter().find(|constant| constant.name == name);
        constant.map_or_else(|| value.to_owned(), |constant| constant.value.clone())
    };
    let set = args.set.iter().map(|(name, value)| (name.clone(), printed(name, value)));
    Options {
        cpu: args.cpu.clone().unwrap_or_else(|| CpuModel::DEFAULT.to_owned()),
        tables: args.tables.as_ref().map(|path| path.display().to_string()),
        format: args.input.format.clone(),
        levels: (!captured).then_some(first.levels),
        memory: args.memory.map(|memory| memory.to_string()),
        memory_bytes: None,
        fragmentation: (!captured).then(|| fragmentation(&stack, args.fragmentation.as_ref())),
        reused: (!captured).then_some(first.reused),
        paging: args.paging.map(|paging| paging.name().to_owned()),
        tlb_misaligned: match first.misaligned {
            Misaligned::Splinter => SPLINTER.to_owned(),
            Misaligned::NoFill => "no-fill".to_owned(),
        },
        walk_caches: args.walk_caches.clone(),
        placement: args.placement.map(|placement| placement.to_string()),
        llc: args.llc.clone().filter(|llc| llc != PLAIN),
        llc_ways: args.llc_ways.map(|ways| ways.to_string()),
        llc_misses: first.llc.classify,
        l4: args.l4.map(|l4| l4.to_string()),
        colours_of: args.colours_of.map(|cache| cache.name().to_owned()),
        vllc: args.vllc.map(|colours| colours.count().to_string()),
        sample: args.sample.as_ref().map(ToString::to_string),
        request_load: args.request_load.as_ref().map(ToString::to_string),
        tick_hz: args.tick_hz,
        io_hz: args.io_hz.clone(),
        marked: args.input.marked.unwrap_or(false),
        skip: args.input.skip.unwrap_or(0),
        warmup: first.warmup,
        limit: args.input.limit,
        seed: first.seed,
        vm: args.vm.iter().map(ToString::to_string).collect(),
        host_memory: args.host_memory.map(exact_size),
        alone: args.alone.unwrap_or(false),
        explain: first.explain,
        detail: first.detail.then_some(true),
        set: set.collect(),
        stack,
        policy,
    }
}

/// FMFI of the layers that these stacks have.
fn fragmentation(stacks: &[StackKind], given: Option<&Fragmentation>) -> PerLayer<f64> {
    let (guest, l1, host) = match given.map(|given| &given.0[..]) {
        Some(&[guest, l1, host]) => (guest, l1, host),
        Some(&[all, ..]) => (all, all, all),
        _ => (DEFAULT_FMFI, DEFAULT_FMFI, DEFAULT_FMFI),
    };
    let layers = stacks.iter().map(|stack| stack.layers()).max().unwrap_or(0);
    PerLayer::of_names(guest, |name| match name {
        "host" => (layers > 1).then_some(host),
        // "l1" is there from three layers on, "l2" from four.
        hypervisor => (1..layers.max(2) - 1).any(|n| hypervisor == format!("l{n}")).then_some(l1),
    })
}

/// Writes into a report what was asked for, as the runs found it.
pub fn note(report: &mut Report, mut options: Options, input: Option<&Input>) {
    let runs = || report.runs.iter().chain(report.vms.iter().flat_map(|vm| &vm.runs));
    let bytes = |name: &str| {
        let layers = report.runs.iter().flat_map(|run: &RunResult| &run.layers);
        let mut sizes = layers.filter(|layer| layer.layer == name).map(|layer| layer.size_bytes);
        sizes.next()
    };
    options.memory_bytes = bytes("guest").map(|guest| PerLayer::of_names(guest, bytes));
    for (name, value) in &mut options.set {
        let printed = runs().next().and_then(|run| run.parameters.get(name));
        if let Some(printed) = printed {
            value.clone_from(printed);
        }
    }
    report.version = crate::version::version();
    report.command = ["strata", "run"].map(str::to_owned).to_vec();
    report.command.extend(differing(&options));
    report.command.extend(input.into_iter().flat_map(Input::words));
    report.options = options;
}

/// The options that are not what they are by default, as the command line takes them.
pub fn differing(options: &Options) -> Vec<String> {
    let mut words = Vec::new();
    let mut option = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            words.extend([format!("--{name}"), value]);
        }
    };
    let Options { stack, policy, tables, .. } = options;
    let modelled = tables.is_none();
    let stacks = || stack.iter().map(|stack| stack.name()).collect::<Vec<_>>().join(",");
    option("stack", (modelled && !stack.is_empty() && stack[..] != [DEFAULT_STACK]).then(stacks));
    option(
        "policy",
        (modelled && !policy.is_empty() && *policy != default_policies()).then(|| policy.join(",")),
    );
    option("cpu", (options.cpu != CpuModel::DEFAULT).then(|| options.cpu.clone()));
    option("tables", tables.clone());
    let levels = options.levels.filter(|levels| *levels != DEFAULT_LEVELS);
    option("levels", levels.map(|levels| levels.to_string()));
    option("memory", options.memory.clone());
    option("fragmentation", options.fragmentation.and_then(fragmentation_words));
    option("paging", options.paging.clone());
    let misaligned = &options.tlb_misaligned;
    option("tlb-misaligned", (misaligned != SPLINTER).then(|| misaligned.clone()));
    option("walk-caches", options.walk_caches.clone());
    option("placement", options.placement.clone());
    option("llc", options.llc.clone());
    option("llc-ways", options.llc_ways.clone());
    option("l4", options.l4.clone());
    option("colours-of", options.colours_of.clone());
    option("vllc", options.vllc.clone());
    option("sample", options.sample.clone());
    option("request-load", options.request_load.clone());
    option("tick-hz", options.tick_hz.map(|hertz| hertz.to_string()));
    option("io-hz", options.io_hz.clone());
    option("skip", (options.skip > 0).then(|| options.skip.to_string()));
    option("limit", options.limit.map(|limit| limit.to_string()));
    option("warmup", (options.warmup > 0).then(|| options.warmup.to_string()));
    option("seed", (options.seed != DEFAULT_SEED).then(|| options.seed.to_string()));
    option("format", options.format.clone());
    option("host-memory", options.host_memory.clone());
    options.vm.iter().for_each(|vm| option("vm", Some(vm.clone())));
    for (name, value) in &options.set {
        option("set", Some(format!("{name}={value}")));
    }
    let switches = [
        ("--llc-misses", options.llc_misses),
        ("--marked", options.marked),
        ("--reused", options.reused == Some(true)),
        ("--alone", options.alone),
        ("--explain", options.explain),
        ("--detail", options.detail.unwrap_or(false)),
    ];
    words.extend(switches.iter().filter(|(_, on)| *on).map(|(name, _)| (*name).to_owned()));
    words
}

/// One value where the layers have the same, else three.
fn fragmentation_words(given: PerLayer<f64>) -> Option<String> {
    let guest = given.guest;
    let host = given.host.unwrap_or(guest);
    let l1 = given.l1.unwrap_or(host);
    match (guest == l1 && guest == host, guest == DEFAULT_FMFI) {
        (true, true) => None,
        (true, false) => Some(guest.to_string()),
        (false, _) => Some(format!("{guest},{l1},{host}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    /// Options of `strata run` that change nothing in a result, or say what is run.
    const ELSEWHERE: [&str; 11] = [
        "workload",
        "jobs",
        "threads",
        "json",
        "html",
        "trace-events",
        "folded",
        "output",
        "bill",
        "config",
        "help",
    ];

    #[test]
    fn every_option_is_kept() {
        let text = || Some("auto".to_owned());
        let set = Options {
            detail: Some(true),
            sample: text(),
            tick_hz: Some(250),
            io_hz: text(),
            paging: text(),
            ..Options::default()
        };
        let options = serde_json::to_value(set).unwrap();
        let command = Cli::command();
        let run = command.find_subcommand("run").unwrap();
        for name in run.get_arguments().filter_map(|argument| argument.get_long()) {
            let kept = options.get(name.replace('-', "_")).is_some();
            assert!(kept != ELSEWHERE.contains(&name), "--{name}");
        }
    }

    #[test]
    fn fragmentation_is_that_of_the_layers_there_are() {
        let three = Fragmentation(vec![0.1, 0.2, 0.3]);
        let of = |stacks: &[StackKind], given| fragmentation(stacks, given);
        let native = of(&[StackKind::Native], Some(&three));
        assert_eq!(native, PerLayer::new(0.1, None, None));
        assert_eq!(fragmentation_words(native).unwrap(), "0.1");
        let vm = of(&[StackKind::Native, StackKind::Vm], Some(&three));
        assert_eq!(vm, PerLayer::new(0.1, None, Some(0.3)));
        assert_eq!(fragmentation_words(vm).unwrap(), "0.1,0.3,0.3");
        assert_eq!(fragmentation_words(of(&StackKind::ALL, None)), None);
        let five = of(&[StackKind::Deeper(5)], Some(&three));
        let layers = [("guest", 0.1), ("l3", 0.2), ("l2", 0.2), ("l1", 0.2), ("host", 0.3)];
        assert_eq!(five.present().collect::<Vec<_>>(), layers);
        assert_eq!(fragmentation_words(five).unwrap(), "0.1,0.2,0.3");
    }
}
