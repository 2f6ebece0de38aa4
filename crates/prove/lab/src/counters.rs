//! Counters of a layer at one moment.

use crate::events;
use crate::exits::{self, EXIT_TRACES, ExitTrace};
use crate::make::Make;
use crate::scenario::Scenario;
use serde::Serialize;
use std::collections::BTreeMap;
use strata_inspect::text::{buddy, zoneinfo};

/// Where KVM counts.
const KVM: &str = "/sys/kernel/debug/kvm";
const VMSTAT: &str = "/proc/vmstat";
const BUDDYINFO: &str = "/proc/buddyinfo";
const MEMINFO: &str = "/proc/meminfo";
const ZONEINFO: &str = "/proc/zoneinfo";
const WARNINGS: &str = "/sys/kernel/warn_count";

/// What a layer's kernel counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counters {
    /// Seconds since the layer's kernel started.
    pub at: f64,
    /// Bytes of memory, in all and free.
    pub memory_bytes: u64,
    /// See `memory_bytes`.
    pub free_bytes: u64,
    /// Bytes on lists of free pages that single processors have, which are not among `free_bytes`.
    pub listed_bytes: u64,
    /// Linux's unusable free space index for order 9, all zones together: the share of free memory
    /// that no huge page can be made of.
    pub fmfi: f64,
    /// `/proc/vmstat`: what concerns huge pages, compaction, migration, swap and KSM.
    pub vmstat: BTreeMap<String, u64>,
    /// KVM's counters, all machines and processors of the layer together. Empty where none runs.
    pub kvm: BTreeMap<String, u64>,
    /// Exits of the machine that the layer runs by reason, of every machine nested in it included.
    pub exits: BTreeMap<String, u64>,
    /// Of these, the ones of machines nested in it, by reason: `kvm_nested_vmexit`, which KVM traces before
    /// it decides whether to handle the exit itself or to reflect it to the hypervisor in its machine.
    pub nested_exits: BTreeMap<String, u64>,
    /// Exits of machines nested in it that the hypervisor in its machine is told of, by the reason that it
    /// is told: `kvm_nested_vmexit_inject`.
    pub reflected_exits: BTreeMap<String, u64>,
    /// Events that the scenario wants counted: `system:event` in all, and
    /// `system:event{field=value}` for each value of a field.
    pub events: BTreeMap<String, u64>,
    /// Warnings of the kernel about itself.
    pub warnings: u64,
}

/// Beginnings of the names in `/proc/vmstat` that are kept.
const KEPT: [&str; 8] = [
    "thp_",
    "compact_",
    "pgmigrate_",
    "numa_pages_migrated",
    "pswp",
    "ksm_",
    "pgfault",
    "balloon_",
];

impl Counters {
    /// Files to read in a layer; those of KVM where it runs machines.
    pub(crate) fn files(scenario: &Scenario, layer: u8) -> Vec<String> {
        let layer = usize::from(layer);
        let mut files: Vec<String> =
            [VMSTAT, BUDDYINFO, MEMINFO, ZONEINFO, WARNINGS].map(Into::into).into();
        if scenario.hosts(layer) {
            files.push(KVM.into());
            files.extend(EXIT_TRACES.map(|trace| events::histogram(trace.directory)));
        }
        let counted = scenario.layers[layer].trace_events.iter();
        files.extend(counted.map(|event| events::histogram(event.directory())));
        files
    }

    /// Reads what these files say in a machine of this make.
    pub(crate) fn parse(make: Make, at: f64, texts: &BTreeMap<String, String>) -> Self {
        let text = |path: &str| texts.get(path).map_or("", String::as_str);
        let memory = |name: &str| {
            let line = text(MEMINFO).lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            number.unwrap_or(0) << 10
        };
        let histogram = |trace: ExitTrace| {
            let text = text(&events::histogram(trace.directory));
            exits::parse(text, trace.reason, make).collect()
        };
        Self {
            at,
            memory_bytes: memory("MemTotal:"),
            free_bytes: memory("MemFree:"),
            listed_bytes: zoneinfo::on_processors(text(ZONEINFO)) << 12,
            fmfi: buddy::unusable_index(&buddy::parse(text(BUDDYINFO))),
            vmstat: text(VMSTAT)
                .lines()
                .filter(|line| KEPT.iter().any(|start| line.starts_with(start)))
                .filter_map(|line| {
                    let (name, number) = line.split_once(' ')?;
                    Some((name.to_owned(), number.parse().ok()?))
                })
                .collect(),
            kvm: texts
                .iter()
                .filter_map(|(path, text)| {
                    let name = path.strip_prefix(KVM)?.strip_prefix('/')?;
                    Some((name.to_owned(), text.trim().parse().ok()?))
                })
                .collect(),
            exits: histogram(exits::ALL),
            nested_exits: histogram(exits::NESTED),
            reflected_exits: histogram(exits::REFLECTED),
            events: events::counts(texts),
            warnings: text(WARNINGS).trim().parse().unwrap_or(0),
        }
    }

    /// A counter of KVM; 0 where there is none of that name.
    pub fn kvm(&self, name: &str) -> u64 {
        self.kvm.get(name).copied().unwrap_or(0)
    }

    /// A counter of `/proc/vmstat`; 0 where there is none of that name.
    pub fn vmstat(&self, name: &str) -> u64 {
        self.vmstat.get(name).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_from_the_files_of_a_layer() {
        let texts = [
            (VMSTAT, "nr_free_pages 5\nthp_fault_alloc 48\n"),
            (MEMINFO, "MemTotal:        1000 kB\nMemFree:          10 kB\n"),
            (ZONEINFO, "  pagesets\n    cpu: 0\n              count:    3\n"),
            (BUDDYINFO, "Node 0, zone DMA32 512 0 0 0 0 0 0 0 0 1 0\n"),
            ("/sys/kernel/debug/kvm/exits", "77\n"),
            ("/sys/kernel/debug/kvm/nested_align_promoted", "48\n"),
            ("/sys/kernel/tracing/events/kvm/x/hist", "{ common_cpu: 0 } hitcount: 9\n"),
            (WARNINGS, "2\n"),
            (
                "/sys/kernel/tracing/events/kvm/kvm_exit/hist",
                "{ exit_reason:         120 } hitcount:       7\n",
            ),
            (
                "/sys/kernel/tracing/events/kvm/kvm_nested_vmexit_inject/hist",
                "{ exit_code:       1024 } hitcount:       4\n",
            ),
        ];
        let texts = texts.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        let counters = Counters::parse(Make::Amd, 1.5, &texts);
        assert_eq!(counters.memory_bytes, 1_024_000);
        assert_eq!(counters.free_bytes, 10_240);
        assert_eq!(counters.listed_bytes, 3 << 12);
        assert_eq!(counters.fmfi, 0.5);
        assert_eq!(counters.vmstat("thp_fault_alloc"), 48);
        assert_eq!(counters.vmstat.len(), 1);
        assert_eq!(counters.kvm("exits"), 77);
        // Whatever KVM counts.
        assert_eq!(counters.kvm("nested_align_promoted"), 48);
        assert_eq!(counters.exits["HLT"], 7);
        assert_eq!(counters.reflected_exits["NPF"], 4);
        assert_eq!(counters.events, [("kvm:x".to_owned(), 9)].into());
        assert_eq!(counters.warnings, 2);
    }
}
