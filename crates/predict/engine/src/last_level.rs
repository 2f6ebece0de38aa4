//! What a run found in the last-level cache.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use strata_hardware::{HardwareCounters, LlcCounters, LlcUse, MissCauses, Owner};

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

    /// The same of a cache at the memory, as these counters of a sampled stream have it: what is seen here is
    /// of windows. Causes of misses are not estimated.
    pub(crate) fn estimated(self, totals: &HardwareCounters) -> Self {
        let of_walks =
            totals.page_walker_loads_dtlb.memory + totals.page_walker_loads_ept_dtlb.memory;
        let reads = totals.data.memory + of_walks;
        let misses = reads.saturating_sub(totals.l4_data + totals.l4_walks);
        let share = self.evicted_own as f64 / self.misses.max(1) as f64;
        let evicted_own = (misses as f64 * share).round() as u64;
        let (data_misses, walk_misses, lucky_hits) = (None, None, None);
        Self { reads, misses, evicted_own, data_misses, walk_misses, lucky_hits, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_hardware::ByLevel;

    #[test]
    fn estimates_of_a_cache_at_the_memory_are_those_of_the_counters() {
        let memory = |memory| ByLevel { memory, ..ByLevel::default() };
        let totals = HardwareCounters {
            data: memory(1000),
            page_walker_loads_dtlb: memory(30),
            page_walker_loads_ept_dtlb: memory(70),
            l4_data: 400,
            l4_walks: 50,
            ..HardwareCounters::default()
        };
        let seen = LastLevel {
            reads: 11,
            misses: 8,
            evicted_own: 6,
            held_bytes: 128,
            ..LastLevel::default()
        };
        let found = seen.clone().estimated(&totals);
        let expected = LastLevel { reads: 1100, misses: 650, evicted_own: 488, ..seen };
        assert_eq!(found, expected);
    }
}
