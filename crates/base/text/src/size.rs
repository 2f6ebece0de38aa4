//! Sizes and counts as people write them: `1GiB`, `64k`, `50M`.

/// A size in bytes.
///
/// A number, which may have a fraction, and a unit: none or `B` for bytes; `KiB`, `MiB`, `GiB`,
/// `TiB` for powers of 1024; `KB`, `MB`, `GB`, `TB` for powers of 1000; a bare `K`, `M`, `G`, `T`
/// for powers of 1024, as is usual for memory. Letters may be of either case; `_` may separate
/// digits.
///
/// # Errors
/// One line that names the text and shows what is accepted.
///
/// ```
/// assert_eq!(strata_text::parse_size("1.5GiB"), Ok(3 << 29));
/// assert_eq!(strata_text::parse_size("475GB"), Ok(475_000_000_000));
/// assert!(strata_text::parse_size("1.5x").is_err());
/// ```
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let scale = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        unit => scale(unit, 1024),
    };
    scale.and_then(|scale| scaled(&number, scale)).ok_or_else(|| {
        format!("'{text}' is not a size; write it like 4096, 64KiB, 1.5GiB or 475GB")
    })
}

/// A count: a number, which may have a fraction, and `K`, `M`, `G` or `T` for powers of 1000, or
/// `Ki`, `Mi`, `Gi`, `Ti` for powers of 1024. Letters may be of either case; `_` may separate
/// digits.
///
/// # Errors
/// One line that names the text and shows what is accepted.
///
/// ```
/// assert_eq!(strata_text::parse_count("50M"), Ok(50_000_000));
/// ```
pub fn parse_count(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let unit = unit.to_ascii_lowercase();
    let scale = match unit.as_str() {
        "" => Some(1),
        // A count has no bytes, so `KB` and `KiB` are mistakes.
        unit if unit.ends_with('b') => None,
        unit if unit.ends_with('i') => scale(unit, 1024),
        unit => scale(unit, 1000),
    };
    scale
        .and_then(|scale| scaled(&number, scale))
        .ok_or_else(|| format!("'{text}' is not a count; write it like 1000, 50M or 1.5G"))
}

/// Cuts a text into its digits, without `_`, and its unit.
fn split(text: &str) -> (String, &str) {
    let text = text.trim();
    let end =
        text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    (text[..end].replace('_', ""), text[end..].trim_start())
}

/// The factor of a unit in lower case, a bare letter standing for a power of `bare`.
fn scale(unit: &str, bare: u64) -> Option<u64> {
    let mut chars = unit.chars();
    let power = match chars.next()? {
        'k' => 1,
        'm' => 2,
        'g' => 3,
        't' => 4,
        _ => return None,
    };
    let base: u64 = match chars.as_str() {
        "" => bare,
        "i" | "ib" => 1024,
        "b" => 1000,
        _ => return None,
    };
    Some(base.pow(power))
}

/// `number * scale`, exact; a fraction must come out whole or is cut.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 15 || fraction.contains('.') {
        return None;
    }
    let whole = u128::from(whole.parse::<u64>().ok()?) * u128::from(scale);
    let part = match fraction {
        "" => 0,
        digits => {
            u128::from(digits.parse::<u64>().ok()?) * u128::from(scale)
                / 10u128.pow(digits.len() as u32)
        }
    };
    u64::try_from(whole + part).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_know_both_families_of_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("4k", 4096),
            ("64KiB", 64 << 10),
            ("1.5GiB", 3 << 29),
            ("475GB", 475_000_000_000),
            ("475 GB", 475_000_000_000),
            ("2T", 2 << 40),
            ("1_000", 1000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn counts_are_decimal() {
        for (text, count) in [("7", 7), ("50M", 50_000_000), ("1.5g", 1_500_000_000), ("2Ki", 2048)]
        {
            assert_eq!(parse_count(text), Ok(count), "{text}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", "G", "-1", "1X", "1GiBs", "1..5G", ".5G", "1e9", "99999999T", "\u{661}"] {
            assert!(parse_size(text).is_err(), "{text}");
            assert!(parse_count(text).is_err(), "{text}");
        }
        assert!(parse_count("1KiB").is_err());
        assert!(parse_size("x").unwrap_err().contains("'x'"));
    }
}
