//! Ends: of processes that cannot tell of theirs, of the program, and of what it leaves behind.

use super::{CHECK, Capture, SLEEP, add};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use strata_stream::{Batch, Event, Source, SourceError};

/// How long what a program leaves running goes on before it is spoken of.
const OUTLIVED: Duration = Duration::from_secs(2);
/// What is said of a process that had no time for a last word.
const KILLED: &str = "a process was killed (SIGKILL) between two windows: what it did since the last of them \
                      is not known, and is in no figure";

impl Capture {
    /// Delivers what these owners left in slots without handing it over.
    pub(super) fn abandoned(
        &mut self,
        gone: impl Fn(strata_wire::Owner) -> bool,
        batch: &mut Batch,
    ) {
        for index in self.wire.clone().orphans(gone) {
            // Committed slots are found too, when they are still in line; they come in time.
            if !self.drain.contains(index) {
                self.deliver(index, batch);
            }
        }
    }

    /// Looks for processes that ended without a word. What they committed before is drained here,
    /// so that it precedes their end.
    pub(super) fn check(&mut self) {
        self.checked = Instant::now();
        if self.dying.is_empty() {
            self.dying = self.processes.silently_ended();
            self.wire.drain(&mut self.drain);
        }
    }

    fn bury(&mut self, batch: &mut Batch) {
        for pid in std::mem::take(&mut self.dying) {
            self.abandoned(|owner| owner.pid == pid, batch);
            if self.in_gap && self.processes.get(pid).is_some_and(|dead| !dead.has_last_word) {
                add(KILLED.to_owned(), &mut self.notes);
            }
            self.event(Event::ProcessExit { pid }, batch);
        }
    }

    /// The program has ended and left processes running: says so when that goes on, and gives whether
    /// they are to be left to themselves.
    fn abandons(&mut self) -> bool {
        let since = *self.outlived.get_or_insert_with(Instant::now);
        let goes_on = since.elapsed() >= OUTLIVED;
        if goes_on {
            let numbers = self.processes.identities().into_iter().map(|id| id.number.to_string());
            add(
                format!(
                    "the program has ended, but not what it started (process {}), which is waited \
                     for; Ctrl-C leaves it to itself",
                    numbers.collect::<Vec<_>>().join(", ")
                ),
                &mut self.warnings,
            );
        }
        let interrupted = self.interrupted.as_ref().is_some_and(|flag| flag.load(Relaxed));
        if goes_on && interrupted {
            self.detach();
        }
        self.detached
    }

    /// Waits a while for the end of a program that is not observed any more; daemons are not waited
    /// for. Gives whether it came.
    pub(super) fn await_end(&mut self) -> bool {
        // What was on the way makes room for threads that wait to hand over.
        self.wire.drain(&mut self.drain);
        while let Some(index) = self.drain.pop() {
            self.wire.release(index);
        }
        self.ended = self.supervisor.has_ended();
        if !self.ended {
            self.wire.sleep(SLEEP[1]);
        }
        self.ended
    }

    /// Nothing is there to be read: waits, or finds the end.
    pub(super) fn idle(
        &mut self,
        sleep: &mut Duration,
        batch: &mut Batch,
    ) -> Result<bool, SourceError> {
        if !self.dying.is_empty() {
            self.bury(batch);
            return Ok(false);
        }
        let over = self.supervisor.has_ended() && (self.processes.is_empty() || self.abandons());
        if over || self.supervisor.has_ended() || self.checked.elapsed() >= CHECK {
            self.check();
            if !self.dying.is_empty() || !self.drain.is_empty() {
                return Ok(false);
            }
        }
        if over {
            self.ended = true;
            if self.begun {
                return Ok(true);
            }
            return Err(SourceError::Invalid(format!(
                "{}: the emulator could not run it; try qemu-x86_64 with it alone",
                self.argv[0]
            )));
        }
        self.wire.sleep(*sleep);
        *sleep *= 2;
        Ok(false)
    }
}
