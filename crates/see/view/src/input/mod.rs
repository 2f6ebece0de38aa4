//! What a page is made of: the JSON of the commands, as far as it is shown.

pub mod join;
pub mod lab;
pub mod paper;
pub mod run;

use crate::error::ViewError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Whose JSON it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of `strata run`.
    Run,
    /// Of `strata join`.
    Join,
    /// Of `strata lab run`.
    Lab,
    /// Of `strata paper`.
    Paper,
}

/// The first field of each JSON with a version, what it is of, and the newest version known here.
const VERSIONS: [(&str, Kind, &str, u64); 3] = [
    ("strata", Kind::Run, "run", 1),
    ("strata_join", Kind::Join, "join", 2),
    ("strata_lab", Kind::Lab, "lab", 1),
];

/// Fields by which the JSON of a paper is known, which has no version.
const OF_A_PAPER: [&str; 4] = ["scale", "title", "runs", "tables"];

/// A result.
#[derive(Debug)]
pub enum Result {
    /// Of `strata run`.
    Run(Box<run::Report>),
    /// Of `strata join`.
    Join(Box<join::Join>),
    /// Of `strata lab run`.
    Lab(Box<lab::Lab>),
    /// Of `strata paper`.
    Paper(paper::Paper),
}

impl Result {
    /// Reads a result.
    ///
    /// # Errors
    /// When it is none, or a newer one.
    pub fn read(json: &str) -> std::result::Result<Self, ViewError> {
        let (kind, value) = parsed(json)?;
        Ok(match kind {
            Kind::Run => Self::Run(Box::new(typed("run", value)?)),
            Kind::Join => Self::Join(Box::new(typed("join", value)?)),
            Kind::Lab => Self::Lab(Box::new(typed("lab run", value)?)),
            Kind::Paper => Self::Paper(typed("paper", value)?),
        })
    }
}

/// Whose JSON it is.
///
/// # Errors
/// When it is nobody's here, or of a newer version.
pub fn kind(json: &str) -> std::result::Result<Kind, ViewError> {
    parsed(json).map(|(kind, _)| kind)
}

fn parsed(json: &str) -> std::result::Result<(Kind, Value), ViewError> {
    let value: Value =
        serde_json::from_str(json).map_err(|error| ViewError::NotJson(error.to_string()))?;
    let Value::Object(fields) = &value else {
        return Err(ViewError::NotAResult("it is not an object".to_owned()));
    };
    kind_of(fields).map(|kind| (kind, value))
}

fn kind_of(fields: &Map<String, Value>) -> std::result::Result<Kind, ViewError> {
    for (field, kind, what, known) in VERSIONS {
        match fields.get(field).map(Value::as_u64) {
            Some(Some(found)) if found > known => {
                return Err(ViewError::Newer { what, found, known });
            }
            Some(Some(_)) => return Ok(kind),
            Some(None) => {
                return Err(ViewError::NotAResult(format!("its field '{field}' is no version")));
            }
            None => {}
        }
    }
    if OF_A_PAPER.iter().all(|field| fields.contains_key(*field)) {
        return Ok(Kind::Paper);
    }
    if fields.contains_key("strata_walk") {
        return Err(ViewError::NotAResult("a walk, which 'strata walk' itself draws".to_owned()));
    }
    Err(ViewError::NotAResult("none of its fields says so".to_owned()))
}

fn typed<T: DeserializeOwned>(
    what: &'static str,
    value: Value,
) -> std::result::Result<T, ViewError> {
    serde_json::from_value(value)
        .map_err(|error| ViewError::Damaged { what, why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(json: &str) -> String {
        Result::read(json).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_result_is_told_with_its_cause_and_a_remedy() {
        let cases = [
            ("", "not JSON"),
            ("{\"strata\":1", "not JSON"),
            ("[1]", "not an object"),
            ("{\"name\":\"x\"}", "none of its fields"),
            ("{\"strata\":\"new\"}", "'strata' is no version"),
            ("{\"strata\":2}", "version 2 of the run format and this program knows up to 1"),
            ("{\"strata_join\":9}", "version 9 of the join format"),
            ("{\"strata_walk\":1}", "'strata walk' itself draws"),
            ("{\"strata\":1}", "damaged result of strata run"),
            ("{\"strata_lab\":1}", "damaged result of strata lab run"),
        ];
        for (json, expected) in cases {
            let message = message(json);
            assert!(message.contains(expected), "{json}: {message}");
            assert!(message.contains(';'), "{json}: no remedy: {message}");
        }
    }
}
