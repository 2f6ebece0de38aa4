//! Where a stream comes from.

use crate::{Batch, Outcome};
use serde::Serialize;

/// What is known of a workload, before or after it has been read.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkloadInfo {
    /// What the user asked for: a command line, quoted for a shell, a file name, a generator's
    /// description.
    pub name: String,
    /// The words of the command line of a live program; of a recording, what it says it is of.
    /// Empty otherwise.
    pub argv: Vec<String>,
    /// `live`, `recording`, `champsim`, `cloudsuite`, `lackey` or `generator`.
    pub kind: &'static str,
    /// Bytes of memory the workload will touch, at base-page grain, when known beforehand.
    pub footprint_bytes: Option<u64>,
    /// Bytes of these, at base-page grain, that are certain to be touched and to stay mapped to the
    /// end; 0 where nothing is certain.
    pub held_bytes: u64,
    /// Accesses in the whole stream, when known beforehand.
    pub accesses: Option<u64>,
    /// What a reader of the result must know: VMAs inferred, trace damaged from here on, ...
    pub notes: Vec<String>,
    /// Exit status of a live program, once it ended: the code, or 128 + the signal's number.
    pub exit_status: Option<i32>,
    /// The number of the page tables that were captured with the stream.
    pub tables: Option<u64>,
    /// What a recording says of the program, if the stream is one: a copy of it says the same.
    pub recorded: Option<Outcome>,
}

/// What [`Source::fill`] left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Call again.
    More,
    /// The stream is over; the batch may still hold its last part.
    End,
}

/// A stream could not be read further.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Input or output failed.
    #[error("{context}: {source}")]
    Io {
        /// What was being done, with the file's name.
        context: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The input is not what it should be. One line: cause, place and remedy.
    #[error("{0}")]
    Invalid(String),
}

/// A workload: an ordered stream of accesses and events.
pub trait Source: Send {
    /// What is known now; complete after [`Fill::End`].
    fn info(&self) -> WorkloadInfo;

    /// Clears `batch` and puts the next part of the stream into it. The stream given is a
    /// function of the input alone: how it is cut into batches does not depend on timing except
    /// for live programs.
    ///
    /// # Errors
    /// When the input cannot be read or is damaged; what `batch` then holds, and all before, is
    /// good.
    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError>;

    /// Nobody wants more of the stream. A live program runs on unobserved: `true`, and
    /// [`Source::fill`] gives nothing more but its end. Any other stream can be left as it is.
    fn detach(&mut self) -> bool {
        false
    }

    /// What its user should know at once, each told once.
    fn news(&mut self) -> Vec<String> {
        Vec::new()
    }
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn info(&self) -> WorkloadInfo {
        (**self).info()
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        (**self).fill(batch)
    }

    fn detach(&mut self) -> bool {
        (**self).detach()
    }

    fn news(&mut self) -> Vec<String> {
        (**self).news()
    }
}
