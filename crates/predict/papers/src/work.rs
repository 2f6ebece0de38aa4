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
use tempfile::Builder;

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
    /// The results that are kept; nothing is run.
    pub fn kept(&self) -> Found {
        let mut found = Found::default();
        for row in self.rows {
            if let Some(report) = self.kept.load(row) {
                found.insert(row, report);
            }
        }
        found
    }

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
        // Of a process that is killed while it writes everything is to go.
        let room = match Builder::new().prefix(".").tempdir_in(self.kept.directory()) {
            Ok(room) => room,
            Err(error) => return Some(Err(fail(error.to_string()))),
        };
        let written = room.path().join("report.json");
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    /// A program that writes a report with the seed it is given, counts how often it runs, fails with the
    /// seed 13, and with the seed 99 has a file half written and never ends.
    const PROGRAM: &str = r#"#!/bin/sh
echo run >> "$(dirname "$0")/runs"
[ "$3" = 13 ] && { echo "strata: bad luck" >&2; exit 2; }
[ "$3" = 99 ] && { for last; do :; done; touch "$(dirname "$last")/.half"; exec sleep 1000; }
while [ "$1" != --json ]; do shift; done
cp "$(dirname "$0")/report" "$2"
"#;

    struct Desk {
        directory: tempfile::TempDir,
        kept: Kept,
    }

    impl Desk {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let program = directory.path().join("strata");
            fs::write(&program, PROGRAM).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            let report = serde_json::to_vec(&strata_engine::Report::default()).unwrap();
            fs::write(directory.path().join("report"), report).unwrap();
            let kept = Kept::at(directory.path().join("kept"), &program).unwrap();
            Self { directory, kept }
        }

        fn run(&self, rows: &[Row], stop: &AtomicBool) -> (Found, Vec<RowError>, Vec<bool>) {
            let told = Mutex::new(Vec::new());
            let work = Work {
                rows,
                kept: &self.kept,
                at_once: NonZeroUsize::new(2).unwrap(),
                stop,
                tell: &|done| told.lock().unwrap().push(done.was_kept),
            };
            let (found, failed) = work.run();
            (found, failed, told.into_inner().unwrap())
        }

        fn runs(&self) -> usize {
            let runs = fs::read_to_string(self.directory.path().join("runs"));
            runs.unwrap_or_default().lines().count()
        }

        fn files(&self) -> usize {
            let kept: &Path = self.kept.directory();
            fs::read_dir(kept).unwrap().count()
        }
    }

    fn rows(seeds: &[u64]) -> Vec<Row> {
        let row =
            |seed: &u64| Row::new(format!("row {seed}"), &[("--seed", seed.to_string())], &[]);
        seeds.iter().map(row).collect()
    }

    #[test]
    fn what_is_kept_is_not_run_again() {
        let (desk, stop) = (Desk::new(), AtomicBool::new(false));
        let (found, failed, told) = desk.run(&rows(&[1, 2, 3]), &stop);
        assert_eq!((found.len(), failed.len(), desk.runs()), (3, 0, 3));
        assert_eq!(told, [false; 3]);
        let (found, _, mut told) = desk.run(&rows(&[1, 2, 3, 4]), &stop);
        assert_eq!((found.len(), desk.runs(), desk.files()), (4, 4, 4));
        told.sort_unstable();
        assert_eq!(told, [false, true, true, true]);
        desk.kept.forget(&rows(&[2])[0]);
        let wanted = rows(&[1, 2, 9]);
        let (at_once, tell) = (NonZeroUsize::MIN, &|_: Done<'_>| {});
        let work = Work { rows: &wanted, kept: &desk.kept, at_once, stop: &stop, tell };
        assert_eq!((work.kept().len(), desk.runs()), (1, 4), "what is kept, and nothing else");
        desk.run(&rows(&[1, 2]), &stop);
        assert_eq!(desk.runs(), 5);
    }

    #[test]
    fn a_row_that_fails_is_told_and_the_others_go_on() {
        let (desk, stop) = (Desk::new(), AtomicBool::new(false));
        let (found, failed, _) = desk.run(&rows(&[1, 13, 2]), &stop);
        assert_eq!((found.len(), failed.len(), desk.files()), (2, 1, 2));
        let message = failed[0].to_string();
        assert!(message.starts_with("row 13: exit status: 2: strata: bad luck"), "{message}");
        assert!(message.ends_with("try it alone: strata run --seed 13"), "{message}");
    }

    #[test]
    fn who_asks_for_the_end_gets_it_at_once_and_nothing_half_is_kept() {
        let (desk, stop) = (Desk::new(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(300));
                stop.store(true, Relaxed);
            });
            let (found, failed, _) = desk.run(&rows(&[99, 99, 1]), &stop);
            assert_eq!((found.len(), failed.len(), desk.files()), (0, 0, 0));
        });
    }
}
