//! `PAGEMAP_SCAN` of Linux 6.7 and later, which the standard library has no name for: page tables are looked through
//! without a look at each page (`Documentation/admin-guide/mm/pagemap.rst` and `include/uapi/linux/fs.h`).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// What pages are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Mapped by one PMD entry, or a hugetlb entry: `PAGE_IS_HUGE`.
    Huge,
    /// In memory, or swapped out: `PAGE_IS_PRESENT` and `PAGE_IS_SWAPPED`.
    There,
}

impl Pages {
    fn categories(self) -> u64 {
        match self {
            Self::Huge => 1 << 6,
            Self::There => 1 << 3 | 1 << 4,
        }
    }
}

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

/// Ranges of one call. A range ends where an area does or such pages stop, so that most processes need one call.
const RANGES: usize = 512;

/// Appends to `found` the ranges of `start..end` that consist of such pages, as `(start, end)` in bytes, sorted.
/// `pagemap` is an open `/proc/PID/pagemap`; both bounds are multiples of 4 KiB.
///
/// # Errors
/// `ENOTTY` before Linux 6.7 and for ordinary files; others as the system says, when the process is gone for one.
pub fn ranges(
    pagemap: &File,
    start: u64,
    end: u64,
    of: Pages,
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
            category_anyof_mask: of.categories(),
            return_mask: of.categories(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    const PAGE: usize = 4096;

    #[test]
    fn structures_have_the_sizes_of_the_kernels() {
        assert_eq!(size_of::<PageRegion>(), 24);
        assert_eq!(size_of::<ScanArg>(), 96, "the size is part of the ioctl's number");
    }

    #[test]
    fn an_ordinary_file_has_no_pagemap() {
        let file = tempfile::tempfile().unwrap();
        for of in [Pages::Huge, Pages::There] {
            assert!(ranges(&file, 0, 1 << 21, of, &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn what_was_touched_is_found_in_any_number_of_ranges() {
        let bytes = 2 << 30;
        let (rights, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new mapping at an address the kernel picks disturbs nothing.
        let memory =
            unsafe { libc::mmap(ptr::null_mut(), bytes, rights, kind, -1, 0) }.cast::<u8>();
        assert_ne!(memory.cast(), libc::MAP_FAILED);
        // SAFETY: the mapping just made, of which each page has a place of its own.
        unsafe { libc::madvise(memory.cast(), bytes, libc::MADV_NOHUGEPAGE) };
        let touched: Vec<usize> = (0..2000).map(|number| number * 7).collect();
        for page in &touched {
            // SAFETY: within the mapping.
            unsafe { memory.add(page * PAGE).write(1) };
        }
        let (start, pagemap) = (memory as u64, File::open("/proc/self/pagemap").unwrap());
        let mut found = Vec::new();
        let end = start + bytes as u64;
        // A kernel before 6.7 cannot tell.
        if ranges(&pagemap, start, end, Pages::There, &mut found).is_ok() {
            let pages: Vec<usize> = found
                .iter()
                .flat_map(|(start, end)| (*start..*end).step_by(PAGE))
                .map(|at| (at - start) as usize / PAGE)
                .collect();
            assert_eq!(pages, touched);
            assert!(found.len() > RANGES, "{}", found.len());
            let mut huge = Vec::new();
            ranges(&pagemap, start, end, Pages::Huge, &mut huge).unwrap();
            assert_eq!(huge, []);
        }
        // SAFETY: the mapping made above, which nobody uses any more.
        unsafe { libc::munmap(memory.cast(), bytes) };
    }
}
