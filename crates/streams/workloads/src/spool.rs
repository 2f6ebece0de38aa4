//! A stream kept in a temporary file, for what cannot be read from front to back.

use crate::Input;
use std::fs::File;
use std::io::{self, Write};
use strata_stream::SourceError;

/// All that is left of the input, in a file that goes when it is closed. An input that breaks off
/// is kept up to there: what was cut short is for the reader of the file to tell.
///
/// # Errors
/// When the temporary file cannot be written.
pub fn spool(mut input: Input) -> Result<File, SourceError> {
    let mut kept = || -> io::Result<File> {
        let mut file = tempfile::tempfile()?;
        loop {
            let _ = input.peek(1);
            match input.window() {
                [] => return Ok(file),
                window => file.write_all(window)?,
            }
            input.consume(input.window().len());
        }
    };
    let directory = std::env::temp_dir();
    kept().map_err(|source| SourceError::Io {
        context: format!(
            "cannot keep the recording in {} while it is read (save it to a file first, or name \
             another directory with TMPDIR)",
            directory.display()
        ),
        source,
    })
}
