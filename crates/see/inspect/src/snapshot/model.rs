//! What a snapshot says in words and numbers; the packed parts are in [`crate::snapshot::region`] and
//! [`crate::snapshot::usage`].

use crate::snapshot::hot::Watched;
use crate::text::buddy::Zone;
use crate::text::cmdline::Vmm;
use crate::text::maps::Kind;
use crate::text::pagetype::FreeList;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The layer a snapshot was taken in, at its beginning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The program that wrote the snapshot.
    pub program: String,
    /// Which machine.
    pub machine: Machine,
    /// What its memory management is set to.
    pub settings: Settings,
}

/// Which machine, and when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Host name.
    pub host: String,
    /// `/etc/machine-id`.
    pub machine_id: Option<String>,
    /// Random id of this boot.
    pub boot_id: Option<String>,
    /// Product UUID of the firmware tables: in a VM the one its VMM gave it.
    pub product_uuid: Option<String>,
    /// Kernel release.
    pub kernel: String,
    /// Whether the CPU says that a hypervisor runs below.
    pub virtual_machine: Option<bool>,
    /// Nanoseconds since 1970 by the machine's own clock.
    pub wall_ns: u64,
    /// Milliseconds since boot.
    pub uptime_ms: u64,
    /// System RAM, as ranges of bytes.
    pub ram: Vec<(u64, u64)>,
    /// Bytes of usable memory.
    pub memory: u64,
}

impl Machine {
    /// When it booted, in nanoseconds since 1970 by its own clock.
    pub fn booted_ns(&self) -> u64 {
        self.wall_ns.saturating_sub(self.uptime_ms.saturating_mul(1_000_000))
    }
}

/// Settings and counters of the layer's memory management.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Chosen words of `/sys/kernel/mm/transparent_hugepage/*`, `hugepages-2048kB/*` with its
    /// directory.
    pub thp: BTreeMap<String, String>,
    /// `/sys/kernel/mm/transparent_hugepage/khugepaged/*`.
    pub khugepaged: BTreeMap<String, String>,
    /// `/sys/kernel/mm/ksm/*`.
    pub ksm: BTreeMap<String, String>,
    /// Parameters of the modules kvm, kvm_amd and kvm_intel, `module.parameter`.
    pub kvm: BTreeMap<String, String>,
    /// Bytes of swap, all and free.
    pub swap: (u64, u64),
    /// Free blocks of memory.
    pub zones: Vec<Zone>,
    /// The same by what they are for. Empty in older snapshots.
    #[serde(default)]
    pub free_lists: Vec<FreeList>,
    /// Counters of `/proc/vmstat` on huge pages, compaction and migration, before the scan.
    pub vmstat: BTreeMap<String, u64>,
    /// Whether a balloon driver is bound in this layer.
    pub balloon: bool,
    /// Caches of the layer's processors, each once.
    #[serde(default)]
    pub caches: Vec<CpuCache>,
    /// Classes of service of resctrl: for each the `L3:` line of its schemata, empty where it has none.
    /// The class that everything is in to begin with is called `/`.
    #[serde(default)]
    pub cache_classes: BTreeMap<String, String>,
}

/// A cache as the layer's kernel knows it (CPUID leaf 4, or AMD's 0x8000001d, through sysfs). In a VM
/// that is what the VMM says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuCache {
    /// 1 is nearest to the core.
    pub level: u8,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Sets, of all slices together.
    pub sets: u64,
    /// Ways.
    pub ways: u32,
    /// Bytes in a line.
    pub line_bytes: u32,
    /// The processors that share it, such as `0-19`; empty where that is not known.
    pub cpus: String,
    /// Whether a function of all address bits may choose the set (CPUID leaf 4, bit 2 of EDX); `None`
    /// where the processor does not say, as AMD's do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complex_index: Option<bool>,
}

/// A process of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Name of the program.
    pub name: String,
    /// Clock ticks since boot at its start; tells apart processes of one id.
    pub started: u64,
    /// Areas with huge pages.
    pub areas: Vec<GuestArea>,
    /// Base pages' worth of regions whose state changed on every reading.
    pub uncertain: u64,
}

/// An area of a guest's process that has huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestArea {
    /// First byte, a GVA.
    pub start: u64,
    /// First byte behind it.
    pub end: u64,
    /// Its name, empty for unnamed memory.
    pub name: String,
    /// Code may run from it.
    #[serde(default)]
    pub executable: bool,
    /// Huge pages: GVA divided by 2 MiB, and frame (GPA divided by 4 KiB). Packed in the file.
    #[serde(skip)]
    pub huge: Vec<HugePage>,
}

/// A huge page of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePage {
    /// GVA divided by 2 MiB.
    pub region: u64,
    /// First frame: GPA divided by 4 KiB.
    pub frame: u64,
    /// It changed on every reading.
    pub uncertain: bool,
}

/// Where memory slots were learned from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotSource {
    /// The VMM told, over QMP.
    Qmp,
    /// Inferred from its command line and the sizes of its mappings.
    #[default]
    Inferred,
    /// Not known.
    Unknown,
}

/// A VM of a hypervisor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Vm {
    /// The VMM's process id.
    pub pid: u32,
    /// The file descriptor of the VM in that process.
    pub fd: u32,
    /// Name of the program.
    pub comm: String,
    /// When the VMM started, in milliseconds since this layer's boot.
    pub started_ms: u64,
    /// What the command line says.
    pub vmm: Vmm,
    /// Where the slots were learned from.
    pub source: SlotSource,
    /// How, or why not, in words.
    pub evidence: String,
    /// Memory slots in order of GPA.
    pub slots: Vec<Slot>,
    /// The VMM's areas that hold guest memory, in order of address.
    pub areas: Vec<VmmArea>,
    /// `prctl(PR_SET_THP_DISABLE)` of the VMM: `THP_enabled: 0` in its status.
    pub thp_disabled: Option<bool>,
    /// A migration or dirty-rate measurement runs: KVM logs dirty pages. Known from QMP only.
    pub dirty_logging: Option<bool>,
    /// Bytes that its balloon holds. Known from QMP only.
    #[serde(default)]
    pub ballooned: Option<u64>,
    /// The kernel tells which regions of the VM's own guests it maps huge although the VM has them in
    /// base pages.
    #[serde(default)]
    pub lists_pseudo_huge: bool,
    /// The class of service of resctrl that the VMM is in, where there are any.
    #[serde(default)]
    pub cache_class: Option<String>,
    /// How it was watched for what it uses, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watched: Option<Watched>,
    /// KVM's counters of the VM, from debugfs.
    pub stats: BTreeMap<String, u64>,
}

impl Vm {
    /// How to name it to a person.
    pub fn label(&self) -> String {
        match &self.vmm.name {
            Some(name) => format!("{name} (pid {})", self.pid),
            None => format!("{} (pid {})", self.comm, self.pid),
        }
    }

    /// Bytes in its slots.
    pub fn memory(&self) -> u64 {
        self.slots.iter().fold(0, |sum, slot| sum.saturating_add(slot.size))
    }

    /// The slot that holds a GPA.
    pub fn slot(&self, gpa: u64) -> Option<&Slot> {
        let at = self.slots.partition_point(|slot| slot.gpa <= gpa);
        let slot = self.slots.get(at.checked_sub(1)?)?;
        (gpa - slot.gpa < slot.size).then_some(slot)
    }

    /// The area that holds an HVA.
    pub fn area(&self, hva: u64) -> Option<&VmmArea> {
        let at = self.areas.partition_point(|area| area.start <= hva);
        let area = self.areas.get(at.checked_sub(1)?)?;
        (hva < area.end).then_some(area)
    }
}

/// A memory slot: guest-physical memory and where it is in the VMM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// First guest-physical byte.
    pub gpa: u64,
    /// First byte in the VMM.
    pub hva: u64,
    /// Bytes.
    pub size: u64,
}

impl Slot {
    /// Whether a 2 MiB-aligned GPA lies at a 2 MiB-aligned HVA. KVM uses no huge mapping in a slot
    /// where it does not (`kvm_alloc_memslot_metadata` in `arch/x86/kvm/x86.c`).
    pub fn congruent(&self) -> bool {
        (self.gpa ^ self.hva).trailing_zeros() >= crate::snapshot::region::SHIFT
    }

    /// The HVA of a GPA in the slot.
    pub fn hva(&self, gpa: u64) -> u64 {
        self.hva.wrapping_add(gpa.wrapping_sub(self.gpa))
    }
}

/// An area of a VMM that holds guest memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmmArea {
    /// First byte.
    pub start: u64,
    /// First byte behind it.
    pub end: u64,
    /// What stands behind it.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// `huge=` of the tmpfs mount it is on.
    pub mount_huge: Option<String>,
    /// Two-letter flags of smaps.
    pub flags: Vec<String>,
    /// Bytes in KSM pages, where the kernel tells.
    pub ksm: Option<u64>,
}

impl VmmArea {
    /// Whether smaps shows this flag.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }
}

/// Something the scan could not see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blind {
    /// What, and why not.
    pub what: String,
    /// What is lost by that.
    pub cost: String,
}

/// What is known at the end of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tail {
    /// Milliseconds the scan took.
    pub took_ms: u64,
    /// Processes that ended while they were read.
    pub gone: u64,
    /// 2 MiB regions read again because they changed between two readings.
    pub reread: u64,
    /// Regions that changed on every reading.
    pub uncertain: u64,
    /// Counters of `/proc/vmstat` that moved during the scan, by how much.
    pub moved: BTreeMap<String, u64>,
    /// How huge mappings were recognised: `PAGEMAP_SCAN` or `kpageflags`.
    pub huge_by: String,
    /// What could not be seen.
    pub blind: Vec<Blind>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_areas_are_found_by_address() {
        let slot = Slot { gpa: 0x20_0000, hva: 0x7f00_0040_0000, size: 0x40_0000 };
        let area = VmmArea { start: 10, end: 20, ..VmmArea::default() };
        let vm = Vm { slots: vec![slot], areas: vec![area], ..Vm::default() };
        assert_eq!(vm.slot(0x1f_ffff), None);
        assert_eq!(vm.slot(0x20_0000), Some(&slot));
        assert_eq!(vm.slot(0x60_0000), None);
        assert_eq!(slot.hva(0x20_1000), 0x7f00_0040_1000);
        assert!(slot.congruent());
        assert!(!Slot { hva: 0x7f00_0010_0000, ..slot }.congruent());
        assert!(vm.area(9).is_none() && vm.area(19).is_some() && vm.area(20).is_none());
    }
}
