//! The description of a CPU: geometry of its TLBs and caches, and the constants of the cycle
//! model.

use crate::error::ModelError;
use crate::geometry::CacheGeometry;
use crate::limits;
use crate::llc::LlcDesign;
use crate::sets;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use strata_addr::PageSize;
use strata_nested::Virtualization;
use strata_params::ParameterError;

/// A CPU model. Presets are data files; see [`CpuModel::presets`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuModel {
    /// Name, as given to [`CpuModel::preset`].
    pub name: String,
    /// One line: which CPU, and which paper measured on it.
    pub about: String,
    /// Where the values come from: longest matching prefix of a constant's name to source.
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
    /// Prefixes of the names of constants that no source confirms.
    #[serde(default)]
    pub unconfirmed: Vec<String>,
    /// Core.
    pub core: Core,
    /// TLBs.
    pub tlb: TlbGeometry,
    /// Page walker.
    pub walk: WalkGeometry,
    /// Data caches and memory.
    pub cache: Caches,
    /// What it has for hypervisors in VMs; where a model does not say, what Intel's have since Haswell.
    #[serde(default)]
    pub virtualization: Virtualization,
}

/// The core: constants of the cycle model that belong to no cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// Cores that share the last-level cache.
    #[serde(default = "Core::many")]
    pub cores: u32,
    /// Cycles in a microsecond.
    pub frequency_mhz: u32,
    /// Cycles per retired instruction when nothing stalls.
    pub base_cpi: f64,
    /// Share of a data access's latency that other work hides, 0 to 1.
    pub data_overlap: f64,
    /// Share of a walk's latency that other work hides, 0 to 1.
    pub walk_overlap: f64,
}

impl Core {
    /// Where a model does not say how many cores there are: more than any guest has threads.
    const fn many() -> u32 {
        1024
    }
}

/// Both levels of data TLB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlbGeometry {
    /// Cycles that a translation loses by the lookup in the second level when the first misses.
    pub l2_hit_cycles: u32,
    /// The second level holds 1 GiB translations in pieces of 2 MiB.
    pub smash_giant: bool,
    /// First level.
    pub l1: TlbLevel,
    /// Second level.
    #[serde(default)]
    pub l2: TlbLevel,
}

/// The arrays of one TLB level. The key says which page sizes an array holds: `4k`, `2m`, `1g`,
/// `4k-2m` or `4k-2m-1g`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TlbLevel(pub BTreeMap<String, TlbArray>);

/// One TLB array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlbArray {
    /// Entries.
    pub entries: u32,
    /// Associativity; equal to `entries` for a fully associative array.
    pub ways: u32,
}

/// Walk caches and habits of the page walker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalkGeometry {
    /// Paging-structure cache of the guest dimension: entries read at level 5.
    pub pml5_entries: u16,
    /// The same at level 4.
    pub pml4_entries: u16,
    /// The same at level 3.
    pub pdpt_entries: u16,
    /// The same at level 2.
    pub pd_entries: u16,
    /// Paging-structure cache of the nested dimension: entries read at level 5.
    pub nested_pml5_entries: u16,
    /// The same at level 4.
    pub nested_pml4_entries: u16,
    /// The same at level 3.
    pub nested_pdpt_entries: u16,
    /// The same at level 2.
    pub nested_pd_entries: u16,
    /// Nested TLB.
    pub ntlb_entries: u16,
    /// Cycles of a hit in a paging-structure cache.
    pub pwc_cycles: u32,
    /// Cycles of a hit in the nested TLB.
    pub ntlb_cycles: u32,
    /// The guest's paging-structure caches hold host physical addresses of tables, so a hit also
    /// saves translating the table's guest physical address.
    pub combined: bool,
    /// The walker reads through the first-level data cache; otherwise it starts at the second.
    pub through_l1d: bool,
    /// The second stage has accessed and dirty flags; then reads of guest tables count as writes
    /// there.
    pub second_stage_flags: bool,
}

/// Data caches and memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caches {
    /// First-level data cache, one per CPU.
    pub l1d: CacheGeometry,
    /// Second level, one per CPU.
    pub l2: CacheGeometry,
    /// Last level, shared.
    pub llc: CacheGeometry,
    /// How the last level is made, beyond its size. A machine has it so only if [`crate::LlcOptions`]
    /// ask for it.
    #[serde(default)]
    pub llc_design: LlcDesign,
    /// A cache at the memory, behind the last level and shared by all cores, such as memory on the package
    /// that holds lines of other memory; none by default.
    #[serde(default = "Caches::no_l4")]
    pub l4: CacheGeometry,
    /// Cycles of a reference that no cache has.
    pub memory_cycles: u32,
}

impl Caches {
    /// Where a model does not say otherwise: none, and direct-mapped once it has a size.
    const fn no_l4() -> CacheGeometry {
        CacheGeometry { bytes: 0, ways: 1, cycles: 150 }
    }
}

impl TlbLevel {
    /// Every array with the page sizes it holds.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = (Vec<PageSize>, TlbArray)> + '_ {
        self.0.iter().map(|(key, array)| (page_sizes(key).unwrap_or_default(), *array))
    }

    /// Entries of all arrays.
    pub(crate) fn entries(&self) -> usize {
        self.0.values().map(|array| array.entries as usize).sum()
    }
}

fn page_sizes(key: &str) -> Option<Vec<PageSize>> {
    let size = |name| PageSize::ALL.into_iter().find(|size| size.to_string() == name);
    key.split('-').map(size).collect()
}

/// Which caches a walk has, in the steps of Bhargava et al. (ASPLOS'08).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkCaches {
    /// None: a walk makes all its references.
    None,
    /// Paging-structure caches of the guest dimension alone.
    OneDimension,
    /// Those of both dimensions.
    TwoDimensions,
    /// Those and the nested TLB.
    TwoDimensionsAndNestedTlb,
}

impl WalkCaches {
    /// Every step, the plainest first.
    pub const ALL: [Self; 4] =
        [Self::None, Self::OneDimension, Self::TwoDimensions, Self::TwoDimensionsAndNestedTlb];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::OneDimension => "1d",
            Self::TwoDimensions => "2d",
            Self::TwoDimensionsAndNestedTlb => "2d+ntlb",
        }
    }
}

impl CpuModel {
    /// This CPU with the walk caches of a step, as far as it has them, and without the others.
    pub fn with_walk_caches(mut self, step: WalkCaches) -> Self {
        let walk = &mut self.walk;
        if step == WalkCaches::None {
            walk.pml5_entries = 0;
            walk.pml4_entries = 0;
            walk.pdpt_entries = 0;
            walk.pd_entries = 0;
        }
        if matches!(step, WalkCaches::None | WalkCaches::OneDimension) {
            walk.nested_pml5_entries = 0;
            walk.nested_pml4_entries = 0;
            walk.nested_pdpt_entries = 0;
            walk.nested_pd_entries = 0;
        }
        if step != WalkCaches::TwoDimensionsAndNestedTlb {
            walk.ntlb_entries = 0;
        }
        self
    }

    /// A model from the text of a TOML file.
    ///
    /// # Errors
    /// [`ModelError`] when the text is no TOML, a value is missing, unknown or impossible.
    pub fn from_toml(text: &str) -> Result<Self, ModelError> {
        let model: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
            ModelError::Syntax { line: line.unwrap_or(1), cause: error.message().to_owned() }
        })?;
        model.check()?;
        Ok(model)
    }

    /// This CPU with every cache, walk cache and TLB array as small as can be: none, except one
    /// first-level entry per page size.
    pub fn without_caches(&self) -> Self {
        let none = |cache: CacheGeometry| CacheGeometry { bytes: 0, ways: 1, ..cache };
        let one = |key: &str| (key.to_owned(), TlbArray { entries: 1, ways: 1 });
        Self {
            name: format!("{}-without-caches", self.name),
            tlb: TlbGeometry {
                l1: TlbLevel(["4k", "2m", "1g"].map(one).into()),
                l2: TlbLevel::default(),
                ..self.tlb
            },
            walk: WalkGeometry {
                pml5_entries: 0,
                pml4_entries: 0,
                pdpt_entries: 0,
                pd_entries: 0,
                nested_pml5_entries: 0,
                nested_pml4_entries: 0,
                nested_pdpt_entries: 0,
                nested_pd_entries: 0,
                ntlb_entries: 0,
                ..self.walk
            },
            cache: Caches {
                l1d: none(self.cache.l1d),
                l2: none(self.cache.l2),
                llc: none(self.cache.llc),
                l4: none(self.cache.l4),
                ..self.cache
            },
            ..self.clone()
        }
    }

    /// Whether the values describe a machine that can be built.
    pub(crate) fn check(&self) -> Result<(), ParameterError> {
        let impossible = |name: &str, cause: String| {
            Err(ParameterError::Impossible { name: name.to_owned(), cause })
        };
        if let Some(feature) = self.virtualization.misplaced() {
            return impossible(
                &format!("virtualization.{feature}"),
                "a CPU with these instructions has none; set it to false or change \
                 virtualization.instructions"
                    .into(),
            );
        }
        if self.core.frequency_mhz == 0 {
            return impossible("core.frequency_mhz", "must be above 0".into());
        }
        for (name, value, most) in [
            ("core.base_cpi", self.core.base_cpi, 1000.0),
            ("core.data_overlap", self.core.data_overlap, 1.0),
            ("core.walk_overlap", self.core.walk_overlap, 1.0),
        ] {
            if !(0.0..=most).contains(&value) {
                return impossible(name, format!("must be from 0 to {most}, not {value}"));
            }
        }
        for (name, level) in [("tlb.l1", &self.tlb.l1), ("tlb.l2", &self.tlb.l2)] {
            check_tlb(name, level)?;
        }
        if !self.tlb.l1.arrays().any(|(sizes, _)| sizes.contains(&PageSize::Base)) {
            return impossible("tlb.l1", "must have an array for 4k pages".into());
        }
        for (name, cache) in [
            ("cache.l1d", &self.cache.l1d),
            ("cache.l2", &self.cache.l2),
            ("cache.llc", &self.cache.llc),
            ("cache.l4", &self.cache.l4),
        ] {
            check_cache(name, cache)?;
        }
        Ok(())
    }
}

/// Ways of a TLB array that is not fully associative.
const MAX_WAYS: u32 = sets::MAX_WAYS;

fn check_tlb(name: &str, level: &TlbLevel) -> Result<(), ParameterError> {
    let mut held = Vec::new();
    for (key, array) in &level.0 {
        let name = format!("{name}.{key}");
        let of = |name: String, cause| Err(ParameterError::Impossible { name, cause });
        let impossible = |cause| of(name.clone(), cause);
        let together = |cause| of(format!("{name}.entries and {name}.ways"), cause);
        let Some(sizes) = page_sizes(key) else {
            return impossible("name it by page sizes: 4k, 2m, 1g, 4k-2m, 4k-2m-1g".to_owned());
        };
        if sizes.iter().any(|size| held.contains(size)) {
            return impossible("another array of this level holds the same page size".to_owned());
        }
        held.extend(sizes);
        let TlbArray { entries, ways } = *array;
        if ways == 0 || !entries.is_multiple_of(ways) || !(entries / ways).is_power_of_two() {
            return together(format!(
                "{entries} entries in {ways} ways: entries / ways must be a power of two"
            ));
        }
        if ways > MAX_WAYS && ways != entries {
            return together(format!("{ways} ways: at most {MAX_WAYS}, or all entries"));
        }
        if entries > u32::from(u16::MAX / 2) {
            let most = u16::MAX / 2;
            return of(format!("{name}.entries"), format!("{entries} entries: at most {most}"));
        }
    }
    Ok(())
}

fn check_cache(name: &str, cache: &CacheGeometry) -> Result<(), ParameterError> {
    let of = |name: String, cause| Err(ParameterError::Impossible { name, cause });
    let together = |cause| of(format!("{name}.bytes and {name}.ways"), cause);
    if cache.bytes == 0 {
        return Ok(());
    }
    if cache.ways == 0
        || (cache.sets() * u64::from(cache.ways)) << limits::LINE_SHIFT != cache.bytes
    {
        return together(format!(
            "{} bytes in {} ways: bytes must be a multiple of ways x 64",
            cache.bytes, cache.ways
        ));
    }
    if cache.ways > limits::MAX_WAYS {
        return of(
            format!("{name}.ways"),
            format!("{} ways: at most {}", cache.ways, limits::MAX_WAYS),
        );
    }
    let many = name == "cache.l4" && cache.sets().is_power_of_two();
    let most = if many { limits::MAX_L4_SETS } else { limits::MAX_SETS };
    if !(limits::MIN_SETS..=most).contains(&cache.sets()) {
        return together(format!(
            "{} sets: must be {} to {}",
            cache.sets(),
            limits::MIN_SETS,
            most
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// References of walks are counted where each is one of memory; what takes time takes as long as before.
    #[test]
    fn without_caches_nothing_is_held_but_the_last_page_of_each_size() {
        for preset in CpuModel::presets() {
            let before = CpuModel::preset(preset.name).unwrap();
            let CpuModel { tlb, walk, cache, core, .. } = before.without_caches();
            assert!(tlb.l1.0.values().all(|array| array.entries == 1) && tlb.l1.0.len() == 3);
            assert!(tlb.l2.0.is_empty());
            let of_guest =
                [walk.pml5_entries, walk.pml4_entries, walk.pdpt_entries, walk.pd_entries];
            let nested = [
                walk.nested_pml5_entries,
                walk.nested_pml4_entries,
                walk.nested_pdpt_entries,
                walk.nested_pd_entries,
            ];
            assert_eq!((of_guest, nested, walk.ntlb_entries), ([0; 4], [0; 4], 0));
            let bytes = [cache.l1d, cache.l2, cache.llc, cache.l4].map(|cache| cache.bytes);
            assert_eq!(bytes, [0; 4], "{}", preset.name);
            assert_eq!((core, walk.combined), (before.core, before.walk.combined));
        }
    }
}
