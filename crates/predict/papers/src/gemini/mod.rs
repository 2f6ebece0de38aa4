//! Gemini (EuroSys 2023) and xGemini (IEEE TC 2024): huge pages that are aligned across the layers of a VM, and of a
//! nested VM. Both papers' figures beside the model's, each at the papers' stated conditions and over a grid of what
//! they leave open, and what becomes of the order of the systems there.
//!
//! `conditions.rs`, `grid.rs`, `beyond.rs` and `sensitivity.rs` say what is run; they were written before the runs that
//! the pages show.

mod beyond;
mod conditions;
mod grid;
mod measure;
mod more_tables;
mod published;
mod rank;
mod region;
mod sensitivity;
mod tables;

use beyond::{REAL, Real};
use conditions::{Memory, PROGRAMS, Setting, Which, seeds};

use crate::{Document, Found, Paper, Row};
use std::collections::BTreeSet;

/// Gemini: a VM.
#[derive(Clone, Debug, Default)]
pub struct Gemini(Common);

/// xGemini: a nested VM.
#[derive(Clone, Debug, Default)]
pub struct XGemini(Common);

/// What both are made with.
#[derive(Clone, Debug, Default)]
struct Common {
    /// The real programs that are recorded.
    recorded: Vec<&'static str>,
    /// How often every two values of the grid's axes meet.
    times: usize,
}

impl Common {
    fn with(scale: f64, is_recorded: impl Fn(&str) -> bool) -> Self {
        let names = REAL.iter().map(|program| program.name);
        let recorded = names.filter(|name| is_recorded(name)).collect();
        Self { recorded, times: (scale.floor() as usize).clamp(1, 4) }
    }

    /// The real programs, those that are recorded and those that are not.
    fn real(&self) -> (Vec<&'static Real>, Vec<&'static Real>) {
        REAL.iter().partition(|program| self.recorded.contains(&program.name))
    }

    /// Figures first, then the grid, then the rest.
    fn rows(&self, which: Which, scale: f64) -> Vec<Row> {
        let mut rows = Vec::new();
        for seed in seeds() {
            for program in PROGRAMS.iter().filter(|of| !of.stands_for(which).is_empty()) {
                for memory in Memory::ALL {
                    rows.push(Setting::stated(which, program, memory, seed).row(scale));
                }
            }
        }
        rows.extend(grid::settings(which, self.times).iter().map(|setting| setting.row(scale)));
        rows.extend(beyond::rows(which, scale, &self.real().0));
        rows.extend(sensitivity::rows(which, scale));
        let mut seen = BTreeSet::new();
        rows.retain(|row| seen.insert(row.name.clone()));
        rows
    }

    fn document(&self, which: Which, found: &Found) -> Document {
        let (there, missing) = self.real();
        tables::document(which, found, self.times, &there, &missing)
    }
}

impl Gemini {
    /// The paper at a scale, from 2 on of which the grid has more points, with rows for those of the real programs that
    /// are recorded.
    pub fn with(scale: f64, is_recorded: impl Fn(&str) -> bool) -> Self {
        Self(Common::with(scale, is_recorded))
    }
}

impl XGemini {
    /// As [`Gemini::with`].
    pub fn with(scale: f64, is_recorded: impl Fn(&str) -> bool) -> Self {
        Self(Common::with(scale, is_recorded))
    }
}

impl Paper for Gemini {
    fn rows(&self, scale: f64) -> Vec<Row> {
        self.0.rows(Which::Gemini, scale)
    }

    fn document(&self, found: &Found) -> Document {
        self.0.document(Which::Gemini, found)
    }
}

impl Paper for XGemini {
    fn rows(&self, scale: f64) -> Vec<Row> {
        self.0.rows(Which::XGemini, scale)
    }

    fn document(&self, found: &Found) -> Document {
        self.0.document(Which::XGemini, found)
    }
}
