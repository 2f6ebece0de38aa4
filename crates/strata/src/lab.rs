//! `strata lab`: real kernels in an emulated machine.

use crate::args::{KernelChoice, LabCommand, LabRunArgs};
use crate::failure::{Failure, INTERRUPTED};
use crate::interrupt::Interrupt;
use crate::lab_table;
use crate::output::Target;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::env;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use strata_lab::{
    BuildProgress, Cache, Choices, Kernel, LabError, Parts, Scenario, Trace, Variant,
};
use strata_ring::machine::PLUGIN_FILE;

/// Name of the agent's binary.
const AGENT: &str = "strata-agent";

/// Does what `strata lab` is asked for.
///
/// # Errors
/// What the lab could not do, in one line.
pub fn lab(command: LabCommand) -> Result<u8, Failure> {
    let cache = Cache::of_user().map_err(|error| failure(&error))?;
    let done = match command {
        LabCommand::Build { kernel } => build(&cache, &kernel),
        LabCommand::Run(args) => return run(&args, &cache),
        LabCommand::Shell { level, scenario } => shell(&scenario, level, &cache),
        LabCommand::Clean => cache.clean().map(|bytes| {
            say(&format!("{} freed", crate::number::bytes(bytes)));
        }),
    };
    done.map(|()| 0).map_err(|error| failure(&error))
}

fn build(cache: &Cache, kernels: &[KernelChoice]) -> Result<(), LabError> {
    let asked: Vec<Variant> = kernels.iter().map(|&kernel| kernel.into()).collect();
    // The layers above a patched L0 run the vanilla one.
    let variants = Variant::ALL.into_iter();
    let variants: Vec<Variant> = variants
        .filter(|variant| *variant == Variant::Vanilla || asked.contains(variant))
        .collect();
    let (agent, strata) = binaries()?;
    let interrupt = Interrupt::watch();
    let bar = io::stderr().is_terminal().then(|| {
        let template = "{wide_bar} {percent:>3} %  {msg}";
        // A constant that does not parse would be noticed at once.
        let style = ProgressStyle::with_template(template).expect("the template is well-formed");
        ProgressBar::hidden().with_style(style)
    });
    let shown = Cell::new(0);
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
                // In a log, a line for every tenth.
                let tenth = progress.done * 10 / progress.total;
                if tenth > shown.replace(tenth) {
                    let comma = if left.is_empty() { "" } else { ", " };
                    say(&format!("{} % of the kernel built{comma}{left}", tenth * 10));
                }
            }
        }
    };
    let mut tell = |line: &str| say(line);
    let parts =
        strata_lab::build(cache, &variants, agent, strata, &interrupt.0, &mut tell, &mut progress);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let parts = parts?;
    for kernel in parts.kernels() {
        say(&kernel);
    }
    Ok(())
}

fn run(args: &LabRunArgs, cache: &Cache) -> Result<u8, Failure> {
    let json = args.json.as_deref().map(Target::named);
    if let Some(target) = &json {
        target.check()?;
    }
    let failed = |error| failure(&error);
    let mut scenario = Scenario::load(&args.scenario).map_err(failed)?;
    if let Some(kernel) = args.kernel {
        scenario.layers[0].kernel = Kernel::Lab(kernel.into());
    }
    let choices = Choices {
        name: args.scenario.clone(),
        scenario,
        program: args.program.clone(),
        limit: Duration::from_secs(args.limit),
        trace: args.trace.as_deref().map(|path| trace(path, args)).transpose()?,
    };
    let parts = parts(cache).map_err(failed)?;
    let interrupt = Interrupt::watch();
    let report = strata_lab::run(&choices, &parts, cache, &interrupt.0, &mut |line| say(line))
        .map_err(failed)?;
    // The table goes to whom the JSON does not.
    let table = if json == Some(Target::Stdout) { Target::Stderr } else { Target::Stdout };
    table.styled(&lab_table::render(&report, table.width()))?;
    if let Some(target) = &json {
        let mut text = serde_json::to_string_pretty(&report)
            .map_err(|error| Failure::failed(format!("cannot write JSON: {error}")))?;
        text.push('\n');
        target.plain(text.as_bytes())?;
    }
    // As a shell would: the program's own status is the command's.
    let status = report.steps.iter().filter_map(|step| step.status).find(|status| *status != 0);
    Ok(status.map_or(0, |status| if status < 0 { (128 - status) as u8 } else { status as u8 }))
}

/// Where a trace goes; that it can be written is found out now, not after the run.
fn trace(path: &Path, args: &LabRunArgs) -> Result<Trace, Failure> {
    let mut tables = path.as_os_str().to_owned();
    tables.push(".tables");
    let tables = PathBuf::from(tables);
    for path in [path, &tables] {
        Target::File(path.to_owned()).check()?;
    }
    let plugin = companion(PLUGIN_FILE).map_err(|error| failure(&error))?;
    let (skip, limit) = (args.trace_skip, args.trace_limit);
    Ok(Trace { plugin, recording: path.to_owned(), tables, skip, limit })
}

fn shell(scenario: &str, level: u8, cache: &Cache) -> Result<(), LabError> {
    let scenario = Scenario::load(scenario)?;
    let parts = parts(cache)?;
    let interrupt = Interrupt::watch();
    let input = keyboard();
    let mut output = io::stdout();
    let terminal: (&Receiver<Vec<u8>>, &mut dyn Write) = (&input, &mut output);
    let _raw = RawTerminal::set();
    strata_lab::shell(
        &scenario,
        level,
        &parts,
        cache,
        &interrupt.0,
        &mut |line| {
            // In raw mode a line does not begin where it should.
            say(&format!("{line}\r"));
        },
        terminal,
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

fn parts(cache: &Cache) -> Result<Parts, LabError> {
    let (agent, strata) = binaries()?;
    Ok(strata_lab::built(cache, agent, strata))
}

/// The binaries that run in the layers: the agent, and this program.
fn binaries() -> Result<(PathBuf, PathBuf), LabError> {
    Ok((companion(AGENT)?, executable()?))
}

fn executable() -> Result<PathBuf, LabError> {
    env::current_exe().map_err(|source| LabError::File { path: "the executable".into(), source })
}

/// A file that belongs to this program: beside it, or where it is installed.
fn companion(name: &str) -> Result<PathBuf, LabError> {
    let strata = executable()?;
    let directory = strata.parent().map(PathBuf::from).unwrap_or_default();
    ["", "..", "deps", "../deps", "../lib/strata"]
        .iter()
        .map(|place| directory.join(place).join(name))
        .find_map(|path| path.canonicalize().ok())
        .ok_or_else(|| {
            let place = directory.display();
            LabError::Scenario(format!("{name} is missing in {place}: build all with 'make build'"))
        })
}

fn failure(error: &LabError) -> Failure {
    match error {
        LabError::Interrupted => {
            Failure { message: "interrupted; nothing is left running".into(), status: INTERRUPTED }
        }
        LabError::Scenario(_) => Failure::usage(error.to_string()),
        _ => Failure::failed(error.to_string()),
    }
}

/// A line about what is going on.
fn say(line: &str) {
    let _ = writeln!(anstream::stderr(), "{line}");
}
