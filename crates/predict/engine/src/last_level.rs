//! What a run found in the last-level cache.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use strata_hardware::{LlcCounters, LlcUse, MissCauses, Owner};

/// A shared cache as one VM used it, the last level or one at the memory. Counts leave the warm-up out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastLevel {
    /// The ways that the VM may fill: a mask of bits in hexadecimal.
    pub mask: String,
    /// How many these are.
    pub ways: u32,
    /// References that missed the private caches, those of page walks included.
    pub reads: u64,
    /// Those that missed this one as well.
    pub misses: u64,
    /// Misses on data by cause; `None` unless they were told apart.
    pub data_misses: Option<MissCauses>,
    /// The same of misses on page tables.
    pub walk_misses: Option<MissCauses>,
    /// Hits on lines that a fully associative cache would have dropped; `None` unless told apart.
    pub lucky_hits: Option<u64>,
    /// Lines of its own that it put out of the cache. A line is of the VM that filled it.
    pub evicted_own: u64,
    /// Lines of other VMs that it put out, by the VM's name.
    pub evicted_others: BTreeMap<String, u64>,
    /// Lines that left private caches because they dropped out of an inclusive last level.
    pub inclusion_victims: u64,
    /// Bytes of the cache that it held at the end.
    pub held_bytes: u64,
}

impl LastLevel {
    /// What an owner did. `name` names the others.
    pub(crate) fn of(found: LlcUse<'_>, owner: Owner, name: impl Fn(usize) -> String) -> Self {
        let LlcUse { counters, ways, is_classified: told, held_bytes } = found;
        let LlcCounters { reads, misses, data, walks, lucky_hits, evicted, inclusion_victims } =
            counters;
        let own = usize::from(owner.0);
        let others =
            evicted.iter().enumerate().filter(|(other, lines)| *other != own && **lines > 0);
        Self {
            mask: ways.to_string(),
            ways: ways.count(),
            reads: *reads,
            misses: *misses,
            data_misses: told.then_some(*data),
            walk_misses: told.then_some(*walks),
            lucky_hits: told.then_some(*lucky_hits),
            evicted_own: evicted.get(own).copied().unwrap_or(0),
            evicted_others: others.map(|(other, lines)| (name(other), *lines)).collect(),
            inclusion_victims: *inclusion_victims,
            held_bytes,
        }
    }
}
