//! Ctrl-C and its like: the first ends the stream, the second ends the program.

use crate::failure::INTERRUPTED;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, SystemTime};
use std::{fs, thread};

/// Whether Ctrl-C was pressed.
#[derive(Clone, Debug)]
pub struct Interrupt {
    /// Set when it was.
    pub flag: Arc<AtomicBool>,
    /// Since when it would be noticed.
    pub since: SystemTime,
    /// The signal, 0 for none.
    signal: Arc<AtomicUsize>,
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
        Self::on(&[SIGINT, SIGTERM, SIGHUP])
    }

    /// Passes on to the programs started what ends this one and was sent to it alone: the terminal
    /// sends its Ctrl-C to all.
    pub fn pass_on(&self) {
        let signal = Arc::clone(&self.signal);
        thread::spawn(move || {
            loop {
                let signal = match signal.load(Relaxed) as i32 {
                    SIGTERM => Signal::SIGTERM,
                    SIGHUP => Signal::SIGHUP,
                    _ => {
                        thread::sleep(Duration::from_millis(50));
                        continue;
                    }
                };
                for pid in children() {
                    // One that has just ended needs no signal.
                    let _ = kill(pid, signal);
                }
                return;
            }
        });
    }

    fn on(signals: &[i32]) -> Self {
        let pressed = Arc::new(AtomicBool::new(false));
        let which = Arc::new(AtomicUsize::new(0));
        for &signal in signals {
            // Handlers run in the order of registration: the first press finds the flag clear and
            // sets it, the second finds it set and ends the program.
            let done = flag::register_conditional_shutdown(
                signal,
                i32::from(INTERRUPTED),
                Arc::clone(&pressed),
            )
            .and_then(|_| flag::register_usize(signal, Arc::clone(&which), signal as usize))
            .and_then(|_| flag::register(signal, Arc::clone(&pressed)));
            // Where no handler can be installed the signal keeps its usual effect.
            drop(done);
        }
        Self { flag: pressed, since: SystemTime::now(), signal: which }
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
