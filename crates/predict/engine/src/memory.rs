//! How much of this computer's memory a sweep may use.

use nix::sys::resource::{Resource, getrlimit};
use sysinfo::{MemoryRefreshKind, ProcessRefreshKind, ProcessesToUpdate, System};

/// Bytes one run needs for each base page the workload touches: its share of page tables, frame
/// states and policy bookkeeping, with every layer mapping it at 4 KiB, the most expensive case.
pub const BYTES_PER_TOUCHED_PAGE: u64 = 90;

/// Bytes one run needs before it touches anything: caches, TLBs, allocator indices.
pub const BYTES_PER_RUN: u64 = 32 << 20;

/// The share of the available memory a sweep plans to use; the rest is left to the program under
/// study, the page cache and estimates that were too low.
const USABLE: f64 = 0.8;

/// Bytes for each HPAS region of a layer in which a frame was taken: states and owners.
const BYTES_PER_WRITTEN_REGION: u64 = 2300;

/// Bytes for each touched page besides what its region takes.
const BYTES_PER_SCATTERED_PAGE: u64 = 20;

/// Bits for each HPAS region of a layer, and a place in a list while all of it is backed.
const BYTES_PER_REGION: u64 = 10;

/// What one machine needs of this computer's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// As far as it is certain.
    pub least: u64,
    /// As far as it can be told, roughly.
    pub likely: u64,
}

/// What a machine will have to remember.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// HPAS regions of all layers.
    pub regions: u64,
    /// Base pages that are backed before the workload starts.
    pub pages_before: u64,
    /// Bytes that these and the pages certain to be touched take at least.
    pub least: u64,
    /// Base pages that the workload touches at most.
    pub pages_touched: u64,
    /// HPAS regions of fragmented memory that these may lie in: base pages fill the smallest holes
    /// first, and those are all over the memory.
    pub scattered: u64,
    /// Layers.
    pub layers: u64,
    /// Tables of hypervisors and the hardware that have entries for each page.
    pub tables: u64,
}

impl Extent {
    /// What that takes.
    pub fn need(&self) -> Need {
        let dense = self.pages_before.max(self.pages_touched) * BYTES_PER_TOUCHED_PAGE;
        // Of a scattered region all frame states and owners are written, and a page of each table.
        let region = self.layers * BYTES_PER_WRITTEN_REGION + self.tables * 4096;
        let scattered = self.pages_touched * BYTES_PER_SCATTERED_PAGE + self.scattered * region;
        let size = BYTES_PER_RUN + self.regions * BYTES_PER_REGION;
        Need { least: self.least, likely: size + dense.max(scattered) }
    }
}

/// Bytes one run over a workload of this footprint will need, roughly, on a machine of a size that
/// fits it.
pub fn estimate(footprint_bytes: u64) -> u64 {
    Extent { pages_touched: footprint_bytes.div_ceil(4096), ..Extent::default() }.need().likely
}

/// Bytes that can be had without swapping: the least of what the computer has available
/// (`MemAvailable` of `/proc/meminfo`), what the limit of the container it runs in leaves (its root
/// control group), and what that of its address space does (`ulimit -v`). `None` where that cannot
/// be told.
pub fn available() -> Option<u64> {
    let mut system = System::new();
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    let computer = system.available_memory();
    let this = sysinfo::get_current_pid().ok()?;
    let memory = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[this]), false, memory);
    let this = system.process(this)?;
    // The page cache of a group gives way, so only what is resident counts as used.
    let group = system.cgroup_limits().map(|group| group.total_memory.saturating_sub(group.rss));
    let (addresses, _) = getrlimit(Resource::RLIMIT_AS).ok()?;
    let addresses = addresses.saturating_sub(this.virtual_memory());
    Some(computer.min(addresses).min(group.unwrap_or(u64::MAX)))
}

/// Bytes a sweep may plan to use; `None` where that cannot be told.
pub fn usable() -> Option<u64> {
    available().map(|bytes| (bytes as f64 * USABLE) as u64)
}

/// How many of `runs` to hold in memory at once if each needs so many bytes: all that fit into
/// `limit` bytes, at least one. What is not known bounds nothing.
pub fn runs_at_once(runs: usize, each: Option<u64>, limit: Option<u64>) -> usize {
    let (Some(each), Some(limit)) = (each, limit) else {
        return runs;
    };
    ((limit / each.max(1)) as usize).clamp(1, runs.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn scattered_pages_take_what_their_regions_take() {
        let dense = Extent { pages_touched: 1 << 20, layers: 3, tables: 5, ..Extent::default() };
        assert_eq!(dense.need().likely, estimate(4 * GIB));
        // Measured: 4 GiB touched in 64 GiB, nested, base pages, a quarter of the frames taken:
        // 335 MB; 5 % taken: 821 MB.
        for (regions, measured) in [(10_900, 335e6), (32_768, 821e6)] {
            let extent = Extent { scattered: regions, regions: 110_000, ..dense };
            let ratio = extent.need().likely as f64 / measured;
            assert!((0.9..1.5).contains(&ratio), "{ratio}");
        }
    }

    #[test]
    fn as_many_runs_as_fit_and_never_none() {
        let at_once =
            |footprint: Option<u64>, limit| runs_at_once(5, footprint.map(estimate), limit);
        assert_eq!(at_once(Some(GIB), Some(16 * GIB)), 5);
        // 475 GiB at 90 bytes a page is 10.4 GiB a run.
        assert_eq!(at_once(Some(475 * GIB), Some(16 * GIB)), 1);
        assert_eq!(at_once(Some(475 * GIB), Some(24 * GIB)), 2);
        assert_eq!(at_once(Some(475 * GIB), Some(GIB)), 1);
        assert_eq!(at_once(None, Some(GIB)), 5);
        assert_eq!(at_once(Some(GIB), None), 5);
    }
}
