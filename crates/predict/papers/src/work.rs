//! Running rows: several at once, each in a process of its own, until all are done or it is to stop.

use crate::{Found, Kept, Row};
use std::fs;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// How often it is looked whether a process has ended or is to.
const LOOK: Duration = Duration::from_millis(20);

/// A row that gave no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{row}: {why}; try it alone: {command}")]
pub struct RowError {
    /// Name of the row.
    pub row: String,
    /// What it said.
    pub why: String,
    /// The command that runs it by itself.
    pub command: String,
}

/// One row is done.
#[derive(Clone, Debug)]
pub struct Done<'a> {
    /// The row.
    pub row: &'a Row,
    /// Rows done, this one included.
    pub done: usize,
    /// Whether it was kept from before.
    pub was_kept: bool,
}

/// Rows to be run.
pub struct Work<'a> {
    /// The rows.
    pub rows: &'a [Row],
    /// Where results are kept.
    pub kept: &'a Kept,
    /// Rows at once.
    pub at_once: NonZeroUsize,
    /// Set when it is to stop.
    pub stop: &'a AtomicBool,
    /// Is told of each row that is done.
    pub tell: &'a (dyn Fn(Done<'_>) + Sync),
}

impl Work<'_> {
    /// Runs the rows whose results are not kept. Gives what there is at the end, and the rows that failed,
    /// in order; rows that were stopped are neither.
    pub fn run(&self) -> (Found, Vec<RowError>) {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let found = Mutex::new((Found::default(), Vec::new()));
        let work = || {
            while !self.stop.load(Relaxed) {
                let number = next.fetch_add(1, Relaxed);
                let Some(row) = self.rows.get(number) else { break };
                let before = self.kept.load(row);
                let was_kept = before.is_some();
                let result = match before {
                    Some(report) => Ok(report),
                    None => match self.measure(row) {
                        Some(result) => result,
                        None => break,
                    },
                };
                let mut found = found.lock().expect("nobody panics with it");
                match result {
                    Ok(report) => found.0.insert(row, report),
                    Err(error) => found.1.push((number, error)),
                }
                drop(found);
                let done = done.fetch_add(1, Relaxed) + 1;
                (self.tell)(Done { row, done, was_kept });
            }
        };
        thread::scope(|scope| {
            (0..self.at_once.get()).for_each(|_| drop(scope.spawn(work)));
        });
        let (found, mut failed) = found.into_inner().expect("nobody panics with it");
        failed.sort_by_key(|(number, _)| *number);
        (found, failed.into_iter().map(|(_, error)| error).collect())
    }

    /// Runs one row; `None` when it was stopped.
    fn measure(&self, row: &Row) -> Option<Result<strata_engine::Report, RowError>> {
        let fail = |why: String| RowError { row: row.name.clone(), why, command: row.command() };
        let file = self.kept.file(row);
        let written = file.with_extension("new");
        let process = Command::new(self.kept.program())
            .arg("run")
            .args(&row.words)
            .args(["--threads", "1", "--json"])
            .arg(&written)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut process = match process {
            Ok(process) => process,
            Err(error) => return Some(Err(fail(format!("cannot be started: {error}")))),
        };
        let ended = loop {
            if self.stop.load(Relaxed) {
                // It may have ended by itself.
                let _ = process.kill();
                let _ = process.wait();
                let _ = fs::remove_file(&written);
                return None;
            }
            match process.try_wait() {
                Ok(None) => thread::sleep(LOOK),
                Ok(Some(status)) => break Ok(status),
                Err(error) => break Err(error),
            }
        };
        let mut said = String::new();
        if let Some(mut stderr) = process.stderr.take() {
            // What is no text says nothing.
            let _ = stderr.read_to_string(&mut said);
        }
        let moved = check(ended, &said).and_then(|()| {
            fs::rename(&written, &file).map_err(|error| format!("{}: {error}", file.display()))
        });
        let _ = fs::remove_file(&written);
        Some(moved.map_err(fail).and_then(|()| {
            self.kept.load(row).ok_or_else(|| fail("its result is not whole".to_owned()))
        }))
    }
}

/// Whether a process ended well; else what it said last.
fn check(ended: io::Result<ExitStatus>, said: &str) -> Result<(), String> {
    let status = ended.map_err(|error| error.to_string())?;
    if status.success() {
        return Ok(());
    }
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("{status}{}{last}", if last.is_empty() { "" } else { ": " }))
}
