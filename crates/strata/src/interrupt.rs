//! Ctrl-C: the first ends the stream, the second ends the program.

use crate::failure::INTERRUPTED;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;

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
        Self::on(&[SIGINT, SIGTERM, SIGHUP])
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

    /// The exit status it asks for: 128 and the signal's number, as a shell reports it.
    pub fn status(&self) -> u8 {
        match self.signal.load(Relaxed) {
            0 => INTERRUPTED,
            signal => u8::try_from(128 + signal).unwrap_or(INTERRUPTED),
        }
    }
}
