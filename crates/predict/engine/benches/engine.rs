//! Rates of whole runs: `cargo bench -p strata-engine [-- --large | --steady]`.
//!
//! Prints accesses per second of wall time and of CPU time, ratios, and memory, each with what is
//! aimed at on an idle machine. A busy machine slows wall time; CPU time and ratios bear it
//! better. Nothing here fails for being slow. `--large` adds a footprint of 475 GB, which takes
//! minutes; `--steady` leaves out all but the accesses to memory that is mapped, for a profiler.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::time::Instant;
use std::{env, fs};
use strata_capture::{Capture, CaptureError};
use strata_engine::{
    Build, Host, HostSetup, LayerFmfi, LlcSetup, OpenError, Progress, Run, Setup, Simulation,
    StackKind, Stop, Sweep, VmSetup, catalogue, sweep,
};
use strata_hardware::CpuModel;
use strata_stream::{Batch, Fill, Source, WorkloadInfo};
use strata_workloads::{Generator, record};

const POLICIES: [&str; 5] = ["base", "thp", "gemini", "xgemini", "aligned"];

/// The argument that makes this program a child that runs one footprint.
const FOOTPRINT: &str = "--footprint=";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let Some(workload) = arguments.iter().find_map(|word| word.strip_prefix(FOOTPRINT)) {
        return touch(workload);
    }
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before: {}", load.trim());
    own_memory();
    steady();
    if arguments.iter().any(|word| word == "--steady") {
        return;
    }
    if let Err(error) = program() {
        println!("recorded and live program: left out: {error}");
    }
    together();
    let plain = shared_host(LlcSetup::default(), "");
    let told = shared_host(classified(), ", misses told apart");
    println!(
        "{:46} {:6.2} of the rate per CPU second  (aim none)",
        "one VM, misses told apart / not",
        told / plain
    );
    footprint("64GiB", "2 GB");
    if arguments.iter().any(|word| word == "--large") {
        footprint("475GB", "12 GB");
    }
}

/// Time that passed, and CPU time of this process and of its children that ended.
#[derive(Clone, Copy)]
struct Timing {
    wall: f64,
    cpu: f64,
}

fn timed<T>(work: impl FnOnce() -> T) -> (Timing, T) {
    let (start, before) = (Instant::now(), cpu_seconds());
    let result = work();
    (Timing { wall: start.elapsed().as_secs_f64(), cpu: cpu_seconds() - before }, result)
}

/// CPU seconds of all threads and of children that ended: fields 14 to 17 of `/proc/self/stat`, in
/// hundredths of a second (proc(5)).
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("proc is mounted");
    // The name, the second field, may hold blanks; it ends with the last bracket.
    let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
    let ticks: f64 = fields
        .split_whitespace()
        .skip(11)
        .take(4)
        .map(|field| field.parse::<f64>().expect("a number"))
        .sum();
    ticks / 100.0
}

/// Prints a line on accesses per second.
fn rate(what: &str, accesses: u64, timing: Timing, aim: &str) {
    let per = |seconds: f64| accesses as f64 / 1e6 / seconds;
    println!(
        "{what:46} {:6.1} M accesses/s, {:6.1} per CPU second  (aim {aim})",
        per(timing.wall),
        per(timing.cpu)
    );
}

fn ratio(what: &str, of: Timing, to: Timing, aim: &str) {
    println!(
        "{what:46} {:6.2} of the time, {:5.2} of the CPU time  (aim {aim})",
        of.wall / to.wall,
        of.cpu / to.cpu
    );
}

/// What `strata run` would make of no options but the policy.
fn setup(policy: &str) -> Setup {
    Setup {
        fragmentation: LayerFmfi::everywhere(0.8),
        ..Setup::new(
            StackKind::Nested,
            policy,
            CpuModel::preset(CpuModel::DEFAULT).expect("the default preset exists"),
        )
    }
}

/// The last-level cache with its misses told apart by cause.
fn classified() -> LlcSetup {
    LlcSetup { classify: true, ..LlcSetup::default() }
}

fn generator(spec: &str) -> Generator {
    Generator::parse(spec).expect("a good spec")
}

/// How fast this computer reads its own memory at random, one read after the other: what the
/// rates below stand and fall with, as the model's tables do not fit its caches.
fn own_memory() {
    const ENTRIES: usize = 1 << 26;
    const READS: u32 = 5_000_000;
    let next: Vec<u64> =
        (0..ENTRIES as u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let started = Instant::now();
    let mut at = 1u64;
    for _ in 0..READS {
        // The higher bits keep it out of short cycles, as good as always.
        at = next[at as usize % ENTRIES].wrapping_add(at >> 26);
    }
    std::hint::black_box(at);
    let each = started.elapsed().as_secs_f64() * 1e9 / f64::from(READS);
    println!("{:46} {each:6.0} ns for a read at random from 512 MiB", "this computer's own memory");
}

/// Random accesses to memory that is mapped: TLB misses and walks without faults.
fn steady() {
    const COUNTED: u64 = 10_000_000;
    let mut source =
        generator(&format!("random:size=1GiB,touch=yes,accesses={}", COUNTED + 2_000_000));
    let total = source.info().accesses.expect("generators know");
    let (mut before, mut counted, mut filled) = (Vec::new(), Vec::new(), 0);
    loop {
        let mut batch = Batch::new();
        let more = source.fill(&mut batch).expect("generators do not fail");
        let part = if filled < total - COUNTED { &mut before } else { &mut counted };
        filled += batch.len() as u64;
        part.push(batch);
        if more == Fill::End {
            break;
        }
    }
    let accesses = counted.iter().map(|batch| batch.len() as u64).sum();
    // A fifth of 4 GiB is in huge blocks at this FMFI, less than the program touches.
    let small = Some(4 << 30);
    let plain = LlcSetup::default;
    for (policy, fmfi, memory, llc, aim) in [
        ("xgemini", 0.8, None, plain(), "15"),
        ("xgemini", 0.8, None, classified(), "8"),
        ("xgemini", 0.8, small, plain(), "none"),
        ("xgemini", 0.0, None, plain(), "15"),
        ("base", 0.8, None, plain(), "5"),
        ("base", 0.8, None, classified(), "none"),
    ] {
        let told = if llc.classify { ", told apart" } else { "" };
        let fragmentation = LayerFmfi::everywhere(fmfi);
        let setup = Setup { fragmentation, memory, llc, ..setup(policy) };
        let mut run =
            Box::new(Simulation::new(&setup, &source.info(), &Stop::default()).expect("it fits"));
        before.iter().for_each(|batch| run.consume(batch));
        let (timing, ()) = timed(|| counted.iter().for_each(|batch| run.consume(batch)));
        let room = if memory.is_some() { " of 4 GiB" } else { "" };
        let what = format!("nested {policy}, random 1 GiB, FMFI {fmfi}{room}{told}");
        rate(&what, accesses, timing, aim);
        let found = run.finish();
        let per_thousand = found.tlb.l2_misses as f64 * 1e3 / found.accesses as f64;
        println!("{:46} {per_thousand:6.1} TLB misses per 1000 accesses", "");
    }
}

/// Runs policies over a stream that can be opened again; gives the accesses.
fn run(
    policies: &[&str],
    threads: Option<usize>,
    workload: WorkloadInfo,
    replayable: bool,
    open: impl FnMut() -> Result<Box<dyn Source>, OpenError>,
) -> u64 {
    let (catalogue, stop, progress) = (catalogue(), Stop::default(), Progress::default());
    let setups: Vec<_> = policies.iter().map(|policy| setup(policy)).collect();
    let build = |setup, info: &_| (catalogue.build)(setup, info, &stop);
    let builds =
        setups.iter().map(|setup| -> Build<'_> { Box::new(move |info| build(setup, info)) });
    let swept = sweep(Sweep {
        workload,
        open: Box::new(open),
        replayable,
        builds: builds.collect(),
        at_once: NonZeroUsize::new(policies.len()),
        threads: threads.and_then(NonZeroUsize::new),
        memory_limit: None,
        stop: &stop,
        progress: &progress,
    });
    match swept {
        Ok(swept) => swept.runs[0].accesses,
        Err(error) => {
            eprintln!("{error}");
            exit(1);
        }
    }
}

/// The demonstration's database: recorded, replayed, run live.
fn program() -> Result<(), CaptureError> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../demo/orders.sql");
    let words = ["-batch".into(), "-init".into(), script.into(), ":memory:".into(), ".quit".into()];
    let spawn = || quiet(&words);
    spawn()?;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file: PathBuf = directory.path().join("sqlite3.strata");
    let (recording, accesses) = timed(|| write(spawn(), &file));
    let accesses = accesses?;
    rate("recording sqlite3", accesses, recording, "40");
    let info = record::Reader::open(&file).expect("just written").info();
    for (policy, aim) in [("xgemini", "30"), ("base", "30")] {
        let open = || {
            let reader = record::Reader::open(&file).expect("just written");
            Ok(Box::new(reader) as Box<dyn Source>)
        };
        let (timing, accesses) = timed(|| run(&[policy], Some(1), info.clone(), true, open));
        rate(&format!("nested {policy}, recorded sqlite3, one core"), accesses, timing, aim);
    }
    let live = WorkloadInfo { kind: "live", ..WorkloadInfo::default() };
    let open = || match spawn() {
        Ok(capture) => Ok(Box::new(capture) as Box<dyn Source>),
        Err(error) => Err(OpenError(error.to_string())),
    };
    let (timing, _) = timed(|| run(&["xgemini"], None, live, false, open));
    ratio("sqlite3 live under xgemini / recording it", timing, recording, "2.5");
    Ok(())
}

/// `sqlite3` with nothing to say: a shell sends its output nowhere.
fn quiet(words: &[OsString]) -> Result<Capture, CaptureError> {
    let script = OsString::from(r#"exec sqlite3 "$@" > /dev/null"#);
    let mut arguments = vec!["-c".into(), script, "sqlite3".into()];
    arguments.extend_from_slice(words);
    // The shell is under capture too; it makes a few thousand accesses.
    Capture::spawn("sh".as_ref(), &arguments, strata_capture::Options::default())
}

/// Records a stream; gives the accesses.
fn write(source: Result<Capture, CaptureError>, file: &Path) -> Result<u64, CaptureError> {
    let mut source = source?;
    let mut writer = record::Writer::create(file).expect("a temporary file");
    let (mut batch, mut accesses) = (Batch::new(), 0);
    loop {
        let fill = source.fill(&mut batch).expect("the program runs");
        accesses += batch.len() as u64;
        writer.push(&batch).expect("a temporary file");
        if fill == Fill::End {
            break;
        }
    }
    writer.finish(record::Outcome::default()).expect("a temporary file");
    Ok(accesses)
}

/// Five policies over one reading of a stream, and over a reading each.
fn together() {
    let spec = "zipf:size=256MiB,touch=yes,accesses=4M";
    let open = || Ok(Box::new(generator(spec)) as Box<dyn Source>);
    let info = generator(spec).info();
    let (one, _) = timed(|| run(&POLICIES, None, info.clone(), true, open));
    let (each, ()) = timed(|| {
        for policy in POLICIES {
            run(&[policy], None, info.clone(), true, open);
        }
    });
    ratio("five policies on one stream / five runs", one, each, "0.60 on 2 cores");
}

/// Two equal VMs on one host, beside one by itself, with a last-level cache of this kind. Gives the
/// accesses of the one in a CPU second.
fn shared_host(llc: LlcSetup, told: &str) -> f64 {
    const SPEC: &str = "random:size=128MiB,touch=yes,accesses=10M";
    let info = generator(SPEC).info();
    let open = |_: &str| Ok(Box::new(generator(SPEC)) as Box<dyn Source>);
    let machine = |names: &[&str]| {
        let vm = |name: &&str| VmSetup {
            name: (*name).to_owned(),
            stack: StackKind::Nested,
            policy: "thp".to_owned(),
            memory: None,
            cores: Vec::new(),
            start: 0.0,
            repeat: false,
            placement: strata_engine::PagePlacement::Linux,
            balloon: None,
            llc_ways: None,
            vllc: None,
            within: None,
            seed: 1,
            workload: Some(info.clone()),
        };
        let vms = names.iter().map(vm).collect();
        let common = Setup { llc, ..setup("thp") };
        let host = HostSetup::shared(common, None, vms).expect("they fit on one host");
        let (timing, outcome) = timed(|| {
            let (stop, progress) = (Stop::default(), Progress::default());
            let host = Host::new(&host, &open, &stop).expect("it fits");
            host.run(&stop, &progress).expect("generators do not fail")
        });
        (timing, outcome.host.accesses)
    };
    let (one, accesses) = machine(&["a"]);
    let (two, of_both) = machine(&["a", "b"]);
    rate(&format!("one VM of a host, nested thp{told}"), accesses, one, "none");
    rate(&format!("two such VMs on one host{told}"), of_both, two, "none");
    let per_access = |timing: Timing, accesses: u64| accesses as f64 / timing.cpu;
    println!(
        "{:46} {:6.2} of the rate per CPU second  (aim {})",
        format!("two VMs / one{told}"),
        per_access(two, of_both) / per_access(one, accesses),
        if llc.classify { "0.60" } else { "0.90" }
    );
    per_access(one, accesses)
}

/// Every base page of a large memory touched once, in a process of its own.
fn footprint(size: &str, aim: &str) {
    let workload = format!("sequential:size={size},stride=4KiB,passes=1");
    let executable = env::current_exe().expect("this program has a file");
    let mut command = Command::new(executable);
    let (timing, output) =
        timed(|| command.arg(format!("{FOOTPRINT}{workload}")).output().expect("it starts"));
    let said = String::from_utf8_lossy(&output.stdout);
    let trouble = String::from_utf8_lossy(&output.stderr);
    let outcome = if output.status.success() { said.trim() } else { trouble.trim() };
    println!(
        "nested base, {size:>6} touched at 4 KiB grain      {outcome}, {:.0} s, {:.0} CPU seconds  \
         (aim {aim})",
        timing.wall, timing.cpu
    );
}

/// The child's part of [`footprint`].
fn touch(workload: &str) {
    let open = || Ok(Box::new(generator(workload)) as Box<dyn Source>);
    run(&["base"], Some(1), generator(workload).info(), true, open);
    let status = fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kibibytes: f64 = peak.trim_end_matches("kB").trim().parse().expect("a number");
    println!("{:.2} GB", kibibytes * 1024.0 / 1e9);
}
