//! Talking to the agents of all layers.

use crate::error::LabError;
use crate::journal::{Journal, Program};
use crate::machine::{Heard, Machine};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};
use strata_protocol::{Command, Event, Order, Reply};

/// Time an agent may take for a simple order.
pub(crate) const ORDER_LIMIT: Duration = Duration::from_secs(60);
/// Time between looks at Ctrl-C.
const TICK: Duration = Duration::from_millis(50);
/// What follows a kernel's last words is waited for this long.
const AFTERMATH: Duration = Duration::from_secs(2);
/// Time that the emulator may take to end once it has hung up.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A machine, and what is known of it.
#[derive(Debug)]
pub(crate) struct Link<'a> {
    pub(crate) machine: Machine,
    /// What was heard.
    pub(crate) journal: Journal,
    interrupt: &'a AtomicBool,
    /// How much longer everything of the lab's own may take.
    patience: u32,
    next: u64,
}

impl<'a> Link<'a> {
    pub(crate) fn new(
        machine: Machine,
        journal: Journal,
        interrupt: &'a AtomicBool,
        patience: u32,
    ) -> Self {
        Self { machine, journal, interrupt, patience, next: 0 }
    }

    /// What this machine gets where others get `limit`.
    pub(crate) fn patient(&self, limit: Duration) -> Duration {
        limit * self.patience
    }

    /// Gives an order and waits for the answer, patiently.
    pub(crate) fn order(
        &mut self,
        to: u8,
        what: &str,
        command: Command,
        limit: Duration,
    ) -> Result<Reply, LabError> {
        let id = self.send(to, command);
        let answer = self.wait(to, what, self.patient(limit), |_, event| match event {
            Some(Event::Done { id: of, reply }) if *of == id => Some(Ok(reply.clone())),
            Some(Event::Failed { id: of, reason }) if *of == id => Some(Err(reason.clone())),
            _ => None,
        });
        answer?.map_err(|reason| LabError::Refused { layer: to, what: what.to_owned(), reason })
    }

    /// Gives an order without waiting for the answer. Returns its number.
    pub(crate) fn send(&mut self, to: u8, command: Command) -> u64 {
        let id = self.next;
        self.next += 1;
        let mut line =
            serde_json::to_vec(&Order { to, id, command }).expect("orders are plain data");
        line.push(b'\n');
        // A machine that is gone is noticed, with the reason, by whoever listens next.
        let _ = self.machine.port.write_all(&line);
        id
    }

    /// Waits until a program of a layer is as `done` wants it.
    pub(crate) fn wait_for_program(
        &mut self,
        layer: u8,
        name: &str,
        limit: Duration,
        done: impl Fn(&Program) -> bool,
    ) -> Result<Program, LabError> {
        self.wait(layer, &format!("run {name}"), limit, |journal, _| {
            let program = journal.layers[usize::from(layer)].programs.get(name)?;
            done(program).then(|| program.clone())
        })
    }

    /// The same, but a program that is not so after `limit` is no error: nothing is returned.
    pub(crate) fn program_within(
        &mut self,
        layer: u8,
        name: &str,
        limit: Duration,
        done: impl Fn(&Program) -> bool,
    ) -> Result<Option<Program>, LabError> {
        let begin = Instant::now();
        self.wait(layer, &format!("run {name}"), limit.saturating_mul(2), |journal, _| {
            let program = journal.layers[usize::from(layer)].programs.get(name);
            match program.filter(|program| done(program)) {
                Some(program) => Some(Some(program.clone())),
                None => (begin.elapsed() >= limit).then_some(None),
            }
        })
    }

    /// Waits until a layer's agent runs, or `time` is over. Returns its kernel.
    pub(crate) fn ready_within(
        &mut self,
        layer: u8,
        time: Duration,
    ) -> Result<Option<String>, LabError> {
        let end = Instant::now() + time;
        self.wait(layer, "boot", time.saturating_mul(2), |journal, _| {
            match &journal.layers[usize::from(layer)].ready {
                Some((kernel, _)) => Some(Some(kernel.clone())),
                None => (Instant::now() >= end).then_some(None),
            }
        })
    }

    /// Waits, listening.
    pub(crate) fn pause(&mut self, time: Duration) -> Result<(), LabError> {
        let end = Instant::now() + time;
        self.wait(0, "wait", time + TICK * 2, |_, _| (Instant::now() >= end).then_some(()))
    }

    /// Listens until `done` has something, asked after every event and now and then.
    fn wait<T>(
        &mut self,
        layer: u8,
        what: &str,
        limit: Duration,
        mut done: impl FnMut(&Journal, Option<&Event>) -> Option<T>,
    ) -> Result<T, LabError> {
        let begin = Instant::now();
        let mut event = None;
        loop {
            if let Some(result) = done(&self.journal, event.as_ref()) {
                return Ok(result);
            }
            if begin.elapsed() > limit {
                return Err(self.late(layer, what, limit));
            }
            event = self.hear(layer, what)?;
        }
    }

    /// The error that a layer did not do something in time.
    pub(crate) fn late(&self, layer: u8, what: &str, limit: Duration) -> LabError {
        let seconds = limit.as_secs();
        self.journal.layers[usize::from(layer)]
            .error(format!("L{layer}"), format!("did not {what} within {seconds} s"))
    }

    /// Listens for a moment, notes what is heard and returns it, if an agent reported it. `layer`
    /// and `what` say in an error what was going on.
    pub(crate) fn hear(&mut self, layer: u8, what: &str) -> Result<Option<Event>, LabError> {
        if self.interrupt.load(Relaxed) {
            return Err(LabError::Interrupted);
        }
        let event = match self.machine.heard.recv_timeout(TICK) {
            Ok(Heard::Report(report)) => {
                let event = report.event.clone();
                self.journal.note(report)?;
                Some(event)
            }
            Ok(Heard::Console(line)) => {
                self.journal.layers[0].console(&line)?;
                None
            }
            Ok(Heard::Garbled(line)) => {
                self.journal.layers[0].console(&format!("port: {line}"))?;
                None
            }
            Ok(Heard::Ended) | Err(RecvTimeoutError::Disconnected) => {
                let how = match self.machine.end(END_LIMIT) {
                    Some(status) => format!(" ({status}{})", reset(status.success())),
                    None => String::new(),
                };
                let ended = format!("ended{how} while L{layer} was to {what}");
                return Err(match self.machine.complaint() {
                    // What the emulator says of its end tells more than a console can.
                    Some((last, log)) => LabError::Layer {
                        layer: "the machine".into(),
                        what: ended,
                        last: format!("; the emulator says: {last}"),
                        log,
                    },
                    None => self.journal.layers[0].error("the machine".into(), ended),
                });
            }
            Err(RecvTimeoutError::Timeout) => None,
        };
        self.look_for_death(layer, what)?;
        Ok(event)
    }

    /// Ends the run if a kernel of any layer is done for, or its machine is gone.
    fn look_for_death(&mut self, layer: u8, what: &str) -> Result<(), LabError> {
        if let Some(dead) = self.journal.layers.iter().position(|layer| layer.fatal.is_some()) {
            self.listen(self.patient(AFTERMATH))?;
            let journal = &self.journal.layers[dead];
            let line = journal.fatal.as_deref().unwrap_or_default();
            return Err(journal.error(
                format!("L{dead}"),
                format!("its kernel says '{line}' while L{layer} was to {what}"),
            ));
        }
        if let Some(below) = self.journal.layers.iter().position(|layer| layer.vm_ended.is_some()) {
            self.listen(self.patient(AFTERMATH))?;
            let above = below + 1;
            let status = self.journal.layers[below].vm_ended.unwrap_or_default();
            if let Some(journal) = self.journal.layers.get(above) {
                let reset = reset(status == 0);
                return Err(journal.error(
                    format!("L{above}"),
                    format!(
                        "its VMM ended with status {status}{reset} while L{layer} was to {what}"
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Notes what comes in for a while.
    fn listen(&mut self, time: Duration) -> Result<(), LabError> {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            match self.machine.heard.recv_timeout(left) {
                Ok(Heard::Report(report)) => self.journal.note(report)?,
                Ok(Heard::Console(line)) => self.journal.layers[0].console(&line)?,
                Ok(Heard::Garbled(_)) => {}
                Ok(Heard::Ended) | Err(_) => break,
            }
        }
        Ok(())
    }
}

/// What to say of a VMM that ended well with nobody having asked it to: all of them run with
/// `-no-reboot`.
fn reset(well: bool) -> &'static str {
    if well { ", as when its machine resets itself: after a triple fault, for one" } else { "" }
}
