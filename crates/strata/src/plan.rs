//! From options to machines: defaults, and checks of options against each other.

use crate::args::{Fragmentation, RunArgs};
use crate::assignments::assigned;
use crate::cpu::{models_llc, names_a_file};
use crate::defaults::{DEFAULT_FMFI, DEFAULT_LEVELS, DEFAULT_SEED};
use crate::failure::Failure;
use crate::guest_memory::GuestMemory;
use crate::pairs::cross_product;
use crate::run_results::Results;
use crate::sample::{Choice, Sample};
use crate::workload::Input;
use crate::{again, captured_tables, effect, given, output, phases, prepared, unsampled};
use std::num::NonZeroUsize;
use std::path::Path;
use strata_engine::options::Options;
use strata_engine::{Catalogue, LayerFmfi, LlcSetup, Paging, RequestLoad, Setup, StackKind};
use strata_hardware::Misaligned;
use strata_stream::WorkloadInfo;
use strata_tables::Capture;
use strata_workloads::Part;

/// What `strata run` is going to do.
#[derive(Debug)]
pub struct Plan {
    /// Where the stream comes from.
    pub input: Input,
    /// What part of it is run; its limit has the warm-up in it.
    pub part: Part,
    /// The machines, in the order of the report, each without a size.
    pub setups: Vec<Setup>,
    /// The options in force, for the report.
    pub options: Options,
    /// Memory of the guest; `None` has it chosen.
    pub memory: Option<GuestMemory>,
    /// Which parts of the stream are run in detail; `None` runs all.
    pub sampling: Option<Choice>,
    /// An option that needs all of the stream, and why.
    pub needs_all: Option<(&'static str, &'static str)>,
    /// How often requests arrive.
    pub request_load: RequestLoad,
    /// Page tables captured from a real machine, instead of modelled stacks.
    pub tables: Option<Capture>,
    /// Most machines to hold at once.
    pub jobs: Option<NonZeroUsize>,
    /// Threads to use.
    pub threads: Option<NonZeroUsize>,
    /// The bill follows the table.
    pub bill: bool,
    /// Where everything goes.
    pub results: Results,
    /// What the user should know before anything runs.
    pub remarks: Vec<String>,
}

impl Plan {
    /// The machines for a workload.
    ///
    /// # Errors
    /// When their memory cannot be told.
    pub fn machines(&self, workload: &WorkloadInfo) -> Result<Vec<Setup>, Failure> {
        let memory =
            self.memory.map(|memory| memory.in_bytes("--memory ", workload)).transpose()?;
        Ok(self.setups.iter().map(|setup| Setup { memory, ..setup.clone() }).collect())
    }
}

/// Checks the options against each other and against what there is.
///
/// # Errors
/// When they make no sense.
pub fn plan(mut args: RunArgs, catalogue: &Catalogue) -> Result<Plan, Failure> {
    let results = Results::of(&args)?;
    // What comes before the mark of a prepared workload only makes its memory.
    let spec = args.input.workload.as_deref();
    if args.input.marked.is_none() && spec.is_some_and(prepared::is_recorded) {
        args.input.marked = Some(true);
    }
    apart(&args, &results, args.input.files())?;
    let mut remarks = Vec::new();
    let tables =
        args.tables.as_deref().map(|path| captured_tables::read(path, &args)).transpose()?;
    let pairs = match &tables {
        Some(capture) => captured_tables::pairs(capture),
        None => cross_product(&args, catalogue, &mut remarks)?,
    };
    args.memory.map_or(Ok(()), |memory| memory.check("--memory "))?;
    unsampled::check(&args)?;
    if matches!(args.sample, Some(Sample::Phases { .. })) && !args.input.program.is_empty() {
        remarks.push(phases::TWICE.to_owned());
    }
    let request_load = request_load(&args, &pairs)?;
    let (setups, part) = setups(&args, catalogue, pairs, &[])?;
    Ok(Plan {
        options: again::options(&args, &setups),
        needs_all: unsampled::refused(&args),
        sampling: args.sample.map(|sample| sample.choice(setups[0].seed, &setups[0].cpu)),
        setups,
        request_load,
        memory: args.memory,
        tables,
        jobs: args.jobs,
        threads: args.threads,
        bill: args.bill.unwrap_or(false),
        results,
        remarks,
        part,
        input: given::input(args.input)?,
    })
}

/// How often requests arrive; the policy that it names must be run.
///
/// # Errors
/// When it is not, on some stack.
pub fn request_load(args: &RunArgs, pairs: &[(StackKind, String)]) -> Result<RequestLoad, Failure> {
    let load = args.request_load.clone().unwrap_or_default();
    if let Some(reference) = &load.reference {
        let is_run =
            |stack: StackKind| pairs.iter().any(|(on, policy)| *on == stack && policy == reference);
        if let Some((stack, _)) = pairs.iter().find(|(stack, _)| !is_run(*stack)) {
            return Err(Failure::usage(format!(
                "--request-load names policy {reference}, which is not run on a {stack} stack; add it \
                 to --policy, or name another"
            )));
        }
    }
    Ok(load)
}

/// The machines for pairs of stack and policy, without a size, and the part of each stream that is run.
/// `besides` are policies that are used as well.
///
/// # Errors
/// When the options make no sense.
pub fn setups(
    args: &RunArgs,
    catalogue: &Catalogue,
    pairs: Vec<(StackKind, String)>,
    besides: &[String],
) -> Result<(Vec<Setup>, Part), Failure> {
    let policies: Vec<&String> = pairs.iter().map(|(_, policy)| policy).chain(besides).collect();
    let (cpu, overrides) = assigned(args, catalogue, &policies)?;
    effect::check(args, catalogue, &policies, &cpu)?;
    let warmup = args.warmup.unwrap_or(0);
    let mut part = given::part(&args.input);
    part.limit = part.limit.map(|limit| limit.saturating_add(warmup));
    let setup = |(stack, policy): (StackKind, String)| Setup {
        stack,
        policy,
        cpu: cpu.clone(),
        memory: None,
        levels: args.levels.unwrap_or(DEFAULT_LEVELS),
        fragmentation: fragmentation(args.fragmentation.as_ref()),
        reused: args.reused.unwrap_or(false),
        // In a VM there is no L1 whose shadow L0 could have a shadow of.
        paging: match args.paging.unwrap_or_default() {
            Paging::ShadowOnShadow if stack == StackKind::Vm => Paging::Shadow,
            paging => paging,
        },
        misaligned: match args.tlb_misaligned.as_deref() {
            Some("no-fill") => Misaligned::NoFill,
            _ => Misaligned::Splinter,
        },
        warmup,
        from_mark: part.begins_late(),
        seed: args.seed.unwrap_or(DEFAULT_SEED),
        placement: args.placement.unwrap_or_default(),
        llc: LlcSetup {
            as_cpu: models_llc(args),
            ways: args.llc_ways,
            classify: args.llc_misses.unwrap_or(false),
            colours_of: args.colours_of.unwrap_or_default(),
            vllc: args.vllc,
        },
        explain: args.explain.unwrap_or(false),
        detail: args.detail(),
        overrides: overrides.clone(),
        own: catalogue.own.clone(),
    };
    Ok((pairs.into_iter().map(setup).collect(), part))
}

/// Sees to it that no output replaces what is read.
///
/// # Errors
/// When one would.
pub fn apart<'a>(
    args: &'a RunArgs,
    results: &Results,
    mut inputs: Vec<(&'static str, &'a Path)>,
) -> Result<(), Failure> {
    let mut outputs = vec![("--output", &results.text)];
    outputs.extend(results.besides_text());
    inputs.extend(args.config.as_deref().map(|path| ("the configuration", path)));
    let cpu = args.cpu.as_deref().filter(|name| names_a_file(name)).map(Path::new);
    inputs.extend(cpu.map(|path| ("the CPU model", path)));
    inputs.extend(args.tables.as_deref().map(|path| ("the tables", path)));
    output::apart(&outputs, &inputs)
}

/// FMFI of the layers.
fn fragmentation(given: Option<&Fragmentation>) -> LayerFmfi {
    match given.map(|given| &given.0[..]) {
        Some(&[guest, l1, host]) => LayerFmfi { guest, l1, host },
        Some(&[all, ..]) => LayerFmfi::everywhere(all),
        _ => LayerFmfi::everywhere(DEFAULT_FMFI),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use crate::output::Target;
    use clap::Parser;
    use strata_engine::{PolicyInfo, SetupError};
    use strata_params::Parameter;

    fn catalogue() -> Catalogue {
        let policy = |name: &'static str, stacks| {
            let parameters =
                if name == "xgemini" { vec!["xgemini.period".into()] } else { Vec::new() };
            let (about, paper) = ("".into(), "".into());
            PolicyInfo { name: name.into(), about, paper, stacks, by_colour: false, parameters }
        };
        let parameter = |name: &'static str| Parameter {
            name: name.into(),
            value: "1".into(),
            unit: "",
            doc: "A parameter.".into(),
            confirmed: true,
        };
        Catalogue {
            policies: vec![
                policy("base", &StackKind::ALL[..]),
                policy("thp", &StackKind::ALL[..]),
                policy("gemini", &StackKind::ALL[1..]),
                policy("xgemini", &StackKind::ALL[2..]),
                policy("aligned", &StackKind::ALL[..]),
            ],
            parameters: vec![parameter("thp.scan_sleep"), parameter("xgemini.period")],
            own: Vec::new(),
            need: |_, _| None,
            build: |_, _, _| Err(SetupError::Refused("not built in these tests".into())),
        }
    }

    fn plan_of(words: &str) -> Result<Plan, Failure> {
        let words = format!("strata run --workload sequential:size=1MiB,accesses=1k {words}");
        plan_line(&words)
    }

    fn plan_line(words: &str) -> Result<Plan, Failure> {
        match Cli::try_parse_from(words.split_whitespace()).unwrap().command {
            Command::Run(args) => plan(*args, &catalogue()),
            other => panic!("{other:?}"),
        }
    }

    fn names(plan: &Plan) -> Vec<String> {
        plan.setups.iter().map(|s| format!("{} {}", s.stack, s.policy)).collect()
    }

    #[test]
    fn defaults_are_the_five_policies_nested() {
        let plan = plan_of("").unwrap();
        assert_eq!(
            names(&plan),
            ["nested base", "nested thp", "nested gemini", "nested xgemini", "nested aligned"]
        );
        let setup = &plan.setups[0];
        assert_eq!(setup.cpu.name, "broadwell-e5-2620v4");
        assert_eq!((setup.levels, setup.memory, setup.seed), (4, None, 1));
        assert_eq!(setup.fragmentation, LayerFmfi::everywhere(0.8));
        assert!(plan.remarks.is_empty());
    }

    #[test]
    fn stacks_and_policies_are_crossed_and_what_does_not_exist_left_out() {
        let plan = plan_of("--stack native,vm --policy base,gemini").unwrap();
        assert_eq!(names(&plan), ["native base", "vm base", "vm gemini"]);
        assert_eq!(plan.remarks.len(), 1);
        let message = plan_of("--stack native --policy base,xgemini").unwrap_err().message;
        assert_eq!(message, "policy xgemini cannot run on --stack native; add --stack nested");
    }

    #[test]
    fn fragmentation_goes_to_the_layers_it_is_for() {
        let plan = plan_of("--stack native,vm,nested --policy base --fragmentation 0.1,0.2,0.3");
        let expected = LayerFmfi { guest: 0.1, l1: 0.2, host: 0.3 };
        assert!(plan.unwrap().setups.into_iter().all(|setup| setup.fragmentation == expected));
        let plan = plan_of("--fragmentation none").unwrap();
        assert_eq!(plan.setups[0].fragmentation, LayerFmfi::everywhere(0.0));
    }

    #[test]
    fn assignments_go_where_they_belong() {
        let plan = plan_of("--set core.base_cpi=2 --set thp.scan_sleep=7").unwrap();
        assert_eq!(plan.setups[0].overrides, [("thp.scan_sleep".into(), "7".into())]);
        assert_eq!(plan.setups[0].cpu.core.base_cpi, 2.0);
    }

    #[test]
    fn walk_caches_go_step_by_step_and_an_assignment_comes_after() {
        let entries = |words: &str| {
            let walk = &plan_of(words).unwrap().setups[0].cpu.walk;
            [walk.pd_entries, walk.nested_pd_entries, walk.ntlb_entries]
        };
        assert_eq!(entries(""), [32, 32, 16]);
        assert_eq!(entries("--walk-caches 2d+ntlb"), [32, 32, 16]);
        assert_eq!(entries("--walk-caches 2d"), [32, 32, 0]);
        assert_eq!(entries("--walk-caches 1d"), [32, 0, 0]);
        assert_eq!(entries("--walk-caches none"), [0, 0, 0]);
        assert_eq!(entries("--walk-caches none --set walk.pd_entries=8"), [8, 0, 0]);
    }

    #[test]
    fn constants_that_are_possible_only_together_may_come_in_any_order() {
        let (entries, ways) = ("--set tlb.l2.4k-2m.entries=2048", "--set tlb.l2.4k-2m.ways=8");
        for words in [format!("{entries} {ways}"), format!("{ways} {entries}")] {
            let array = plan_of(&words).unwrap().setups[0].cpu.tlb.l2.0["4k-2m"];
            assert_eq!((array.entries, array.ways), (2048, 8), "{words}");
        }
        let message =
            plan_of(&format!("{entries} --set tlb.l2.4k-2m.ways=12")).unwrap_err().message;
        let both = "--set: tlb.l2.4k-2m.entries and tlb.l2.4k-2m.ways: 2048 entries in 12 ways";
        assert!(message.starts_with(both), "{message}");
    }

    #[test]
    fn contradictions_are_told_with_a_remedy() {
        let cases = [
            ("--policy base,thp,base", "names base twice"),
            ("--stack vm,vm", "names vm twice"),
            ("--policy base,", "leave out the comma"),
            ("--policy xgemin", "did you mean 'xgemini'?"),
            ("--set thp.scan_slep=1", "did you mean 'thp.scan_sleep'?"),
            ("--set core.base_cpu=1", "did you mean 'core.base_cpi'?"),
            ("--set core.base_cpi=x", "core.base_cpi=x: expected a number"),
            ("--set exit.reflect=1", "such parameter any more; the cost of an exit handed to L1"),
            ("--set exit.cycles=1", "set exit.second_stage_violation"),
            ("--set virtualization.vls=true", "virtualization.vls: a CPU with these instructions"),
            ("--set virtualization.instructions=via", "expected `vmx` or `svm`"),
            ("--set xgemini.period=1 --policy base,gemini", "without policy xgemini; add it"),
            ("--cpu brodwell-e5-2620v4", "did you mean broadwell-e5-2620v4"),
            ("--cpu ./nowhere.toml", "cannot read the CPU model"),
            ("--memory 1MiB", "at least 64MiB"),
            ("--policy base,thp --request-load 0.5@gemini", "gemini, which is not run on a nested"),
            ("--json x --output x", "name the same file"),
            ("--json x --html x", "--json and --html name the same file"),
            ("--html - -o -", "--html and --output name the same file"),
            ("some.trace", "--workload and a trace"),
        ];
        for (words, expected) in cases {
            let message = plan_of(words).unwrap_err().message;
            assert!(message.contains(expected), "{words}: {message}");
            assert!(!message.contains('\n'), "{words}: {message}");
        }
        let cases = [
            ("strata run", "nothing to run"),
            ("strata run x.trace -- ls", "a trace and a program"),
            ("strata run --workload random:size=1MiB -- ls", "--workload and a program"),
            ("strata run --json - -- ls", "belongs to the program"),
            ("strata run --format lackey -- ls", "--format"),
            ("strata run --format lacky x.trace", "lackey"),
        ];
        for (line, expected) in cases {
            let failure = plan_line(line).unwrap_err();
            assert!(failure.message.contains(expected), "{line}: {failure}");
            assert_eq!(failure.status, crate::failure::USAGE, "{line}");
        }
    }

    #[test]
    fn the_table_keeps_out_of_the_way() {
        assert_eq!(plan_of("").unwrap().results.text, Target::Stdout);
        assert_eq!(plan_of("--json -").unwrap().results.text, Target::Stderr);
        assert_eq!(plan_line("strata run -- ls").unwrap().results.text, Target::Stderr);
        let file = plan_line("strata run -o x -- ls").unwrap().results.text;
        assert_eq!(file, Target::named(Path::new("x")));
    }
}
