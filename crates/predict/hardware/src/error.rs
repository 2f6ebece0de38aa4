//! What can be wrong with a CPU model.

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
    /// No constant has this name.
    #[error("no constant is named {name}; did you mean {nearest}?")]
    UnknownConstant {
        /// As asked for.
        name: String,
        /// The constant with the most similar name.
        nearest: String,
    },
    /// A value of the wrong kind.
    #[error("{name} takes {kind}, not {value}")]
    WrongKind {
        /// The constant.
        name: String,
        /// As given.
        value: String,
        /// What it takes.
        kind: &'static str,
    },
    /// A value no machine could have.
    #[error("{name}: {cause}")]
    Impossible {
        /// The constant.
        name: String,
        /// What is wrong with it, and what would be right.
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
