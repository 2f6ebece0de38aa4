//! What an access is: who makes it, through which tables, and why it may not complete.

use strata_addr::space::{GuestPhysical, Virtual};
use strata_addr::{Gpa, Gva};
use strata_paging::{Radix, X86};

/// An address space of a guest, as the TLB tags it: VPID and PCID together, or the ASID. No two VMs
/// have one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asid(pub u16);

/// A second stage, as the walk caches tag what they know of it: EP4TA (SDM volume 3C, section
/// 29.4.1), or the VM's ASID (APM volume 2, section 15.16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VmTag(pub u16);

/// A CPU of a [`Machine`](crate::Machine); numbers are dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u32);

/// A load or store, as a CPU makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The address space.
    pub asid: Asid,
    /// The first byte.
    pub gva: Gva,
    /// Bytes, at most a page; 0 counts as 1.
    pub bytes: u32,
    /// Whether it stores.
    pub store: bool,
}

impl Request {
    /// A load.
    pub fn load(asid: Asid, gva: Gva, bytes: u32) -> Self {
        Self { asid, gva, bytes, store: false }
    }

    /// A store.
    pub fn store(asid: Asid, gva: Gva, bytes: u32) -> Self {
        Self { asid, gva, bytes, store: true }
    }
}

/// The tables that the hardware sees.
pub struct Tables<'a, F, U, L> {
    /// The VM whose second stage this is; of no meaning on a native machine.
    pub vm: VmTag,
    /// The guest's page table.
    pub guest: &'a mut Radix<X86, Virtual, GuestPhysical>,
    /// The second stage; `None` on a native machine, where guest physical addresses are host
    /// physical.
    pub second: Option<&'a mut Radix<F, U, L>>,
}

/// Why an access could not complete. Whoever handles it repeats the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A page fault, for the guest kernel.
    Guest {
        /// The address accessed.
        gva: Gva,
        /// Whether it was a store.
        store: bool,
        /// Whether the page is mapped, and the access broke its rights.
        present: bool,
    },
    /// A violation in the second stage, for the hypervisor.
    SecondStage {
        /// The guest physical address: of the data, or of an entry of the guest's table.
        gpa: Gpa,
        /// Whether it was to be written. With accessed and dirty flags in the second stage, every
        /// use of a guest table counts as a write.
        store: bool,
        /// Whether it is that of an entry of the guest's table.
        during_walk: bool,
    },
}
