//! What is asked of the last-level cache beyond its size.

use super::{Replacement, WayMask};
use crate::error::ModelError;
use crate::geometry::CacheGeometry;
use crate::limits::{LINE_SHIFT, MIN_SETS};
use serde::{Deserialize, Serialize};
use strata_colours::{CacheIndex, SliceHash};

/// Which lines are put into the last level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LlcFill {
    /// Those that miss it.
    #[default]
    Misses,
    /// Those that drop out of a second level. One that is read moves to the second level, so that the
    /// last level holds other lines than the second. Processors keep a copy of what several cores
    /// read; that is left out.
    Victims,
}

/// How a last-level cache is made. The default is one piece with LRU replacement, not inclusive, filled
/// by misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlcDesign {
    /// Slices; of no effect without a hash.
    pub slices: u32,
    /// How lines are spread over slices.
    pub hash: SliceHash,
    /// Which line makes room.
    pub replacement: Replacement,
    /// A line that drops out leaves the private caches of all CPUs as well.
    pub inclusive: bool,
    /// Which lines are put into it.
    #[serde(default)]
    pub fill: LlcFill,
}

impl Default for LlcDesign {
    fn default() -> Self {
        Self {
            slices: 1,
            hash: SliceHash::None,
            replacement: Replacement::Lru,
            inclusive: false,
            fill: LlcFill::Misses,
        }
    }
}

impl LlcDesign {
    /// In which set of which slice a line is. Without a hash it is one piece, whatever the slices.
    pub fn index(&self, geometry: &CacheGeometry) -> CacheIndex {
        let slices = if self.hash == SliceHash::None { 1 } else { self.slices };
        let sets = geometry.sets() / u64::from(slices.max(1));
        CacheIndex { line_bytes: 1 << LINE_SHIFT, sets, slices, hash: self.hash }
    }

    /// Whether the plain cache is made so, too.
    fn is_plain(&self) -> bool {
        let Self { slices: _, hash, replacement, inclusive, fill } = self;
        *hash == SliceHash::None
            && *replacement == Replacement::Lru
            && !inclusive
            && *fill == LlcFill::Misses
    }
}

/// The last-level cache in detail. The default asks for nothing: the default design, which every VM may
/// fill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LlcOptions {
    /// How it is made.
    pub design: LlcDesign,
    /// The ways that each owner may fill, by its number; those without a mask may fill all.
    pub masks: Vec<Option<WayMask>>,
    /// Tell misses apart: cold, capacity, conflict.
    pub classify: bool,
}

/// Lines of a cache whose misses can be told apart: 1 GiB of them.
pub(super) const MOST_CLASSIFIED: u64 = 1 << 24;

impl LlcOptions {
    /// Whether nothing is asked for.
    pub fn is_plain(&self) -> bool {
        let Self { design, masks, classify } = self;
        design.is_plain() && !classify && masks.iter().all(Option::is_none)
    }

    /// Whether the last level can be so, behind this second level and before this cache at the memory.
    ///
    /// # Errors
    /// [`ModelError::LastLevel`], with what would be right.
    pub fn check(
        &self,
        l2: &CacheGeometry,
        geometry: &CacheGeometry,
        l4: &CacheGeometry,
    ) -> Result<(), ModelError> {
        if self.is_plain() {
            return Ok(());
        }
        let impossible = |cause: String| Err(ModelError::LastLevel { cause });
        if geometry.bytes == 0 {
            return impossible("there is none: choose a CPU that has one".into());
        }
        for mask in self.masks.iter().flatten() {
            mask.check(geometry.ways)
                .map_err(|error| ModelError::LastLevel { cause: error.to_string() })?;
        }
        for (name, bytes) in [("it", geometry.bytes), ("the one at the memory (L4)", l4.bytes)] {
            if self.classify && bytes >> LINE_SHIFT > MOST_CLASSIFIED {
                return impossible(format!(
                    "misses can be told apart up to {} MiB, and {name} has {}: leave that out, or choose a \
                     smaller cache",
                    MOST_CLASSIFIED << LINE_SHIFT >> 20,
                    bytes >> 20
                ));
            }
        }
        let LlcDesign { slices, hash, fill, inclusive, .. } = self.design;
        if fill == LlcFill::Victims && inclusive {
            return impossible(
                "an inclusive one holds what the private caches hold, so that it is not filled by what \
                 they drop: set cache.llc_design.inclusive=false or cache.llc_design.fill=misses"
                    .into(),
            );
        }
        if fill == LlcFill::Victims && l2.bytes == 0 {
            return impossible(
                "without a second level nothing drops out of one: set cache.llc_design.fill=misses"
                    .into(),
            );
        }
        if hash == SliceHash::None {
            return Ok(());
        }
        if let Err(error) = hash.check(slices) {
            return impossible(error.to_string());
        }
        let (sets, slices) = (geometry.sets(), u64::from(slices));
        if slices == 0 || !sets.is_multiple_of(slices) || sets / slices < MIN_SETS {
            return impossible(format!(
                "{sets} sets in {slices} slices: each slice must have the same number, at least \
                 {MIN_SETS}"
            ));
        }
        Ok(())
    }
}
