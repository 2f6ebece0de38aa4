//! Why a region of a VM is not backed by a huge mapping that the hardware can use, and what helps.
//!
//! Causes are looked for in the order in which they forbid: what makes a huge mapping impossible
//! comes before what merely prevents one now. What is left when everything permits one is
//! fragmentation or time.

use crate::snapshot::model::{Settings, Vm, VmmArea};
use crate::snapshot::region::{Class, PAGES, Region};
use crate::text::buddy::{Zone, unusable_index};
use crate::text::maps::Kind;
use serde::{Serialize, Serializer};

/// A cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// GPA and HVA differ modulo 2 MiB, or a slot ends within the region.
    SlotMisaligned,
    /// The memory is in swap.
    Swap,
    /// KSM merged base pages.
    Ksm,
    /// The area is registered with userfaultfd.
    Userfaultfd,
    /// `madvise(MADV_NOHUGEPAGE)` on the area.
    NoHugepage,
    /// `prctl(PR_SET_THP_DISABLE)` on the VMM.
    ProcessDisabled,
    /// THP is off in the layer.
    ThpDisabled,
    /// THP needs advice that the VMM did not give.
    MadviseOnly,
    /// memfd or other shmem, and THP for shmem is off or needs advice.
    ShmemWithoutThp,
    /// A file whose file system has no huge pages.
    FileWithoutThp,
    /// KVM maps base pages to log which are written.
    DirtyLogging,
    /// KVM split huge mappings that code runs from.
    NxHugePages,
    /// A balloon took pages out, which leaves base pages even when they are back.
    BalloonHole,
    /// Never written, so only the zero page is mapped.
    ZeroPage,
    /// Nothing is allocated, or not all of it.
    NotBacked,
    /// No free huge page to be had.
    Fragmentation,
    /// Everything permits a huge page; khugepaged has not come by.
    NotYetCollapsed,
    /// The VM has no such memory: the snapshots do not fit.
    OutsideMemory,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 18] = [
        Self::SlotMisaligned,
        Self::Swap,
        Self::Ksm,
        Self::Userfaultfd,
        Self::NoHugepage,
        Self::ProcessDisabled,
        Self::ThpDisabled,
        Self::MadviseOnly,
        Self::ShmemWithoutThp,
        Self::FileWithoutThp,
        Self::DirtyLogging,
        Self::NxHugePages,
        Self::BalloonHole,
        Self::ZeroPage,
        Self::NotBacked,
        Self::Fragmentation,
        Self::NotYetCollapsed,
        Self::OutsideMemory,
    ];

    /// Its name in output and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::SlotMisaligned => "slot-misaligned",
            Self::Swap => "swap",
            Self::Ksm => "ksm",
            Self::Userfaultfd => "userfaultfd",
            Self::NoHugepage => "vm-nohugepage",
            Self::ProcessDisabled => "prctl-thp-disable",
            Self::ThpDisabled => "thp-disabled",
            Self::MadviseOnly => "madvise-only",
            Self::ShmemWithoutThp => "shmem-without-thp",
            Self::FileWithoutThp => "file-without-thp",
            Self::DirtyLogging => "dirty-logging",
            Self::NxHugePages => "nx-huge-pages",
            Self::BalloonHole => "balloon-hole",
            Self::ZeroPage => "zero-page",
            Self::NotBacked => "not-backed",
            Self::Fragmentation => "fragmentation",
            Self::NotYetCollapsed => "not-yet-collapsed",
            Self::OutsideMemory => "outside-memory",
        }
    }

    /// What helps, in the layer that is responsible, in one line.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::SlotMisaligned => {
                "let the VMM map guest memory at a 2 MiB multiple (QEMU: memory-backend-file \
                 align=2M; a memfd has no such option: hugetlb=on)"
            }
            Self::Swap => {
                "give the host memory or lock the guest's (QEMU: -overcommit mem-lock=on)"
            }
            Self::Ksm => "exclude this VM from KSM (QEMU: -machine mem-merge=off), then unmerge",
            Self::Userfaultfd => {
                "wait for postcopy or the snapshot to finish; restore without userfaultfd otherwise"
            }
            Self::NoHugepage => "do not advise MADV_NOHUGEPAGE on guest memory in the VMM",
            Self::ProcessDisabled => {
                "start the VMM without PR_SET_THP_DISABLE (look at its launcher or unit file)"
            }
            Self::ThpDisabled => {
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, with a VMM that \
                 advises; or echo always"
            }
            Self::MadviseOnly => {
                "echo always > /sys/kernel/mm/transparent_hugepage/enabled, or a VMM option for \
                 MADV_HUGEPAGE (cloud-hypervisor: thp=on)"
            }
            Self::ShmemWithoutThp => {
                "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled (tmpfs: mount with \
                 huge=advise) if the VMM advises, else always; or back it by hugetlb"
            }
            Self::FileWithoutThp => "back guest memory by memfd, tmpfs with huge=, or hugetlb",
            Self::DirtyLogging => {
                "end the migration or dirty-rate measurement; KVM maps huge pages again afterwards"
            }
            Self::NxHugePages => {
                "if the CPU is not affected or the guest trusted: kvm.nx_huge_pages=off"
            }
            Self::BalloonHole => {
                "deflate the balloon, and let khugepaged collapse what is left of it (faster: \
                 khugepaged/pages_to_scan); free-page-reporting=on takes whole 2 MiB"
            }
            Self::ZeroPage => "nothing: the first write allocates, huge where permitted",
            Self::NotBacked => {
                "preallocate (QEMU: memory-backend prealloc=on), or let khugepaged collapse: \
                 raise khugepaged/max_ptes_none"
            }
            Self::Fragmentation => {
                "echo 1 > /proc/sys/vm/compact_memory; set transparent_hugepage/defrag to \
                 defer+madvise; reserve hugetlb at boot"
            }
            Self::NotYetCollapsed => {
                "raise khugepaged/pages_to_scan or lower scan_sleep_millisecs, or wait"
            }
            Self::OutsideMemory => "choose the right VM with --vm, and scan both layers again",
        }
    }

    /// Whether the lower layer has nothing there yet (type 1), or something that would have to be
    /// moved first (type 2).
    pub fn is_type1(self, region: &Region) -> bool {
        region.present == 0
    }
}

impl Serialize for Cause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// FMFI from which missing huge pages are blamed on fragmentation while some are free: half of free
/// memory is of no use to a huge page.
pub const FRAGMENTED: f64 = 0.5;

/// A layer's readiness to give huge pages.
#[derive(Clone, Debug)]
pub struct Ground<'a> {
    settings: &'a Settings,
    /// FMFI for order 9, 0 to 1.
    pub fmfi: f64,
    /// Free huge pages.
    pub free_huge: u64,
}

impl<'a> Ground<'a> {
    /// Sums up a layer's settings.
    pub fn new(settings: &'a Settings) -> Self {
        Self {
            settings,
            fmfi: unusable_index(&settings.zones),
            free_huge: settings.zones.iter().map(Zone::free_huge).sum(),
        }
    }

    fn thp(&self, name: &str) -> &str {
        self.settings.thp.get(name).map_or("never", String::as_str)
    }

    /// `enabled` for 2 MiB: the setting of the size where it does not inherit (Linux 6.8).
    fn enabled(&self) -> &str {
        match self.settings.thp.get("hugepages-2048kB/enabled").map(String::as_str) {
            Some("inherit") | None => self.thp("enabled"),
            Some(own) => own,
        }
    }

    fn shmem_enabled(&self) -> &str {
        match self.settings.thp.get("hugepages-2048kB/shmem_enabled").map(String::as_str) {
            Some("inherit") | None => self.thp("shmem_enabled"),
            Some(own) => own,
        }
    }

    /// Whether missing huge pages are the fault of fragmentation now.
    pub fn fragmented(&self) -> bool {
        !self.settings.zones.is_empty() && (self.free_huge == 0 || self.fmfi >= FRAGMENTED)
    }
}

/// What a VM's balloon may have to do with missing huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balloon {
    /// Nothing: there is none, or it never took a page.
    Unused,
    /// There is one, and no more is known.
    There,
    /// It took pages. A page that it took leaves the rest of its region in base pages, and comes
    /// back as one.
    Used,
}

impl Balloon {
    /// What is known of the balloon of `vm`, whose guest has these settings, if they are known.
    pub fn of(vm: &Vm, guest: Option<&Settings>) -> Self {
        if !vm.vmm.balloon {
            return Self::Unused;
        }
        // The guest's own count, since its boot, is of all that was ever taken.
        let taken = guest.and_then(|guest| guest.vmstat.get("balloon_inflate").copied());
        match taken.or(vm.ballooned) {
            None => Self::There,
            Some(0) => Self::Unused,
            Some(_) => Self::Used,
        }
    }
}

/// What is true of a whole VM.
#[derive(Clone, Copy, Debug)]
pub struct Whole {
    /// What KVM does to all its huge mappings, see [`kvm_splits`].
    pub split: Option<Cause>,
    /// Its balloon.
    pub balloon: Balloon,
}

/// Why the hardware cannot use one huge mapping for a region; `None` when it can.
pub fn of_region(ground: &Ground<'_>, vm: &Vm, region: &Region, whole: Whole) -> Option<Cause> {
    let Some(slot) = vm.slot(region.start()).filter(|_| !region.partial) else {
        let touches = |slot: &crate::snapshot::model::Slot| {
            slot.gpa < region.start() + (2 << 20) && slot.gpa + slot.size > region.start()
        };
        let inside = vm.slots.iter().any(touches);
        return Some(if inside { Cause::SlotMisaligned } else { Cause::OutsideMemory });
    };
    if !slot.congruent() {
        return Some(Cause::SlotMisaligned);
    }
    match region.class {
        Class::Huge => return whole.split,
        Class::Swapped => return Some(Cause::Swap),
        Class::Ksm => return Some(Cause::Ksm),
        Class::Zero => return Some(Cause::ZeroPage),
        Class::Absent | Class::Contiguous | Class::Scattered => {}
    }
    let area = vm.area(slot.hva(region.start()));
    if let Some(cause) = area.and_then(|area| forbidden(ground, vm, area)) {
        return Some(cause);
    }
    let complete = usize::from(region.present) == PAGES;
    Some(match (whole.balloon, region.present) {
        (Balloon::There | Balloon::Used, _) if !complete => Cause::BalloonHole,
        (_, 0) => Cause::NotBacked,
        _ if !complete && !khugepaged_fills(ground, region) => Cause::NotBacked,
        _ if ground.fragmented() => Cause::Fragmentation,
        (Balloon::Used, _) => Cause::BalloonHole,
        _ => Cause::NotYetCollapsed,
    })
}

/// What forbids huge pages where the region lies, whatever else is wrong with it: what remains when
/// the cause that [`of_region`] names is gone.
pub fn behind(ground: &Ground<'_>, vm: &Vm, region: &Region) -> Option<Cause> {
    let slot = vm.slot(region.start())?;
    forbidden(ground, vm, vm.area(slot.hva(region.start()))?)
}

/// Whether khugepaged would collapse the region in spite of its missing pages.
fn khugepaged_fills(ground: &Ground<'_>, region: &Region) -> bool {
    let limit = ground.settings.khugepaged.get("max_ptes_none");
    // The kernel's default is 511.
    let limit = limit.and_then(|text| text.parse().ok()).unwrap_or(PAGES - 1);
    PAGES - usize::from(region.present) <= limit
}

/// What forbids huge pages in an area of the VMM.
fn forbidden(ground: &Ground<'_>, vm: &Vm, area: &VmmArea) -> Option<Cause> {
    if ["um", "uw", "ui"].iter().any(|flag| area.has(flag)) {
        return Some(Cause::Userfaultfd);
    }
    if area.kind == Kind::Hugetlb {
        return None;
    }
    if area.has("nh") {
        return Some(Cause::NoHugepage);
    }
    if vm.thp_disabled == Some(true) {
        return Some(Cause::ProcessDisabled);
    }
    let advised = area.has("hg");
    match area.kind {
        Kind::Anonymous => match ground.enabled() {
            "always" => None,
            "madvise" if advised => None,
            "madvise" => Some(Cause::MadviseOnly),
            _ => Some(Cause::ThpDisabled),
        },
        Kind::Shmem => shmem(ground.shmem_enabled(), advised),
        // `deny` and `force` hold for every mount (Documentation/admin-guide/mm/transhuge.rst).
        Kind::Tmpfs => match ground.thp("shmem_enabled") {
            "deny" => Some(Cause::ShmemWithoutThp),
            "force" => None,
            _ => shmem(area.mount_huge.as_deref().unwrap_or("never"), advised),
        },
        Kind::File => Some(Cause::FileWithoutThp),
        Kind::Hugetlb => None,
    }
}

fn shmem(setting: &str, advised: bool) -> Option<Cause> {
    match setting {
        "always" | "within_size" | "force" => None,
        "advise" if advised => None,
        _ => Some(Cause::ShmemWithoutThp),
    }
}

/// What makes KVM map base pages where the VMM has huge ones, for all of the VM. `huge` is the
/// number of regions that the VMM has huge.
///
/// Dirty logging is known from QMP; without it, it is concluded when KVM has mapped much and
/// nothing of it huge. Splits by nx_huge_pages are counted by KVM but not placed, so they are the
/// cause for all only when nothing huge is left.
pub fn kvm_splits(vm: &Vm, huge: u64) -> Option<Cause> {
    if vm.dirty_logging == Some(true) {
        return Some(Cause::DirtyLogging);
    }
    let stat = |name| vm.stats.get(name).copied();
    let (Some(small), Some(large)) = (stat("pages_4k"), stat("pages_2m")) else { return None };
    let mapped_small_only = large == 0 && stat("pages_1g").unwrap_or(0) == 0;
    // Few small mappings are those of the first megabyte and of devices.
    if huge == 0 || !mapped_small_only || small < 2 * PAGES as u64 {
        return None;
    }
    match stat("nx_lpage_splits") {
        Some(1..) => Some(Cause::NxHugePages),
        _ => Some(Cause::DirtyLogging),
    }
}

/// Huge mappings that nx_huge_pages has split and not yet joined again, anywhere in the VM.
pub fn nx_splits(vm: &Vm) -> u64 {
    vm.stats.get("nx_lpage_splits").copied().unwrap_or(0)
}
