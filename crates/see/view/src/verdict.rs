//! What is said of a result in words.

/// What is to be said of one part of a result, in sentences. Whoever has the result says it: the page
/// only shows it first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Of what: a stack, a VM. Empty where there is only one.
    pub of: String,
    /// The sentences.
    pub sentences: Vec<String>,
}
