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

/// Bytes one run over a workload of this footprint will need, roughly.
pub fn estimate(footprint_bytes: u64) -> u64 {
    BYTES_PER_RUN + footprint_bytes.div_ceil(4096) * BYTES_PER_TOUCHED_PAGE
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

/// How many of `runs` to hold in memory at once: all that fit into `limit` bytes, at least one.
/// Without a known footprint or limit nothing bounds them.
pub fn runs_at_once(runs: usize, footprint_bytes: Option<u64>, limit: Option<u64>) -> usize {
    let (Some(footprint), Some(limit)) = (footprint_bytes, limit) else {
        return runs;
    };
    ((limit / estimate(footprint)) as usize).clamp(1, runs.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn as_many_runs_as_fit_and_never_none() {
        assert_eq!(runs_at_once(5, Some(GIB), Some(16 * GIB)), 5);
        // 475 GiB at 90 bytes a page is 10.4 GiB a run.
        assert_eq!(runs_at_once(5, Some(475 * GIB), Some(16 * GIB)), 1);
        assert_eq!(runs_at_once(5, Some(475 * GIB), Some(24 * GIB)), 2);
        assert_eq!(runs_at_once(5, Some(475 * GIB), Some(GIB)), 1);
        assert_eq!(runs_at_once(5, None, Some(GIB)), 5);
        assert_eq!(runs_at_once(5, Some(GIB), None), 5);
    }
}
