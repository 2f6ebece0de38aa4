//! What was heard of the layers: consoles in files, everything else by layer.

use crate::error::{LabError, on};
use crate::scenario::Kernel;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use strata_protocol::{Event, Report};

/// Lines of a console that an error shows.
const LAST_LINES: usize = 8;

/// Words on a console that mean the kernel is done for.
const FATAL: [&str; 5] =
    ["Kernel panic", "BUG:", "Oops:", "general protection fault", "double fault"];

/// What a kernel that checks itself says when it found something.
const COMPLAINTS: [&str; 7] = [
    "KASAN:",
    "UBSAN:",
    "WARNING:",
    "possible circular locking",
    "possible recursive locking",
    "suspicious RCU usage",
    "DEBUG_LOCKS_WARN_ON",
];

/// Values of files in a layer at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Seconds since the layer's kernel started.
    pub(crate) at: f64,
    /// Text by file.
    pub(crate) texts: BTreeMap<String, String>,
}

/// A program that was started in a layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    /// Lines of standard output.
    pub(crate) output: Vec<String>,
    /// Lines of standard error.
    pub(crate) errors: Vec<String>,
    /// It is about to end, held.
    pub(crate) held: bool,
    /// Exit status, or minus the signal.
    pub(crate) status: Option<i32>,
}

/// What is known of one layer.
#[derive(Debug)]
pub(crate) struct LayerJournal {
    log: File,
    path: PathBuf,
    last: VecDeque<String>,
    /// Its kernel checks itself.
    checked: bool,
    /// The kernel, once user space runs, and the layer's own time then in seconds.
    pub(crate) ready: Option<(String, f64)>,
    /// Samples in order of time.
    pub(crate) samples: Vec<Sample>,
    /// Programs by name.
    pub(crate) programs: BTreeMap<String, Program>,
    /// The machine above ended with this status.
    pub(crate) vm_ended: Option<i32>,
    /// The line that says the kernel is done for, or found something wrong with itself.
    pub(crate) fatal: Option<String>,
}

/// What is known of all layers.
#[derive(Debug)]
pub(crate) struct Journal {
    /// L0 first.
    pub(crate) layers: Vec<LayerJournal>,
    /// Of the logs.
    pub(crate) directory: PathBuf,
}

/// The log of a layer's console in a directory of logs.
pub(crate) fn console_log(directory: &Path, layer: u8) -> PathBuf {
    directory.join(format!("l{layer}-console.log"))
}

impl Journal {
    /// Starts logs in `directory` of layers that run these kernels.
    pub(crate) fn start(
        directory: &Path,
        kernels: impl IntoIterator<Item = Kernel>,
    ) -> Result<Self, LabError> {
        let start = |(layer, kernel): (usize, Kernel)| {
            let path = console_log(directory, layer as u8);
            Ok::<_, LabError>(LayerJournal {
                log: on(&path, File::create(&path))?,
                path,
                last: VecDeque::new(),
                checked: kernel.is_checked(),
                ready: None,
                samples: Vec::new(),
                programs: BTreeMap::new(),
                vm_ended: None,
                fatal: None,
            })
        };
        let layers = kernels.into_iter().enumerate().map(start).collect::<Result<_, _>>()?;
        Ok(Self { layers, directory: directory.to_owned() })
    }

    /// Notes what an agent reports. Answers to orders are the caller's.
    pub(crate) fn note(&mut self, report: Report) -> Result<(), LabError> {
        // A layer that is not there cannot speak; its agent would be wrong about itself.
        let Some(layer) = self.layers.get_mut(usize::from(report.from)) else { return Ok(()) };
        match report.event {
            Event::Ready { kernel } => layer.ready = Some((kernel, report.at)),
            Event::Console { line } => return layer.console(&line),
            Event::Output { name, error, line } => {
                let program = layer.programs.entry(name).or_default();
                if error { &mut program.errors } else { &mut program.output }.push(line);
            }
            Event::Held { name } => layer.programs.entry(name).or_default().held = true,
            Event::Exited { name, status } => {
                layer.programs.entry(name).or_default().status = Some(status);
            }
            Event::Down { status } => layer.vm_ended = Some(status),
            Event::Sample { texts } => layer.samples.push(Sample { at: report.at, texts }),
            // The caller's.
            Event::Done { .. } | Event::Failed { .. } | Event::Screen { .. } => {}
        }
        Ok(())
    }
}

impl LayerJournal {
    /// Notes a line of the console.
    pub(crate) fn console(&mut self, line: &str) -> Result<(), LabError> {
        on(&self.path, writeln!(self.log, "{line}"))?;
        let says = |words: &[&str]| words.iter().any(|word| line.contains(word));
        if self.fatal.is_none() && (says(&FATAL) || self.checked && says(&COMPLAINTS)) {
            self.fatal = Some(line.to_owned());
        }
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
        Ok(())
    }

    /// An error about this layer, with the last lines of its console.
    pub(crate) fn error(&self, layer: String, what: String) -> LabError {
        let last = match self.last.back() {
            None => "; its console is empty".to_owned(),
            Some(_) => {
                let lines: Vec<_> = self.last.iter().map(|line| line.trim()).collect();
                format!("; its console ends with: {}", lines.join(" | "))
            }
        };
        LabError::Layer { layer, what, last, log: self.path.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::KernelVariant;

    #[test]
    fn a_panic_is_noticed_and_shown_with_what_led_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal =
            Journal::start(directory.path(), [Kernel::Debian, Kernel::Debian]).unwrap();
        let lines = (0..20).map(|n| format!("line {n}"));
        for line in lines.chain(["Kernel panic - not syncing".into(), "end".into()]) {
            journal.note(Report { from: 1, at: 1.0, event: Event::Console { line } }).unwrap();
        }
        let layer = &journal.layers[1];
        assert_eq!(layer.fatal.as_deref(), Some("Kernel panic - not syncing"));
        let message = layer.error("L1".into(), "panicked".into()).to_string();
        assert!(
            message.starts_with("L1: panicked; its console ends with: line 14 | "),
            "{message}"
        );
        assert!(message.contains("not syncing | end; the whole log is in "), "{message}");
        let log = std::fs::read_to_string(directory.path().join("l1-console.log")).unwrap();
        assert_eq!(log.lines().count(), 22);
        assert!(journal.layers[0].fatal.is_none());
    }

    #[test]
    fn what_a_kernel_that_checks_itself_complains_of_ends_the_run() {
        let directory = tempfile::tempdir().unwrap();
        let complaint = |kernel, line: &str| {
            let mut journal = Journal::start(directory.path(), [kernel]).unwrap();
            journal.layers[0].console("[ 1.0] kvm: Nested Paging enabled").unwrap();
            assert_eq!(journal.layers[0].fatal, None);
            journal.layers[0].console(line).unwrap();
            journal.layers[0].fatal.clone()
        };
        let lines = [
            "[ 1.0] BUG: KASAN: slab-use-after-free in x+0x1/0x2",
            "[ 1.0] UBSAN: shift-out-of-bounds in x.c:1:2",
            "[ 1.0] WARNING: CPU: 0 PID: 1 at mm/x.c:1 x+0x1/0x2",
            "[ 1.0] WARNING: possible circular locking dependency detected",
            "[ 1.0] WARNING: possible recursive locking detected",
            "[ 1.0] INFO: possible recursive locking detected",
            "[ 1.0] WARNING: suspicious RCU usage",
            "[ 1.0] DEBUG_LOCKS_WARN_ON(depth <= 0)",
            "[ 1.0] BUG: sleeping function called from invalid context at x.c:1",
        ];
        for line in lines {
            let said = complaint(Kernel::Lab(KernelVariant::Debug), line);
            assert_eq!(said.as_deref(), Some(line));
            let fatal = line.contains("BUG:");
            assert_eq!(
                complaint(Kernel::Lab(KernelVariant::Aligned), line).is_some(),
                fatal,
                "{line}"
            );
            assert_eq!(complaint(Kernel::Debian, line).is_some(), fatal, "{line}");
        }
    }
}
