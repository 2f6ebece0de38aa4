//! What the standard library has no name for: `PAGEMAP_SCAN`, and CPUID. All unsafe code of the crate is
//! here.
//!
//! `PAGEMAP_SCAN`: Linux 6.7 and later; `Documentation/admin-guide/mm/pagemap.rst` and `include/uapi/linux/fs.h`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `PAGE_IS_HUGE`: mapped by one PMD entry (or a hugetlb entry).
const PAGE_IS_HUGE: u64 = 1 << 6;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Debug, Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// Ranges of one call. A range ends where an area does or huge mappings stop, so that most
/// processes need one call.
const RANGES: usize = 512;

/// Appends to `found` the ranges of `start..end` that huge mappings map, as `(start, end)` in bytes,
/// sorted. `pagemap` is an open `/proc/PID/pagemap`; both bounds are multiples of 4 KiB.
///
/// # Errors
/// `ENOTTY` before Linux 6.7 and for ordinary files; others as the system says, when the process is
/// gone for one.
pub fn huge_ranges(
    pagemap: &File,
    start: u64,
    end: u64,
    found: &mut Vec<(u64, u64)>,
) -> io::Result<()> {
    let mut at = start;
    let mut regions = [PageRegion::default(); RANGES];
    while at < end {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: at,
            end,
            vec: regions.as_mut_ptr() as u64,
            vec_len: RANGES as u64,
            category_mask: PAGE_IS_HUGE,
            return_mask: PAGE_IS_HUGE,
            ..ScanArg::default()
        };
        // SAFETY: `arg` and the `vec_len` regions it points to live through the call, are laid out
        // as the kernel's structures and are written by nobody else. Without flags the call
        // changes nothing in the scanned process.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for region in &regions[..count.min(RANGES)] {
            match found.last_mut() {
                Some(last) if last.1 == region.start => last.1 = region.end,
                _ => found.push((region.start, region.end)),
            }
        }
        // The walk stops early only when the vector is full.
        if arg.walk_end <= at || count < RANGES {
            break;
        }
        at = arg.walk_end;
    }
    Ok(())
}

/// Whether this process has the rights of root.
pub fn is_root() -> bool {
    // SAFETY: the call reads one number of this process and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// EAX, EBX, ECX and EDX as the instruction CPUID answers; `None` on processors without it.
pub fn cpuid(leaf: u32, subleaf: u32) -> Option<[u32; 4]> {
    #[cfg(target_arch = "x86_64")]
    {
        // Later compilers call it safe.
        #[allow(unused_unsafe)]
        // SAFETY: every x86-64 processor has the instruction, and it changes nothing.
        let found = unsafe { std::arch::x86_64::__cpuid_count(leaf, subleaf) };
        Some([found.eax, found.ebx, found.ecx, found.edx])
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (leaf, subleaf);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernels() {
        assert_eq!(size_of::<PageRegion>(), 24);
        assert_eq!(size_of::<ScanArg>(), 96, "the size is part of the ioctl's number");
    }

    #[test]
    fn an_ordinary_file_has_no_pagemap() {
        let file = tempfile::tempfile().unwrap();
        assert!(huge_ranges(&file, 0, 1 << 21, &mut Vec::new()).is_err());
    }
}
