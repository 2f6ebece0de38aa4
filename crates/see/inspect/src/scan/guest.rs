//! Scanning a guest: which of its memory is in huge pages, of which process and area; and what the
//! rest of its memory is used for.

use crate::scan::pagemap::{AddressSpace, BLOCK, FrameFlags, Method, USER_END, gone};
use crate::scan::tree::Tree;
use crate::snapshot::entry::PagemapEntry;
use crate::snapshot::model::{GuestArea, HugePage, Process};
use crate::snapshot::region::PAGES;
use crate::snapshot::usage::Usage;
use crate::text::{maps, pairs};
use std::io::{self, BufRead, BufReader};

/// Readings of a process before what still changes is called uncertain.
const READINGS: usize = 3;

/// What came of looking at a process.
#[derive(Debug)]
pub enum Looked {
    /// It has huge pages.
    Found(Box<Process>, Counts),
    /// It has none, or no memory of its own.
    Nothing(Option<Method>),
    /// It ended.
    Gone,
}

/// What it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Regions that differed between two readings.
    pub reread: u64,
    /// Regions that differed to the last.
    pub uncertain: u64,
    /// Huge pages whose frame is hidden from readers without privileges.
    pub hidden: u64,
    /// How huge mappings were recognised.
    pub method: Option<Method>,
}

/// Looks at a process.
///
/// # Errors
/// When it may not be read.
pub fn look(tree: &Tree, pid: u32, frames: &FrameFlags) -> io::Result<Looked> {
    match try_look(tree, pid, frames) {
        Err(error) if gone(&error) => Ok(Looked::Gone),
        other => other,
    }
}

fn try_look(tree: &Tree, pid: u32, frames: &FrameFlags) -> io::Result<Looked> {
    let Some(space) = AddressSpace::open(tree, pid)? else { return Ok(Looked::Nothing(None)) };
    let stat = tree.text(&format!("proc/{pid}/stat"))?;
    let started = pairs::start_ticks(&stat).unwrap_or(0);
    let mut counts = Counts { method: Some(space.method()), ..Counts::default() };
    let mut before = reading(tree, pid, &space, frames)?;
    if before.pages.is_empty() {
        return Ok(Looked::Nothing(counts.method));
    }
    let mut unsettled = Vec::new();
    for attempt in 1..READINGS {
        let after = reading(tree, pid, &space, frames)?;
        unsettled = differences(&before.pages, &after.pages);
        before = after;
        if unsettled.is_empty() {
            break;
        }
        counts.reread += if attempt == 1 { unsettled.len() as u64 } else { 0 };
    }
    // Areas and pages are of the same reading; another process with this id would show here.
    let again = tree.text(&format!("proc/{pid}/stat"))?;
    if pairs::start_ticks(&again).unwrap_or(0) != started {
        return Ok(Looked::Gone);
    }
    counts.uncertain = unsettled.len() as u64;
    counts.hidden = before.pages.iter().filter(|page| page.frame == 0).count() as u64;
    let name = tree.text(&format!("proc/{pid}/comm"))?;
    let areas = assign(before, &unsettled);
    let process = Process { pid, name, started, areas, uncertain: counts.uncertain };
    Ok(Looked::Found(Box::new(process), counts))
}

/// One reading of a process.
struct Reading {
    areas: Vec<maps::Area>,
    pages: Vec<HugePage>,
}

fn reading(
    tree: &Tree,
    pid: u32,
    space: &AddressSpace,
    frames: &FrameFlags,
) -> io::Result<Reading> {
    let Some(ranges) = space.huge(0, USER_END)? else {
        return reading_by_flags(tree, pid, space, frames);
    };
    let mut pages = Vec::new();
    for (start, end) in ranges {
        let first = start.next_multiple_of(BLOCK);
        for block in (first..end / BLOCK * BLOCK).step_by(BLOCK as usize) {
            push(&mut pages, block, space.word(block)?, frames);
        }
    }
    // Without huge pages nobody asks for the areas.
    let areas = if pages.is_empty() { Vec::new() } else { areas(tree, pid, "maps")? };
    Ok(Reading { areas, pages })
}

/// Before Linux 6.7: smaps says which areas have huge mappings, frames say where.
fn reading_by_flags(
    tree: &Tree,
    pid: u32,
    space: &AddressSpace,
    frames: &FrameFlags,
) -> io::Result<Reading> {
    let mut areas = areas(tree, pid, "smaps")?;
    areas.retain(|area| {
        let detail = &area.detail;
        detail.anon_huge > 0
            || detail.shmem_huge > 0
            || detail.file_huge > 0
            || area.kind() == maps::Kind::Hugetlb
    });
    let mut pages = Vec::new();
    let mut words = vec![PagemapEntry::default(); 32 * PAGES];
    for area in &areas {
        let (mut at, end) = (area.start.next_multiple_of(BLOCK), area.end / BLOCK * BLOCK);
        while at < end {
            let count = ((end - at) / 4096).min(words.len() as u64) as usize;
            let mut huge = Vec::new();
            space.read(at, &mut words[..count], &mut huge, frames)?;
            for block in huge {
                push(&mut pages, block, words[((block - at) / 4096) as usize], frames);
            }
            at += count as u64 * 4096;
        }
    }
    Ok(Reading { areas, pages })
}

fn push(pages: &mut Vec<HugePage>, block: u64, word: PagemapEntry, frames: &FrameFlags) {
    // The huge zero page is memory of nobody.
    let zero = |frame| {
        frames.of(frame).is_some_and(|bits| bits & crate::snapshot::entry::flags::ZERO != 0)
    };
    match word.frame() {
        Some(frame) if zero(frame) => {}
        frame => pages.push(HugePage {
            region: block / BLOCK,
            frame: frame.unwrap_or(0),
            uncertain: false,
        }),
    }
}

/// Areas of a process, read line by line.
fn areas(tree: &Tree, pid: u32, file: &str) -> io::Result<Vec<maps::Area>> {
    let mut areas = Vec::new();
    each_area(tree, pid, file, |area| areas.push(area))?;
    Ok(areas)
}

/// Gives the areas of `/proc/PID/maps` or `smaps` one by one, reading in pieces: the kernel holds
/// the lock of the address space for the area it prints, and no longer.
///
/// # Errors
/// When the process is gone or may not be read.
pub fn each_area(
    tree: &Tree,
    pid: u32,
    file: &str,
    mut take: impl FnMut(maps::Area),
) -> io::Result<()> {
    let mut input = BufReader::with_capacity(64 << 10, tree.open(&format!("proc/{pid}/{file}"))?);
    let mut parser = maps::Parser::default();
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line)? > 0 {
        if let Some(area) = parser.line(String::from_utf8_lossy(&line).trim_end_matches('\n')) {
            take(area);
        }
        line.clear();
    }
    parser.finish().into_iter().for_each(take);
    Ok(())
}

/// Regions that are in one reading only, or elsewhere in the other. Both are in order of region.
fn differences(before: &[HugePage], after: &[HugePage]) -> Vec<u64> {
    let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
    let mut found = Vec::new();
    loop {
        let (old, new) = match (before.peek(), after.peek()) {
            (None, None) => return found,
            (old, new) => (old.map(|page| page.region), new.map(|page| page.region)),
        };
        let region = old.into_iter().chain(new).min().expect("one is there");
        let old = before.next_if(|page| page.region == region);
        let new = after.next_if(|page| page.region == region);
        if old != new {
            found.push(region);
        }
    }
}

/// Puts huge pages into the areas they lie in.
fn assign(reading: Reading, unsettled: &[u64]) -> Vec<GuestArea> {
    let mut areas = reading.areas.into_iter().peekable();
    let mut found: Vec<GuestArea> = Vec::new();
    for mut page in reading.pages {
        let address = page.region * BLOCK;
        page.uncertain = unsettled.binary_search(&page.region).is_ok();
        while areas.peek().is_some_and(|area| area.end <= address) {
            areas.next();
        }
        let mut own = match areas.peek() {
            Some(area) if area.start <= address => GuestArea {
                start: area.start,
                end: area.end,
                name: area.name.clone(),
                executable: area.permissions.as_bytes().get(2) == Some(&b'x'),
                huge: Vec::new(),
            },
            // The area went between the two files.
            _ => {
                page.uncertain = true;
                GuestArea { start: address, end: address + BLOCK, ..GuestArea::default() }
            }
        };
        match found.last_mut() {
            Some(last) if last.start == own.start => last.huge.push(page),
            _ => {
                own.huge.push(page);
                found.push(own);
            }
        }
    }
    found
}

/// Regions handed on at once.
const BATCH: usize = 1024;

/// Frames between two looks at where memory ends: kpageflags has zeros in holes.
pub fn usage(
    frames: &FrameFlags,
    ram: &[(u64, u64)],
    mut take: impl FnMut(&[Usage]) -> io::Result<()>,
    mut special: impl FnMut(u64, u64),
) -> io::Result<()> {
    let mut words = Vec::new();
    let mut batch = Vec::with_capacity(BATCH);
    let mut next = 0;
    for &(start, end) in ram {
        for index in (start / BLOCK).max(next)..end.div_ceil(BLOCK) {
            next = index + 1;
            let first = index * PAGES as u64;
            frames.read(first, &mut words, PAGES)?;
            for (frame, &bits) in (first..).zip(&words) {
                special(frame, bits);
            }
            batch.push(Usage::count(index, &words));
            if batch.len() == BATCH {
                take(&batch)?;
                batch.clear();
            }
        }
    }
    if batch.is_empty() { Ok(()) } else { take(&batch) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(region: u64, frame: u64) -> HugePage {
        HugePage { region, frame, uncertain: false }
    }

    #[test]
    fn differences_are_what_came_went_or_moved() {
        let before = [page(1, 512), page(2, 1024), page(4, 2048)];
        let after = [page(1, 512), page(2, 1536), page(5, 2048)];
        assert_eq!(differences(&before, &after), [2, 4, 5]);
        assert!(differences(&before, &before).is_empty());
    }

    #[test]
    fn pages_go_to_their_areas_and_the_homeless_are_uncertain() {
        let area = |start: u64, end: u64| maps::Area {
            start: start * BLOCK,
            end: end * BLOCK,
            name: "[heap]".to_owned(),
            permissions: if start == 6 { "rwxp" } else { "rw-p" }.to_owned(),
            ..maps::Area::default()
        };
        let reading = Reading {
            areas: vec![area(1, 4), area(6, 9)],
            pages: vec![page(1, 512), page(3, 1024), page(5, 1536), page(7, 2048)],
        };
        let areas = assign(reading, &[3]);
        let shape: Vec<_> = areas
            .iter()
            .map(|area| (area.start / BLOCK, area.huge.iter().map(|p| p.uncertain).collect()))
            .collect();
        assert_eq!(shape, [(1, vec![false, true]), (5, vec![true]), (6, vec![false])]);
        let executable: Vec<_> = areas.iter().map(|area| area.executable).collect();
        assert_eq!(executable, [false, false, true]);
    }

    #[test]
    fn our_own_huge_pages_are_found_if_there_are_any() {
        let tree = Tree::default();
        let frames = FrameFlags::open(&tree);
        let looked = look(&tree, std::process::id(), &frames).unwrap();
        assert!(matches!(looked, Looked::Found(..) | Looked::Nothing(Some(_))));
        assert!(matches!(look(&tree, u32::MAX, &frames).unwrap(), Looked::Nothing(None)));
    }
}
