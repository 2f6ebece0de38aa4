//! Numbers as a picture has them.

pub use strata_text::number::{bytes, count, percent, ratio, seconds, share};

/// A number for an SVG attribute: two decimals at most, and none that say nothing.
pub fn attribute(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// The same with one decimal at most, for lines of many points.
pub fn short(value: f64) -> String {
    attribute((value * 10.0).round() / 10.0)
}

/// A number as an axis has it, scaled by a unit's prefix: `0`, `0.5`, `20`, `1.5M`.
pub fn tick(value: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (scale, unit) =
        UNITS.into_iter().find(|(scale, _)| value.abs() >= *scale).unwrap_or((1.0, ""));
    let text = format!("{:.4}", value / scale);
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// `1,234,567`, for tables of raw numbers.
pub fn whole(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_exact_where_they_can_be() {
        let shown = [0.0, -0.001, 1.5, 2.0, 2.71666, 100.0].map(attribute);
        assert_eq!(shown, ["0", "0", "1.5", "2", "2.72", "100"]);
        assert_eq!([0.0, 0.25, 20.0, 1500.0, 2e6].map(tick), ["0", "0.25", "20", "1.5k", "2M"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(whole), ["0", "999", "1,000", "1,234,567"]);
    }
}
