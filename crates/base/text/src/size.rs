//! Sizes and counts as people write them: `1GiB`, `64k`, `50M`.

use parse_size::{ByteSuffix, Config};

/// A size in bytes.
///
/// A number, which may have a fraction, and a unit: none or `B` for bytes; `KiB`, `MiB`, `GiB`,
/// `TiB` for powers of 1024; `KB`, `MB`, `GB`, `TB` for powers of 1000; a bare `K`, `M`, `G`, `T`
/// for powers of 1024, as is usual for memory. Letters may be of either case; `_` may separate
/// digits, and a number may have an exponent.
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
    let config = match text.trim_end().ends_with(['b', 'B']) {
        true => Config::new().with_decimal(),
        false => Config::new().with_binary(),
    };
    config
        .parse_size(text)
        .map_err(|_| format!("'{text}' is not a size; write it like 4096, 64KiB, 1.5GiB or 475GB"))
}

/// A count: a number, which may have a fraction, and `K`, `M`, `G` or `T` for powers of 1000, or
/// `Ki`, `Mi`, `Gi`, `Ti` for powers of 1024. Letters may be of either case; `_` may separate
/// digits, and a number may have an exponent.
///
/// # Errors
/// One line that names the text and shows what is accepted.
///
/// ```
/// assert_eq!(strata_text::parse_count("50M"), Ok(50_000_000));
/// ```
pub fn parse_count(text: &str) -> Result<u64, String> {
    // A count has no bytes, so `KB` and `KiB` are mistakes.
    let config = Config::new().with_decimal().with_byte_suffix(ByteSuffix::Deny);
    // Half of a thing is rounded in silence otherwise.
    let is_whole = |number: &str, unit: &str| {
        let number = number.trim().replace('_', "").parse::<f64>().ok()?;
        let unit = config.parse_size(format!("1{unit}")).ok()?;
        let all = number * unit as f64;
        // 8.2 millions are not quite whole in binary.
        Some((all - all.round()).abs() <= all * 4.0 * f64::EPSILON)
    };
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let is_count = is_whole(number, &text[number.len()..]) == Some(true);
    let count = config.parse_size(text).ok().filter(|_| is_count);
    count.ok_or_else(|| format!("'{text}' is not a count; write it like 1000, 50M or 1.5G"))
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
            ("1e9", 1_000_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn counts_are_decimal() {
        for (text, count) in [
            ("7", 7),
            ("50M", 50_000_000),
            ("1.5g", 1_500_000_000),
            ("2Ki", 2048),
            ("2.0", 2),
            ("0.5k", 500),
            ("1_000", 1000),
            ("1e3", 1000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_count(text), Ok(count), "{text}");
        }
        for thousandths in 0..20_000 {
            let text = format!("{}.{:03}k", thousandths / 1000, thousandths % 1000);
            assert_eq!(parse_count(&text), Ok(thousandths), "{text}");
        }
        assert_eq!(parse_count("8.2M"), Ok(8_200_000));
        for text in ["1.5", "0.5", "1.0005k", "1.0000001k"] {
            assert!(
                parse_count(text).unwrap_err().contains("like 1000"),
                "{text} is no whole number"
            );
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", "G", "-1", "1X", "1GiBs", "1..5G", ".5G", "99999999T", "\u{661}"] {
            assert!(parse_size(text).is_err(), "{text}");
            assert!(parse_count(text).is_err(), "{text}");
        }
        assert!(parse_count("1KiB").is_err());
        assert!(parse_size("x").unwrap_err().contains("'x'"));
    }
}
