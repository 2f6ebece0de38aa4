//! Programs started in a layer. The crate's room for `unsafe`.

use crate::port::Reporter;
use crate::watch;
use nix::sys::personality::{self, Persona};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use strata_protocol::{Event, INPUT_FILE, Layout, page_faults};

/// A program that was started.
#[derive(Debug)]
pub(crate) struct Program {
    /// Its process number.
    pub(crate) pid: u32,
    /// Lets it end, if it is held.
    pub(crate) release: Sender<()>,
}

/// How a program is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    pub(crate) layout: Layout,
    pub(crate) hold: bool,
    pub(crate) count: bool,
    pub(crate) watched: bool,
}

/// Starts a program and reports what it prints and how it ends. Gives how many page faults it has had when it
/// begins, if that is asked for.
pub(crate) fn start(
    name: &str,
    argv: &[String],
    How { layout, hold, count, watched }: How,
    reporter: &Reporter,
) -> Result<(Program, Option<u64>), String> {
    let (file, arguments) = argv.split_first().ok_or("there is no program to start")?;
    let input = File::open(INPUT_FILE).ok().filter(|_| hold).map_or_else(Stdio::null, Stdio::from);
    let mut command = Command::new(file);
    command.args(arguments).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(move || {
            if layout == Layout::Apart {
                personality::set(Persona::ADDR_COMPAT_LAYOUT | Persona::ADDR_NO_RANDOMIZE)?;
            }
            if hold || count {
                ptrace::traceme()?;
            }
            if watched {
                watch::start()?;
            }
            Ok(())
        });
    }
    let (release, released) = channel();
    let (started, start) = channel();
    let reporter = reporter.clone();
    let name = name.to_owned();
    // A thread of its own: the kernel lets only the thread that started a traced process trace it.
    thread::spawn(move || {
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return drop(started.send(Err(error))),
        };
        let outputs = [
            relay(child.stdout.take(), &name, false, &reporter),
            relay(child.stderr.take(), &name, true, &reporter),
        ];
        let pid = Pid::from_raw(child.id() as i32);
        let faults = if hold || count { begun(pid, count) } else { None };
        // Nobody waits if the other side gave up, which it does not.
        let _ = started.send(Ok((child.id(), faults)));
        let status = if hold {
            hold_at_exit(pid, &name, &reporter, &released).unwrap_or(-1)
        } else {
            if count {
                let _ = ptrace::detach(pid, None);
            }
            child.wait().map_or(-1, status)
        };
        for output in outputs.into_iter().flatten() {
            // What it printed comes before its end.
            let _ = output.join();
        }
        reporter.tell(Event::Exited { name, status });
    });
    match start.recv() {
        Ok(Ok((pid, faults))) => Ok((Program { pid, release }, faults)),
        Ok(Err(error)) => Err(format!("cannot start {file}: {error}")),
        Err(_) => Err(format!("cannot start {file}")),
    }
}

/// Exit status, or minus the signal.
pub(crate) fn status(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| -status.signal().unwrap_or_default())
}

/// Waits until a traced child has executed its program, and stands still before the first instruction. Gives the
/// page faults it had until then, if they are asked for.
fn begun(pid: Pid, count: bool) -> Option<u64> {
    waitpid(pid, None).ok()?;
    if !count {
        return None;
    }
    page_faults(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Follows a traced child that stands still to its end and stops it just before, while its memory is whole.
fn hold_at_exit(
    pid: Pid,
    name: &str,
    reporter: &Reporter,
    released: &Receiver<()>,
) -> nix::Result<i32> {
    ptrace::setoptions(pid, Options::PTRACE_O_TRACEEXIT | Options::PTRACE_O_EXITKILL)?;
    ptrace::cont(pid, None)?;
    loop {
        match waitpid(pid, None)? {
            WaitStatus::Exited(_, status) => return Ok(status),
            WaitStatus::Signaled(_, signal, _) => return Ok(-(signal as i32)),
            WaitStatus::PtraceEvent(..) => {
                reporter.tell(Event::Held { name: name.to_owned() });
                // An agent that is gone releases everything.
                let _ = released.recv();
                ptrace::cont(pid, None)?;
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP) => ptrace::cont(pid, None)?,
            WaitStatus::Stopped(_, signal) => ptrace::cont(pid, signal)?,
            _ => {}
        }
    }
}

fn relay(
    stream: Option<impl Read + Send + 'static>,
    name: &str,
    error: bool,
    reporter: &Reporter,
) -> Option<thread::JoinHandle<()>> {
    let mut lines = BufReader::new(stream?);
    let (name, reporter) = (name.to_owned(), reporter.clone());
    Some(thread::spawn(move || {
        let mut line = Vec::new();
        while read_line(&mut lines, &mut line) {
            let line = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
            reporter.tell(Event::Output { name: name.clone(), error, line });
        }
    }))
}

fn read_line(lines: &mut impl BufRead, line: &mut Vec<u8>) -> bool {
    line.clear();
    let read: io::Result<usize> = lines.read_until(b'\n', line);
    read.is_ok_and(|read| read > 0)
}
