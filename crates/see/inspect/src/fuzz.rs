//! Bodies of the fuzz targets, which the ordinary tests run too.
//!
//! Each takes any bytes and panics when a parser breaks a promise: it must not panic, must end, and
//! what it gives must be well-formed.

use crate::join;
use crate::join::colours::ColourUse;
use crate::scan::layout::pieces;
use crate::scan::{infer, qmp};
use crate::snapshot::format::{read_from, with_content};
use crate::snapshot::model::VmmArea;
use crate::snapshot::pseudo;
use crate::text::{buddy, cmdline, iomem, maps, pagetype, pairs, zoneinfo};
use std::path::Path;

/// A snapshot made of any bytes; one that can be read can be joined with itself or is refused.
pub fn snapshot(bytes: &[u8]) {
    match read_from(bytes, Path::new("fuzz")) {
        Ok(snapshot) => {
            let options = join::Options { vms: Vec::new(), force: true, taken_at: None };
            let two = [snapshot.clone(), snapshot];
            if let Ok(report) = join::join(&two, &options) {
                let totals = report.totals;
                let judged = totals.well_aligned + totals.misaligned;
                assert_eq!(totals.huge, judged + totals.uncertain + totals.unknown);
                assert_eq!(totals.misaligned, totals.type1 + totals.type2);
                assert!(totals.pseudo_huge <= totals.well_aligned);
                assert!(totals.one_block <= totals.misaligned);
                for vm in report.layers.iter().filter_map(|layer| layer.vm.as_ref()) {
                    assert!(vm.hot.is_none_or(|hot| hot.pages <= hot.watched));
                    let hot = |used: &ColourUse| used.hot.is_none_or(|hot| hot.pages <= used.pages);
                    assert!(vm.colours.iter().all(hot));
                }
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "one line: {error}"),
    }
}

/// Any bytes as the content of a snapshot whose checksum is right, so that what lies behind the
/// checksum is reached.
pub fn snapshot_content(bytes: &[u8]) {
    snapshot(&with_content(bytes));
}

/// Any bytes as the texts of `/proc`, `/sys` and VMMs.
pub fn system_texts(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let areas = maps::parse(&text);
    assert!(areas.iter().all(|area| area.start < area.end));
    let zones = buddy::parse(&text);
    assert!((0.0..=1.0).contains(&buddy::unusable_index(&zones)));
    zoneinfo::on_processors(&text);
    for list in pagetype::parse(&text) {
        assert!(list.small_pages() <= list.zone.free_pages());
    }
    assert!(iomem::system_ram(&text).iter().all(|(start, end)| start < end));
    pairs::numbers(&text);
    pairs::chosen(&text);
    pairs::start_ticks(&text);
    pairs::field(&text, "x");
    qmp::ranges(&text);
    let listed = pseudo::list(bytes).unwrap_or_default();
    assert!(listed.iter().all(|page| page.frame % 512 == 0 && page.guest_frame % 512 == 0));
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    for program in ["qemu-system-x86_64", "cloud-hypervisor", "firecracker"] {
        let vmm = cmdline::parse(&[&[program.to_owned()], words.as_slice()].concat());
        if let Some(memory) = vmm.memory.filter(|&memory| memory < 1 << 52) {
            let placed = pieces(&vmm, memory).unwrap_or_default();
            assert!(placed.iter().all(|piece| piece.offset + piece.size <= memory));
        }
        let areas: Vec<VmmArea> = areas
            .iter()
            .map(|area| VmmArea { start: area.start, end: area.end, ..VmmArea::default() })
            .collect();
        if let Ok((slots, _)) = infer::slots(&vmm, &areas) {
            let inside = |hva| areas.iter().any(|area| (area.start..area.end).contains(&hva));
            assert!(slots.iter().all(|slot| slot.size == 0 || inside(slot.hva)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_borne(bytes: Vec<u8>) {
            snapshot(&bytes);
            snapshot_content(&bytes);
            system_texts(&bytes);
        }

        #[test]
        fn texts_that_look_right_are_borne(
            text in "((-m|-M|-numa|-object|-smbios|Node|zone|[0-9a-f]{1,17}-[0-9a-f]{1,17}|rw-p|size=|memory-backend-ram,id=a,size=|,|[0-9]{1,25}[GMKTi]?|System RAM| : |:|\n| ){0,40})",
        ) {
            system_texts(text.as_bytes());
        }
    }
}
