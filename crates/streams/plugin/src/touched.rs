//! Pages that the emulator's own page tables show: what the program touched while nobody looked.
//!
//! Guest memory lies in the emulator's at the same addresses. `/proc/self/pagemap` (kernel documentation,
//! `admin-guide/mm/pagemap.rst`) has 8 bytes for each page: bit 63 says that it is there, 62 that it is
//! swapped out, 61 that it is a file's or shared memory's, 56 that nobody else maps it. A private anonymous
//! page that is there and that nobody else maps was stored to: what was only read is the kernel's page
//! of zeroes, which all share. One that others map has not been stored to since the `fork` that left it to them. Of
//! one that is swapped out it is not said who else has it, so that it counts as read until it is back. How it came to
//! be so, `faults` tells.

use crate::guest;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use strata_addr::{Gva, Range, space::Virtual};
use strata_pagemap::{Pages, ranges};
use strata_stream::{Faults, Pid, Shown};
use strata_wire::Message;

const TABLE: &str = "/proc/self/pagemap";
const PAGE: u64 = 4096;
/// Pages looked at in one read.
const BATCH: usize = 1 << 12;
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE: u64 = 1 << 61;
const EXCLUSIVE: u64 = 1 << 56;

/// Whether a page was touched, and if so whether it is the process's own.
fn own(entry: u64) -> Option<bool> {
    match entry {
        _ if entry & (PRESENT | SWAPPED) == 0 => None,
        _ if entry & FILE != 0 => Some(false),
        _ => Some(entry & EXCLUSIVE != 0),
    }
}

/// What the process may open to see its page tables. They are root's alone once it has changed its rights
/// (`PR_SET_DUMPABLE` in prctl(2)).
fn table() -> io::Result<File> {
    match File::open(TABLE) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            guest::while_dumpable(|| File::open(TABLE))
        }
        opened => opened,
    }
}

/// The parts of a range that are there: a program may reserve far more addresses than it uses. Linux 6.7 and later can
/// tell.
fn parts(table: &File, range: Range<Virtual>) -> io::Result<Vec<Range<Virtual>>> {
    let mut found = Vec::new();
    ranges(table, range.start.get(), range.end.get(), Pages::There, &mut found)?;
    Ok(found.into_iter().map(|(start, end)| Range::new(Gva::new(start), Gva::new(end))).collect())
}

/// The pages of these ranges that are there, and those that faulted, as ranges in the order of addresses, with their page
/// faults. Of a page without any that is known if these are all.
///
/// # Errors
/// When page tables cannot be looked at: a program may leave the root where `/proc` is, or open as many files as
/// it may.
pub fn pages(
    mut ranges: Vec<Range<Virtual>>,
    (faults, is_all): (&BTreeMap<u64, Faults>, bool),
    pid: Pid,
) -> io::Result<Vec<Message>> {
    let mut found: Vec<Message> = Vec::new();
    ranges.extend(faults.keys().map(|page| Range::sized(Gva::new(page * PAGE), PAGE)));
    join(&mut ranges);
    if ranges.is_empty() {
        return Ok(found);
    }
    let table = table()?;
    let mut bytes = vec![0; BATCH * 8];
    // What one read shows is not looked for first.
    let parts = ranges.into_iter().flat_map(|range| match range.bytes() / PAGE {
        pages if pages <= BATCH as u64 => vec![range],
        _ => parts(&table, range).unwrap_or_else(|_| vec![range]),
    });
    for range in parts {
        let mut at = range.start.get() / PAGE;
        let end = range.end.get().div_ceil(PAGE);
        while at < end {
            let wanted = (end - at).min(BATCH as u64) as usize * 8;
            let Ok(read @ 1..) = table.read_at(&mut bytes[..wanted], at * 8) else { break };
            for entry in bytes[..read].chunks_exact(8) {
                let entry = u64::from_le_bytes(entry.try_into().expect("eight bytes"));
                if let Some(own) = own(entry) {
                    let none = is_all.then_some(Faults::None);
                    let faults = faults.get(&at).copied().or(none);
                    add(&mut found, pid, at * PAGE, Shown { own, faults });
                }
                at += 1;
            }
        }
    }
    Ok(found)
}

/// Puts ranges in the order of addresses, and makes one of those that overlap or touch each other.
fn join(ranges: &mut Vec<Range<Virtual>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let is_one = next.start <= range.end;
        if is_one {
            range.end = range.end.max(next.end);
        }
        is_one
    });
}

fn add(found: &mut Vec<Message>, pid: Pid, page: u64, shown: Shown) {
    if let Some(Message::Shown { range, shown: last, .. }) = found.last_mut()
        && range.end.get() == page
        && *last == shown
    {
        range.end = Gva::new(page + PAGE);
        return;
    }
    let range = Range::new(Gva::new(page), Gva::new(page + PAGE));
    found.push(Message::Shown { pid, range, shown });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_in_any_order_become_few_that_are_apart() {
        let range = |start: u64, end: u64| Range::new(Gva::new(start), Gva::new(end));
        let mut ranges = vec![range(50, 60), range(10, 20), range(15, 17), range(20, 30)];
        join(&mut ranges);
        assert_eq!(ranges, [range(10, 30), range(50, 60)]);
    }

    #[test]
    fn page_tables_show_what_was_read_and_what_was_stored_to() {
        let mut memory = vec![0_u8; 0];
        memory.reserve_exact(64 * PAGE as usize);
        let start = (memory.as_ptr() as u64).next_multiple_of(PAGE);
        let offset = (start - memory.as_ptr() as u64) as usize;
        memory.resize(offset, 0);
        let spare = memory.spare_capacity_mut();
        spare[8 * PAGE as usize].write(1);
        spare[9 * PAGE as usize].write(1);
        spare[11 * PAGE as usize].write(1);
        let range = Range::new(Gva::new(start + PAGE), Gva::new(start + 32 * PAGE));
        let page = |from: u64, to: u64, faults| Message::Shown {
            pid: Pid(3),
            range: Range::new(Gva::new(start + from * PAGE), Gva::new(start + to * PAGE)),
            shown: Shown { own: true, faults },
        };
        let found = pages(vec![range], (&BTreeMap::new(), false), Pid(3)).unwrap();
        // With huge pages on this machine all of them are there.
        if found.len() > 1 {
            assert_eq!(found, [page(8, 10, None), page(11, 12, None)]);
            let faults = BTreeMap::from([(start / PAGE + 9, Faults::More)]);
            let found = pages(vec![range], (&faults, true), Pid(3)).unwrap();
            let [none, more] = [Faults::None, Faults::More].map(Some);
            assert_eq!(found, [page(8, 9, none), page(9, 10, more), page(11, 12, none)]);
            let found = pages(vec![], (&faults, true), Pid(3)).unwrap();
            assert_eq!(found, [page(9, 10, more)], "it faulted");
            let found = pages(vec![range], (&faults, false), Pid(3)).unwrap();
            assert_eq!(found, [page(8, 9, None), page(9, 10, more), page(11, 12, None)]);
        }
    }
}
