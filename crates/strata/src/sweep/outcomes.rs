//! What came of all points: as one table, and as JSON.

use super::grid::{Grid, Point, text};
use super::point::Outcome;
use crate::failure::Failure;
use crate::tidy::{self, Cells, Column};
use crate::{inside, version};
use serde_json::{Value, json};
use strata_engine::Report;
use toml::Value as Given;

/// Why a point without an outcome has none.
pub const NOT_REACHED: &str = "interrupted before it was run";

/// Points and what came of them.
pub struct Outcomes<'a> {
    axes: Vec<String>,
    points: &'a [Point],
    outcomes: &'a [Option<Outcome>],
}

impl<'a> Outcomes<'a> {
    /// Of the points of a grid, in order.
    pub fn of(grid: &Grid, points: &'a [Point], outcomes: &'a [Option<Outcome>]) -> Self {
        Self { axes: grid.axes(), points, outcomes }
    }

    /// How many points failed, and how many were not reached.
    pub fn missing(&self) -> (usize, usize) {
        let failed = |outcome: &&Option<Outcome>| matches!(outcome, Some(Outcome::Failed(_)));
        let reached = self.outcomes.iter().filter(|outcome| outcome.is_some()).count();
        (self.outcomes.iter().filter(failed).count(), self.points.len() - reached)
    }

    fn error(&self, point: usize) -> Option<&str> {
        match &self.outcomes[point] {
            Some(Outcome::Found { .. }) => None,
            Some(Outcome::Failed(why)) => Some(why),
            None => Some(NOT_REACHED),
        }
    }

    /// The table: the columns of the axes, of what went wrong, and of [`tidy`]. A failed point is a row.
    ///
    /// # Errors
    /// When a result is none.
    pub fn columns(&self) -> Result<Vec<Column>, Failure> {
        let reports = self.outcomes.iter().map(|outcome| match outcome {
            Some(Outcome::Found { json, input_sha256, .. }) => {
                Ok(Some((inside::report(json)?, input_sha256.as_deref())))
            }
            _ => Ok(None),
        });
        let reports: Vec<Option<(Report, Option<&str>)>> =
            reports.collect::<Result<_, Failure>>()?;
        let (figures, of) = tidy::table(
            reports.iter().map(|found| found.as_ref().map(|(report, input)| (report, *input))),
        );
        let known = tidy::names().collect::<Vec<_>>();
        let on_axis = self.axes.iter().enumerate().map(|(index, axis)| {
            let values: Vec<_> =
                of.iter().map(|point| &self.points[*point].place[index].1).collect();
            // A figure of the same name is what came of it.
            let taken = known.contains(&axis.as_str());
            Column {
                name: if taken { format!("grid.{axis}") } else { axis.clone() },
                cells: cells(&values),
            }
        });
        let mut columns: Vec<Column> = on_axis.collect();
        let errors = of.iter().map(|point| self.error(*point).map(str::to_owned));
        columns.push(Column { name: "error".to_owned(), cells: Cells::Text(errors.collect()) });
        columns.extend(figures);
        Ok(columns)
    }

    /// Everything, as JSON.
    ///
    /// # Errors
    /// When a result is none.
    pub fn json(&self) -> Result<String, Failure> {
        let points = (0..self.points.len()).map(|index| {
            let Point { place, options, .. } = &self.points[index];
            let (report, input) = match &self.outcomes[index] {
                Some(Outcome::Found { json, input_sha256, .. }) => {
                    let value: Value = serde_json::from_str(json).map_err(|error| {
                        Failure::failed(format!("a result is damaged: {error}"))
                    })?;
                    (value, input_sha256.clone())
                }
                _ => (Value::Null, None),
            };
            let place: serde_json::Map<_, _> =
                place.iter().map(|(n, v)| (n.clone(), json!(v))).collect();
            Ok(json!({
                "place": place, "options": options, "error": self.error(index),
                "input_sha256": input, "result": report,
            }))
        });
        let points: Vec<Value> = points.collect::<Result<_, Failure>>()?;
        let all = json!({
            "strata": strata_engine::report::VERSION, "version": version::version(),
            "axes": self.axes, "sweep": points,
        });
        Ok(all.to_string())
    }
}

/// A sweep of before: its axes, its points, and what came of each, if it was reached.
pub type Swept = (Grid, Vec<Point>, Vec<Option<Outcome>>);

/// The results of a sweep of before, from its JSON, and what each was run with.
///
/// # Errors
/// When it is none.
pub fn swept(json: &str) -> Result<Swept, Failure> {
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::failed(format!("this is no result of strata sweep: {why}"))
    };
    let all: Value = serde_json::from_str(json).map_err(|error| wrong(&error))?;
    let points = all["sweep"].as_array().ok_or_else(|| wrong(&"it has no points"))?;
    let axes = all["axes"].as_array().ok_or_else(|| wrong(&"it has no axes"))?;
    let axes: Vec<String> =
        axes.iter().filter_map(|axis| Some(axis.as_str()?.to_owned())).collect();
    let (mut of, mut outcomes) = (Vec::new(), Vec::new());
    for point in points {
        let place = axes.iter().map(|axis| {
            let value = serde_json::from_value(point["place"][axis].clone());
            value.map(|value| (axis.clone(), value)).map_err(|error| wrong(&error))
        });
        let options = serde_json::from_value(point["options"].clone()).map_err(|e| wrong(&e))?;
        of.push(Point { place: place.collect::<Result<_, _>>()?, options, directory: None });
        let input_sha256 = point["input_sha256"].as_str().map(str::to_owned);
        outcomes.push(match (&point["result"], point["error"].as_str()) {
            (Value::Null, Some(NOT_REACHED)) => None,
            (Value::Null, why) => Some(Outcome::Failed(why.unwrap_or_default().to_owned())),
            (report, _) => {
                let json = report.to_string();
                Some(Outcome::Found { json, input_sha256, was_kept: true })
            }
        });
    }
    Ok((Grid::named(&axes), of, outcomes))
}

/// The values of an axis, as numbers if all are.
fn cells(values: &[&Given]) -> Cells {
    if values.iter().all(|value| value.is_integer()) {
        return Cells::Whole(values.iter().map(|value| value.as_integer()).collect());
    }
    if values.iter().all(|value| value.is_float() || value.is_integer()) {
        let number = |value: &&Given| value.as_float().or(value.as_integer().map(|n| n as f64));
        return Cells::Real(values.iter().map(number).collect());
    }
    Cells::Text(values.iter().map(|value| Some(text(value))).collect())
}
