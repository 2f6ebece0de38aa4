//! Configuration files: everything `strata run` takes, in TOML.
//!
//! A file is read as if it were a command line: each key is the long name of an option, so the
//! same parser checks it. `trace` and `program` stand for the arguments without a name, and the
//! table `[set]` for every `--set`. Files that it names are looked for where it is itself, as is
//! usual for files that name others; a program's words are left as they are.

use crate::args::{Cli, Command, Input, RunArgs};
use crate::cpu::names_a_file;
use crate::failure::{Failure, unknown};
use crate::text_file;
use crate::vm_args::VmArgs;
use crate::workload;
use clap::{CommandFactory, Parser};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Options that make no sense in a file.
const NOT_IN_FILES: [&str; 3] = ["config", "help", "version"];

/// The options of the command line, completed by those of the file it names.
///
/// # Errors
/// When the file cannot be read, is no TOML, or has a key or value that no option takes.
pub fn complete(line: RunArgs) -> Result<RunArgs, Failure> {
    let Some(path) = line.config.clone() else { return Ok(line) };
    let text = text_file::read(&path, "configuration")?;
    let file = parse(&text).map_err(|failure| Failure {
        message: format!("{}: {}", path.display(), failure.message),
        ..failure
    })?;
    Ok(merge(line, placed(file, &path)))
}

/// The file's options with its paths relative to its own directory. What is read from a pipe has
/// none: its paths stay.
pub fn placed(mut args: RunArgs, path: &Path) -> RunArgs {
    let directory = match path.parent() {
        Some(directory) if path.is_file() => directory,
        _ => return args,
    };
    let place = |path: &mut PathBuf| {
        // `-` is no file.
        if path != Path::new("-") {
            *path = directory.join(&*path);
        }
    };
    let RunArgs { input, tables, json, html, trace_events, folded, output, cpu, vm, .. } =
        &mut args;
    [&mut input.trace, tables, json, html, trace_events, folded, output]
        .into_iter()
        .flatten()
        .for_each(place);
    for vm in vm {
        if let Some(workload::Input::Trace(path, _)) = &mut vm.input {
            place(path);
        }
    }
    if let Some(cpu) = cpu.as_mut().filter(|cpu| names_a_file(cpu)) {
        *cpu = directory.join(&*cpu).to_string_lossy().into_owned();
    }
    args
}

fn parse(text: &str) -> Result<RunArgs, Failure> {
    options(table(text)?)
}

/// A text as TOML.
///
/// # Errors
/// When it is none: the line, and why.
pub fn table(text: &str) -> Result<Table, Failure> {
    text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(0, |span| text[..span.start].lines().count().max(1));
        Failure::usage(format!("line {line}: {}; write TOML", error.message().replace('\n', " ")))
    })
}

/// What a table asks for.
///
/// # Errors
/// When it has a key or a value that no option takes.
pub fn options(mut table: Table) -> Result<RunArgs, Failure> {
    let vms = vms(table.remove("vm"))?;
    let line = command_line(&table)?;
    let cli = Cli::try_parse_from(line).map_err(|error| Failure::from_clap(&error))?;
    match cli.command {
        Command::Run(args) => Ok(RunArgs { vm: vms, ..*args }),
        _ => unreachable!("the line begins with 'run'"),
    }
}

/// The tables `[[vm]]`.
fn vms(value: Option<Value>) -> Result<Vec<VmArgs>, Failure> {
    let not_tables = || Failure::usage("'vm' is a list of tables; write [[vm]] for each");
    let tables = match value {
        None => Vec::new(),
        Some(Value::Array(tables)) => tables,
        Some(_) => return Err(not_tables()),
    };
    let vm = |value: &Value| VmArgs::from_table(value.as_table().ok_or_else(not_tables)?);
    tables.iter().map(vm).collect()
}

/// The command line that says the same.
fn command_line(table: &Table) -> Result<Vec<OsString>, Failure> {
    let command = Cli::command();
    let run = command.find_subcommand("run").expect("there is a command 'run'");
    let options = run.get_arguments().filter_map(|argument| argument.get_long());
    let mut keys: Vec<&str> = options.filter(|name| !NOT_IN_FILES.contains(name)).collect();
    keys.extend(["trace", "program"]);
    let (mut line, mut last) = (vec!["strata".into(), "run".into()], Vec::new());
    for (key, value) in table {
        match (key.as_str(), value) {
            (key, _) if !keys.contains(&key) => {
                let all = "keys are the long options of 'strata run --help'";
                return Err(Failure::usage(unknown("key", key, keys.iter().copied(), all)));
            }
            ("set", Value::Table(parameters)) => assignments("", parameters, &mut line)?,
            ("set", _) => return Err(Failure::usage("'set' is a table; write [set]")),
            ("trace", value) => last.insert(0, plain(key, value)?.into()),
            ("program", Value::Array(words)) => {
                last.push("--".into());
                for word in words {
                    last.push(plain(key, word)?.into());
                }
            }
            ("program", _) => {
                return Err(Failure::usage("'program' is a list; write [\"name\", \"argument\"]"));
            }
            (key, value) => line.push(format!("--{key}={}", text(key, value)?).into()),
        }
    }
    line.extend(last);
    Ok(line)
}

/// `[set]` with its sub-tables: TOML reads `thp.scan_sleep = 1` as one table in another.
fn assignments(prefix: &str, table: &Table, line: &mut Vec<OsString>) -> Result<(), Failure> {
    for (key, value) in table {
        let name = format!("{prefix}{key}");
        match value {
            Value::Table(inner) => assignments(&format!("{name}."), inner, line)?,
            value => line.push(format!("--set={name}={}", plain(&name, value)?).into()),
        }
    }
    Ok(())
}

/// A value as the command line has it; lists joined by commas.
fn text(key: &str, value: &Value) -> Result<String, Failure> {
    match value {
        Value::Array(parts) => {
            let parts: Vec<_> =
                parts.iter().map(|part| plain(key, part)).collect::<Result<_, _>>()?;
            Ok(parts.join(","))
        }
        value => plain(key, value),
    }
}

fn plain(key: &str, value: &Value) -> Result<String, Failure> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(switch) => Ok(switch.to_string()),
        Value::Array(_) | Value::Table(_) | Value::Datetime(_) => {
            Err(Failure::usage(format!("'{key}' takes a text, a number or true/false")))
        }
    }
}

/// The file's options where the command line has none.
fn merge(line: RunArgs, file: RunArgs) -> RunArgs {
    let says_what = |input: &Input| {
        input.trace.is_some() || input.workload.is_some() || !input.program.is_empty()
    };
    let format = line.input.format.clone().or_else(|| file.input.format.clone());
    let skip = line.input.skip.or(file.input.skip);
    let limit = line.input.limit.or(file.input.limit);
    let marked = line.input.marked.or(file.input.marked);
    let input = if says_what(&line.input) { line.input } else { file.input };
    // Later assignments win.
    let mut set = file.set;
    set.extend(line.set);
    RunArgs {
        input: Input { format, skip, limit, marked, ..input },
        stack: line.stack.or(file.stack),
        policy: line.policy.or(file.policy),
        cpu: line.cpu.or(file.cpu),
        tables: line.tables.or(file.tables),
        levels: line.levels.or(file.levels),
        memory: line.memory.or(file.memory),
        fragmentation: line.fragmentation.or(file.fragmentation),
        reused: line.reused.or(file.reused),
        paging: line.paging.or(file.paging),
        tlb_misaligned: line.tlb_misaligned.or(file.tlb_misaligned),
        walk_caches: line.walk_caches.or(file.walk_caches),
        placement: line.placement.or(file.placement),
        llc: line.llc.or(file.llc),
        llc_ways: line.llc_ways.or(file.llc_ways),
        llc_misses: line.llc_misses.or(file.llc_misses),
        l4: line.l4.or(file.l4),
        colours_of: line.colours_of.or(file.colours_of),
        vllc: line.vllc.or(file.vllc),
        sample: line.sample.or(file.sample),
        request_load: line.request_load.or(file.request_load),
        tick_hz: line.tick_hz.or(file.tick_hz),
        io_hz: line.io_hz.or(file.io_hz),
        warmup: line.warmup.or(file.warmup),
        seed: line.seed.or(file.seed),
        jobs: line.jobs.or(file.jobs),
        threads: line.threads.or(file.threads),
        json: line.json.or(file.json),
        html: line.html.or(file.html),
        trace_events: line.trace_events.or(file.trace_events),
        folded: line.folded.or(file.folded),
        output: line.output.or(file.output),
        explain: line.explain.or(file.explain),
        detail: line.detail.or(file.detail),
        bill: line.bill.or(file.bill),
        vm: if line.vm.is_empty() { file.vm } else { line.vm },
        host_memory: line.host_memory.or(file.host_memory),
        alone: line.alone.or(file.alone),
        set,
        config: line.config,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_engine::StackKind;

    const WHOLE: &str = r#"
        stack = ["native", "nested"]
        policy = "base,thp"
        cpu = "skylake-gold-6138"
        tables = "out.tables"
        levels = 5
        memory = "8GiB"
        fragmentation = [0.5, 0.6, 0.7]
        reused = true
        paging = "shadow"
        tlb-misaligned = "no-fill"
        walk-caches = "2d"
        placement = "bin-hopping"
        llc = "cpu"
        llc-ways = "0x7c0"
        llc-misses = true
        l4 = "1GiB/2"
        colours-of = "l2"
        vllc = 8
        sample = "auto"
        request-load = "0.5@thp"
        tick-hz = 250
        io-hz = "none"
        warmup = "1M"
        skip = "2M"
        limit = "3M"
        marked = true
        seed = 7
        jobs = 2
        threads = 3
        json = "out.json"
        html = "out.html"
        trace-events = "out.perfetto"
        folded = "out.folded"
        output = "out.txt"
        explain = true
        detail = true
        bill = true
        workload = "random:size=1GiB"
        host-memory = "4GiB"
        alone = true
        [set]
        thp.scan_sleep = 5
        "gemini.share" = 0.5
        [[vm]]
        name = "a"
        policy = "thp"
        workload = "zipf:size=1GiB"
        [[vm]]
        name = "b"
        trace = "b.strata"
    "#;

    fn line(words: &[&str]) -> RunArgs {
        let words = ["strata", "run"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Run(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_says_what_the_same_command_line_says() {
        let words = "--stack native,nested --policy base,thp --cpu skylake-gold-6138 --tables out.tables \
            --levels 5 --memory 8GiB --fragmentation 0.5,0.6,0.7 --reused --paging shadow --tlb-misaligned no-fill --walk-caches 2d --placement bin-hopping --llc cpu --llc-ways 0x7c0 --llc-misses --l4 1GiB/2 --colours-of l2 --vllc 8 --sample auto --request-load 0.5@thp --tick-hz 250 --io-hz none \
            --warmup 1M --skip 2M --limit 3M --marked --seed 7 --jobs 2 --threads 3 --json out.json --html out.html --trace-events out.perfetto --folded out.folded --output out.txt --explain --detail --bill \
            --workload random:size=1GiB --host-memory 4GiB --alone \
            --vm a:policy=thp,workload=zipf:size=1GiB --vm b:trace=b.strata --set gemini.share=0.5 --set thp.scan_sleep=5";
        let words: Vec<_> = words.split_whitespace().collect();
        let mut file = parse(WHOLE).unwrap();
        file.set.sort();
        assert_eq!(format!("{file:?}"), format!("{:?}", line(&words)));
    }

    #[test]
    fn every_option_can_be_in_a_file() {
        let table: Table = WHOLE.parse().unwrap();
        let command = Cli::command();
        let run = command.find_subcommand("run").unwrap();
        for name in run.get_arguments().filter_map(|argument| argument.get_long()) {
            let known = table.contains_key(name) || NOT_IN_FILES.contains(&name);
            assert!(known || name == "format", "{name} is missing in the test");
        }
    }

    #[test]
    fn the_command_line_wins() {
        let merged = merge(
            line(&["--stack", "vm", "--explain=false", "--set", "thp.scan_sleep=9", "a.trace"]),
            parse(WHOLE).unwrap(),
        );
        assert_eq!(merged.stack, Some(vec![StackKind::Vm]));
        assert_eq!(merged.explain, Some(false));
        assert_eq!(merged.reused, Some(true));
        assert_eq!(merged.set.last().unwrap().1, "9");
        assert_eq!((merged.input.trace.is_some(), merged.input.workload), (true, None));
    }

    #[test]
    fn programs_and_traces_have_keys() {
        let file = parse("program = [\"sqlite3\", \"-batch\", \"x.db\"]").unwrap();
        assert_eq!(file.input.program, ["sqlite3", "-batch", "x.db"]);
        let file = parse("trace = \"a.xz\"\nformat = \"champsim\"").unwrap();
        assert_eq!(file.input.trace.unwrap(), Path::new("a.xz"));
    }

    #[test]
    fn mistakes_are_named_with_their_remedy() {
        let message = |text| parse(text).unwrap_err().message;
        assert!(
            message("polcy = 1").contains("did you mean 'policy'?"),
            "{}",
            message("polcy = 1")
        );
        assert!(message("config = 1").contains("no key is called 'config'"));
        assert!(message("levels = 6").contains("from 4 to 5"));
        assert!(message("a = 1\nb = = 2").starts_with("line 2:"), "{}", message("a = 1\nb = = 2"));
        assert!(message("set = 3").contains("[set]"));
        assert!(message("program = \"ls\"").contains("[\"name\", \"argument\"]"));
        assert!(message("levels = { x = 1 }").contains("'levels' takes"));
        for text in ["polcy = 1", "levels = 6", "= 2"] {
            assert!(!message(text).contains('\n'));
        }
    }
}
