//! Ctrl-C and its like: the first ends the stream, the third ends the program.
//!
//! Whoever asks a second time is impatient, or speaks to a program that wants to be asked twice: it is
//! passed on again, and the result is kept.

use crate::failure::INTERRUPTED;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, process, thread};

/// How often one asks until the program ends at once, whatever it was doing.
const PRESSES: u32 = 3;

/// The same signal within this time is the same request: `timeout` and shells send theirs to the
/// process and to its group.
const TOGETHER: Duration = Duration::from_millis(100);

/// Whether Ctrl-C was pressed.
#[derive(Clone, Debug)]
pub struct Interrupt {
    /// Set when it was.
    pub flag: Arc<AtomicBool>,
    /// Since when it would be noticed.
    pub since: SystemTime,
    /// The last signal, 0 for none.
    signal: Arc<AtomicUsize>,
    /// Whether programs that were started get it too.
    passed_on: Arc<AtomicBool>,
    /// Whether somebody else looks after signals.
    is_told: bool,
}

impl Interrupt {
    /// Takes over Ctrl-C from here on.
    pub fn watch() -> Self {
        Self::on(&[SIGINT])
    }

    /// Takes over every signal that is meant to end a program from here on: for work that leaves
    /// something behind if it ends at once.
    pub fn watch_all() -> Self {
        // A file that may not grow is an error of the write then, and not the end.
        let _ = flag::register(SIGXFSZ, Arc::default());
        // Whoever started this with nohup wants it to go on.
        if ignored(SIGHUP) {
            Self::on(&[SIGINT, SIGTERM])
        } else {
            Self::on(&[SIGINT, SIGTERM, SIGHUP])
        }
    }

    /// Leaves signals to whoever sets the flag: this is then no program of its own, and the programs that it
    /// starts end with what it was asked for.
    pub fn told(flag: Arc<AtomicBool>) -> Self {
        Self { flag, is_told: true, ..Self::unset() }
    }

    /// Whether somebody else looks after signals.
    pub fn is_told(&self) -> bool {
        self.is_told
    }

    /// Passes on to the programs started what ends this one and was sent to it alone: the terminal
    /// sends its Ctrl-C to all.
    pub fn pass_on(&self) {
        self.passed_on.store(true, Relaxed);
    }

    fn unset() -> Self {
        Self {
            flag: Arc::default(),
            since: SystemTime::now(),
            signal: Arc::default(),
            passed_on: Arc::default(),
            is_told: false,
        }
    }

    fn on(signals: &[i32]) -> Self {
        let this = Self::unset();
        // Where no handler can be installed the signals keep their usual effect.
        if let Ok(mut arriving) = SignalsInfo::<WithRawSiginfo>::new(signals) {
            // In the handler itself: a program that the same Ctrl-C ends may be gone before a thread
            // is told of it, and would seem to have ended by itself. Whoever sees the flag finds the number.
            for &signal in signals {
                let _ = flag::register_usize(signal, this.signal.clone(), signal as usize);
                let _ = flag::register(signal, this.flag.clone());
            }
            let watched = this.clone();
            thread::spawn(move || {
                let mut presses = Presses::default();
                for signal in arriving.forever() {
                    let from_terminal = signal.si_code == libc::SI_KERNEL;
                    watched.arrived(signal.si_signo, from_terminal, &mut presses);
                }
            });
        }
        this
    }

    fn arrived(&self, signal: i32, from_terminal: bool, presses: &mut Presses) {
        let number = presses.count(signal, Instant::now());
        if number >= PRESSES {
            process::exit(128 + signal);
        }
        if !from_terminal
            && self.passed_on.load(Relaxed)
            && let Ok(signal) = Signal::try_from(signal)
        {
            for pid in children() {
                // One that has just ended needs no signal.
                let _ = kill(pid, signal);
            }
        }
        if number == PRESSES - 1 {
            crate::complain::complain("once more ends it at once, and nothing is written");
        }
    }

    /// Whether it was.
    pub fn happened(&self) -> bool {
        self.flag.load(Relaxed)
    }

    /// What happened, in words.
    pub fn reason(&self) -> String {
        match self.signal.load(Relaxed) as i32 {
            SIGTERM => "ended by SIGTERM".to_owned(),
            SIGHUP => "ended by SIGHUP".to_owned(),
            _ => "interrupted by Ctrl-C".to_owned(),
        }
    }

    /// The exit status it asks for: 128 and the signal's number, as a shell reports it.
    pub fn status(&self) -> u8 {
        match self.signal.load(Relaxed) {
            0 => INTERRUPTED,
            signal => u8::try_from(128 + signal).unwrap_or(INTERRUPTED),
        }
    }
}

/// How often somebody asked for the end.
#[derive(Debug, Default)]
struct Presses {
    count: u32,
    last: Option<(i32, Instant)>,
}

impl Presses {
    /// One more signal; gives the number of the request it belongs to, from 1.
    fn count(&mut self, signal: i32, now: Instant) -> u32 {
        let same = |(before, at)| before == signal && now.duration_since(at) < TOGETHER;
        if !self.last.is_some_and(same) {
            self.count += 1;
            self.last = Some((signal, now));
        }
        self.count
    }
}

/// Whether this process was started with a signal ignored.
fn ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (signal - 1) != 0)
}

/// Processes started by any thread of this one.
fn children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.map(|task| fs::read_to_string(task.path().join("children")));
    let numbers = lists.map(|list| {
        let list = list.unwrap_or_default();
        list.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>()
    });
    numbers.flatten().map(Pid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::SIGUSR1;
    use signal_hook::low_level::raise;

    /// Whoever raises a signal goes on when its handler is done, and no thread has to have run meanwhile.
    #[test]
    fn a_signal_counts_in_its_handler() {
        let interrupt = Interrupt::on(&[SIGUSR1]);
        raise(SIGUSR1).unwrap();
        assert!(interrupt.happened());
        assert_eq!(interrupt.status(), 128 + SIGUSR1 as u8);
    }

    #[test]
    fn signals_that_come_together_are_one_request() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut presses = Presses::default();
        assert_eq!(presses.count(SIGTERM, at(0)), 1);
        assert_eq!(presses.count(SIGTERM, at(5)), 1);
        assert_eq!(presses.count(SIGINT, at(6)), 2);
        assert_eq!(presses.count(SIGTERM, at(500)), 3);
    }
}
