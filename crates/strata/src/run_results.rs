//! Where the results of `strata run` go.

use crate::args::RunArgs;
use crate::drawn;
use crate::failure::Failure;
use crate::output::Target;
use crate::vm_args::VmArgs;
use std::path::PathBuf;
use strata_engine::Report;

/// Where table, JSON and pictures go. They may not meet, nor mix with the output of the program.
#[derive(Clone, Debug)]
pub struct Results {
    /// The table.
    pub text: Target,
    /// The JSON.
    pub json: Option<Target>,
    /// The page to look at.
    pub html: Option<Target>,
    /// The trace for Perfetto.
    pub trace_events: Option<Target>,
    /// Exits as folded stacks.
    pub folded: Option<Target>,
}

impl Results {
    /// What the options say.
    ///
    /// # Errors
    /// When two of them go to the same place.
    pub fn of(args: &RunArgs) -> Result<Self, Failure> {
        let live = !args.input.program.is_empty() || args.vm.iter().any(VmArgs::is_live);
        let named = |path: &Option<PathBuf>| path.as_deref().map(Target::named);
        let text = named(&args.output);
        let mut results = Self {
            text: Target::Stdout,
            json: named(&args.json),
            html: named(&args.html),
            trace_events: named(&args.trace_events),
            folded: named(&args.folded),
        };
        let mut all = results.besides_text();
        all.extend(text.iter().map(|text| ("--output", text)));
        let at_stdout = all.iter().any(|(_, target)| **target == Target::Stdout);
        if live && at_stdout {
            return Err(Failure::usage(
                "standard output belongs to the program; write to a file, or to /dev/stderr",
            ));
        }
        for (index, (name, target)) in all.iter().enumerate() {
            if let Some((other, _)) = all[..index].iter().find(|(_, other)| other == target) {
                return Err(Failure::usage(format!(
                    "{other} and {name} name the same file; give them two"
                )));
            }
        }
        // Standard output is for the table unless something else needs it.
        let default = if live || at_stdout { Target::Stderr } else { Target::Stdout };
        results.text = text.unwrap_or(default);
        Ok(results)
    }

    /// All but the table, with the options that name them.
    pub fn besides_text(&self) -> Vec<(&'static str, &Target)> {
        let named = [
            ("--json", &self.json),
            ("--html", &self.html),
            ("--trace-events", &self.trace_events),
            ("--folded", &self.folded),
        ];
        named.into_iter().filter_map(|(name, target)| Some((name, target.as_ref()?))).collect()
    }

    /// Finds out early whether all places can be written.
    ///
    /// # Errors
    /// When one cannot.
    pub fn check(&self) -> Result<(), Failure> {
        self.text.check()?;
        self.besides_text().into_iter().try_for_each(|(_, target)| target.check())
    }

    /// Writes everything but the table, which comes last: should its reader have gone, the others are
    /// there.
    ///
    /// # Errors
    /// When something cannot be written.
    pub fn write(&self, report: &Report) -> Result<(), Failure> {
        if self.besides_text().is_empty() {
            return Ok(());
        }
        let mut json = serde_json::to_string(report).expect("a report is plain data");
        json.push('\n');
        if let Some(target) = &self.json {
            target.plain(json.as_bytes())?;
        }
        if let Some(target) = &self.html {
            target.plain(drawn::of_run(report, &json)?.as_bytes())?;
        }
        if let Some(target) = &self.trace_events {
            target.plain(&drawn::trace_events(&json)?)?;
        }
        if let Some(target) = &self.folded {
            target.plain(drawn::folded(&json)?.as_bytes())?;
        }
        Ok(())
    }
}
