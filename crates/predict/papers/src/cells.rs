//! What stands in the cells of tables.

use crate::Spread;

/// Where nothing was found.
pub(crate) const NOTHING: &str = "-";

/// A ratio or another number with its range over seeds.
pub(crate) fn ratio(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || NOTHING.to_owned(),
        |Spread { mean, least, most, values }| match values {
            1 => format!("{mean:.2}"),
            _ => format!("{mean:.2} ({least:.2}-{most:.2})"),
        },
    )
}

/// A share with its range over seeds.
pub(crate) fn percent(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || NOTHING.to_owned(),
        |Spread { mean, least, most, values }| match values {
            1 => format!("{:.1} %", 100.0 * mean),
            _ => format!("{:.1} % ({:.1}-{:.1})", 100.0 * mean, 100.0 * least, 100.0 * most),
        },
    )
}

/// What each seed gives, as a spread; `None` if one of them gives nothing.
pub(crate) fn over_seeds(
    seeds: impl Iterator<Item = u64>,
    of: impl Fn(u64) -> Option<f64>,
) -> Option<Spread> {
    Spread::of_values(seeds.map(of).collect::<Option<Vec<f64>>>()?)
}
