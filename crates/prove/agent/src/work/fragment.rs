//! Fragments a machine's free memory for real.
//!
//! The fragmenter takes nearly all free memory in base pages, learns their frames, and gives back
//! all but one page of as many 2 MiB regions as it takes to reach the wanted index. A page that is
//! held can be movable, as process memory is, so that compaction may undo it, or pinned by a pipe,
//! which no compaction moves.

use super::region::{PAGE, Region};
use super::size;
use clap::Args;
use nix::fcntl::{FcntlArg, SpliceFFlags, fcntl, vmsplice};
use nix::sys::mman::MmapAdvise;
use nix::unistd::pipe;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use strata_inspect::text::buddy::{self, Zone, free_pages, unusable_index, usable_pages};

/// Base pages of a 2 MiB region.
const REGION: u64 = 512;

/// How to fragment.
#[derive(Args, Debug)]
pub(super) struct Fragment {
    /// The share of free memory that is to be useless for huge pages: Linux's unusable free space
    /// index for order 9, 0 to 1.
    #[arg(long, default_value_t = 0.8)]
    fmfi: f64,
    /// The share of held pages that compaction may move.
    #[arg(long, default_value_t = 0.0)]
    movable: f64,
    /// Memory left alone while memory is taken, so that the system lives on: zones below their
    /// watermarks and the one for old devices count as free though nobody gets them.
    #[arg(long, default_value = "128M", value_parser = size)]
    reserve: usize,
}

/// Fragments, prints one line of JSON, and holds memory until killed.
pub(super) fn run(choice: &Fragment) -> Result<(), String> {
    for (name, share) in [("--fmfi", choice.fmfi), ("--movable", choice.movable)] {
        if !(0.0..=1.0).contains(&share) {
            return Err(format!("{name} {share} is no share: give a number from 0 to 1"));
        }
    }
    let before = free_blocks()?;
    let region = take_all(choice.reserve)?;
    let holes = Regions::sort(&region.frames()?);
    let held = holes.to_hold(choice.fmfi, &free_blocks()?);
    let movable = (held.len() as f64 * choice.movable).round() as usize;
    let pinned: Vec<usize> = spread(&held, held.len() - movable);
    let _pipes = pin(&region, &pinned)?;
    release_all_but(&region, &held)?;
    let _taken = take_surplus(choice.fmfi)?;
    let after = free_blocks()?;
    println!(
        "{}",
        json!({
            "fmfi_before": unusable_index(&before),
            "fmfi": unusable_index(&after),
            "free_bytes": free_pages(&after) * PAGE as u64,
            "held_pages": held.len(),
            "pinned_pages": pinned.len(),
        })
    );
    loop {
        nix::unistd::pause();
    }
}

/// Maps and touches base pages until only `reserve` bytes are free.
fn take_all(reserve: usize) -> Result<Region, String> {
    const STEP: usize = 8 << 20;
    let free = free_pages(&free_blocks()?) as usize * PAGE;
    let Some(wanted) = free.checked_sub(reserve).filter(|&bytes| bytes >= STEP) else {
        return Err(format!("only {} MiB are free: give the layer more memory", free >> 20));
    };
    let region = Region::map(0, wanted)?;
    region
        .advise(0, region.pages(), MmapAdvise::MADV_NOHUGEPAGE)
        .map_err(|error| format!("the kernel refuses to map base pages: {error}"))?;
    for page in 0..region.pages() {
        // Page tables take memory too.
        if page % (STEP / PAGE) == 0 && (free_pages(&free_blocks()?) as usize * PAGE) < reserve {
            break;
        }
        region.write(page, 1);
    }
    Ok(region)
}

/// Takes whole what huge pages could still be made of beyond the wanted share: what was left alone
/// while memory was taken. A page of it would not do, for a huge page that is given back in part
/// stays whole as long as something holds a page of it.
fn take_surplus(fmfi: f64) -> Result<Option<Region>, String> {
    let pages = surplus(fmfi, &free_blocks()?);
    if pages == 0 {
        return Ok(None);
    }
    let huge = REGION as usize;
    // Huge pages need aligned addresses, which a mapping that is longer by one surely has.
    let region = Region::map(0, (pages + huge) * PAGE)?;
    region
        .advise(0, region.pages(), MmapAdvise::MADV_HUGEPAGE)
        .map_err(|error| format!("the kernel refuses to map huge pages: {error}"))?;
    let first = (huge - region.first_page() % huge) % huge;
    for page in (first..first + pages).step_by(huge) {
        region.write(page, 1);
        if surplus(fmfi, &free_blocks()?) == 0 {
            break;
        }
    }
    Ok(Some(region))
}

/// What is free now.
fn free_blocks() -> Result<Vec<Zone>, String> {
    let text = fs::read_to_string("/proc/buddyinfo")
        .map_err(|error| format!("/proc/buddyinfo: {error}"))?;
    Ok(buddy::parse(&text))
}

/// Pages in blocks that hold a huge page, beyond those that `fmfi` leaves; whole huge pages.
fn surplus(fmfi: f64, free: &[Zone]) -> usize {
    let wanted = (free_pages(free) as f64 * (1.0 - fmfi)) as u64;
    (usable_pages(free).saturating_sub(wanted) / REGION * REGION) as usize
}

/// The 2 MiB regions of physical memory and the pages in them that are ours.
#[derive(Debug, Default)]
struct Regions {
    /// Pages of the mapping by region of physical memory.
    pages: BTreeMap<u64, Vec<usize>>,
}

impl Regions {
    fn sort(frames: &[u64]) -> Self {
        let mut regions = Self::default();
        for (page, &frame) in frames.iter().enumerate() {
            if frame != 0 {
                regions.pages.entry(frame / REGION).or_default().push(page);
            }
        }
        regions
    }

    /// One page of each region to be spoilt, so that `fmfi` of the memory that is free when all
    /// others are given back lies outside whole free regions. Of regions that others use in part
    /// the same share is spoilt: compaction could move those others out.
    fn to_hold(&self, fmfi: f64, others: &[Zone]) -> Vec<usize> {
        let (whole, parts): (Vec<_>, Vec<_>) =
            self.pages.values().partition(|pages| pages.len() as u64 == REGION);
        let in_parts: u64 = parts.iter().map(|pages| pages.len() as u64).sum();
        let free = free_pages(others) + in_parts + whole.len() as u64 * REGION;
        let usable = (free as f64 * (1.0 - fmfi)) as u64;
        let keep = usable.saturating_sub(usable_pages(others)).div_ceil(REGION) as usize;
        let of_parts = (parts.len() as f64 * fmfi) as usize;
        spread(&whole, whole.len().saturating_sub(keep))
            .into_iter()
            .chain(spread(&parts, of_parts))
            // A page in the middle also spoils the halves.
            .map(|pages| pages[pages.len() / 2])
            .collect()
    }
}

/// `count` of the items, evenly spread over them.
fn spread<T: Copy>(items: &[T], count: usize) -> Vec<T> {
    let count = count.min(items.len());
    (0..count).map(|index| items[index * items.len() / count]).collect()
}

/// Pins pages: a pipe that holds a reference to a page keeps it where it is.
fn pin(region: &Region, pages: &[usize]) -> Result<Vec<(OwnedFd, OwnedFd)>, String> {
    /// Pages of the largest pipe an unprivileged process may have.
    const SLOTS: usize = 256;
    let failed = |error: nix::Error| format!("cannot pin pages by a pipe: {error}");
    pages
        .chunks(SLOTS)
        .map(|chunk| {
            let (read, write) = pipe().map_err(failed)?;
            fcntl(&write, FcntlArg::F_SETPIPE_SZ((SLOTS * PAGE) as i32)).map_err(failed)?;
            for &page in chunk {
                let slice = [IoSlice::new(region.bytes(page))];
                vmsplice(&write, &slice, SpliceFFlags::empty()).map_err(failed)?;
            }
            Ok((read, write))
        })
        .collect()
}

fn release_all_but(region: &Region, held: &[usize]) -> Result<(), String> {
    let mut held = held.to_vec();
    held.sort_unstable();
    held.push(region.pages());
    let mut next = 0;
    for page in held {
        if page > next {
            region
                .advise(next, page - next, MmapAdvise::MADV_DONTNEED)
                .map_err(|error| format!("cannot give memory back: {error}"))?;
        }
        next = page + 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holding_pages_leaves_the_wanted_share_useless() {
        // 64 whole regions and half a region, nothing else free.
        let frames: Vec<u64> = (512..512 * 65 + 256).collect();
        let regions = Regions::sort(&frames);
        let nothing = [];
        for fmfi in [0.0, 0.25, 0.5, 0.8, 1.0] {
            let held = regions.to_hold(fmfi, &nothing);
            let free = frames.len() - held.len();
            let spoilt = held.iter().filter(|&&page| frames[page] / 512 < 65).count();
            let usable = (64 - spoilt) * 512;
            let reached = 1.0 - usable as f64 / free as f64;
            assert!(
                (reached - fmfi).abs() < 1.5 / 64.0,
                "wanted {fmfi}, reached {reached} with {} held",
                held.len()
            );
            let mut regions: Vec<u64> = held.iter().map(|&page| frames[page] / 512).collect();
            regions.dedup();
            assert_eq!(regions.len(), held.len(), "one page of a region is enough");
        }
    }

    #[test]
    fn what_is_usable_beyond_the_wanted_share_is_taken() {
        // Ten huge blocks and as much in base pages.
        let text = "Node 0, zone DMA32 5120 0 0 0 0 0 0 0 0 10 0\n";
        let free = buddy::parse(text);
        assert_eq!(unusable_index(&free), 0.5);
        assert_eq!(surplus(1.0, &free), 10 * 512);
        assert_eq!(surplus(0.8, &free), 6 * 512, "two tenths of twenty stay");
        assert_eq!(surplus(0.5, &free), 0);
        assert_eq!(surplus(0.0, &free), 0);
    }

    #[test]
    fn items_are_spread_evenly() {
        assert_eq!(spread(&[0, 1, 2, 3, 4, 5], 3), [0, 2, 4]);
        assert_eq!(spread(&[0, 1], 5), [0, 1]);
        assert!(spread(&[0; 0], 3).is_empty());
    }
}
