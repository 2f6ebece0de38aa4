//! The page of `strata lab run`.

use super::{Page, join};
use crate::html::{escaped, table};
use crate::input::lab::Lab;
use crate::number::{bytes, whole};
use std::fmt::Write;

/// The page.
pub fn page(lab: &Lab, json: &str) -> String {
    let mut page = Page { title: lab.scenario.clone(), about: about(lab), sections: Vec::new() };
    if let Some(alignment) = &lab.alignment {
        page.add("verdict", "Verdict", "", join::verdict(alignment));
        join::sections(&mut page, alignment, "alignment.regions");
    }
    page.add("steps", "What was done", "", steps(lab));
    page.add("machine", "The machine", "", layers(lab));
    page.finish(json)
}

fn about(lab: &Lab) -> String {
    let mut out = String::new();
    if !lab.about.is_empty() {
        let _ = write!(out, "<p class=about>{}</p>", escaped(&lab.about));
    }
    for (what, text) in [("Real", &lab.real), ("Emulated", &lab.emulated)] {
        if !text.is_empty() {
            let _ = write!(out, "<p class=about>{what}: {}.</p>", escaped(text));
        }
    }
    out
}

fn steps(lab: &Lab) -> String {
    let rows: Vec<Vec<String>> = lab
        .steps
        .iter()
        .map(|step| {
            let status = step.status.map_or_else(String::new, |status| status.to_string());
            vec![step.what.clone(), format!("{:.1} s", step.seconds), status]
        })
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => table(&["step", "emulated time", "status"], &rows, 1),
    }
}

fn layers(lab: &Lab) -> String {
    let rows: Vec<Vec<String>> = lab
        .layers
        .iter()
        .map(|layer| {
            let mut cells = vec![format!("L{}", layer.layer), layer.kernel.clone()];
            match &layer.after {
                Some(after) => {
                    let fmfi = after.fmfi.map_or_else(String::new, |fmfi| format!("{fmfi:.2}"));
                    let exits = whole(after.exits.values().sum());
                    cells.extend([bytes(after.memory_bytes), bytes(after.free_bytes), fmfi, exits]);
                }
                None => cells.extend([const { String::new() }; 4]),
            }
            cells
        })
        .collect();
    table(&["layer", "kernel", "memory", "free", "FMFI", "exits"], &rows, 2)
}
