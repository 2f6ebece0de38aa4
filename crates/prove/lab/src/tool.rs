//! Running the programs that the build needs. They end with the lab.

use crate::error::{LabError, on};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// A program to run: what it is called in messages, and the Debian package it comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
}

/// What builds a kernel.
pub(crate) const MAKE: Tool = Tool { name: "make", package: "make" };

impl Tool {
    /// A command of this program.
    pub(crate) fn command(self) -> Command {
        Command::new(self.name)
    }

    /// Runs it and returns what it prints.
    pub(crate) fn output(self, command: &mut Command, what: &str) -> Result<String, LabError> {
        let output = command.stdin(Stdio::null()).output().map_err(|error| self.missing(error))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last =
                said.lines().rev().find(|line| !line.is_empty()).unwrap_or("no reason given");
            return Err(LabError::Failed { what: what.to_owned(), reason: last.to_owned() });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs it for long, everything it says in `log`, each line given to `line`; stops it on
    /// interruption.
    pub(crate) fn follow(
        self,
        command: &mut Command,
        what: &str,
        log: &Path,
        interrupt: &AtomicBool,
        mut line: impl FnMut(&str),
    ) -> Result<(), LabError> {
        let mut out = on(log, OpenOptions::new().create(true).append(true).open(log))?;
        let errors = on(log, out.try_clone())?;
        let mut child = Guard(
            crate::process::ends_with_us(command)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(errors)
                .spawn()
                .map_err(|error| self.missing(error))?,
        );
        let stream = child.0.stdout.take().expect("it is piped");
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        loop {
            if interrupt.load(Relaxed) {
                return Err(LabError::Interrupted);
            }
            match lines.recv_timeout(Duration::from_millis(50)) {
                Ok(text) => {
                    on(log, writeln!(out, "{text}"))?;
                    line(&text);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = on(log, child.0.wait())?;
        if status.success() {
            return Ok(());
        }
        let said = fs::read_to_string(log).unwrap_or_default();
        let reason = said
            .lines()
            .rev()
            .find(|line| line.contains("rror") && !line.starts_with("make"))
            .or(said.lines().last())
            .unwrap_or("no reason given");
        Err(LabError::Build { what: what.into(), reason: reason.trim().into(), log: log.into() })
    }

    pub(crate) fn missing(self, source: std::io::Error) -> LabError {
        LabError::Tool { program: self.name, source, package: self.package }
    }
}

/// Ends a process group that nobody waits for any more.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            crate::process::end_group(&self.0);
            let _ = self.0.wait();
        }
    }
}
