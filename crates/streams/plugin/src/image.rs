//! What is mapped before the first instruction: program, interpreter, stack. No system call of
//! the program shows it; the kernel's list of the emulator's own mappings does.
//!
//! ```text
//! 0x400000      fixed executable                      guest
//! 0x4000000000  position-independent executable,      guest
//!               stack, interpreter, later mmap
//! ----------------------------------------------------------- floor: lowest mapping when the
//! 0x5...        emulator and its heap                 host     plugin was installed, which is
//! 0x7...        libraries, code buffer, plugin, wire  host     before the program was loaded
//! ```

use std::fs;
use std::io;
use std::sync::OnceLock;
use strata_addr::{Gva, Range, space::Virtual};
use strata_stream::{Backing, Protection};

const PAGE: u64 = 4096;
/// Guest mappings stay below this when the floor cannot tell.
const LOW: u64 = 0x5000_0000_0000;

/// One line of `/proc/self/maps` (proc(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Addresses.
    pub range: Range<Virtual>,
    /// Rights of the host mapping; the emulator takes away the right to execute.
    pub protection: Protection,
    /// Offset in the file.
    pub offset: u64,
    /// The file, when there is one.
    pub file: bool,
}

/// A mapping present at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Addresses.
    pub range: Range<Virtual>,
    /// Rights.
    pub protection: Protection,
    /// What it holds.
    pub backing: Backing,
}

const OWN: &str = "/proc/self/maps";

/// Host mappings when the plugin was installed.
static BEFORE: OnceLock<Vec<Row>> = OnceLock::new();

/// The mappings of the emulator's process.
pub fn own_rows() -> Vec<Row> {
    rows(&fs::read_to_string(OWN).unwrap_or_default())
}

/// The program has not been loaded yet: what is mapped is the emulator's.
pub fn note_before() {
    BEFORE.get_or_init(own_rows);
}

/// Below this address lie guest mappings only.
pub fn own_floor() -> Gva {
    floor(BEFORE.get().map_or(&[], Vec::as_slice))
}

/// The guest's mappings among the emulator's that the program has any right to, in the order of addresses.
///
/// # Errors
/// When they cannot be looked at, as for [`crate::touched::pages`].
pub fn guest_ranges() -> io::Result<Vec<Range<Virtual>>> {
    Ok(accessible(&rows(&fs::read_to_string(OWN)?), own_floor()))
}

/// What can be written to can be stored to, even where it cannot be read.
fn accessible(rows: &[Row], floor: Gva) -> Vec<Range<Virtual>> {
    let guest = |row: &&Row| row.range.end <= floor && row.protection != Protection::NONE;
    rows.iter().filter(guest).map(|row| row.range).collect()
}

/// The rows of a `/proc/self/maps`.
pub fn rows(maps: &str) -> Vec<Row> {
    maps.lines().filter_map(row).collect()
}

fn row(line: &str) -> Option<Row> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let rights = fields.next()?.as_bytes();
    let right = |at: usize, letter| rights.get(at) == Some(&letter);
    Some(Row {
        range: Range::new(Gva::new(hex(start)?), Gva::new(hex(end)?)),
        protection: Protection {
            read: right(0, b'r'),
            write: right(1, b'w'),
            execute: right(2, b'x'),
        },
        offset: hex(fields.next()?)?,
        file: fields.nth(1)?.parse() != Ok(0u64),
    })
}

/// Below this address lie guest mappings only, given the rows before the program was loaded.
pub fn floor(before: &[Row]) -> Gva {
    before.first().map_or(Gva::new(LOW), |row| row.range.start)
}

/// The guest's mappings among the rows after the program was loaded. `read` reads guest memory.
pub fn mappings(
    after: &[Row],
    floor: Gva,
    read: impl Fn(u64, &mut [u8]) -> Option<()>,
) -> Vec<Mapping> {
    let guest = |row: &&Row| row.range.end <= floor;
    let rows: Vec<_> = after.iter().filter(guest).collect();
    let code: Vec<_> = rows
        .iter()
        .filter(|row| row.file && row.offset == 0)
        .flat_map(|row| executable_ranges(row.range.start, &read))
        .collect();
    let mut mappings = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        // The emulator makes the stack in one piece above a guard page without any rights.
        let guarded = at > 0
            && rows[at - 1].protection == Protection::NONE
            && rows[at - 1].range.end == row.range.start;
        let backing = match () {
            () if row.file => Backing::File,
            () if guarded && row.protection.write => Backing::Stack,
            () => Backing::Anonymous,
        };
        // Cut where executable segments begin and end, as the program's own view would be.
        let mut start = row.range.start;
        while start < row.range.end {
            let inside = code.iter().any(|range| range.contains(start));
            let end = code
                .iter()
                .flat_map(|range| [range.start, range.end])
                .filter(|&edge| start < edge && edge < row.range.end)
                .min()
                .unwrap_or(row.range.end);
            let protection = Protection { execute: inside, ..row.protection };
            mappings.push(Mapping { range: Range::new(start, end), protection, backing });
            start = end;
        }
    }
    mappings
}

/// Pages of the executable segments of the ELF image whose header is at `base`.
fn executable_ranges(
    base: Gva,
    read: &impl Fn(u64, &mut [u8]) -> Option<()>,
) -> Vec<Range<Virtual>> {
    const LOAD: u64 = 1;
    const EXECUTE: u64 = 1;
    let field = |bytes: &[u8], at: usize, length: usize| {
        let mut word = [0; 8];
        word[..length].copy_from_slice(&bytes[at..at + length]);
        u64::from_le_bytes(word)
    };
    let mut header = [0; 64];
    if read(base.get(), &mut header).is_none() || !header.starts_with(b"\x7fELF") {
        return vec![];
    }
    let (table, size, count) =
        (field(&header, 32, 8), field(&header, 54, 2), field(&header, 56, 2));
    let segments: Vec<_> = (0..count)
        .filter_map(|index| {
            let mut entry = [0; 56];
            read(base.get().checked_add(table)?.checked_add(index * size)?, &mut entry)?;
            Some(entry)
        })
        .filter(|entry| field(entry, 0, 4) == LOAD)
        .collect();
    let Some(lowest) = segments.iter().map(|entry| field(entry, 16, 8) & !(PAGE - 1)).min() else {
        return vec![];
    };
    let bias = base.get().wrapping_sub(lowest);
    segments
        .iter()
        .filter(|entry| field(*entry, 4, 4) & EXECUTE != 0)
        .map(|entry| {
            let start = field(entry, 16, 8).wrapping_add(bias);
            let end = start.saturating_add(field(entry, 40, 8));
            Range::new(
                Gva::new(start & !(PAGE - 1)),
                Gva::new(end.saturating_add(PAGE - 1) & !(PAGE - 1)),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
55c2d4188000-55c2d41f4000 r--p 00000000 fe:00 10166316                   /usr/bin/qemu-x86_64
7f72195ff000-7f7219600000 ---p 00000000 00:00 0 ";

    const AFTER: &str = "\
4000000000-4000003000 r--p 00000000 fe:00 9977970                        /tmp/a program
4000003000-4000005000 rw-p 00003000 fe:00 9977970                        /tmp/a program
4000005000-4000006000 rw-p 00000000 00:00 0 
4002005000-4002006000 ---p 00000000 00:00 0 
4002006000-4002806000 rw-p 00000000 00:00 0 
55c2d4188000-55c2d41f4000 r--p 00000000 fe:00 10166316                   /usr/bin/qemu-x86_64
7f7211600000-7f72195ff000 rwxp 00000000 00:00 0 
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]";

    /// An ELF header with two segments: data on the first page, code on the next two.
    fn elf(address: u64, out: &mut [u8]) -> Option<()> {
        let mut image = vec![0u8; 4096];
        image[..4].copy_from_slice(b"\x7fELF");
        image[32..40].copy_from_slice(&64u64.to_le_bytes());
        image[54..58].copy_from_slice(&[56, 0, 2, 0]);
        for (at, flags, start, bytes) in
            [(64, 4u32, 0x40_0000u64, 0x500u64), (120, 5, 0x40_1000, 0x1100)]
        {
            image[at..at + 4].copy_from_slice(&1u32.to_le_bytes());
            image[at + 4..at + 8].copy_from_slice(&flags.to_le_bytes());
            image[at + 16..at + 24].copy_from_slice(&start.to_le_bytes());
            image[at + 40..at + 48].copy_from_slice(&bytes.to_le_bytes());
        }
        let at = address.checked_sub(0x40_0000_0000)? as usize;
        out.copy_from_slice(image.get(at..at + out.len())?);
        Some(())
    }

    #[test]
    fn mappings_with_any_right_are_looked_at() {
        let rows = rows(
            "4000000000-4000001000 -w-p 00000000 00:00 0\n\
             4000001000-4000002000 ---p 00000000 00:00 0\n\
             4000002000-4000003000 r--p 00000000 00:00 0\n\
             55c2d4188000-55c2d41f4000 rw-p 00000000 00:00 0",
        );
        let found: Vec<_> = accessible(&rows, Gva::new(0x55c2_d418_8000))
            .into_iter()
            .map(|range| range.start.get() >> 12)
            .collect();
        assert_eq!(found, [0x400_0000, 0x400_0002]);
    }

    #[test]
    fn the_guests_mappings_are_told_from_the_emulators() {
        let floor = floor(&rows(BEFORE));
        assert_eq!(floor, Gva::new(0x55c2_d418_8000));
        let found: Vec<_> = mappings(&rows(AFTER), floor, elf)
            .into_iter()
            .map(|m| {
                (m.range.start.get() >> 12, m.range.end.get() >> 12, m.backing, m.protection.bits())
            })
            .collect();
        assert_eq!(
            found,
            [
                (0x400_0000, 0x400_0001, Backing::File, 1),
                (0x400_0001, 0x400_0003, Backing::File, 5),
                (0x400_0003, 0x400_0005, Backing::File, 3),
                (0x400_0005, 0x400_0006, Backing::Anonymous, 3),
                (0x400_2005, 0x400_2006, Backing::Anonymous, 0),
                (0x400_2006, 0x400_2806, Backing::Stack, 3),
            ]
        );
    }
}
