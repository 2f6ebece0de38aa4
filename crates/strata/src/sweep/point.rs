//! One point: what it depends on, and its run.

use super::cache::Cache;
use super::grid::Point;
use crate::inside::Asked;
use crate::{digest, version};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use strata_engine::Catalogue;

/// What came of a point.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Its result.
    Found {
        /// As `strata run --json` writes it but for the end of the line.
        json: String,
        /// SHA-256 of what was run.
        input_sha256: Option<String>,
        /// It was known from before.
        was_kept: bool,
    },
    /// Why there is none.
    Failed(String),
}

/// SHA-256 of all that the result of a point depends on: what is run, the options, the program. `None`
/// for what is not the same twice, a live program, and for policies that are in no registry, whose
/// content cannot be told.
///
/// # Errors
/// In words, when the point cannot be run.
pub fn key(point: &Point, catalogue: &Catalogue) -> Result<Option<String>, String> {
    let asked = asked(point)?;
    Ok(key_of(&asked, point, catalogue)?.map(|(key, _)| key))
}

fn asked(point: &Point) -> Result<Asked, String> {
    Asked::of(point.options.clone(), point.directory.as_deref()).map_err(|f| f.message)
}

/// The key, and the hash of the input.
fn key_of(
    asked: &Asked,
    point: &Point,
    catalogue: &Catalogue,
) -> Result<Option<(String, String)>, String> {
    let input = asked.input_sha256().map_err(|failure| failure.message)?;
    let Some(input) = input.filter(|_| catalogue.own.is_empty()) else { return Ok(None) };
    let files = asked.files_sha256().map_err(|failure| failure.message)?;
    // Keys of a table are in order, so that equal ones have equal texts.
    let options = serde_json::to_string(&point.options).map_err(|error| error.to_string())?;
    let format = strata_engine::report::VERSION.to_string();
    let key = digest::text(&[version::LINE, &format, &input, &files, &options]);
    Ok(Some((key, input)))
}

/// Bytes of memory that a point will probably take, if that can be told.
pub fn need(point: &Point, catalogue: &Catalogue) -> Option<u64> {
    let mut asked = asked(point).ok()?;
    asked.modest();
    asked.need(catalogue)
}

/// The result of a point: the one of before, or a new one, which is kept. A point that fails, in whatever
/// way, is an outcome like others; it is tried again the next time.
pub fn run(
    point: &Point,
    catalogue: &Catalogue,
    cache: Option<&Cache>,
    stop: Arc<AtomicBool>,
) -> Outcome {
    let attempt = || attempt(point, catalogue, cache, stop);
    // What panics is a fault of one point, and the others need not pay for it.
    match catch_unwind(AssertUnwindSafe(attempt)) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(why)) => Outcome::Failed(why),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
            Outcome::Failed(format!("the model failed: {}", said.unwrap_or("it did not say why")))
        }
    }
}

fn attempt(
    point: &Point,
    catalogue: &Catalogue,
    cache: Option<&Cache>,
    stop: Arc<AtomicBool>,
) -> Result<Outcome, String> {
    let mut asked = asked(point)?;
    let key = key_of(&asked, point, catalogue)?;
    let cache = cache.zip(key.as_ref());
    if let Some((json, (_, input))) =
        cache.and_then(|(cache, key)| Some((cache.load(&key.0)?, key)))
    {
        return Ok(Outcome::Found { json, input_sha256: Some(input.clone()), was_kept: true });
    }
    asked.modest();
    let found = asked.run(catalogue, stop).map_err(|failure| failure.message)?;
    if let Some(why) = found.failed {
        return Err(why);
    }
    if let Some((cache, (key, _))) = cache
        && let Err(error) = keep(cache, key, &found.json)
    {
        crate::complain::complain(&format!(
            "note: {}: {error}; the result of a point is not kept",
            cache.directory().display()
        ));
    }
    Ok(Outcome::Found { json: found.json, input_sha256: found.input_sha256, was_kept: false })
}

/// Keeps a result if it is whole.
fn keep(cache: &Cache, key: &str, json: &str) -> std::io::Result<()> {
    let whole = crate::inside::report(json).is_ok_and(|report| !report.partial);
    if whole { cache.store(key, json) } else { Ok(()) }
}
