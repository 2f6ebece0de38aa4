//! What software work costs, and where the cycles went.

use crate::frames::KernelCounters;

strata_params::parameters! {
    /// Cycles of software work. Defaults marked `?` are estimates without a published source for
    /// the modelled machine.
    pub struct Costs {
        /// A page fault in a kernel: entry, VMA lookup, page-table update, return. `?`
        fault: u64 = 1000, "fault.cycles", "cycles";
        /// Zeroing a base page: 4 KiB at about 8 B per cycle (one core's streaming bandwidth). `?`
        zero: u64 = 512, "zero.cycles", "cycles per base page";
        /// Copying a base page: 4 KiB read and written at about 4 B per cycle. `?`
        copy: u64 = 1024, "copy.cycles", "cycles per base page";
        /// Moving a page besides the copy: unmap, reverse map, remap. `?`
        migrate: u64 = 1000, "migrate.cycles", "cycles per base page";
        /// Looking at one page-table entry in a background scan. `?`
        scan: u64 = 10, "scan.cycles", "cycles per entry";
        /// Invalidating TLB entries of another CPU: inter-processor interrupt and wait. `?`
        shootdown: u64 = 2000, "shootdown.cycles", "cycles per flush";
    }
}

/// What cycles of a kernel's memory management go to, in the order of [`KernelCounters::fault_cycles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum KernelWork {
    /// Handling faults: entry, lookup, page-table update, return.
    Handling = 0,
    /// Zeroing pages.
    Zeroing = 1,
    /// Copying pages.
    Copying = 2,
    /// Moving pages besides the copy.
    Moving = 3,
    /// Looking at page-table entries.
    Scanning = 4,
}

impl KernelWork {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Handling, Self::Zeroing, Self::Copying, Self::Moving, Self::Scanning];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Handling => "handling",
            Self::Zeroing => "zeroing",
            Self::Copying => "copying",
            Self::Moving => "moving",
            Self::Scanning => "scanning",
        }
    }
}

/// What cycles of software work were spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Spending {
    /// Page faults of the guest kernel.
    GuestFault = 0,
    /// Faults of hypervisors on their guest's memory.
    HypervisorFault = 1,
    /// VM exits and entries.
    Exit = 2,
    /// Background work: scans, promotions, migrations, compaction.
    Background = 3,
    /// TLB invalidations.
    Shootdown = 4,
}

impl Spending {
    /// Every kind, in the order of [`Spent`].
    pub const ALL: [Self; 5] =
        [Self::GuestFault, Self::HypervisorFault, Self::Exit, Self::Background, Self::Shootdown];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GuestFault => "guest_faults",
            Self::HypervisorFault => "hypervisor_faults",
            Self::Exit => "exits",
            Self::Background => "background",
            Self::Shootdown => "shootdowns",
        }
    }
}

/// Cycles by [`Spending`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent(pub [u64; 5]);

impl Spent {
    /// Adds cycles to a kind.
    pub fn add(&mut self, kind: Spending, cycles: u64) {
        self.0[kind as usize] += cycles;
    }

    /// Everything so far, and starts anew.
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Whether nothing was spent.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 5]
    }
}

/// Cycles of kernel work between two readings of a kernel's counters, by [`KernelWork`].
pub(crate) fn kernel_cycles(
    costs: &Costs,
    before: &KernelCounters,
    after: &KernelCounters,
) -> [u64; KernelWork::ALL.len()] {
    [
        (after.faults - before.faults) * costs.fault,
        (after.zeroed_pages - before.zeroed_pages) * costs.zero,
        (after.copied_pages - before.copied_pages) * costs.copy,
        (after.migrated_pages - before.migrated_pages) * costs.migrate,
        (after.scanned_pages - before.scanned_pages) * costs.scan,
    ]
}
