//! `strata view`: a page from the JSON of a result of before.

use crate::args::ViewArgs;
use crate::failure::Failure;
use crate::output::{self, Target};
use crate::{drawn, text_file};
use std::path::Path;
use strata_engine::Report;
use strata_view::Kind;

/// Longest result read, in bytes: a hundred times that of a usual run.
const LONGEST: u64 = 64 << 20;

/// Reads the JSON and writes the page.
///
/// # Errors
/// When it cannot be read, is no result, or the page cannot be written.
pub fn view(args: &ViewArgs) -> Result<(), Failure> {
    let target = match &args.output {
        Some(path) => Target::named(path),
        None if args.json == Path::new("-") => Target::Stdout,
        None => Target::File(args.json.with_extension("html")),
    };
    output::apart(&[("the page", &target)], &[("the result", &args.json)])?;
    target.check()?;
    let json = text_file::read_up_to(&args.json, "result", LONGEST)?;
    let page = page(&json)
        .map_err(|why| Failure::failed(format!("cannot draw {}: {why}", args.json.display())))?;
    target.plain(page.as_bytes())
}

/// The page: of a run with the words of its table.
///
/// # Errors
/// When the text is no result.
pub fn page(json: &str) -> Result<String, String> {
    match strata_view::kind(json).map_err(|error| error.to_string())? {
        Kind::Run => {
            let report: Report = serde_json::from_str(json).map_err(|error| {
                format!("it is a damaged result of strata run ({error}); write it anew with --json")
            })?;
            drawn::of_run(&report, json)
        }
        Kind::Join | Kind::Lab | Kind::Paper => drawn::of(json),
    }
    .map_err(|failure| failure.message)
}
