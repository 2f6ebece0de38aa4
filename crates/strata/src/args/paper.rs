//! Options of `strata paper`.

use crate::values::positive;
use clap::{Args, ValueEnum};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Papers whose figures can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PaperChoice {
    /// Huge pages aligned across the layers of a VM (EuroSys 2023).
    Gemini,
    /// The same in nested VMs, with an unmodified guest hypervisor (IEEE TC 2024).
    Xgemini,
    /// Nested VMs, their exits and what spares them (2011).
    Nestcloud,
    /// Cache colours in nested VMs (IEEE TC 2024).
    Xplace,
    /// Two-dimensional walks and their caches (KVM Forum 2008).
    Npt,
    /// What TLB misses cost natively and in VMs (VEE'16).
    Vee16,
}

/// Options of `strata paper`.
#[derive(Args, Clone, Debug)]
pub struct PaperArgs {
    /// The paper.
    #[arg(value_enum, value_name = "PAPER")]
    pub paper: PaperChoice,

    /// Run this many times as many accesses.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = scale)]
    pub scale: f64,

    /// Runs at once [default: one per core].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub jobs: Option<NonZeroUsize>,

    /// Print the command of every run instead, in the order in which they are made.
    #[arg(long)]
    pub list: bool,

    /// Run all anew, and forget what was kept.
    #[arg(long)]
    pub fresh: bool,

    /// Run nothing: tables of the results that are kept.
    #[arg(long, conflicts_with = "fresh")]
    pub kept: bool,

    /// Write tables and the command of every run as JSON; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a page to look at: everything found, as pictures, in one HTML file that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write the tables here, as Markdown [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// A factor above 0.
fn scale(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor > 0.0);
    factor.ok_or_else(|| "give a number above 0, such as 0.1 or 10".to_owned())
}
