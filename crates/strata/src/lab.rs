//! `strata lab`: real kernels in an emulated machine.

use crate::args::{KernelChoice, LabCommand, LabRunArgs, MachineChoice};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::lab_parts::{TIMED_OUT, binaries, failure, load, parts, say};
use crate::output::Target;
use crate::{drawn, junit, lab_levels, lab_predict, lab_text, lab_trace, terminal};
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::libc;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use strata_lab::{
    BuildProgress, Cache, Choices, Console, Kernel, KernelVariant, LabError, Make, StepReport,
    Trace,
};

/// Bytes of standard input that a program can be given.
const INPUT_LIMIT: u64 = 64 << 20;
/// Time between lines about the progress of a build where nobody sees a bar.
const PROGRESS_EVERY: Duration = Duration::from_secs(20);
/// Does what `strata lab` is asked for.
///
/// # Errors
/// What the lab could not do, in one line.
pub fn lab(command: LabCommand) -> Result<u8, Failure> {
    let cache = Cache::of_user().map_err(|error| failure(&error))?;
    let done = match command {
        LabCommand::Build { kernel, machine } => build(&cache, &kernel, machine.into()),
        LabCommand::Run(args) => return run(&args, &cache),
        LabCommand::Predict(args) => return lab_predict::predict(&args, &cache),
        LabCommand::Table { files, output } => {
            return lab_predict::table::table(&files, &Target::named(&output)).map(|()| 0);
        }
        LabCommand::Levels(args) => return lab_levels::levels(&args, &cache),
        LabCommand::Shell { level, scenario, machine, afresh } => {
            return shell((&scenario, machine), level, afresh, &cache)
                .map(status)
                .map_err(|error| failure(&error));
        }
        LabCommand::Help { topic } => {
            let words = ["lab"].into_iter().chain(topic.iter().map(String::as_str));
            return crate::help::help(words).map(|()| 0);
        }
        LabCommand::Clean => cache.clean().map(|bytes| {
            say(&format!("{} freed", strata_text::number::bytes(bytes)));
        }),
    };
    done.map(|()| 0).map_err(|error| failure(&error))
}

fn build(cache: &Cache, kernels: &[KernelChoice], make: Make) -> Result<(), LabError> {
    let asked: Vec<KernelVariant> = kernels.iter().map(|&kernel| kernel.into()).collect();
    // The layers above a patched L0 run the vanilla one.
    let variants = KernelVariant::ALL.into_iter();
    let variants: Vec<KernelVariant> = variants
        .filter(|variant| *variant == KernelVariant::Vanilla || asked.contains(variant))
        .collect();
    let programs = binaries()?;
    let interrupt = Interrupt::watch_all();
    let bar = io::stderr().is_terminal().then(|| {
        let template = "{wide_bar} {percent:>3} %  {msg}";
        // A constant that does not parse would be noticed at once.
        let style = ProgressStyle::with_template(template).expect("the template is well-formed");
        ProgressBar::hidden().with_style(style)
    });
    let shown = Cell::new(Instant::now());
    let mut progress = |progress: BuildProgress| {
        let left = progress.seconds_left.map_or(String::new(), |left| {
            format!("about {} left", HumanDuration(Duration::from_secs_f64(left)))
        });
        match &bar {
            Some(bar) => {
                if bar.is_hidden() {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                }
                bar.set_length(progress.total as u64);
                bar.set_position(progress.done as u64);
                bar.set_message(left);
            }
            None => {
                // In a log, a line now and then, and one at the end.
                let whole = progress.done == progress.total;
                if whole || shown.get().elapsed() >= PROGRESS_EVERY {
                    shown.set(Instant::now());
                    let percent = progress.done * 100 / progress.total.max(1);
                    let comma = if left.is_empty() { "" } else { ", " };
                    say(&format!("{percent} % of it built{comma}{left}"));
                }
            }
        }
    };
    let mut tell = |line: &str| say(line);
    let flag = &interrupt.flag;
    let what = (make, &variants[..]);
    let parts = strata_lab::build(cache, what, programs, flag, &mut tell, &mut progress);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let parts = parts?;
    for part in parts.kernels().chain(parts.emulator()) {
        say(&part);
    }
    Ok(())
}

fn run(args: &LabRunArgs, cache: &Cache) -> Result<u8, Failure> {
    let Targets { json, html, junit, table } = targets(args)?;
    let failed = |error| failure(&error);
    let mut scenario = load(&args.scenario, args.machine).map_err(failed)?;
    if let Some(innermost) = scenario.layers.last_mut() {
        innermost.files.extend(args.with.iter().cloned());
    }
    if let Some(kernel) = args.kernel {
        scenario.layers[0].kernel = Kernel::Lab(kernel.into());
    }
    let trace = lab_trace::trace(&args.trace, scenario.make())?;
    let choices = Choices {
        name: args.scenario.clone(),
        scenario,
        program: args.program.clone(),
        input: args.stdin.as_deref().map(input).transpose()?,
        limit: Duration::from_secs(args.limit),
        trace,
        afresh: args.afresh,
        counting: false,
    };
    let parts = parts(cache, choices.scenario.make()).map_err(failed)?;
    if args.stdin.is_none() && !args.program.is_empty() && is_fed() {
        say("note: the program's standard input is empty; --stdin - gives it what comes in here");
    }
    let interrupt = Interrupt::watch_all();
    let result = strata_lab::run(&choices, &parts, cache, &interrupt.flag, &mut |line| say(line));
    if let Some(target) = &junit
        && !interrupt.happened()
    {
        target.plain(junit::of(&args.scenario, result.as_ref())?.as_bytes())?;
    }
    let report = result.map_err(|error| stopped(&error, &interrupt, choices.trace.as_ref()))?;
    let own = report.steps.first().filter(|_| !args.program.is_empty());
    if let Some(step) = own {
        print_program(step, [&json, &html, &junit].contains(&&Some(Target::Stdout)))?;
    }
    table.styled(&lab_text::render(&report, table.width(), own.is_none()))?;
    if json.is_some() || html.is_some() {
        let mut text = serde_json::to_string_pretty(&report)
            .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
        text.push('\n');
        json.as_ref().map_or(Ok(()), |target| target.plain(text.as_bytes()))?;
        html.as_ref().map_or(Ok(()), |target| target.plain(drawn::of(&text)?.as_bytes()))?;
    }
    if let Some(step) = report.steps.iter().find(|step| step.timed_out) {
        return Err(Failure {
            message: format!("{} was killed, {}", step.what, over_time(args)),
            status: TIMED_OUT,
        });
    }
    // As a shell would: the program's own status is the command's.
    let failed = report.steps.iter().filter_map(|step| step.status).find(|status| *status != 0);
    Ok(failed.map_or(0, status))
}

/// What a shell makes of a program's status: minus a signal becomes 128 and the signal.
fn status(status: i32) -> u8 {
    (if status < 0 { 128 - status } else { status }) as u8
}

/// Where what was found goes.
struct Targets {
    json: Option<Target>,
    html: Option<Target>,
    junit: Option<Target>,
    table: Target,
}

/// Where JSON, page and report go. The program has the standard output if there is one.
fn targets(args: &LabRunArgs) -> Result<Targets, Failure> {
    let json = args.json.as_deref().map(Target::named);
    let html = args.html.as_deref().map(Target::named);
    let junit = args.junit.as_deref().map(Target::named);
    let at_stdout = [&json, &html, &junit].contains(&&Some(Target::Stdout));
    let usual = if at_stdout || !args.program.is_empty() { Target::Stderr } else { Target::Stdout };
    let table = args.output.as_deref().map_or(usual, Target::named);
    for target in json.iter().chain(&html).chain(&junit).chain([&table]) {
        target.check()?;
    }
    let mut files: Vec<(&str, PathBuf)> = Vec::new();
    for (option, path) in [
        ("--json", &args.json),
        ("--html", &args.html),
        ("--junit", &args.junit),
        ("--output", &args.output),
    ] {
        files.extend(path.iter().map(|path| (option, path.clone())));
    }
    files.extend(lab_trace::files(&args.trace)?);
    lab_trace::distinct(&files)?;
    Ok(Targets { json, html, junit, table })
}

/// What a program gets on its standard input.
fn input(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().take(INPUT_LIMIT + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(INPUT_LIMIT + 1).read_to_end(&mut bytes))
    };
    let name = path.display();
    read.map_err(|error| Failure::failed(format!("cannot read {name}: {error}; check the path")))?;
    if bytes.len() as u64 > INPUT_LIMIT {
        return Err(Failure::usage(format!(
            "{name} has more than {} MiB for a standard input; give it as a file with --with",
            INPUT_LIMIT >> 20
        )));
    }
    Ok(bytes)
}

/// Whether somebody seems to give this program something to read: a file or a pipe with bytes in it.
fn is_fed() -> bool {
    let stdin = io::stdin();
    // SAFETY: both calls only look at a descriptor of ours, and both structures are plain data.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        if libc::fstat(stdin.as_raw_fd(), &raw mut about) != 0 {
            return false;
        }
        let mut waiting: libc::c_int = 0;
        match about.st_mode & libc::S_IFMT {
            libc::S_IFREG => about.st_size > 0,
            libc::S_IFIFO => {
                libc::ioctl(stdin.as_raw_fd(), libc::FIONREAD, &raw mut waiting) == 0 && waiting > 0
            }
            _ => false,
        }
    }
}

/// What the user's program printed, where its user expects it.
fn print_program(step: &StepReport, output_taken: bool) -> Result<(), Failure> {
    let text = |lines: &[String]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    Target::Stderr.plain(text(&step.errors).as_bytes())?;
    // The JSON has it, too.
    let target = if output_taken { Target::Stderr } else { Target::Stdout };
    target.plain(text(&step.output).as_bytes())
}

fn over_time(args: &LabRunArgs) -> String {
    match args.program.is_empty() {
        true => "its limit in the scenario over: give it more there".to_owned(),
        false => format!("{} s over: --limit gives it more", args.limit),
    }
}

/// The failure of a run, and, if it was interrupted when the trace was whole, that there is one.
fn stopped(error: &LabError, interrupt: &Interrupt, trace: Option<&Trace>) -> Failure {
    let mut failure = failure(error);
    if matches!(error, LabError::Interrupted) {
        failure.status = interrupt.status();
        let begun = interrupt.since;
        let fresh = |path: &Path| {
            let written = std::fs::metadata(path).and_then(|data| data.modified());
            written.is_ok_and(|at| at >= begun)
        };
        if let Some(trace) = trace.filter(|trace| fresh(&trace.tables)) {
            failure.message = format!(
                "{}; the trace was whole before, {}",
                failure.message,
                trace.recording.display()
            );
        }
    }
    failure
}

fn shell(
    (scenario, machine): (&str, Option<MachineChoice>),
    level: u8,
    afresh: bool,
    cache: &Cache,
) -> Result<i32, LabError> {
    let scenario = load(scenario, machine)?;
    let parts = parts(cache, scenario.make())?;
    let interrupt = Interrupt::watch_all();
    let input = keyboard();
    let mut output = io::stdout();
    let size = io::stdin().is_terminal().then(terminal_size);
    let console = Console { size, input: &input, output: &mut output };
    let raw_terminal = RawTerminal::set();
    let raw = raw_terminal.is_some();
    strata_lab::shell(
        (&scenario, level),
        afresh,
        &parts,
        cache,
        &interrupt.flag,
        &mut |line| {
            // In raw mode a line does not begin where it should.
            say(&if raw { format!("{line}\r") } else { line.to_owned() });
        },
        console,
    )
}

/// What is typed, as it comes.
fn keyboard() -> Receiver<Vec<u8>> {
    let (sender, keys) = channel();
    thread::spawn(move || {
        let mut bytes = [0; 1024];
        while let Ok(read @ 1..) = io::stdin().read(&mut bytes) {
            if sender.send(bytes[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    keys
}

/// Rows and columns of the terminal on the standard input, the usual ones if it does not tell.
fn terminal_size() -> (u16, u16) {
    terminal::size(libc::STDIN_FILENO).unwrap_or((24, 80))
}

/// A terminal that passes every key on, until this is dropped.
struct RawTerminal {
    before: libc::termios,
}

impl RawTerminal {
    fn set() -> Option<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        // SAFETY: termios is plain data, filled in by the first call before it is used.
        unsafe {
            let mut before: libc::termios = std::mem::zeroed();
            if libc::tcgetattr(stdin.as_raw_fd(), &raw mut before) != 0 {
                return None;
            }
            let mut raw = before;
            libc::cfmakeraw(&raw mut raw);
            (libc::tcsetattr(stdin.as_raw_fd(), libc::TCSADRAIN, &raw const raw) == 0)
                .then_some(Self { before })
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // SAFETY: the settings are those that were read from this terminal.
        unsafe {
            libc::tcsetattr(io::stdin().as_raw_fd(), libc::TCSADRAIN, &raw const self.before);
        }
    }
}
