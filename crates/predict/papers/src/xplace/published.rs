//! The averages that the paper prints, from the file in `data`.

use super::measure::Measure;

const AVERAGES: &str = include_str!("../../data/xplace-averages.csv");

/// The settings of the file that tables ask for.
pub(super) const SECTION_3: &str = "section 3 four programs";
pub(super) const THROUGHPUT: &str = "throughput-oriented";
pub(super) const LATENCY: &str = "latency-sensitive";
pub(super) const TWO_VMS: &str = "two VMs different PPMs";
pub(super) const OVERHEAD: &str = "overhead on insensitive programs";

/// What the paper prints for a setting, if it does: xPlace over CoPlace, or over a vanilla nested VM where it is
/// the overhead. `ways` is `None` where it names none.
pub(super) fn ratio(setting: &str, ways: Option<u32>, measure: Measure) -> Option<f64> {
    let column = match measure {
        Measure::Throughput => "throughput",
        Measure::MeanLatency => "mean_latency",
        Measure::TailLatency => "p99_latency",
        Measure::Misses => "llc_miss_ratio_increase",
    };
    let mut lines = AVERAGES.lines().filter(|line| !line.starts_with('#'));
    let at = lines.next()?.split(',').position(|name| name == column)?;
    let ways = ways.map_or_else(String::new, |ways| ways.to_string());
    let mut rows = lines.map(|line| line.split(',').collect::<Vec<_>>());
    let row = rows.find(|row| row.first() == Some(&setting) && row.get(1) == Some(&&*ways))?;
    row.get(at)?.parse::<f64>().ok().map(|change| 1.0 + change / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_text() {
        let same = |found: Option<f64>, expected: f64| {
            assert!(found.is_some_and(|found| (found - expected).abs() < 1e-9), "{found:?}");
        };
        same(ratio(THROUGHPUT, Some(1), Measure::Throughput), 1.22);
        same(ratio(LATENCY, Some(11), Measure::TailLatency), 0.79);
        same(ratio(SECTION_3, Some(6), Measure::Misses), 0.75);
        same(ratio(TWO_VMS, Some(11), Measure::MeanLatency), 0.73);
        same(ratio(OVERHEAD, None, Measure::Throughput), 0.98);
        assert_eq!(ratio(TWO_VMS, Some(1), Measure::MeanLatency), None);
        assert_eq!(ratio(THROUGHPUT, Some(6), Measure::Throughput), None);
    }
}
