//! The JSON of `strata join`, as far as it is shown; `docs/inspect.md` describes it.

use super::run::Regions;
use serde::Deserialize;

/// A join.
#[derive(Debug, Deserialize)]
pub struct Join {
    /// The layers, the guest first.
    pub layers: Vec<Layer>,
    /// What to know before trusting the numbers.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Huge pages of the guest.
    pub totals: Totals,
    /// Each layer against the one below.
    #[serde(default)]
    pub pairs: Vec<Pair>,
    /// Misaligned pages by cause, the most first.
    #[serde(default)]
    pub causes: Vec<Cause>,
    /// Huge pages of the guest through all layers.
    pub regions: Option<Regions>,
    /// Programs of the guest.
    #[serde(default)]
    pub processes: Vec<Process>,
}

/// A layer.
#[derive(Debug, Deserialize)]
pub struct Layer {
    /// `L0` is the lowest.
    pub name: String,
    /// Host name.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// Fragmentation.
    pub fmfi: f64,
    /// Free huge pages.
    pub free_huge_pages: u64,
}

/// Huge pages of a guest.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Totals {
    /// All.
    pub huge: u64,
    /// Backed by one huge mapping.
    pub well_aligned: u64,
    /// Not so.
    pub misaligned: u64,
    /// Of those, with nothing allocated in the layer responsible.
    pub type1: u64,
    /// Of those, with something.
    pub type2: u64,
    /// Changed while they were read.
    pub uncertain: u64,
    /// Not seen below.
    pub unknown: u64,
}

/// A layer against the one below.
#[derive(Debug, Deserialize)]
pub struct Pair {
    /// The upper one.
    pub upper: String,
    /// The lower one.
    pub lower: String,
    /// Huge pages of the upper one.
    pub upper_huge: u64,
    /// Of those, backed by one huge page.
    pub lower_huge: u64,
}

/// Misaligned pages of one cause.
#[derive(Debug, Deserialize)]
pub struct Cause {
    /// The layer responsible.
    pub layer: String,
    /// The cause.
    pub cause: String,
    /// Huge pages.
    pub pages: u64,
    /// What helps.
    #[serde(default)]
    pub remedy: String,
}

/// A program.
#[derive(Debug, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Huge pages.
    pub huge: u64,
    /// Well aligned.
    pub well_aligned: u64,
    /// Misaligned.
    pub misaligned: u64,
    /// What hits most of these.
    pub main_cause: Option<String>,
}
