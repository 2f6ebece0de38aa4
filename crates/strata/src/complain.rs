//! What the program says on standard error.

use std::io::Write;

/// One line on standard error. Nothing can be done where even that fails.
pub fn complain(message: &str) {
    let _ = writeln!(anstream::stderr(), "strata: {message}");
}
