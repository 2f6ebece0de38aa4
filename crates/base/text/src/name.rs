//! Names that are nearly right.

/// Below this likeness, names are unrelated.
const ALIKE: f64 = 0.7;

/// The candidate that looks most like `name`, if any does.
///
/// ```
/// assert_eq!(strata_text::nearest("gemni", ["thp", "gemini"]), Some("gemini"));
/// assert_eq!(strata_text::nearest("quux", ["thp", "gemini"]), None);
/// ```
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    best(name, candidates).filter(|(likeness, _)| *likeness >= ALIKE).map(|(_, name)| name)
}

/// The candidate that looks most like `name`, however little; `None` if there is none at all.
pub fn closest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    best(name, candidates).map(|(_, name)| name)
}

fn best<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<(f64, &'a str)> {
    let name = name.to_ascii_lowercase();
    let scored = candidates.into_iter().map(|candidate| {
        // The start of a name is better than any likeness.
        let starts = name.len() >= 2 && candidate.starts_with(&name);
        (strsim::jaro_winkler(&name, candidate) + f64::from(u8::from(starts)), candidate)
    });
    scored.max_by(|a, b| a.0.total_cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_seen_through_and_strangers_are_not() {
        let names = ["random", "zipf", "chase", "gemini", "xgemini", "skylake-gold-6138"];
        for (wrong, right) in [
            ("randm", "random"),
            ("Zipff", "zipf"),
            ("ch", "chase"),
            ("gemni", "gemini"),
            ("xgemeni", "xgemini"),
            ("skylake", "skylake-gold-6138"),
        ] {
            assert_eq!(nearest(wrong, names), Some(right));
            assert_eq!(closest(wrong, names), Some(right));
        }
        assert_eq!(nearest("quux", names), None);
        assert!(closest("quux", names).is_some());
        assert_eq!(closest("quux", []), None);
    }
}
