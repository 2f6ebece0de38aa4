//! What can be wrong with a CPU model.

use strata_params::ParameterError;

/// A CPU model that cannot be used; each message is one line with cause and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// No preset has this name.
    #[error("no CPU preset is named {name}; did you mean {nearest}?")]
    UnknownPreset {
        /// As asked for.
        name: String,
        /// The preset with the most similar name.
        nearest: String,
    },
    /// A value that no machine could have.
    #[error(transparent)]
    Value(#[from] ParameterError),
    /// A last-level cache that cannot be as asked for.
    #[error("the last-level cache: {cause}")]
    LastLevel {
        /// What is wrong, and what would be right.
        cause: String,
    },
    /// The text is not a model.
    #[error("CPU model, line {line}: {cause}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// What the parser says.
        cause: String,
    },
}
