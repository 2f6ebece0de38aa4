//! Starts a program that the kernel is to treat differently: the way to a VMM that does not advise
//! huge pages, or that may not have any.

use clap::{Args, ValueEnum};
use nix::libc;
use nix::sys::prctl;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

/// What to change.
#[derive(Args, Debug)]
pub(super) struct Launch {
    /// Start it with huge pages forbidden (`PR_SET_THP_DISABLE`).
    #[arg(long)]
    no_thp: bool,
    /// What becomes of its main thread's advice for huge pages until it first waits for events.
    #[arg(long, value_enum)]
    advice: Option<Advice>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    argv: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Advice {
    /// The kernel refuses it.
    Refused,
    /// It becomes advice against huge pages.
    Against,
}

impl Advice {
    /// The argument that `madvise` gets instead of `MADV_HUGEPAGE`.
    const fn argument(self) -> u64 {
        match self {
            // Nothing that the kernel knows.
            Self::Refused => u64::MAX,
            Self::Against => libc::MADV_NOHUGEPAGE as u64,
        }
    }
}

/// Runs the program to its end. Gives its status.
pub(super) fn run(launch: &Launch) -> Result<u8, String> {
    let (file, arguments) = launch.argv.split_first().ok_or("there is no program to start")?;
    let failed = |error: io::Error| format!("cannot start {file}: {error}");
    if launch.no_thp {
        // The program inherits it (man 2 prctl).
        prctl::set_thp_disable(true).map_err(|error| failed(error.into()))?;
    }
    let mut command = Command::new(file);
    command.args(arguments);
    let Some(advice) = launch.advice else { return Err(failed(command.exec())) };
    super::region::traced(&mut command);
    let mut child = command.spawn().map_err(failed)?;
    replace_advice(Pid::from_raw(child.id() as i32), advice)
        .map_err(|error| format!("cannot follow {file}: {error}"))?;
    child.wait().map(status).map_err(failed)
}

/// As a shell has it.
fn status(status: ExitStatus) -> u8 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()) as u8
}

/// Follows the program's main thread from call to call, and lets it go when it first waits for
/// events: its memory is laid out by then.
fn replace_advice(pid: Pid, advice: Advice) -> nix::Result<()> {
    // The stop at exec.
    waitpid(pid, None)?;
    ptrace::setoptions(
        pid,
        ptrace::Options::PTRACE_O_TRACESYSGOOD | ptrace::Options::PTRACE_O_EXITKILL,
    )?;
    let mut signal = None;
    let mut entering = true;
    loop {
        ptrace::syscall(pid, signal.take())?;
        match waitpid(pid, None)? {
            WaitStatus::PtraceSyscall(_) if entering => {
                let mut registers = ptrace::getregs(pid)?;
                let call = registers.orig_rax as i64;
                if [libc::SYS_poll, libc::SYS_ppoll, libc::SYS_epoll_wait].contains(&call) {
                    return ptrace::detach(pid, None);
                }
                if call == libc::SYS_madvise && registers.rdx == libc::MADV_HUGEPAGE as u64 {
                    registers.rdx = advice.argument();
                    ptrace::setregs(pid, registers)?;
                }
                entering = false;
            }
            WaitStatus::PtraceSyscall(_) => entering = true,
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            WaitStatus::Stopped(_, other) => signal = Some(other),
            _ => return Ok(()),
        }
    }
}
