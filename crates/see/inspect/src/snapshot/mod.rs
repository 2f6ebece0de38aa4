//! A whole snapshot in memory, and what takes a scan's findings one by one.

pub mod entry;
pub mod format;
pub mod hot;
pub mod model;
pub mod pseudo;
pub mod region;
pub mod usage;

use crate::snapshot::hot::HotRegion;
use crate::snapshot::model::{Head, Process, Tail, Vm};
use crate::snapshot::pseudo::PseudoHuge;
use crate::snapshot::region::Region;
use crate::snapshot::usage::Usage;
use std::io;

/// Takes what a scan finds, in the order in which it is found: the head, the processes, the use of
/// the guest's memory, each VM followed by its pseudo huge pages and its regions, each of these by what
/// was used of them, the tail.
pub trait Sink {
    /// The beginning.
    ///
    /// # Errors
    /// When it cannot be kept.
    fn head(&mut self, head: Head) -> io::Result<()>;
    /// A process with its areas and huge pages.
    ///
    /// # Errors
    /// When it cannot be kept.
    fn process(&mut self, process: Process) -> io::Result<()>;
    /// Some regions of this layer's own memory, in order.
    ///
    /// # Errors
    /// When they cannot be kept.
    fn usage(&mut self, usage: &[Usage]) -> io::Result<()>;
    /// A VM.
    ///
    /// # Errors
    /// When it cannot be kept.
    fn vm(&mut self, vm: Vm) -> io::Result<()>;
    /// Pseudo huge pages of the last VM's own guests, in order.
    ///
    /// # Errors
    /// When they cannot be kept.
    fn pseudo_huge(&mut self, pages: &[PseudoHuge]) -> io::Result<()>;
    /// Some regions of the last VM, in order.
    ///
    /// # Errors
    /// When they cannot be kept.
    fn regions(&mut self, regions: Vec<Region>) -> io::Result<()>;
    /// What was used of some regions of the last VM, in order.
    ///
    /// # Errors
    /// When it cannot be kept.
    fn hot(&mut self, hot: &[HotRegion]) -> io::Result<()>;
    /// The end.
    ///
    /// # Errors
    /// When it cannot be kept.
    fn tail(&mut self, tail: Tail) -> io::Result<()>;
}

/// A snapshot of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The layer.
    pub head: Head,
    /// Its processes that have huge pages.
    pub processes: Vec<Process>,
    /// What its own memory is used for, in order of address; empty when that was not to be seen.
    pub usage: Vec<Usage>,
    /// Its VMs.
    pub vms: Vec<BackedVm>,
    /// How the scan went.
    pub tail: Tail,
}

/// A VM and how its memory is backed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BackedVm {
    /// The VM.
    pub vm: Vm,
    /// What of its own guests is mapped huge though it has base pages there, in order; empty, too,
    /// where [`Vm::lists_pseudo_huge`] says that this is not known.
    pub pseudo_huge: Vec<PseudoHuge>,
    /// Its regions in order of address.
    pub regions: Vec<Region>,
    /// What was used of them, in order; empty where [`Vm::watched`] says that nobody watched.
    pub hot: Vec<HotRegion>,
}

impl BackedVm {
    /// The region of this index (GPA divided by 2 MiB).
    pub fn region(&self, index: u64) -> Option<&Region> {
        let at = self.regions.binary_search_by_key(&index, |region| region.index).ok()?;
        Some(&self.regions[at])
    }
}

impl Snapshot {
    /// How its guest uses the region of this index, if that was seen.
    pub fn usage(&self, index: u64) -> Option<&Usage> {
        let at = self.usage.binary_search_by_key(&index, |usage| usage.index).ok()?;
        Some(&self.usage[at])
    }
}

impl Sink for Snapshot {
    fn head(&mut self, head: Head) -> io::Result<()> {
        self.head = head;
        Ok(())
    }

    fn process(&mut self, process: Process) -> io::Result<()> {
        self.processes.push(process);
        Ok(())
    }

    fn usage(&mut self, usage: &[Usage]) -> io::Result<()> {
        self.usage.extend_from_slice(usage);
        Ok(())
    }

    fn vm(&mut self, vm: Vm) -> io::Result<()> {
        self.vms.push(BackedVm { vm, ..BackedVm::default() });
        Ok(())
    }

    fn pseudo_huge(&mut self, pages: &[PseudoHuge]) -> io::Result<()> {
        let vm = self.vms.last_mut().ok_or(io::ErrorKind::InvalidInput)?;
        vm.pseudo_huge.extend_from_slice(pages);
        Ok(())
    }

    fn regions(&mut self, regions: Vec<Region>) -> io::Result<()> {
        let vm = self.vms.last_mut().ok_or(io::ErrorKind::InvalidInput)?;
        vm.regions.extend(regions);
        Ok(())
    }

    fn hot(&mut self, hot: &[HotRegion]) -> io::Result<()> {
        let vm = self.vms.last_mut().ok_or(io::ErrorKind::InvalidInput)?;
        vm.hot.extend_from_slice(hot);
        Ok(())
    }

    fn tail(&mut self, tail: Tail) -> io::Result<()> {
        self.tail = tail;
        Ok(())
    }
}
