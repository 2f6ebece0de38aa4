//! The results of rows, and what is computed of several.

use crate::Row;
use serde::Serialize;
use std::collections::BTreeMap;
use strata_engine::{Report, RunResult};

/// Results by the names of their rows.
#[derive(Clone, Debug, Default)]
pub struct Found(BTreeMap<String, Report>);

impl Found {
    /// Adds the result of a row.
    pub fn insert(&mut self, row: &Row, report: Report) {
        self.0.insert(row.name.clone(), report);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The result of the row of this name.
    pub fn report(&self, row: &str) -> Option<&Report> {
        self.0.get(row)
    }

    /// The run under a policy in the result of a row.
    pub fn run(&self, row: &str, policy: &str) -> Option<&RunResult> {
        self.report(row)?.runs.iter().find(|run| run.policy == policy)
    }

    /// The run of a VM on a host under a policy in the result of a row.
    pub fn vm(&self, row: &str, vm: &str, policy: &str) -> Option<&RunResult> {
        let vm = self.report(row)?.vms.iter().find(|found| found.name == vm)?;
        vm.runs.iter().find(|run| run.policy == policy)
    }
}

/// A value for each of several seeds: their mean, the least and the largest. With few seeds nothing more
/// can be said of how far chance moves them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Mean: the geometric one for ratios.
    pub mean: f64,
    /// The least.
    pub least: f64,
    /// The largest.
    pub most: f64,
    /// How many values.
    pub values: usize,
}

impl Spread {
    /// The spread of ratios above 0; `None` without any, or where one is not above 0.
    pub fn of_ratios(ratios: impl IntoIterator<Item = f64>) -> Option<Self> {
        let ratios: Vec<f64> = ratios.into_iter().collect();
        if ratios.is_empty() || ratios.iter().any(|ratio| *ratio <= 0.0 || !ratio.is_finite()) {
            return None;
        }
        let mean = geometric_mean(&ratios);
        Self::around(mean, &ratios)
    }

    /// The spread of other values; `None` without any.
    pub fn of_values(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Self::around(mean, &values)
    }

    fn around(mean: f64, values: &[f64]) -> Option<Self> {
        let least = values.iter().copied().reduce(f64::min)?;
        let most = values.iter().copied().reduce(f64::max)?;
        // Rounding may put the mean of equal values beside them.
        Some(Self { mean: mean.clamp(least, most), least, most, values: values.len() })
    }
}

/// The geometric mean of numbers above 0.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_have_mean_and_ends() {
        let spread = Spread::of_ratios([1.0, 4.0, 2.0]).unwrap();
        assert!((spread.mean - 2.0).abs() < 1e-12);
        assert_eq!((spread.least, spread.most, spread.values), (1.0, 4.0, 3));
        assert_eq!(Spread::of_ratios([]), None);
        assert_eq!(Spread::of_ratios([1.0, 0.0]), None);
        let spread = Spread::of_values([-1.0, 3.0]).unwrap();
        assert_eq!((spread.mean, spread.least, spread.most), (1.0, -1.0, 3.0));
        assert_eq!(Spread::of_values([]), None);
    }
}
