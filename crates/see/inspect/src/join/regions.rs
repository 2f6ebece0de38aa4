//! Every huge page of the guest through all layers, as rows of numbers: for who draws a picture.

use super::choice::chosen;
use super::{Judged, Options, Verdict, join, verdicts};
use crate::error::Error;
use crate::snapshot::Snapshot;
use crate::snapshot::region::Class;
use serde::Serialize;

/// Base pages of a region.
const PAGES: i64 = 512;
/// Columns before those of layers.
const COLUMNS: [&str; 6] = ["process", "gva", "count", "pages", "state", "cause"];

/// Huge pages of the guest, in the columns that `strata run --detail` has, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Regions {
    /// What the numbers of a row are.
    pub columns: Vec<String>,
    /// Why huge pages are misaligned: the layer responsible and the cause.
    pub causes: Vec<[String; 2]>,
    /// Rows of huge pages beside each other that differ in nothing but their place.
    pub rows: Vec<Vec<i64>>,
}

/// The huge pages of a guest's processes with what all layers have there, in the order of the snapshot.
/// Where a layer has one scattered, those below it are not followed: they have -1 pages.
///
/// # Errors
/// As [`join`].
pub fn regions(snapshots: &[Snapshot], options: &Options) -> Result<Regions, Error> {
    let names: Vec<String> =
        join(snapshots, options)?.layers.into_iter().map(|layer| layer.name).collect();
    let vms = chosen(snapshots, options)?;
    let of_layers = names
        .iter()
        .flat_map(|layer| ["huge", "mapped", "at"].map(|what| format!("{layer}.{what}")));
    let columns = COLUMNS.map(str::to_owned).into_iter().chain(of_layers).collect();
    let mut causes: Vec<[String; 2]> = Vec::new();
    let mut rows: Vec<Vec<i64>> = Vec::new();
    for Judged { pid, gva, gpa, verdict } in verdicts(snapshots, options)? {
        let (state, cause) = match verdict {
            Verdict::WellAligned { .. } => (1, None),
            Verdict::Misaligned { below, cause, type1, .. } => {
                let named = [names[below + 1].clone(), cause.name().to_owned()];
                (if type1 { 2 } else { 3 }, Some(named))
            }
            Verdict::Uncertain | Verdict::Unknown => (4, None),
        };
        let cause = cause.map_or(-1, |cause| {
            let known = causes.iter().position(|other| *other == cause);
            known.unwrap_or_else(|| {
                causes.push(cause);
                causes.len() - 1
            }) as i64
        });
        let mut row = vec![i64::from(pid), (gva.get() >> 21) as i64, 1, PAGES, state, cause];
        let mut at = (gpa.get() != 0).then_some(gpa.get() >> 21);
        row.extend([PAGES, PAGES, place(at)]);
        for vm in &vms {
            let region = at.and_then(|at| vm.region(at));
            at = region.filter(|region| region.one_aligned_block()).map(|r| r.runs[0].frame() >> 9);
            row.extend(match region {
                None => [0, -1, -1],
                Some(region) => {
                    let huge = if region.class == Class::Huge { PAGES } else { 0 };
                    [huge, i64::from(region.present), place(at)]
                }
            });
        }
        match rows.last_mut() {
            Some(last) if goes_on(last, &row) => last[2] += 1,
            _ => rows.push(row),
        }
    }
    Ok(Regions { columns, causes, rows })
}

fn place(at: Option<u64>) -> i64 {
    at.map_or(-1, |at| at as i64)
}

/// Whether a huge page goes on where a row of them ends, in every layer.
fn goes_on(last: &[i64], next: &[i64]) -> bool {
    let follows = |index: usize| match (last[index], next[index]) {
        (-1, other) => other == -1,
        (first, other) => other == first + last[2],
    };
    (0..last.len()).all(|index| match index {
        2 => true,
        1 => follows(index),
        index if index >= COLUMNS.len() && (index - COLUMNS.len()) % 3 == 2 => follows(index),
        _ => last[index] == next[index],
    })
}
