//! The life of a layer's first process.

use crate::execute::Hands;
use crate::port::{self, Reporter};
use crate::serial;
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::termios::tcdrain;
use nix::sys::utsname::uname;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use strata_protocol::{ALONE_END, Event, LAYER_PARAMETER, Order};

/// File systems every layer has: type, where, and whether a kernel may lack it.
const MOUNTS: [(&str, &str, bool); 9] = [
    ("proc", "/proc", false),
    ("sysfs", "/sys", false),
    ("devtmpfs", "/dev", false),
    ("tmpfs", "/run", false),
    ("tmpfs", "/tmp", false),
    ("tmpfs", "/dev/shm", false),
    ("devpts", "/dev/pts", false),
    ("debugfs", "/sys/kernel/debug", true),
    ("tracefs", "/sys/kernel/tracing", true),
];

/// Runs until the layer is turned off. A failure ends the first process, which is a kernel panic
/// with the reason on the console just before it: the lab looks for both.
pub fn run() -> ExitCode {
    match live() {
        Ok(()) => eprintln!("strata-agent: the port was closed"),
        Err(reason) => eprintln!("strata-agent: {reason}"),
    }
    ExitCode::FAILURE
}

fn live() -> Result<(), String> {
    for (kind, target, optional) in MOUNTS {
        // What was put there is not to be hidden, and the initial file system is in memory, too.
        if kind == "tmpfs" && fs::read_dir(target).is_ok_and(|mut all| all.next().is_some()) {
            continue;
        }
        let made = fs::create_dir_all(target).map_err(|error| error.to_string()).and_then(|()| {
            mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>)
                .map_err(|error| error.to_string())
        });
        if let Err(error) = made
            && !optional
        {
            return Err(format!("cannot mount {kind} on {target}: {error}"));
        }
    }
    let parameters =
        fs::read_to_string("/proc/cmdline").map_err(|error| format!("/proc/cmdline: {error}"))?;
    if let Some(program) = strata_protocol::alone(&parameters)? {
        return alone(&program);
    }
    let layer = parameters
        .split_whitespace()
        .find_map(|word| word.strip_prefix(LAYER_PARAMETER)?.parse::<u8>().ok())
        .ok_or(format!("the kernel parameter {LAYER_PARAMETER} is missing"))?;
    // A layer whose kernel does not let itself be named has no name in snapshots, nothing else.
    let _ = fs::write("/proc/sys/kernel/hostname", format!("l{layer}"));
    let file = match serial::named(&parameters) {
        Some(line) => serial::open(&line)?,
        None => port::open()?,
    };
    let reporter = Reporter::new(layer, file.try_clone().map_err(|error| error.to_string())?);
    reporter.begin();
    let name = uname().map_err(|error| error.to_string())?;
    reporter.tell(Event::Ready {
        kernel: format!("{} {}", name.release().display(), name.version().display()),
    });
    let hands = Arc::new(Hands::new(reporter));
    let mut lines = BufReader::new(file);
    let mut line = String::new();
    loop {
        line.clear();
        if lines.read_line(&mut line).map_err(|error| format!("the port: {error}"))? == 0 {
            return Ok(());
        }
        let order: Order =
            serde_json::from_str(&line).map_err(|error| format!("order {line:?}: {error}"))?;
        if order.to == layer {
            hands.obey(order);
        } else {
            hands.pass_on(&line)?;
        }
    }
}

/// Runs a program on the console and turns the machine off.
fn alone(words: &[String]) -> Result<(), String> {
    let program = &words[0];
    let path = if program.contains('/') { program.clone() } else { format!("/bin/{program}") };
    match Command::new(&path).args(&words[1..]).status() {
        Ok(status) => println!("{ALONE_END}{}", crate::program::status(status)),
        Err(error) => println!("strata-agent: cannot start {path}: {error}"),
    }
    // A machine that is turned off takes along what its serial line has not sent yet.
    let _ = tcdrain(io::stdout());
    reboot(RebootMode::RB_POWER_OFF)
        .map(drop)
        .map_err(|error| format!("the kernel cannot turn the machine off: {error}"))
}
