//! Texts of names and numbers: `vmstat`, `meminfo`, `status`, and the choice files of `/sys`.

use std::collections::BTreeMap;

/// Names and numbers, one pair a line, with or without a colon and a unit.
pub fn numbers(text: &str) -> BTreeMap<String, u64> {
    let pairs = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?.trim_end_matches(':');
        Some((name.to_owned(), words.next()?.parse().ok()?))
    });
    pairs.collect()
}

/// The word in brackets of a choice file: `always [madvise] never`. A file of one word without
/// brackets is its word.
pub fn chosen(text: &str) -> Option<&str> {
    let text = text.trim();
    match text.split_once('[') {
        Some((_, rest)) => rest.split_once(']').map(|(word, _)| word),
        None if !text.is_empty() && !text.contains(char::is_whitespace) => Some(text),
        None => None,
    }
}

/// The value after `name:` in a file such as `/proc/PID/status`.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
    text.lines().find_map(line).map(str::trim)
}

/// Field 22 of `/proc/PID/stat`, in clock ticks since boot: when the process started. The name in
/// parentheses may contain anything, parentheses too.
pub fn start_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_fields_and_choices() {
        let found = numbers("thp_fault_alloc 12\nMemTotal:  34 kB\nodd\nx y\n");
        assert_eq!(found.len(), 2);
        assert_eq!((found["thp_fault_alloc"], found["MemTotal"]), (12, 34));
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen("Y"), Some("Y"));
        assert_eq!(chosen("a b"), None);
        assert_eq!(chosen("a [b"), None);
        assert_eq!(field("Name:\tx\nTHP_enabled:\t0\n", "THP_enabled"), Some("0"));
        assert_eq!(field("THP_enabled2: 1", "THP_enabled"), None);
    }

    #[test]
    fn the_start_is_found_behind_any_name() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(start_ticks(stat), Some(4711));
        assert_eq!(start_ticks("7 (x"), None);
    }
}
