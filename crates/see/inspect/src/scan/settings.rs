//! What machine this is and what its memory management is set to.

use crate::scan::caches;
use crate::scan::tree::Tree;
use crate::snapshot::model::{Head, Machine, Settings};
use crate::text::{buddy, iomem, pagetype, pairs};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

const THP: &str = "sys/kernel/mm/transparent_hugepage";

/// Everything known before the scan.
pub fn head(tree: &Tree) -> Head {
    Head {
        program: concat!("strata ", env!("CARGO_PKG_VERSION")).to_owned(),
        machine: machine(tree),
        settings: settings(tree),
    }
}

fn machine(tree: &Tree) -> Machine {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let meminfo = pairs::numbers(&tree.maybe("proc/meminfo").unwrap_or_default());
    let cpuinfo = tree.maybe("proc/cpuinfo");
    let uuid = tree.maybe("sys/class/dmi/id/product_uuid").map(|uuid| uuid.to_ascii_lowercase());
    Machine {
        host: tree.maybe("proc/sys/kernel/hostname").unwrap_or_default(),
        machine_id: tree.maybe("etc/machine-id").filter(|id| !id.is_empty()),
        boot_id: tree.maybe("proc/sys/kernel/random/boot_id").filter(|id| !id.is_empty()),
        product_uuid: uuid.filter(|uuid| is_telling(uuid)),
        kernel: tree.maybe("proc/sys/kernel/osrelease").unwrap_or_default(),
        virtual_machine: cpuinfo.map(|text| {
            let flags = text.lines().find(|line| line.starts_with("flags"));
            flags.is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"))
        }),
        wall_ns: u64::try_from(now.as_nanos()).unwrap_or(0),
        uptime_ms: uptime_ms(tree),
        ram: iomem::system_ram(&tree.maybe("proc/iomem").unwrap_or_default()),
        memory: meminfo.get("MemTotal").copied().unwrap_or(0).saturating_mul(1024),
    }
}

/// Whether a UUID is more than a filler.
fn is_telling(uuid: &str) -> bool {
    uuid.len() == 36 && !uuid.chars().all(|c| matches!(c, '0' | '-' | 'f'))
}

/// Milliseconds since boot.
pub fn uptime_ms(tree: &Tree) -> u64 {
    let text = tree.maybe("proc/uptime").unwrap_or_default();
    let seconds: Option<f64> = text.split_whitespace().next().and_then(|word| word.parse().ok());
    seconds.map_or(0, |seconds| (seconds * 1000.0) as u64)
}

fn settings(tree: &Tree) -> Settings {
    let meminfo = pairs::numbers(&tree.maybe("proc/meminfo").unwrap_or_default());
    let bytes = |name| meminfo.get(name).copied().unwrap_or(0u64).saturating_mul(1024);
    let mut thp = choices(tree, THP, "");
    thp.extend(choices(tree, &format!("{THP}/hugepages-2048kB"), "hugepages-2048kB/"));
    let modules = ["kvm", "kvm_amd", "kvm_intel"].into_iter();
    Settings {
        thp,
        khugepaged: choices(tree, &format!("{THP}/khugepaged"), ""),
        ksm: choices(tree, "sys/kernel/mm/ksm", ""),
        kvm: modules
            .flat_map(|module| {
                choices(tree, &format!("sys/module/{module}/parameters"), &format!("{module}."))
            })
            .collect(),
        swap: (bytes("SwapTotal"), bytes("SwapFree")),
        zones: buddy::parse(&tree.maybe("proc/buddyinfo").unwrap_or_default()),
        free_lists: pagetype::parse(&tree.maybe("proc/pagetypeinfo").unwrap_or_default()),
        vmstat: vmstat(tree),
        balloon: tree
            .names("sys/bus/virtio/drivers/virtio_balloon")
            .iter()
            .any(|name| name.starts_with("virtio")),
        caches: caches::caches(tree),
        cache_classes: caches::classes(tree),
    }
}

fn choices(tree: &Tree, directory: &str, prefix: &str) -> BTreeMap<String, String> {
    let texts = tree.texts(directory).into_iter();
    let pairs = texts.map(|(name, text)| {
        let value = pairs::chosen(&text).unwrap_or(&text).to_owned();
        (format!("{prefix}{name}"), value)
    });
    pairs.collect()
}

/// The counters of `/proc/vmstat` that tell of huge pages, compaction, migration and swap.
pub fn vmstat(tree: &Tree) -> BTreeMap<String, u64> {
    let mut all = pairs::numbers(&tree.maybe("proc/vmstat").unwrap_or_default());
    all.retain(|name, _| {
        ["thp_", "compact_", "pgmigrate_", "pswp", "balloon_", "ksm_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fillers_are_no_uuid() {
        assert!(is_telling("12345678-1234-1234-1234-123456789abc"));
        for filler in ["00000000-0000-0000-0000-000000000000", "none", ""] {
            assert!(!is_telling(filler));
        }
    }

    #[test]
    fn this_machine_is_described() {
        let head = head(&Tree::default());
        assert!(!head.machine.kernel.is_empty() && head.machine.memory > 0);
        assert!(head.machine.uptime_ms > 0 && head.machine.booted_ns() > 0);
        assert!(!head.settings.zones.is_empty());
    }
}
