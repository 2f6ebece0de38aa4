//! Which parts of a range page tables have anything of. One of the crate's rooms for `unsafe`.
//!
//! A program may reserve far more addresses than it uses. Linux 6.7 and later finds what is there without a look at
//! each page (`PAGEMAP_SCAN`; kernel documentation, `admin-guide/mm/pagemap.rst`, and `linux/fs.h`).

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;
use strata_addr::{Gva, Range, space::Virtual};

/// `PAGE_IS_PRESENT` and `PAGE_IS_SWAPPED`.
const THERE: u64 = 1 << 3 | 1 << 4;
/// Rows that one call gives.
const ROWS: usize = 512;

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Row {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
struct Scan {
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

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl =
    (3 << 30 | (size_of::<Scan>() << 16) | (b'f' as usize) << 8 | 16) as libc::Ioctl;

/// The parts of a range that are there, in the order of addresses; `None` where the kernel has no quick way to tell.
/// `table` is the process's page map.
pub fn parts(table: &File, range: Range<Virtual>) -> Option<Vec<Range<Virtual>>> {
    let mut parts: Vec<Range<Virtual>> = Vec::new();
    let mut rows = [Row::default(); ROWS];
    let mut start = range.start.get();
    while start < range.end.get() {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            flags: 0,
            start,
            end: range.end.get(),
            walk_end: 0,
            vec: rows.as_mut_ptr() as u64,
            vec_len: ROWS as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: 0,
            category_anyof_mask: THERE,
            return_mask: THERE,
        };
        // SAFETY: the kernel writes to `scan` and to as many rows as `vec_len` says.
        let found =
            unsafe { libc::ioctl(table.as_raw_fd(), PAGEMAP_SCAN, ptr::from_mut(&mut scan)) };
        for row in &rows[..usize::try_from(found).ok()?] {
            match parts.last_mut() {
                Some(last) if last.end.get() == row.start => last.end = Gva::new(row.end),
                _ => parts.push(Range::new(Gva::new(row.start), Gva::new(row.end))),
            }
        }
        if scan.walk_end <= start {
            return None;
        }
        start = scan.walk_end;
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    #[test]
    fn what_was_touched_is_found_in_any_number_of_rows() {
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
        let touched: Vec<usize> = (0..2000).map(|number| number * 7).chain([14_001]).collect();
        for page in &touched {
            // SAFETY: within the mapping.
            unsafe { memory.add(page * PAGE).write(1) };
        }
        let start = memory as u64;
        let range = Range::new(Gva::new(start), Gva::new(start + bytes as u64));
        // A kernel before 6.7 cannot tell.
        if let Some(found) = parts(&File::open("/proc/self/pagemap").unwrap(), range) {
            let pages: Vec<usize> = found
                .iter()
                .flat_map(|part| part.start.get()..part.end.get())
                .step_by(PAGE)
                .map(|at| (at - start) as usize / PAGE)
                .collect();
            assert_eq!(pages, touched);
            assert!(found.len() > ROWS);
        }
        // SAFETY: the mapping made above, which nobody uses any more.
        unsafe { libc::munmap(memory.cast(), bytes) };
    }

    #[test]
    fn what_cannot_tell_says_so() {
        let range = Range::new(Gva::new(0), Gva::new(1 << 30));
        assert_eq!(parts(&File::open("/proc/self/maps").unwrap(), range), None);
    }
}
