//! Figures of a sampled stream as people read them: some are estimates, and each of those says so.

use crate::number::percent;

/// What is said once where figures have the mark.
pub const SAMPLED: &str = "Sampled: figures with ~ are estimated from windows of the stream, as are cycles and \
                           their shares where sentences tell of them. Faults, exits, huge pages and memory are \
                           of the whole stream; what comes by the clock, such as promotions, follows the \
                           estimated one.";

/// A figure with the mark of an estimate. Where there is none there is nothing to mark.
pub fn marked(figure: String) -> String {
    if figure == "-" { figure } else { format!("~{figure}") }
}

/// How far an estimate may be off, as a share of it; `None` where windows say too little.
pub fn within(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("\u{b1}{}", percent(share)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_estimated_says_so_and_nothing_else_does() {
        assert_eq!(["1.5", "-"].map(|figure| marked(figure.to_owned())), ["~1.5", "-"]);
        assert_eq!([Some(0.021), None].map(within), ["\u{b1}2.1 %", "-"]);
    }
}
