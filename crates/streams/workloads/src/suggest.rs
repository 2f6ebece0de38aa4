//! The end of a message about an unknown name.

/// `; did you mean 'X'?`, or all names when none is near.
pub fn suggest(wrong: &str, names: &[&str]) -> String {
    match strata_text::nearest(wrong, names.iter().copied()) {
        Some(name) => format!("; did you mean '{name}'?"),
        None => format!("; known: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_get_the_name_and_strangers_the_list() {
        let names = ["random", "zipf", "chase"];
        assert_eq!(suggest("randm", &names), "; did you mean 'random'?");
        assert_eq!(suggest("quux", &names), "; known: random, zipf, chase");
    }
}
