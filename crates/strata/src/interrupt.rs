//! Ctrl-C: the first ends the stream, the second ends the program.

use crate::failure::INTERRUPTED;
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether Ctrl-C was pressed.
#[derive(Clone, Debug)]
pub struct Interrupt(pub Arc<AtomicBool>);

impl Interrupt {
    /// Takes over Ctrl-C from here on.
    pub fn watch() -> Self {
        let pressed = Arc::new(AtomicBool::new(false));
        // Handlers run in the order of registration: the first press finds the flag clear and
        // sets it, the second finds it set and ends the program.
        let done = flag::register_conditional_shutdown(
            SIGINT,
            i32::from(INTERRUPTED),
            Arc::clone(&pressed),
        )
        .and_then(|_| flag::register(SIGINT, Arc::clone(&pressed)));
        // Where no handler can be installed Ctrl-C keeps its usual effect.
        drop(done);
        Self(pressed)
    }

    /// Whether it was.
    pub fn happened(&self) -> bool {
        self.0.load(Relaxed)
    }
}
