//! What is measured: the time of a dependent load over sizes, by stride and page size.

/// Page size that a chain lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB.
    Base,
    /// 2 MiB.
    Huge,
}

/// Distance of a chain's lines from each other. Above 64 bytes a line is added to the page size, so that
/// lines spread over all sets of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stride {
    /// 64 bytes: every line.
    Line,
    /// 4 KiB + 64 B: a line in each base page.
    BasePage,
    /// 2 MiB + 64 B: a line in each huge page.
    HugePage,
}

impl Stride {
    /// Bytes from a line to the next.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Line => 64,
            Self::BasePage => (4 << 10) + 64,
            Self::HugePage => (2 << 20) + 64,
        }
    }

    /// As it is shown.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Line => "64 B",
            Self::BasePage => "4 KiB + 64 B",
            Self::HugePage => "2 MiB + 64 B",
        }
    }
}

/// One size of a curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Lines of the chain.
    pub lines: u64,
    /// Nanoseconds of a load in the quickest round.
    pub least: f64,
    /// Nanoseconds of a load in the median round.
    pub median: f64,
}

impl Point {
    /// How much longer the median round takes than the quickest, as a share of that.
    pub fn spread(&self) -> f64 {
        self.median / self.least - 1.0
    }
}

/// Loads over sizes, the smallest size first.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Distance of lines.
    pub stride: Stride,
    /// Page size.
    pub pages: Pages,
    /// Sizes.
    pub points: Vec<Point>,
}

/// All curves of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Curves {
    /// Nanoseconds of a cycle: of an addition that waits for the one before.
    pub cycle: f64,
    /// How much longer the median round of these took.
    pub cycle_spread: f64,
    /// Curves; one at most for a stride and a page size.
    pub all: Vec<Curve>,
}

impl Curves {
    /// The points of a stride and page size; none where it was not measured.
    pub fn points(&self, stride: Stride, pages: Pages) -> &[Point] {
        let found = self.all.iter().find(|curve| curve.stride == stride && curve.pages == pages);
        found.map_or(&[], |curve| &curve.points)
    }

    /// How much longer the median round takes than the quickest, in the middle of all points: 0 where nothing
    /// disturbs.
    pub fn spread(&self) -> f64 {
        median(self.all.iter().flat_map(|curve| &curve.points).map(Point::spread).collect())
    }
}

/// The value in the middle; 0 of none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
