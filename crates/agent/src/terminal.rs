//! A program on a terminal, for a person to look around in a layer. A room for `unsafe`.

use crate::message::Event;
use crate::port::Reporter;
use crate::program::status;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::pty::openpty;
use nix::unistd::setsid;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;

/// The keyboard of a running program.
#[derive(Debug)]
pub(crate) struct Terminal {
    keyboard: File,
}

impl Terminal {
    /// Starts a program on a new terminal and reports what it writes there and how it ends.
    pub(crate) fn start(name: &str, argv: &[String], reporter: &Reporter) -> Result<Self, String> {
        let (file, arguments) = argv.split_first().ok_or("there is no program to start")?;
        let failed = |error: &dyn std::fmt::Display| format!("cannot start {file}: {error}");
        let pair = openpty(None, None).map_err(|error| format!("there is no terminal: {error}"))?;
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|error| failed(&error));
        let mut command = Command::new(file);
        command
            .args(arguments)
            .env("PATH", "/bin")
            .env("PS1", "# ")
            .env("TERM", "linux")
            .stdin(Stdio::from(copy(&pair.slave)?))
            .stdout(Stdio::from(copy(&pair.slave)?))
            .stderr(Stdio::from(pair.slave));
        // SAFETY: between fork and exec only system calls are made.
        unsafe {
            command.pre_exec(|| {
                setsid()?;
                // Its standard input becomes its controlling terminal.
                match libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) {
                    -1 => Err(io::Error::last_os_error()),
                    _ => Ok(()),
                }
            });
        }
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        // The terminal ends when nobody has its other side open any more.
        drop(command);
        let mut screen = File::from(copy(&pair.master)?);
        let (name, reporter) = (name.to_owned(), reporter.clone());
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = screen.read(&mut bytes) {
                let base64 = STANDARD.encode(&bytes[..read]);
                reporter.tell(Event::Screen { name: name.clone(), base64 });
            }
            let status = child.wait().map_or(-1, status);
            reporter.tell(Event::Exited { name, status });
        });
        Ok(Self { keyboard: File::from(pair.master) })
    }

    /// Types bytes, which are in Base64.
    pub(crate) fn write(&mut self, base64: &str) -> Result<(), String> {
        let bytes = STANDARD.decode(base64).map_err(|error| error.to_string())?;
        self.keyboard.write_all(&bytes).map_err(|error| format!("the terminal: {error}"))
    }
}
