//! One result in several forms, each to a place of its own: a table, JSON, a page to look at, Prometheus text.

use crate::drawn;
use crate::failure::Failure;
use crate::output::{Target, apart};
use std::path::{Path, PathBuf};

/// Where each form goes, as a user said.
#[derive(Debug)]
pub struct Places {
    json: Option<Target>,
    html: Option<Target>,
    prometheus: Option<Target>,
    table: Option<Target>,
}

impl Places {
    /// Checks before any work that all can be written, that they are apart, and that at most one is the
    /// standard output; `-` is that.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn new(
        args: &ResultArgs,
        html: Option<&Path>,
        inputs: &[(&str, &Path)],
    ) -> Result<Self, Failure> {
        let named = |path: Option<&Path>| path.map(Target::named);
        let places = Self {
            json: named(args.json.as_deref()),
            html: named(html),
            prometheus: named(args.prometheus.as_deref()),
            table: named(args.output.as_deref()),
        };
        let all = [&places.json, &places.html, &places.prometheus, &places.table];
        if all.iter().filter(|target| ***target == Some(Target::Stdout)).count() > 1 {
            return Err(Failure::usage(
                "only one result can go to the standard output; name a file",
            ));
        }
        let names = ["--json", "--html", "--prometheus", "--output"];
        let outputs =
            names.into_iter().zip(all).filter_map(|(name, target)| Some((name, target.as_ref()?)));
        apart(&outputs.collect::<Vec<_>>(), inputs)?;
        all.into_iter().flatten().try_for_each(Target::check)?;
        Ok(places)
    }

    /// Writes each form that somebody wants. The table goes to the standard output where nobody says
    /// otherwise and no other form does.
    ///
    /// # Errors
    /// When one cannot be written.
    pub fn write(
        &self,
        json: impl FnOnce() -> Result<String, Failure>,
        prometheus: impl FnOnce() -> String,
        table: impl FnOnce(usize) -> String,
    ) -> Result<(), Failure> {
        if self.json.is_some() || self.html.is_some() {
            let text = json()?;
            self.json.as_ref().map_or(Ok(()), |target| target.plain(text.as_bytes()))?;
            let drawn = |target: &Target| target.plain(drawn::of(&text)?.as_bytes());
            self.html.as_ref().map_or(Ok(()), drawn)?;
        }
        if let Some(target) = &self.prometheus {
            target.plain(prometheus().as_bytes())?;
        }
        // Who asked for another form on standard output wants nothing else there.
        let others = [&self.json, &self.html, &self.prometheus];
        let taken = others.iter().any(|target| **target == Some(Target::Stdout));
        match (&self.table, taken) {
            (None, true) => Ok(()),
            (target, _) => {
                let target = target.as_ref().unwrap_or(&Target::Stdout);
                target.styled(&table(target.width()))
            }
        }
    }
}

/// A value as JSON, ending with a line's end.
///
/// # Errors
/// When it cannot be.
pub fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::failed(format!("cannot write the JSON: {error}")))?;
    text.push('\n');
    Ok(text)
}

/// The options that say where the forms of a result go.
#[derive(clap::Args, Clone, Debug)]
pub struct ResultArgs {
    /// Write everything found as JSON; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write Prometheus text; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub prometheus: Option<PathBuf>,

    /// Write the table here [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
