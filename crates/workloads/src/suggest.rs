//! The end of a message about an unknown name.

/// `; did you mean 'X'?`, or all names when none is near.
pub fn nearest(wrong: &str, names: &[&str]) -> String {
    let wrong = wrong.to_ascii_lowercase();
    let scored = names.iter().map(|name| {
        // The start of a name is as good as the name.
        let prefix = wrong.len() >= 2 && name.starts_with(&wrong);
        (if prefix { 1.0 } else { strsim::jaro_winkler(&wrong, name) }, name)
    });
    match scored.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((score, name)) if score >= 0.75 => format!("; did you mean '{name}'?"),
        _ => format!("; known: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_seen_through_and_strangers_get_the_list() {
        let names = ["random", "zipf", "chase"];
        assert_eq!(nearest("randm", &names), "; did you mean 'random'?");
        assert_eq!(nearest("Zipff", &names), "; did you mean 'zipf'?");
        assert_eq!(nearest("ch", &names), "; did you mean 'chase'?");
        assert_eq!(nearest("quux", &names), "; known: random, zipf, chase");
    }
}
