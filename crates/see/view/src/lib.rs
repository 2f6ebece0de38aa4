//! One page to look at, made of the JSON of a result: of `strata run`, `join`, `lab` and `paper`.
//!
//! It knows the JSON and nothing of what wrote it, so a page can be made of a file of before, or by any
//! other program. The page is one HTML file that asks for nothing else: pictures are SVG and are there
//! without JavaScript; the script adds what a mouse or a keyboard can ask of them. Equal input gives
//! equal bytes.

mod error;
mod figures;
mod folded;
mod html;
mod input;
mod number;
mod page;
mod perfetto;
mod regions;
mod scale;
mod svg;
mod verdict;

pub use error::ViewError;
pub use folded::folded;
pub use input::{Kind, kind};
pub use perfetto::trace_events;
pub use verdict::Verdict;

use input::Result as Given;

/// The page of a result.
///
/// # Errors
/// When `json` is no result of Strata, or one of a newer version.
pub fn page(json: &str, verdicts: &[Verdict]) -> Result<String, ViewError> {
    let given = Given::read(json)?;
    Ok(match &given {
        Given::Run(report) => page::run::page(report, json, verdicts),
        Given::Join(join) => page::join::page(join, json),
        Given::Lab(lab) => page::lab::page(lab, json),
        Given::Paper(paper) => page::paper::page(paper, json),
    })
}
