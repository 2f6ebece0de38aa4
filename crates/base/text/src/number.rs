//! Numbers as a reader of a table wants them.

/// A count in at most six characters, with three significant digits: `512`, `4.10k`, `67.1M`.
pub fn count(value: u64) -> String {
    const UNITS: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    if value < 1000 {
        return value.to_string();
    }
    scaled(value as f64, 1000.0, &UNITS)
}

/// A size in bytes with three significant digits: `512 B`, `1.50 GiB`.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 6] = [" KiB", " MiB", " GiB", " TiB", " PiB", " EiB"];
    if value < 1024 {
        return format!("{value} B");
    }
    scaled(value as f64, 1024.0, &UNITS)
}

/// A size in bytes, exact, in the largest unit that it is a whole number of: `8GiB`, `1000`.
pub fn exact_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.trailing_zeros() as usize / 10).min(UNITS.len() - 1);
    if bytes == 0 { "0".to_owned() } else { format!("{}{}", bytes >> (10 * unit), UNITS[unit]) }
}

/// A time in seconds with three significant digits: `1.50 us`, `20.0 s`.
pub fn seconds(value: f64) -> String {
    const UNITS: [&str; 4] = [" ns", " us", " ms", " s"];
    if value < 999.5e-9 {
        return format!("{}{}", three_digits(value * 1e9), UNITS[0]);
    }
    scaled(value * 1e9, 1000.0, &UNITS[1..])
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value / step;
    let mut unit = 0;
    // What would round up to the next unit is written in it.
    while value >= step - 0.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    format!("{}{}", three_digits(value), units[unit])
}

/// A number with three significant digits, or all its digits before the point.
fn three_digits(value: f64) -> String {
    if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// A ratio: `1.33`; a dash when there is none.
pub fn ratio(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or_else(|| "-".to_owned(), three_digits)
}

/// A share in percent: `41 %`, with a decimal below ten.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 0.05 {
        return "< 0.1 %".to_owned();
    }
    if percent != 0.0 && percent.abs() < 9.95 {
        format!("{percent:.1} %")
    } else {
        format!("{percent:.0} %")
    }
}

/// A share of two counts; 0 when there is nothing to share.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_keep_three_digits_at_every_boundary() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "1.00k"),
            (9_994, "9.99k"),
            (9_996, "10.0k"),
            (99_940, "99.9k"),
            (99_960, "100k"),
            (999_400, "999k"),
            (999_600, "1.00M"),
            (u64::MAX, "18.4E"),
        ];
        for (value, text) in cases {
            assert_eq!(count(value), text);
        }
    }

    #[test]
    fn sizes_shares_and_ratios() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3 << 29), "1.50 GiB");
        assert_eq!([0, 1000, 8 << 30, 3 << 29].map(exact_size), ["0", "1000", "8GiB", "1536MiB"]);
        assert_eq!(exact_size(5 << 50), "5120TiB");
        let times = [0.0, 12.34e-9, 999.6e-9, 1.5e-6, 0.02, 20.0, 4000.0].map(seconds);
        let shown = ["0.00 ns", "12.3 ns", "1.00 us", "1.50 us", "20.0 ms", "20.0 s", "4000 s"];
        assert_eq!(times, shown);
        assert_eq!(percent(0.414), "41 %");
        assert_eq!(percent(0.0414), "4.1 %");
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(0.0004), "< 0.1 %");
        assert_eq!(percent(0.0006), "0.1 %");
        assert_eq!(percent(1.0), "100 %");
        assert_eq!(ratio(None), "-");
        assert_eq!(ratio(Some(1.0)), "1.00");
        assert_eq!(share(1, 0), 0.0);
    }
}
