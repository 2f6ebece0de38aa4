//! Regions of 2 MiB, one by one or many together, in every layer.

use crate::input::run::Regions;

/// Bytes of a region.
pub const REGION: u64 = 2 << 20;
/// Base pages of a region.
const PAGES: f64 = 512.0;
/// States by their number in the JSON: the class of what is in huge pages, that of what is in base
/// pages, and their name.
pub const STATES: [(&str, &str, &str); 5] = [
    ("plain", "base4k", "base pages in the guest"),
    ("aligned", "mixed", "well aligned"),
    ("solid1", "type1", "type 1"),
    ("solid2", "type2", "type 2"),
    ("doubt", "doubt", "not judged"),
];

/// Rows of a table of regions, with names for the columns.
#[derive(Debug)]
pub struct Map<'a> {
    regions: &'a Regions,
    columns: Columns,
    /// Names of the layers, the guest first.
    pub layers: Vec<String>,
}

#[derive(Debug)]
struct Columns {
    process: usize,
    gva: usize,
    count: usize,
    state: usize,
    cause: usize,
    /// Of each layer: pages in huge pages, pages mapped, place.
    layers: Vec<[usize; 3]>,
}

/// A row: regions that differ only in their place.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    cells: &'a [i64],
    columns: &'a Columns,
}

impl<'a> Map<'a> {
    /// The regions, if the columns needed are there and every row has them.
    pub fn new(regions: &'a Regions) -> Option<Self> {
        let find = |name: &str| regions.columns.iter().position(|column| column == name);
        let ends = |column: &'a String| column.strip_suffix(".huge").map(str::to_owned);
        let layers: Vec<String> = regions.columns.iter().filter_map(ends).collect();
        let of = |layer: &String| {
            let column = |what: &str| find(&format!("{layer}.{what}"));
            Some([column("huge")?, column("mapped")?, column("at")?])
        };
        let columns = Columns {
            process: find("process")?,
            gva: find("gva")?,
            count: find("count")?,
            state: find("state")?,
            cause: find("cause")?,
            layers: layers.iter().map(of).collect::<Option<_>>()?,
        };
        let whole = |row: &Vec<i64>| row.len() == regions.columns.len() && row[columns.count] > 0;
        (!layers.is_empty() && !regions.rows.is_empty() && regions.rows.iter().all(whole))
            .then_some(Self { regions, columns, layers })
    }

    /// The rows.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.regions.rows.iter().map(|cells| Row { cells, columns: &self.columns })
    }

    /// How many regions there are.
    pub fn count(&self) -> u64 {
        self.rows().map(|row| row.count()).sum()
    }

    /// The layer and the cause that a row is misaligned by.
    pub fn cause(&self, row: Row<'_>) -> Option<&[String; 2]> {
        self.regions.causes.get(usize::try_from(row.cells[self.columns.cause]).ok()?)
    }
}

impl Row<'_> {
    /// How many regions.
    pub fn count(&self) -> u64 {
        self.cells[self.columns.count].unsigned_abs()
    }

    /// Which process.
    pub fn process(&self) -> i64 {
        self.cells[self.columns.process]
    }

    /// The guest-virtual address of the first one.
    pub fn address(&self) -> u64 {
        self.cells[self.columns.gva].unsigned_abs().wrapping_mul(REGION)
    }

    /// The number of its state.
    pub fn state(&self) -> usize {
        usize::try_from(self.cells[self.columns.state]).unwrap_or(0).min(STATES.len() - 1)
    }

    /// In a layer: the share of each region in huge pages, and the share in base pages.
    pub fn shares(&self, layer: usize) -> [f64; 2] {
        let [huge, mapped, _] = self.columns.layers[layer];
        let huge = self.cells[huge].clamp(0, 512) as f64 / PAGES;
        let mapped = self.cells[mapped].clamp(0, 512) as f64 / PAGES;
        [huge, (mapped - huge).max(0.0)]
    }

    /// Whether it is known what a layer has there.
    pub fn is_followed(&self, layer: usize) -> bool {
        self.cells[self.columns.layers[layer][1]] >= 0
    }

    /// Where the first one is in a layer's own memory, if it lies there in a row.
    pub fn place(&self, layer: usize) -> Option<u64> {
        let [.., at] = self.columns.layers[layer];
        u64::try_from(self.cells[at]).ok().map(|at| at.wrapping_mul(REGION))
    }
}
