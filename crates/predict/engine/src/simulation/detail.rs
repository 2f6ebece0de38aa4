//! What pictures are made of: the regions of a guest, and its state at fixed intervals.

use super::cores::GuestId;
use super::moments::{Moment, Moments};
use super::{Simulation, layer_name};
use crate::report::{Regions, Series};
use std::collections::BTreeMap;
use std::mem;
use strata_addr::PageSize;
use strata_hardware::CpuId;
use strata_stack::{ExitReason, Fate, GuestRegion, NodeId};

/// Columns before those of layers.
const COLUMNS: [&str; 6] = ["process", "gva", "count", "pages", "state", "cause"];

impl Simulation {
    /// Takes a moment of a guest whose result is to have details, if one is due on a CPU of its.
    pub(super) fn moment_if_due(&mut self, guest: GuestId, cpu: CpuId) {
        let state = &self.guests[guest];
        if state.context.detail {
            let seconds = state.clock.on(cpu, &self.cores, &self.machine);
            if state.moments.is_due(seconds) {
                self.take_moment(guest, seconds);
            }
        }
    }

    /// Takes the last moment of a guest whose result is to have details.
    pub(super) fn last_moment(&mut self, guest: GuestId) {
        let state = &self.guests[guest];
        if state.context.detail {
            self.take_moment(guest, state.clock.now());
        }
    }

    fn take_moment(&mut self, guest: GuestId, seconds: f64) {
        let totals = self.estimated(guest);
        let work = self.work_for(guest);
        let kernels = self.kernels(guest, &work);
        let node = self.guests[guest].node;
        let path: Vec<NodeId> = self.stack.path_down(node).collect();
        let alignment = self.stack.alignment(node);
        let used = self.used_frames(guest).saturating_sub(self.guests[guest].frames_before);
        let vms = path.iter().filter(|node| **node != NodeId::HOST);
        let exits =
            vms.flat_map(|vm| ExitReason::ALL.map(|reason| self.stack.exits().of(*vm, reason)));
        let moment = Moment {
            seconds,
            counts: [
                totals.accesses,
                totals.l1_misses,
                totals.l2_misses,
                totals.walk_cycles,
                self.machine.explain(&totals).total() as u64,
                alignment.guest_huge,
                alignment.well_aligned,
                alignment.type1,
                alignment.type2,
                used << PageSize::BASE_SHIFT,
            ],
            faults: path.iter().map(|node| kernels[node].faults).collect(),
            exits: exits.collect(),
            fmfi: path.iter().map(|node| self.stack.fmfi(*node)).collect(),
        };
        self.guests[guest].moments.push(moment);
    }

    /// All moments of a guest, if its result is to have them.
    pub(super) fn series(&mut self, guest: GuestId) -> Option<Series> {
        self.guests[guest].context.detail.then(|| {
            let Moments { interval, taken, .. } = mem::take(&mut self.guests[guest].moments);
            let node = self.guests[guest].node;
            let path: Vec<NodeId> = self.stack.path_down(node).collect();
            let name = |node: &NodeId| layer_name(self.stack.position(*node)).to_owned();
            let counts = |index: usize| taken.iter().map(|moment| moment.counts[index]).collect();
            let vms = path.iter().filter(|node| **node != NodeId::HOST);
            let exits = vms.enumerate().map(|(layer, vm)| {
                let reasons = ExitReason::ALL.iter().enumerate().map(|(index, reason)| {
                    let at = layer * ExitReason::ALL.len() + index;
                    let counts: Vec<u64> = taken.iter().map(|moment| moment.exits[at]).collect();
                    (reason.name().to_owned(), counts)
                });
                (
                    name(vm),
                    reasons.filter(|(_, counts)| counts.iter().any(|count| *count > 0)).collect(),
                )
            });
            let faults = path.iter().enumerate().map(|(layer, node)| {
                (name(node), taken.iter().map(|moment| moment.faults[layer]).collect())
            });
            let fmfi = path.iter().enumerate().map(|(layer, node)| {
                (name(node), taken.iter().map(|moment| moment.fmfi[layer]).collect())
            });
            Series {
                interval,
                seconds: taken.iter().map(|moment| moment.seconds).collect(),
                accesses: counts(0),
                l1_misses: counts(1),
                l2_misses: counts(2),
                walk_cycles: counts(3),
                cycles: counts(4),
                faults: faults.collect(),
                exits: exits.collect(),
                fmfi: fmfi.collect(),
                guest_huge: counts(5),
                well_aligned: counts(6),
                type1: counts(7),
                type2: counts(8),
                used_bytes: counts(9),
            }
        })
    }

    /// The regions of a guest as they are now.
    pub(super) fn regions(&self, node: NodeId) -> Regions {
        let path: Vec<&str> =
            self.stack.path_down(node).map(|node| layer_name(self.stack.position(node))).collect();
        let of_layers = path
            .iter()
            .flat_map(|layer| ["huge", "mapped", "at"].map(|what| format!("{layer}.{what}")));
        let columns = COLUMNS.map(str::to_owned).into_iter().chain(of_layers).collect();
        let mut causes: BTreeMap<[String; 2], i64> = BTreeMap::new();
        let mut list = Vec::new();
        let mut rows: Vec<Vec<i64>> = Vec::new();
        for region in self.stack.regions(node) {
            let cause = region.blame.map_or(-1, |(node, why)| {
                let layer = layer_name(self.stack.position(node)).to_owned();
                let cause = [layer, why.to_owned()];
                *causes.entry(cause.clone()).or_insert_with(|| {
                    list.push(cause);
                    list.len() as i64 - 1
                })
            });
            let row = row(&region, cause);
            match rows.last_mut() {
                Some(last) if goes_on(last, &row) => last[2] += 1,
                _ => rows.push(row),
            }
        }
        Regions { columns, causes: list, rows }
    }
}

fn row(region: &GuestRegion, cause: i64) -> Vec<i64> {
    let state = match region.fate {
        Fate::Base => 0,
        Fate::WellAligned => 1,
        Fate::Type1 => 2,
        Fate::Type2 => 3,
    };
    let pages = i64::from(region.layers[0].mapped);
    let mut row = vec![i64::from(region.space), region.number as i64, 1, pages, state, cause];
    for layer in &region.layers {
        let at = layer.at.map_or(-1, |at| at as i64);
        row.extend([i64::from(layer.huge), i64::from(layer.mapped), at]);
    }
    row
}

/// Whether a region goes on where a row of regions ends, in every layer.
fn goes_on(last: &[i64], next: &[i64]) -> bool {
    let count = last[2];
    let follows = |index: usize| match (last[index], next[index]) {
        (-1, other) => other == -1,
        (first, other) => other == first + count,
    };
    let same = |index: usize| last[index] == next[index];
    [0, 3, 4, 5].into_iter().all(same)
        && follows(1)
        && (COLUMNS.len()..last.len()).all(|index| match (index - COLUMNS.len()) % 3 {
            2 => follows(index),
            _ => same(index),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_on_only_where_all_layers_do() {
        let last = [0, 100, 2, 512, 1, -1, 512, 512, 7, 512, 512, 40];
        let next = [0, 102, 1, 512, 1, -1, 512, 512, 9, 512, 512, 42];
        assert!(goes_on(&last, &next));
        for (index, value) in [(0, 1), (1, 103), (4, 3), (5, 0), (6, 0), (8, 10), (11, -1)] {
            let mut other = next;
            other[index] = value;
            assert!(!goes_on(&last, &other), "column {index}");
        }
    }
}
