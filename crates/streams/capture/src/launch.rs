//! Starting the program: everything is checked before anything starts. The crate's room for
//! `unsafe`.

use crate::CaptureError;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use strata_stream::Sampling;
use strata_wire::{Emulator, Execution, Identity, PLUGIN_FILE, ProcessId, Wire, program};
use strata_workloads::Aimed;

/// Choices for a capture; the defaults are right for installed software.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The emulator, instead of `qemu-x86_64` found in `PATH`.
    pub qemu: Option<PathBuf>,
    /// The plugin, instead of the one named by `STRATA_PLUGIN` or lying beside the executable.
    pub plugin: Option<PathBuf>,
    /// Once set, processes that outlive the program are not waited for.
    pub interrupted: Option<Arc<AtomicBool>>,
    /// Which parts of the stream are seen in detail; all, if nothing is said.
    pub sampling: Option<Sampling>,
    /// Who places intervals, if `sampling` is adaptive.
    pub aimed: Option<Aimed>,
    /// Nothing is wanted but how often blocks of code run, in intervals of so many instructions; what the program
    /// writes to its standard output and standard error is thrown away.
    pub counting: Option<u64>,
    /// The program's environment as `NAME=value`, instead of the caller's.
    pub environment: Option<Vec<OsString>>,
}

/// A command ready to be started.
pub(crate) struct Launch {
    emulator: PathBuf,
    execution: Execution,
    /// Nobody reads what the program writes.
    is_silent: bool,
}

impl Launch {
    /// Checks everything and composes the command. `wire` is the wire's file in this process.
    pub(crate) fn prepare(
        name: &OsStr,
        arguments: &[OsString],
        options: Options,
        wire: &File,
    ) -> Result<Self, CaptureError> {
        let file = program::search(name, env::var_os("PATH").as_deref())
            .ok_or_else(|| CaptureError::missing(name))?;
        let argv = [name.to_owned()].into_iter().chain(arguments.iter().cloned()).collect();
        let program = program::resolve_or_tell(&file, argv)
            .map_err(|(culprit, reason)| CaptureError::refused(&file, &culprit, reason))?;
        let is_silent = options.counting.is_some();
        let wire = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), wire.as_raw_fd()));
        let emulator = Emulator {
            qemu: options.qemu.map_or_else(find_emulator, |path| {
                path.canonicalize().map_err(|_| CaptureError::NoEmulator(path))
            })?,
            plugin: options.plugin.map_or_else(find_plugin, |path| {
                path.canonicalize().map_err(|_| CaptureError::NoPlugin(path))
            })?,
            wire,
        };
        let environment = options.environment.unwrap_or_else(own_environment);
        let (arguments, environment) = emulator.command(program, environment, Identity::default());
        let execution = Execution::new(arguments, environment)
            .map_err(|source| CaptureError::System { context: "composing the command", source })?;
        Ok(Self { emulator: emulator.qemu, execution, is_silent })
    }

    /// Starts the program. A thread of its own waits for it: the kernel's signal at the parent's
    /// death is bound to the thread that started the child, so that thread must stay.
    pub(crate) fn start(self, wire: Arc<Wire>) -> Result<Supervisor, CaptureError> {
        let ended = Arc::new(AtomicBool::new(false));
        let (sender, started) = mpsc::channel();
        let (flag, is_silent) = (ended.clone(), self.is_silent);
        let thread = std::thread::Builder::new()
            .name("program".into())
            .spawn(move || {
                let mut command = self.command();
                if is_silent {
                    command.stdout(nobody()?).stderr(nobody()?);
                }
                let mut child = command.spawn()?;
                // Its ends of the pipes are the program's alone.
                drop(command);
                // The receiver waits for this; it cannot be gone.
                let _ = sender.send(ProcessId::running(child.id()));
                drop(sender);
                let status = child.wait();
                flag.store(true, Release);
                wire.wake_consumer();
                status
            })
            .map_err(|source| CaptureError::System { context: "starting a thread", source })?;
        match started.recv() {
            Ok(process) => Ok(Supervisor { process, ended, thread: Some(thread), status: None }),
            Err(_) => {
                let source = match thread.join() {
                    Ok(Err(error)) => error,
                    _ => io::Error::other("the thread that starts it failed"),
                };
                Err(CaptureError::System { context: "starting the emulator", source })
            }
        }
    }

    fn command(self) -> Command {
        let mut command = Command::new(&self.emulator);
        let parent = std::process::id();
        // SAFETY: between fork and exec only system calls are made.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // The parent may have died before the request took effect.
                if libc::getppid() != parent as libc::pid_t {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                // Not left to the caller, which would sort the environment.
                Err(self.execution.replace_process())
            });
        }
        command
    }
}

/// The program's first process, and the thread that waits for it.
#[derive(Debug)]
pub(crate) struct Supervisor {
    process: Option<ProcessId>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<ExitStatus>>>,
    status: Option<ExitStatus>,
}

impl Supervisor {
    /// How the program ended, once it has.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        if self.ended.load(Acquire)
            && let Some(thread) = self.thread.take()
        {
            self.status = thread.join().ok().and_then(Result::ok);
        }
        self.status
    }

    /// How the program ended, if [`Self::status`] was asked since.
    pub(crate) fn known_status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// Whether the program has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Acquire)
    }

    /// Kills the program and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        if let (Some(process), false) = (self.process, self.has_ended()) {
            kill(process);
        }
        if let Some(thread) = self.thread.take() {
            self.status = thread.join().ok().and_then(Result::ok);
        }
    }
}

/// A pipe whose reader throws away what comes: unlike /dev/null, of which programs know that nobody reads it.
fn nobody() -> io::Result<Stdio> {
    let (mut reader, writer) = io::pipe()?;
    let read = move || {
        let _ = io::copy(&mut reader, &mut io::sink());
    };
    std::thread::Builder::new().name("output".into()).spawn(read)?;
    Ok(writer.into())
}

/// Kills exactly this process, never a later one with its number.
pub(crate) fn kill(process: ProcessId) {
    // SAFETY: these calls touch no memory; the descriptor is used and closed here alone.
    unsafe {
        let handle = libc::syscall(libc::SYS_pidfd_open, process.number, 0) as libc::c_int;
        if handle < 0 {
            return;
        }
        // The handle holds on to what has the number now; is that the process meant?
        if process.is_running() {
            let no_details = std::ptr::null::<libc::siginfo_t>();
            libc::syscall(libc::SYS_pidfd_send_signal, handle, libc::SIGKILL, no_details, 0);
        }
        libc::close(handle);
    }
}

fn own_environment() -> Vec<OsString> {
    env::vars_os()
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        })
        .collect()
}

fn find_emulator() -> Result<PathBuf, CaptureError> {
    program::search(OsStr::new("qemu-x86_64"), env::var_os("PATH").as_deref())
        .and_then(|path| path.canonicalize().ok())
        .ok_or_else(|| CaptureError::NoEmulator("qemu-x86_64".into()))
}

/// The plugin named by `STRATA_PLUGIN`; else in cargo's `deps` directory, which is always up to
/// date, where a copy above it may not be; else beside the executable or in `../lib/strata`.
fn find_plugin() -> Result<PathBuf, CaptureError> {
    if let Some(path) = env::var_os("STRATA_PLUGIN") {
        let path = PathBuf::from(path);
        return path.canonicalize().map_err(|_| CaptureError::NoPlugin(path));
    }
    let executable = env::current_exe()
        .map_err(|source| CaptureError::System { context: "finding the executable", source })?;
    let directory = executable.parent().unwrap_or(&executable);
    ["deps", "../deps", "", "..", "../lib/strata"]
        .iter()
        .map(|place| directory.join(place).join(PLUGIN_FILE))
        .find_map(|file| file.canonicalize().ok())
        .ok_or_else(|| CaptureError::NoPlugin(directory.join(PLUGIN_FILE)))
}
