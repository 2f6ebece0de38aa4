//! How much of this computer's memory a sweep may use.

use std::fs;

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

/// Bytes that can be used without swapping: `MemAvailable` of `/proc/meminfo`. `None` where that
/// cannot be read.
pub fn available() -> Option<u64> {
    parse_available(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
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
    fn meminfo_is_read_in_kibibytes() {
        let text = "MemTotal:       24000000 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n";
        assert_eq!(parse_available(text), Some(1 << 20));
        assert_eq!(parse_available("MemTotal: 5 kB\n"), None);
        assert_eq!(parse_available("MemAvailable: many kB\n"), None);
    }

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
