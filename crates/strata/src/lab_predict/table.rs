//! What several scenarios gave, side by side: a table in Markdown.

use super::report::LayerKernel;
use super::rows::Row;
use crate::failure::Failure;
use crate::output::{self, Target};
use crate::text_file;
use serde::Deserialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use strata_lab::Make;
use strata_text::number::count;

/// What is read of the JSON of `strata lab predict`.
#[derive(Debug, Deserialize)]
struct Found {
    scenario: String,
    machine: Machine,
    kernels: Vec<LayerKernel>,
    runs: u32,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Machine {
    make: Make,
    emulator: String,
    processor: String,
}

impl Found {
    /// # Errors
    /// When the file cannot be read, or is another's.
    fn read(path: &Path) -> Result<Self, Failure> {
        let text = text_file::read(path, "what strata lab predict found")?;
        let read: Result<Self, _> = serde_json::from_str(&text);
        read.ok().filter(|found| !found.kernels.is_empty()).ok_or_else(|| {
            Failure::usage(format!(
                "{}: this is not what strata lab predict --json of this version wrote; run it again",
                path.display()
            ))
        })
    }

    /// The head of its column.
    fn name(&self) -> String {
        let variant = match self.kernels[0].variant.as_str() {
            "vanilla" => String::new(),
            variant => format!(" {variant}"),
        };
        let make = if self.machine.make == Make::Intel { " intel" } else { "" };
        format!("`{}`{variant}{make}", self.scenario)
    }

    /// The layer that a row is about: what the innermost layer counts is the program's, however many there are.
    fn layer<'a>(&self, row: &'a Row) -> &'a str {
        let innermost = format!("L{}", self.kernels.len() - 1);
        if row.layer == innermost { "program's" } else { &row.layer }
    }

    fn row(&self, (layer, what): (&str, &str)) -> Option<&Row> {
        self.rows.iter().find(|row| (self.layer(row), row.what.as_str()) == (layer, what))
    }
}

/// Writes the table of these files.
///
/// # Errors
/// When one cannot be read or is another's, or the table cannot be written.
pub fn table(paths: &[PathBuf], output: &Target) -> Result<(), Failure> {
    output.check()?;
    let inputs: Vec<(&str, &Path)> =
        paths.iter().map(|path| ("the file", path.as_path())).collect();
    output::apart(&[("--output", output)], &inputs)?;
    let found: Vec<Found> = paths.iter().map(|path| Found::read(path)).collect::<Result<_, _>>()?;
    output.plain(render(&found).as_bytes())
}

fn render(all: &[Found]) -> String {
    let mut out = "| layer | what |".to_owned();
    for found in all {
        let _ = write!(out, " {} |", found.name());
    }
    let _ = writeln!(out, "\n| --- | --- |{}", " ---: |".repeat(all.len()));
    let runs: String = all.iter().map(|found| format!(" {} |", found.runs)).collect();
    let _ = writeln!(out, "| | runs |{runs}");
    for (layer, what) in kinds(all) {
        let _ = write!(out, "| {layer} | {} |", what.trim_start());
        for found in all {
            let shown = found.row((layer, what)).map_or(String::new(), cell);
            let _ = write!(out, " {shown} |");
        }
        out.push('\n');
    }
    off(&mut out, all);
    made_by(&mut out, all);
    out
}

/// What is predicted anywhere, each once, in the order in which it is shown.
fn kinds(all: &[Found]) -> Vec<(&str, &str)> {
    let mut kinds: Vec<(&str, &str)> = Vec::new();
    for found in all {
        // What no scenario before had comes behind what it stands behind here.
        let mut after = 0;
        for row in found.rows.iter().filter(|row| row.predicted.is_some()) {
            let kind = (found.layer(row), row.what.as_str());
            after = match kinds.iter().position(|known| *known == kind) {
                Some(at) => at + 1,
                None => {
                    kinds.insert(after, kind);
                    after + 1
                }
            };
        }
    }
    kinds
}

/// What is predicted over what was measured.
fn cell(row: &Row) -> String {
    let Some(predicted) = row.predicted else { return String::new() };
    let shown = match row.ratio() {
        Some(ratio) => format!("{ratio:.2}"),
        None if predicted == 0 => "-".to_owned(),
        None => format!("{predicted} for 0"),
    };
    if row.is_alike() == Some(false) { format!("**{shown}**") } else { shown }
}

/// The counts that are apart.
fn off(out: &mut String, all: &[Found]) {
    out.push_str("\nFigures are the model's over the layers', the nearest of its runs; - is nothing of either. ");
    let mut apart = String::new();
    for found in all {
        for row in found.rows.iter().filter(|row| row.is_alike() == Some(false)) {
            let [least, most] = row.measured;
            let measured = match least == most {
                true => count(least),
                false => format!("{} to {}", count(least), count(most)),
            };
            let _ = writeln!(
                apart,
                "- {}, {}, {}: {measured} measured, {} predicted",
                found.name(),
                found.layer(row),
                row.what.trim_start(),
                row.predicted.map_or(String::new(), count),
            );
        }
    }
    if apart.is_empty() {
        out.push_str("None is off.\n");
    } else {
        let _ = write!(out, "In bold is what is off:\n\n{apart}");
    }
}

/// The kernels and machines, each once.
fn made_by(out: &mut String, all: &[Found]) {
    let mut lines: Vec<String> = Vec::new();
    for found in all {
        let Machine { make, emulator, processor } = &found.machine;
        lines.push(format!("- Machine: {make}, processor {processor}, emulated by {emulator}"));
        for (layer, kernel) in found.kernels.iter().enumerate() {
            let LayerKernel { variant, package, version } = kernel;
            lines.push(format!("- L{layer}, {variant}, of {package}: {version}"));
        }
    }
    lines.sort_unstable();
    lines.dedup();
    let _ = writeln!(out, "\n{}", lines.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(
        scenario: &str,
        variants: &[&str],
        rows: &[(&str, &str, [u64; 2], Option<u64>)],
    ) -> Found {
        let kernel = |variant: &&str| LayerKernel {
            variant: (*variant).to_owned(),
            package: "linux".into(),
            version: "6.12".into(),
        };
        let row = |&(layer, what, measured, predicted): &(&str, &str, _, _)| Row {
            layer: layer.into(),
            what: what.into(),
            measured,
            steady: false,
            predicted,
        };
        Found {
            scenario: scenario.into(),
            machine: Machine {
                make: Make::Amd,
                emulator: "QEMU 7.2".into(),
                processor: "EPYC".into(),
            },
            kernels: variants.iter().map(kernel).collect(),
            runs: 3,
            rows: rows.iter().map(row).collect(),
        }
    }

    #[test]
    fn columns_are_scenarios_and_rows_what_any_of_them_predicts() {
        let native = found("native", &["vanilla"], &[("L0", "page faults", [100, 100], Some(101))]);
        let rows = [
            ("L1", "page faults", [100, 100], Some(102)),
            ("L0", "exits", [200, 300], Some(150)),
            ("L0", "  handed on", [0, 0], Some(20)),
            ("L0", "flushes", [0, 3], Some(0)),
            ("L0", "timers", [7, 7], None),
        ];
        let vm = found("vm", &["aligned", "debian"], &rows);
        assert_eq!(
            render(&[native, vm]),
            "| layer | what | `native` | `vm` aligned |\n\
             | --- | --- | ---: | ---: |\n\
             | | runs | 3 | 3 |\n\
             | program's | page faults | 1.01 | 1.02 |\n\
             | L0 | exits |  | **0.75** |\n\
             | L0 | handed on |  | **20 for 0** |\n\
             | L0 | flushes |  | - |\n\
             \nFigures are the model's over the layers', the nearest of its runs; - is nothing of either. In bold is what is off:\n\n\
             - `vm` aligned, L0, exits: 200 to 300 measured, 150 predicted\n\
             - `vm` aligned, L0, handed on: 0 measured, 20 predicted\n\
             \n\
             - L0, aligned, of linux: 6.12\n\
             - L0, vanilla, of linux: 6.12\n\
             - L1, debian, of linux: 6.12\n\
             - Machine: amd, processor EPYC, emulated by QEMU 7.2\n"
        );
    }

    #[test]
    fn what_a_later_scenario_has_besides_stands_where_it_does_there() {
        let first = found(
            "a",
            &["vanilla"; 2],
            &[("L0", "one", [1, 1], Some(1)), ("L0", "three", [1, 1], Some(1))],
        );
        let second = found(
            "b",
            &["vanilla"; 2],
            &[
                ("L0", "one", [1, 1], Some(1)),
                ("L0", "two", [1, 1], Some(1)),
                ("L0", "three", [1, 1], Some(1)),
            ],
        );
        let both = [first, second];
        let whats: Vec<_> = kinds(&both).into_iter().map(|(_, what)| what).collect();
        assert_eq!(whats, ["one", "two", "three"]);
    }

    #[test]
    fn a_file_of_something_else_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("other.json");
        std::fs::write(&path, "{}").unwrap();
        let failure = Found::read(&path).unwrap_err();
        assert!(failure.message.contains("lab predict --json"), "{}", failure.message);
    }
}
