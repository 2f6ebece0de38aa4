//! The points of a grid: every combination of the values of its axes.

use crate::config;
use crate::failure::Failure;
use crate::text_file;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// An option with several values.
#[derive(Clone, Debug, PartialEq)]
struct Axis {
    /// The option; a parameter as `set.NAME`.
    name: String,
    values: Vec<Value>,
}

/// Options, of which some have several values.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    axes: Vec<Axis>,
    /// The options of every point.
    common: Table,
    /// Where files are looked for that options name.
    directory: Option<PathBuf>,
}

/// One combination.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The value on each axis.
    pub place: Vec<(String, Value)>,
    /// Every option it is run with.
    pub options: Table,
    /// Where files are looked for that options name.
    pub directory: Option<PathBuf>,
}

impl Grid {
    /// What a file says: the options of a configuration file, and a table `grid` with a list of values for
    /// each option that has several.
    ///
    /// # Errors
    /// When the file cannot be read, or has no grid.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let text = text_file::read(path, "sweep")?;
        let directory = path.parent().filter(|_| path.is_file()).map(Path::to_owned);
        config::table(&text).and_then(|table| Self::of(table, directory)).map_err(|failure| {
            Failure { message: format!("{}: {}", path.display(), failure.message), ..failure }
        })
    }

    /// What a table says.
    ///
    /// # Errors
    /// When it has no grid.
    pub fn of(mut common: Table, directory: Option<PathBuf>) -> Result<Self, Failure> {
        let Some(Value::Table(grid)) = common.remove("grid") else {
            return Err(Failure::usage(
                "there is no grid; write a table [grid] with a list of values for each option that has \
                 several",
            ));
        };
        let mut axes = Vec::new();
        for (name, value) in grid {
            match value {
                Value::Table(inner) if name == "set" => parameters("set", inner, &mut axes)?,
                value => axes.push(axis(name, value)?),
            }
        }
        if let Some(twice) = axes.iter().find(|axis| has(&common, &axis.name)) {
            return Err(Failure::usage(format!(
                "'{}' is in the grid and beside it; leave out one of the two",
                twice.name
            )));
        }
        Ok(Self { axes, common, directory })
    }

    /// One of which only the names of its axes are known.
    pub(super) fn named(axes: &[String]) -> Self {
        let axis = |name: &String| Axis { name: name.clone(), values: Vec::new() };
        Self { axes: axes.iter().map(axis).collect(), common: Table::new(), directory: None }
    }

    /// The names of the axes, in order.
    pub fn axes(&self) -> Vec<String> {
        self.axes.iter().map(|axis| axis.name.clone()).collect()
    }

    /// Every combination; the values of the last axis follow each other.
    pub fn points(&self) -> Vec<Point> {
        let mut places: Vec<Vec<(String, Value)>> = vec![Vec::new()];
        for Axis { name, values } in &self.axes {
            let on_axis = |place: &Vec<(String, Value)>| {
                let place = place.clone();
                let beside = move |value: &Value| {
                    let mut place = place.clone();
                    place.push((name.clone(), value.clone()));
                    place
                };
                values.iter().map(beside).collect::<Vec<_>>()
            };
            places = places.iter().flat_map(on_axis).collect();
        }
        places.into_iter().map(|place| self.point(place)).collect()
    }

    fn point(&self, place: Vec<(String, Value)>) -> Point {
        let mut options = self.common.clone();
        for (name, value) in &place {
            match name.strip_prefix("set.") {
                None => drop(options.insert(name.clone(), value.clone())),
                Some(parameter) => {
                    let set = options.entry("set").or_insert_with(|| Value::Table(Table::new()));
                    if let Value::Table(set) = set {
                        set.insert(parameter.to_owned(), value.clone());
                    }
                }
            }
        }
        Point { place, options, directory: self.directory.clone() }
    }
}

/// Parameters with several values: TOML reads `thp.scan_sleep` as one table in another.
fn parameters(prefix: &str, table: Table, axes: &mut Vec<Axis>) -> Result<(), Failure> {
    for (name, value) in table {
        let name = format!("{prefix}.{name}");
        match value {
            Value::Table(inner) => parameters(&name, inner, axes)?,
            value => axes.push(axis(name, value)?),
        }
    }
    Ok(())
}

fn axis(name: String, value: Value) -> Result<Axis, Failure> {
    match value {
        Value::Array(values) if !values.is_empty() => Ok(Axis { name, values }),
        _ => Err(Failure::usage(format!(
            "'{name}' in the grid has no list of values; write {name} = [one, another]"
        ))),
    }
}

/// Whether a table has an option; a parameter however it is written.
fn has(table: &Table, name: &str) -> bool {
    fn within(table: &Table, name: &str) -> bool {
        table.contains_key(name)
            || table.iter().any(|(key, value)| {
                let rest = name.strip_prefix(key.as_str()).and_then(|rest| rest.strip_prefix('.'));
                matches!((rest, value), (Some(rest), Value::Table(inner)) if within(inner, rest))
            })
    }
    within(table, name)
}

/// A value as people write it.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(text).collect::<Vec<_>>().join(","),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(text: &str) -> Result<Grid, String> {
        Grid::of(text.parse().unwrap(), None).map_err(|failure| failure.message)
    }

    #[test]
    fn every_combination_is_a_point() {
        let grid = grid(
            "stack = 'vm'\nset.\"thp.scan_sleep\" = 5\n[grid]\npolicy = ['base', 'thp']\n\
             fragmentation = [0.5, [0.1, 0.2, 0.3]]\n[grid.set]\nbooking.cap = [0.1]",
        )
        .unwrap();
        assert_eq!(grid.axes(), ["fragmentation", "policy", "set.booking.cap"]);
        let points = grid.points();
        let texts = |point: &Point| point.place.iter().map(|(_, v)| text(v)).collect::<Vec<_>>();
        let places: Vec<_> = points.iter().map(texts).collect();
        let expected = [
            ["0.5", "base", "0.1"],
            ["0.5", "thp", "0.1"],
            ["0.1,0.2,0.3", "base", "0.1"],
            ["0.1,0.2,0.3", "thp", "0.1"],
        ];
        assert_eq!(places, expected);
        let options = &points[1].options;
        assert_eq!(options["policy"].as_str(), Some("thp"));
        assert_eq!(options["stack"].as_str(), Some("vm"));
        let set = options["set"].as_table().unwrap();
        assert_eq!(set["booking.cap"].as_float(), Some(0.1));
        assert_eq!(set["thp.scan_sleep"].as_integer(), Some(5));
        for point in points {
            config::options(point.options).unwrap();
        }
    }

    #[test]
    fn mistakes_are_named_with_their_remedy() {
        assert!(grid("stack = 'vm'").unwrap_err().contains("write a table [grid]"));
        assert!(grid("[grid]\nstack = 'vm'").unwrap_err().contains("stack = [one, another]"));
        let twice = "seed = 1\n[grid]\nseed = [1, 2]";
        assert!(grid(twice).unwrap_err().contains("leave out one"));
        let twice = "set.a.b = 1\n[grid.set]\na.b = [1, 2]";
        assert!(grid(twice).unwrap_err().contains("leave out one"));
    }
}
