//! Exits as folded stacks, a line each, for whoever draws flame graphs: `nested VM;policy;layer;reason
//! cycles`.

use crate::error::ViewError;
use crate::figures::groups;
use crate::input::Result as Given;
use std::fmt::Write;

/// The stacks of a result of `strata run`, weighed by cycles.
///
/// # Errors
/// When `json` is none.
pub fn folded(json: &str) -> Result<String, ViewError> {
    let Given::Run(report) = Given::read(json)? else {
        return Err(ViewError::NotAResult("only strata run has exits by reason".to_owned()));
    };
    let mut out = String::new();
    for group in groups(&report) {
        for row in &group.rows {
            for item in &row.run.bill {
                if let Some(reason) = item.name.strip_prefix("exits: ") {
                    let frames = [&group.title, &row.label, &format!("exits of {}", item.level)];
                    let frames = frames.map(|frame| frame.replace([';', '\n'], ","));
                    let _ = writeln!(out, "{};{reason} {}", frames.join(";"), item.cycles);
                }
            }
        }
    }
    Ok(out)
}
