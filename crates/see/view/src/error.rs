//! Why there is no page.

use thiserror::Error;

/// What is wrong with what was to be shown: the cause, and what to do.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ViewError {
    /// It cannot be parsed.
    #[error(
        "it is not JSON ({0}); give a file that --json of strata run, join, lab or paper wrote"
    )]
    NotJson(String),
    /// It is JSON of something else.
    #[error(
        "it is JSON, but no result that can be drawn ({0}); give a file that --json of strata run, \
         join, lab or paper wrote"
    )]
    NotAResult(String),
    /// A later Strata wrote it.
    #[error(
        "it has version {found} of the {what} format and this program knows up to {known}; use the \
         Strata that wrote it, or a newer one"
    )]
    Newer {
        /// What kind of result.
        what: &'static str,
        /// Its version.
        found: u64,
        /// The newest one known here.
        known: u64,
    },
    /// Something is missing or of another type.
    #[error("it is a damaged result of strata {what} ({why}); write it anew with --json")]
    Damaged {
        /// The command.
        what: &'static str,
        /// What does not fit.
        why: String,
    },
}
