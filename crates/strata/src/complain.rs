//! What the program says on standard error.

use std::io::Write;
use std::sync::OnceLock;

/// Who is told instead.
static LISTENER: OnceLock<fn(&str)> = OnceLock::new();

/// Has everything that would be said told to `listener` instead: for whoever runs this inside another
/// program. The first who asks for it gets it.
pub fn listen(listener: fn(&str)) {
    let _ = LISTENER.set(listener);
}

/// One line on standard error. Nothing can be done where even that fails.
pub fn complain(message: &str) {
    match LISTENER.get() {
        Some(listener) => listener(message),
        None => {
            let _ = writeln!(anstream::stderr(), "strata: {message}");
        }
    }
}
