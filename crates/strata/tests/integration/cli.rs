//! The program from outside: results, refusals, full disks.

use crate::common::{complaint, program, refused, run, strata};
use std::fs;
use std::io::Read;
use std::process::{Command, Output, Stdio};
use strata_engine::Report;

const SMALL: &str = "--workload random:size=4MiB,accesses=200k";

fn json(output: &Output) -> Report {
    assert!(output.status.success(), "{}", complaint(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_policy_sees_the_whole_stream() {
    let report = json(&run(&format!("run {SMALL} --stack native,vm,nested --json -")));
    assert!(!report.partial);
    assert_eq!(report.strata, 1);
    let pairs: Vec<_> =
        report.runs.iter().map(|run| format!("{} {}", run.stack, run.policy)).collect();
    assert!(pairs.contains(&"native base".to_owned()), "{pairs:?}");
    assert!(pairs.contains(&"nested xgemini".to_owned()), "{pairs:?}");
    for run in &report.runs {
        assert_eq!((run.accesses, run.partial), (200_000, false), "{} {}", run.stack, run.policy);
    }
}

#[test]
fn threads_and_jobs_change_no_byte() {
    let bytes = |options: &str| run(&format!("run {SMALL} --json - {options}")).stdout;
    let expected = bytes("--threads 1");
    assert!(expected.len() > 500);
    for options in ["--threads 2", "--threads 7", "--jobs 1", "--jobs 2 --threads 3"] {
        assert!(bytes(options) == expected, "{options}");
    }
}

#[test]
fn a_table_in_a_pipe_is_plain_and_on_standard_output() {
    let output = run(&format!("run {SMALL}"));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(text.contains("relative to base") && !text.contains('\x1b'), "{text}");
    assert_eq!(complaint(&output), "");
    let output = run(&format!("run {SMALL} --json -"));
    json(&output);
    assert!(complaint(&output).contains("relative to base"), "JSON has standard output");
}

#[test]
fn results_go_into_files() {
    let directory = tempfile::tempdir().unwrap();
    let line = format!("run {SMALL} --policy base -o table.txt --json result.json");
    let output = strata(&line).current_dir(&directory).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{}", complaint(&output));
    let table = fs::read_to_string(directory.path().join("table.txt")).unwrap();
    assert!(table.contains("nested on"), "{table}");
    let result = fs::read(directory.path().join("result.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Report>(&result).unwrap().runs.len(), 1);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "no temporary file is left");
}

#[test]
fn a_configuration_does_what_the_command_line_does() {
    let directory = tempfile::tempdir().unwrap();
    let text = "workload = \"random:size=4MiB,accesses=200k\"\npolicy = [\"thp\"]\nseed = 9\n";
    fs::write(directory.path().join("a.toml"), text).unwrap();
    let line = "run --config a.toml --json -";
    let from_file = strata(line).current_dir(&directory).output().unwrap();
    let from_line = run(&format!("run {SMALL} --policy thp --seed 9 --json -"));
    assert_eq!(json(&from_file), json(&from_line));
    fs::write(directory.path().join("b.toml"), "polcy = \"thp\"\n").unwrap();
    let output = strata("run --config b.toml").current_dir(&directory).output().unwrap();
    refused(&output, 2, "b.toml: no key is called 'polcy'; did you mean 'policy'?");
}

#[test]
fn files_of_a_configuration_are_where_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let at = |line: &str| strata(line).current_dir(&directory).output().unwrap();
    fs::create_dir(directory.path().join("sub")).unwrap();
    assert!(at(&format!("record -o sub/a.strata {SMALL}")).status.success());
    let presets = concat!(env!("CARGO_MANIFEST_DIR"), "/../predict/hardware/presets/zen2.toml");
    fs::copy(presets, directory.path().join("sub/own.toml")).unwrap();
    let text = "trace = \"a.strata\"\ncpu = \"own.toml\"\npolicy = \"base\"\noutput = \"o.txt\"\n\
                json = \"o.json\"\n";
    fs::write(directory.path().join("sub/a.toml"), text).unwrap();
    let output = at("run --config sub/a.toml --json here.json");
    assert!(output.status.success(), "{}", complaint(&output));
    let there = |name: &str| directory.path().join(name).exists();
    assert!(there("sub/o.txt") && there("here.json") && !there("o.txt") && !there("sub/o.json"));
    // What comes through a pipe is nowhere: the working directory counts.
    let script = format!("cat a.toml | {} run --config /dev/stdin", program().display());
    let sub = directory.path().join("sub");
    let output = Command::new("sh").args(["-c", &script]).current_dir(&sub).output().unwrap();
    assert!(output.status.success() && there("sub/o.json"), "{}", complaint(&output));
}

#[test]
fn a_trace_may_come_through_a_pipe() {
    let directory = tempfile::tempdir().unwrap();
    let piped = |script: &str| {
        let script = script.replace("strata", &program().display().to_string());
        let mut shell = Command::new("sh");
        shell.args(["-euc", &script]).current_dir(&directory).output().unwrap()
    };
    let named = |script: &str| json(&piped(script));
    let lackey =
        "I  04000000,3\n L 1ffeffe7e0,8\n S 1ffeffe7e8,8\nI  04000003,3\n M 1ffeffe7f0,4\n";
    fs::write(directory.path().join("a.lackey"), lackey.repeat(500)).unwrap();
    let made = piped(&format!("strata record -o a {SMALL}; xz -k a; xz -k a.lackey"));
    assert!(made.status.success(), "{}", complaint(&made));
    for (file, pipes) in [
        ("a.lackey", ["cat a.lackey | ", "xzcat a.lackey.xz | ", "cat a.lackey.xz | "]),
        ("a", ["cat a | ", "xzcat a.xz | ", "cat a.xz | "]),
    ] {
        let expected = named(&format!("strata run --policy base,thp --json - {file}")).runs;
        assert!(expected[0].accesses > 1000);
        for pipe in pipes {
            let report = named(&format!("{pipe}strata run --policy base,thp --json - -"));
            assert!(report.runs == expected, "{pipe}");
            assert_eq!(report.command.last().unwrap(), "-");
        }
    }
    let copied = piped("cat a | strata record -o b -; cmp a b; strata run --policy base a.xz");
    assert!(copied.status.success(), "{}", complaint(&copied));
    refused(&piped("strata run - < /dev/null"), 1, "'-' is empty");
    refused(&piped("head -c 5000 /dev/zero | strata run -"), 1, "no trace of a known format");
    refused(&piped("strata run --format recording /dev/zero"), 1, "is no recording");
    refused(&piped("strata run --tables /dev/zero a"), 1, "is no file");
    refused(&piped("strata lab run --scenario /dev/zero"), 1, "longer than 1 MiB");
    let cut = piped("head -c 50000 a | strata run --policy base -");
    assert_eq!(cut.status.code(), Some(1), "{}", complaint(&cut));
    assert!(complaint(&cut).contains("recording '-' is cut short"), "{}", complaint(&cut));
}

#[test]
fn constants_of_one_array_are_set_together() {
    let directory = tempfile::tempdir().unwrap();
    let (entries, ways) = ("tlb.l2.4k-2m.entries", "tlb.l2.4k-2m.ways");
    let line = format!("run {SMALL} --policy base --json -");
    let by_line = run(&format!("{line} --set {entries}=2048 --set {ways}=8"));
    let set = "[set]\ntlb.l2.4k-2m.entries = 2048\ntlb.l2.4k-2m.ways = 8\n";
    fs::write(directory.path().join("a.toml"), set).unwrap();
    let by_file = strata(&format!("{line} --config a.toml")).current_dir(&directory).output();
    for report in [json(&by_line), json(&by_file.unwrap())] {
        let parameters = &report.runs[0].parameters;
        assert_eq!((&*parameters[entries], &*parameters[ways]), ("2048", "8"));
    }
    // Half of it in the file, half on the line.
    fs::write(directory.path().join("b.toml"), "[set]\ntlb.l2.4k-2m.ways = 8\n").unwrap();
    let line = format!("{line} --config b.toml --set {entries}=2048");
    json(&strata(&line).current_dir(&directory).output().unwrap());
}

#[test]
fn mistakes_are_one_line_with_cause_and_remedy() {
    let cases = [
        ("run", 2, "nothing to run; give a program after --, a trace, or --workload"),
        ("run --policy xgemni --workload random", 2, "did you mean 'xgemini'?"),
        ("run --stack nestd --workload random", 2, "did you mean 'nested'?"),
        ("run --wrkload random", 2, "'--workload'"),
        ("run a.trace --workload random", 2, "choose one"),
        ("run --memory 1MiB --workload random", 2, "at least 64MiB"),
        ("run --memory -4GiB --workload random", 2, "give a number from 0 up"),
        ("run --seed -1 --workload random", 2, "give a number from 0 up"),
        ("run --set fault.cycles=-1 --workload random", 2, "expected a whole number"),
        ("run --set time.scale=0 --workload random", 2, "give a number above 0"),
        ("run --memory 20TiB --workload random", 2, "lower --memory"),
        ("run /bin/ls", 1, "'/bin/ls' is a program, not a trace; to run it write it after --"),
        ("run --format lackey /bin/ls", 1, "has no line that lackey writes"),
        ("record -o /nonexistent/x --workload random", 1, "create its directory first"),
        ("run --cpu pentium --workload random", 2, "'strata list cpus' shows all"),
        ("run --levels 6 --workload random", 2, "give a whole number from 4 to 5"),
        ("run --config /nonexistent.toml", 1, "check its name"),
        ("run --config /dev/zero", 1, "longer than 1 MiB"),
        ("run --config /", 1, "it is a directory"),
        ("run --cpu /dev/zero --workload random", 1, "longer than 1 MiB"),
        ("run --format champsim /dev/null", 1, "'/dev/null' is empty"),
        ("run --limit 0 --workload random", 2, "nothing would be left"),
        ("run --marked --workload random:size=1MiB,accesses=1k", 1, "gave no mark to begin"),
        ("run /nonexistent.trace", 1, "to run a program write it after --"),
        ("run --workload random --json /nonexistent/x", 1, "create the directory first"),
        ("run --llc-ways 0 --workload random", 2, "give at least 1 way"),
        ("run --llc-ways 0x0 --workload random", 2, "give at least 1 way"),
        ("run --llc-ways 0x5 --workload random", 2, "not next to each other"),
        ("run --llc-ways 21 --workload random", 2, "beyond the 20 ways"),
        ("run --llc-ways 0x200000 --workload random", 2, "beyond the 20 ways"),
        ("run --vm a:llc-ways=0x5,workload=random", 2, "such as 0x7"),
        ("run --llc cpu --set cache.llc_design.hash=zen --workload random", 2, "take intel"),
        ("run --llc cpu --set cache.llc_design.fill=all --workload random", 2, "`victims`"),
        (
            "run --llc cpu --set cache.llc_design.fill=victims --workload random",
            2,
            "inclusive=false",
        ),
        ("run --set cache.llc_design.fill=victims --workload random", 2, "add --llc cpu"),
        // 16386 sets: two more than a whole number of colours.
        (
            "run --placement colouring --set cache.llc.bytes=20974080 --workload random",
            2,
            "1048704 B, not a whole number of pages of 4096 B: no colours",
        ),
        ("run --colours-of l3 --workload random", 2, "there are l2, llc, l4"),
        ("run --colours-of l4 --placement colouring --workload random", 2, "add one with --l4"),
        ("run --l4 1000 --workload random", 2, "a multiple of ways x 64"),
        ("run --l4 1GiB/x --workload random", 2, "such as 1GiB/2"),
        ("run --l4 4GiB --llc-misses --workload random", 2, "apart up to 1024 MiB"),
        ("run --vllc 0 --workload random", 2, "such as 512KiB/4"),
        ("run --vllc 6KiB/1 --workload random", 2, "not a whole number of pages"),
        ("run --stack native --vllc 8 --policy base --workload random", 2, "add vm or nested"),
        ("run --vm h:vllc=8 --vm a:in=h,workload=random", 2, "h"),
        (
            "run --vllc 8 --policy base,thp --workload random",
            2,
            "--placement colouring, or a policy",
        ),
        ("run --colours-of l2 --policy base --workload random", 2, "add --placement"),
        ("run --vm a:vllc=8,workload=random", 2, "placement=colouring, or a policy"),
        ("run --set colours.batch=7 --policy base --workload random", 2, "by cache colour"),
        ("run --set ksm.sleep=1 --workload random", 2, "add --set ksm.run=true"),
        ("run --stack native --set ksm.run=true --workload random", 2, "which are in no VM"),
        ("run --set balloon.period=1 --workload random", 2, "add --set balloon.size="),
        ("run --set cache.l4.cycles=100 --workload random", 2, "add one with --l4"),
        (
            "run --cpu zen2 --llc cpu --set cache.llc_design.slices=2 --workload random",
            2,
            "of one piece",
        ),
        ("run --paging shadows --workload random", 2, "did you mean 'shadow'?"),
        ("run --paging shadow --stack nested-4 --workload random", 2, "take vm or nested"),
        (
            "run --paging shadow-on-shadow --stack vm --workload random",
            2,
            "--paging shadow for a VM",
        ),
        ("run --paging shadow-on-shadow --stack nested-4 --workload random", 2, "take nested"),
        (
            "run --paging shadow-on-shadow --stack native --workload random",
            2,
            "add nested to --stack",
        ),
        ("paper nestcloud --list", 2, "leave --list out"),
        ("run --paging shadow-on-shadow --policy xgemini --workload random", 2, "take base or thp"),
        ("run --paging shadow-on-shadow --vm a:workload=random", 2, "leave out --vm"),
        ("run --set nested.page_fault_bypass=true --workload random", 2, "add --paging shadow"),
        (
            "run --cpu zen3 --paging shadow --set nested.page_fault_bypass=true --workload random",
            2,
            "take an Intel CPU",
        ),
        ("walk --guest-page 3k", 2, "4k"),
        ("walk --host-levels 0 --host-page 2m", 2, "second stage"),
        ("lst", 2, "'list'"),
    ];
    for (line, status, expected) in cases {
        refused(&run(line), status, expected);
    }
}

#[test]
fn a_full_disk_is_told() {
    let small = format!("run {SMALL} --policy base");
    refused(&run(&format!("{small} --json /dev/full -o /dev/null")), 1, "free some space");
    refused(&run(&format!("{small} -o /dev/full")), 1, "free some space");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    refused(&strata(&small).stdout(full).output().unwrap(), 1, "free some space");
}

#[test]
fn a_closed_standard_output_is_told() {
    for line in ["run --workload random:size=1MiB,accesses=1G", "list cpus", "run --help"] {
        let script = format!("exec {} {line} >&-", program().display());
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        refused(&output, 1, "standard output is closed");
    }
    let line = format!("run {SMALL} --policy base -o /dev/null");
    let script = format!("exec {} {line} >&-", program().display());
    assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
}

#[test]
fn what_is_skipped_touches_memory_and_is_not_counted() {
    // Every page once, then every page again.
    let line = "run --workload sequential:size=32MiB,stride=4KiB,passes=4 --stack vm --policy base \
                --json - --threads";
    let result = |options: &str| json(&run(&format!("{line} {options}"))).runs.remove(0);
    let (whole, rest) = (result("1"), result("1 --skip 8192 --warmup 2k --limit 5k"));
    assert_eq!((whole.accesses, rest.accesses), (4 * 8192, 5_000));
    assert!(whole.faults.guest >= 8192);
    assert_eq!((rest.faults.guest, rest.faults.host), (0, Some(0)));
    assert_eq!(rest.memory.touched_bytes, 32 << 20);
    assert_eq!(rest, result("2 --skip 8192 --warmup 2k --limit 5k"));
    // The warm-up is simulated, what is skipped is not.
    assert_eq!(
        result("1 --skip 8192 --limit 8192").tlb,
        result("1 --warmup 8192 --limit 8192").tlb
    );
}

#[test]
fn a_part_of_a_stream_is_recorded_with_all_its_events() {
    let directory = tempfile::tempdir().unwrap();
    let at = |line: &str| strata(line).current_dir(&directory).output().unwrap();
    let spec = "--workload random:size=4MiB,accesses=50k";
    for line in [
        format!("record -o whole {spec}"),
        format!("record -o part --skip 10k --limit 20k {spec}"),
        "record -o same --skip 10k --limit 20k whole".to_owned(),
    ] {
        assert!(at(&line).status.success(), "{line}");
    }
    let counted = |line: &str| {
        let output = at(&format!("run --policy base --json - {line}"));
        json(&output).runs.remove(0)
    };
    let part = counted("part");
    assert_eq!(part.accesses, 20_000);
    assert_eq!(part, counted("same"));
    assert_eq!(counted("whole --skip 10k --limit 20k").accesses, 20_000);
}

#[test]
fn a_result_that_does_not_fit_leaves_the_old_file_alone() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("x.json"), "old").unwrap();
    // No file may grow beyond one block: writing fails as on a full disk, whatever signal comes too.
    let script = format!(
        "ulimit -f 1; exec {} run {SMALL} --policy base --json x.json",
        program().display()
    );
    let output = Command::new("sh").args(["-c", &script]).current_dir(&directory).output().unwrap();
    refused(&output, 1, "cannot write x.json");
    assert_eq!(fs::read_to_string(directory.path().join("x.json")).unwrap(), "old");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "no half file is left");
}

#[test]
fn a_reader_that_leaves_is_no_failure_to_speak_of() {
    let mut command = strata("list parameters");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "");
    // 141 unless all was written before the pipe closed.
    assert!(matches!(child.wait().unwrap().code(), Some(0 | 141)));
}

#[test]
fn results_do_not_replace_what_they_come_from() {
    let directory = tempfile::tempdir().unwrap();
    let at = |line: &str| {
        let words = line.split_whitespace();
        let mut command = Command::new(program());
        command.args(words).current_dir(&directory).output().unwrap()
    };
    assert!(at(&format!("record {SMALL} -o a")).status.success());
    fs::hard_link(directory.path().join("a"), directory.path().join("b")).unwrap();
    let before = fs::read(directory.path().join("a")).unwrap();
    let input = "would replace the trace a";
    for (line, why) in [
        ("run -o ./a a", input),
        ("run --json b a", input),
        ("record -o b a", input),
        ("run --json c -o ./c a", "same file"),
    ] {
        refused(&at(line), 2, why);
        assert_eq!(fs::read(directory.path().join("a")).unwrap(), before, "{line}");
    }
}

#[test]
fn a_pipe_with_a_name_gets_the_result() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("f");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let reader = Command::new("cat").arg(&fifo).stdout(Stdio::piped()).spawn().unwrap();
    let output = run(&format!("run {SMALL} --policy base --json {}", fifo.display()));
    assert!(output.status.success(), "{}", complaint(&output));
    let read = reader.wait_with_output().unwrap().stdout;
    assert_eq!(serde_json::from_slice::<Report>(&read).unwrap().runs.len(), 1);
}

#[test]
fn counting_begins_on_all_cpus_at_once() {
    let counted = |warmup: &str| {
        let threads = "--workload random:size=64MiB,accesses=300k,threads=3 --json -";
        json(&run(&format!("run --stack vm --policy base {threads} --warmup {warmup}")))
            .runs
            .remove(0)
    };
    let run = counted("30k");
    assert_eq!(run.accesses, 270_000);
    let longest = run.cpus.iter().map(|cpu| cpu.cycles).max().unwrap();
    assert!(run.elapsed_cycles >= longest, "{} and {longest}", run.elapsed_cycles);
    // One that no access outlasts leaves nothing to count.
    let short = format!("run {SMALL} --policy base --warmup 400k");
    refused(&self::run(&short), 1, "ended before --skip and --warmup were over");
}

#[test]
fn what_a_generator_touches_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let touched = |line: &str| {
        let path = directory.path().join("x.json");
        assert!(
            run(&format!("run --policy base --json {} {line}", path.display())).status.success()
        );
        let report: Report = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        report.runs[0].memory.touched_bytes
    };
    let spec = "--workload gups:size=64MiB,accesses=20k";
    let path = directory.path().join("x.strata");
    assert!(run(&format!("record {spec} -o {}", path.display())).status.success());
    assert_eq!(touched(spec), touched(&path.display().to_string()));
    assert!(touched(spec) < 64 << 20);
}

#[test]
fn lists_have_one_line_each() {
    for (what, expected) in
        [("policies", "xgemini"), ("cpus", "broadwell-e5-2620v4"), ("workloads", "random")]
    {
        let output = run(&format!("list {what}"));
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find(|line| line.starts_with(expected));
        assert!(line.is_some_and(|line| line.len() > expected.len() + 2), "{what}: {text}");
        assert!(text.lines().all(|line| !line.starts_with(' ')), "{what}: {text}");
    }
    let parameters = String::from_utf8(run("list parameters").stdout).unwrap();
    assert!(parameters.lines().any(|line| line.starts_with("core.base_cpi")), "{parameters}");
}

#[test]
fn walks_are_drawn_and_counted() {
    for (options, count) in [
        ("", 24),
        ("--guest-page 2m", 19),
        ("--guest-page 2m --host-page 2m", 15),
        ("--guest-levels 5 --host-levels 5", 35),
        ("--host-levels 0", 4),
    ] {
        let text = String::from_utf8(run(&format!("walk {options}")).stdout).unwrap();
        assert!(text.contains(&format!("\n{count} references")), "{options}: {text}");
    }
}

#[test]
fn recording_needs_the_plugin_of_the_emulator_that_has_one() {
    // Beside this strata there is its agent and nothing else.
    let directory = tempfile::tempdir_in(program().parent().unwrap()).unwrap();
    let alone = directory.path().join("alone");
    fs::create_dir(&alone).unwrap();
    fs::hard_link(program(), alone.join("strata")).unwrap();
    fs::write(alone.join("strata-agent"), "").unwrap();
    for (machine, expected) in [
        ("amd", "libstrata_machine_plugin.so is missing"),
        ("intel", "the emulator of Intel processors is not built"),
    ] {
        let output = Command::new(alone.join("strata"))
            .args(["lab", "run", "--scenario", "vm", "--machine", machine, "--trace", "trace"])
            .current_dir(&alone)
            .env("XDG_CACHE_HOME", directory.path())
            .output()
            .unwrap();
        refused(&output, 1, expected);
    }
}

#[test]
fn help_and_completions_go_to_standard_output() {
    for line in ["--help", "help run", "run --help", "--version", "completions bash", "help"] {
        let output = run(line);
        assert!(output.status.success() && !output.stdout.is_empty(), "{line}");
    }
    for (line, expected) in [
        ("help --help", "help"),
        ("help help", "COMMAND|terms"),
        ("help lab run", "--trace-limit"),
        ("lab help run", "--trace-limit"),
        ("lab help --help", "COMMAND"),
        ("help terms", "well aligned"),
    ] {
        let output = run(line);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains(expected), "{line}: {text}");
    }
    assert_eq!(run("help run").stdout, run("run --help").stdout);
    refused(&run("help recrod"), 2, "no command is called 'recrod'; did you mean 'record'?");
    refused(&run("help term"), 2, "did you mean 'terms'?");
    let output = Command::new(program()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
