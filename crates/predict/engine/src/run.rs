//! What the scheduler needs to know of a machine.

use crate::RunResult;
use strata_stream::Batch;

/// One machine, a stack under a policy, consuming a stream.
pub trait Run: Send {
    /// Takes in the next part of the stream. Never fails: trouble such as a layer out of memory
    /// is part of the result.
    fn consume(&mut self, batch: &Batch);

    /// What was found, when no more of the stream comes.
    fn finish(self: Box<Self>) -> RunResult;

    /// Bytes of this process's memory it holds now, roughly.
    fn memory_estimate(&self) -> u64;

    /// Whether memory ran out in it, so that its result leaves something out.
    fn ran_out_of_memory(&self) -> bool {
        false
    }

    /// Whether nothing is left in it that the rest of the stream could happen to.
    fn is_over(&self) -> bool {
        false
    }

    /// What it is called in messages.
    fn name(&self) -> String {
        "a machine".to_owned()
    }

    /// Seconds of simulated time so far, for the progress display; 0 when unknown.
    fn simulated_seconds(&self) -> f64 {
        0.0
    }
}

/// A machine could not be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// It cannot be. One line: cause and remedy.
    #[error("{0}")]
    Refused(String),
    /// [`Stop`](crate::Stop) was requested.
    #[error("stopped while a machine was set up")]
    Stopped,
}

/// A machine, or why there is none.
pub type Built = Result<Box<dyn Run>, SetupError>;
