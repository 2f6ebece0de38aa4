//! A program on a terminal, for a person to look around in a layer. A room for `unsafe`.

use crate::port::Reporter;
use crate::program::status;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::fcntl::OFlag;
use nix::libc;
use nix::pty::{Winsize, openpty};
use nix::unistd::{pipe2, setsid};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use strata_protocol::Event;

/// The keyboard of a running program.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// Takes what is typed, in order, and never keeps who types waiting. Not there once the end of a
    /// pipe was typed.
    keyboard: Option<Sender<Vec<u8>>>,
    piped: bool,
}

/// What a program has as its standard input and output, and the other sides.
struct Ends {
    input: OwnedFd,
    output: OwnedFd,
    keyboard: OwnedFd,
    screen: OwnedFd,
}

impl Ends {
    fn terminal((rows, columns): (u16, u16)) -> nix::Result<Self> {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None)?;
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|_| nix::errno::Errno::last());
        let (output, screen) = (copy(&pair.slave)?, copy(&pair.master)?);
        Ok(Self { input: pair.slave, output, keyboard: pair.master, screen })
    }

    /// No end leaks into other programs, which would keep the pipes open.
    fn pipes() -> nix::Result<Self> {
        let (input, keyboard) = pipe2(OFlag::O_CLOEXEC)?;
        let (screen, output) = pipe2(OFlag::O_CLOEXEC)?;
        Ok(Self { input, output, keyboard, screen })
    }
}

impl Terminal {
    /// Starts a program on a new terminal of this size, or between pipes, and reports what it writes
    /// there and how it ends.
    pub(crate) fn start(
        name: &str,
        argv: &[String],
        size: Option<(u16, u16)>,
        reporter: &Reporter,
    ) -> Result<Self, String> {
        let (file, arguments) = argv.split_first().ok_or("there is no program to start")?;
        let failed = |error: &dyn std::fmt::Display| format!("cannot start {file}: {error}");
        let ends = size.map_or_else(Ends::pipes, Ends::terminal);
        let ends = ends.map_err(|error| format!("there is no terminal: {error}"))?;
        let piped = size.is_none();
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|error| failed(&error));
        let mut command = Command::new(file);
        command
            .args(arguments)
            .env("PATH", "/bin")
            .env("PS1", "# ")
            .env("TERM", "linux")
            .stdin(Stdio::from(ends.input))
            .stdout(Stdio::from(copy(&ends.output)?))
            .stderr(Stdio::from(ends.output));
        // SAFETY: between fork and exec only system calls are made.
        unsafe {
            command.pre_exec(move || {
                setsid()?;
                if piped {
                    return Ok(());
                }
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
        let mut screen = File::from(ends.screen);
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
        let (keyboard, typed) = channel::<Vec<u8>>();
        let mut input = File::from(ends.keyboard);
        thread::spawn(move || {
            // A program that reads no more misses nothing.
            while typed.recv().is_ok_and(|bytes| input.write_all(&bytes).is_ok()) {}
        });
        Ok(Self { keyboard: Some(keyboard), piped })
    }

    /// Types bytes, which are in Base64.
    pub(crate) fn write(&mut self, base64: &str) -> Result<(), String> {
        let bytes = STANDARD.decode(base64).map_err(|error| error.to_string())?;
        if bytes.is_empty() && self.piped {
            self.keyboard = None;
        }
        if let Some(keyboard) = &self.keyboard {
            // See above.
            let _ = keyboard.send(bytes);
        }
        Ok(())
    }
}
