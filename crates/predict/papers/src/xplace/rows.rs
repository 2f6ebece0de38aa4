//! All that is run: the settings of the tables, and what is varied besides.

use super::conditions::{
    FEW_AND_ALL, INSENSITIVE, LATENCY, Real, Setting, THROUGHPUT, WAYS, pairs, seeds, two_vms_row,
};
use super::surfaces::{Surface, surfaces};
use crate::Row;

/// Every row once, with those of the real programs that there are.
pub(super) fn rows(scale: f64, real: &[&Real]) -> Vec<Row> {
    let mut rows = Vec::new();
    for seed in seeds() {
        for program in THROUGHPUT.iter().chain(&LATENCY) {
            for ways in WAYS {
                for hash in [true, false] {
                    let setting = Setting { hash, ..Setting::ordinary(program, ways, seed) };
                    setting.rows(scale, &mut rows);
                }
            }
        }
        for program in &INSENSITIVE {
            for copy in [true, false] {
                rows.push(Setting::whole(program, 11, seed, copy).made(true, scale));
            }
        }
        for ways in FEW_AND_ALL {
            for program in &THROUGHPUT {
                for copy in [true, false] {
                    rows.push(Setting::whole(program, ways, seed, copy).made(true, scale));
                }
            }
            for pair in pairs() {
                rows.push(two_vms_row(&pair, ways, seed, scale));
            }
            for program in real {
                Setting::real(program, &program.workload(), ways, seed).rows(scale, &mut rows);
            }
        }
    }
    for setting in surfaces().iter().flat_map(Surface::settings) {
        setting.borrowed(|setting| setting.rows(scale, &mut rows));
    }
    // Surfaces have the ordinary setting among theirs.
    let mut seen = std::collections::BTreeSet::new();
    rows.retain(|row| seen.insert(row.name.clone()));
    rows
}
