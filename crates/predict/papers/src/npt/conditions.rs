//! What is run, and why. Written before any result was seen.
//!
//! The machine is the Phenom 9550 with 4 GB that the talk's measurements were made on. Its simulated
//! results are "of not exactly real hardware", that of Bhargava et al. (ASPLOS'08), whose walk caches the
//! preset has. They held table entries of all levels but the lowest in one array of 24; the model has
//! an array for each level, so that a surface shows what their sizes matter.
//!
//! The talk names kernbench and lmbench; its bars are pictures without numbers. The programs of the simulated
//! results are not named in it. So programs of very different reach stand here: generators from one
//! that fits the TLB to one without any locality, and real programs where they are recorded, the compiler
//! among them, which is what kernbench runs. All pages are of 4 KiB unless a table says otherwise, as in
//! the talk's drawing. Memory is touched when counting begins.

use crate::Row;
use std::collections::BTreeSet;

/// Seeds of the model and the workload.
const SEEDS: u64 = 3;

/// The steps of Bhargava et al., as `--walk-caches` names them.
pub(super) const STEPS: [&str; 4] = ["none", "1d", "2d", "2d+ntlb"];

/// The step with all walk caches.
pub(super) const ALL: &str = "2d+ntlb";

/// A program that stands for those of the talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) name: &'static str,
    /// The generator without accesses and seed, or what is prepared.
    pub(super) workload: &'static str,
    pub(super) is_recorded: bool,
}

const fn made(name: &'static str, workload: &'static str) -> Program {
    Program { name, workload, is_recorded: false }
}

const fn recorded(name: &'static str, workload: &'static str) -> Program {
    Program { name, workload, is_recorded: true }
}

/// The programs.
pub(super) const PROGRAMS: [Program; 10] = [
    made("random", "random:size=512MiB,touch=yes"),
    made("key-value store", "zipf:size=1GiB,theta=0.99,grain=256,touch=yes"),
    made("tree", "btree:size=512MiB,theta=0.99,touch=yes"),
    made("pointers", "chase:size=64MiB,touch=yes"),
    made("annealing", "canneal:size=77MiB,touch=yes"),
    made("columns", "strided:size=53MiB,stride=4112,stores=0.2,touch=yes"),
    recorded("gcc", "prepared:gcc"),
    recorded("sqlite", "prepared:sqlite"),
    recorded("redis", "prepared:redis"),
    recorded("xz", "prepared:xz"),
];

/// Sizes of a random working set, in MiB.
pub(super) const FOOTPRINTS: [u64; 6] = [4, 16, 64, 256, 1024, 1536];

/// Factors on the sizes of the walk caches.
pub(super) const FACTORS: [f64; 3] = [0.25, 1.0, 4.0];

/// Programs whose walk caches are varied.
pub(super) const VARIED: [Program; 2] = [PROGRAMS[0], PROGRAMS[1]];

/// One run, of one or several policies.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) program: &'a str,
    pub(super) workload: &'a str,
    pub(super) is_recorded: bool,
    pub(super) is_vm: bool,
    pub(super) step: &'a str,
    /// On the number of entries of each walk cache and of the nested TLB.
    pub(super) factor: f64,
    pub(super) seed: u64,
}

impl<'a> Setting<'a> {
    pub(super) fn of(program: &'a Program, is_vm: bool, step: &'a str, seed: u64) -> Self {
        let Program { name, workload, is_recorded } = program;
        let is_recorded = *is_recorded;
        Self { program: name, workload, is_recorded, is_vm, step, factor: 1.0, seed }
    }

    /// The name of its row.
    pub(super) fn row(&self) -> String {
        let Self { program, step, factor, seed, .. } = self;
        let on = if self.is_vm { "VM" } else { "native" };
        let times = if *factor == 1.0 { String::new() } else { format!(" x {factor}") };
        format!("{program}, {on}, walk caches {step}{times}, seed {seed}")
    }

    fn made(&self, scale: f64) -> Row {
        let Self { workload, seed, .. } = self;
        let (stack, policies) = match (self.is_vm, self.step) {
            (true, ALL) => ("vm", "base,host-huge,guest-huge,aligned"),
            (true, _) => ("vm", "base"),
            (false, _) => ("native", "base,thp"),
        };
        let [warmup, counted] = [2e6, 4e6].map(|accesses: f64| {
            ((accesses * if self.is_recorded { scale.min(1.0) } else { scale }) as u64).max(1000)
        });
        let mut options = vec![
            ("--stack", stack.to_owned()),
            ("--policy", policies.to_owned()),
            ("--cpu", "phenom-9550".to_owned()),
            ("--memory", "2GiB".to_owned()),
            ("--fragmentation", "none".to_owned()),
            ("--walk-caches", self.step.to_owned()),
            ("--seed", seed.to_string()),
            ("--warmup", warmup.to_string()),
        ];
        if self.is_recorded {
            options.push(("--workload", (*workload).to_owned()));
            options.push(("--limit", (warmup + counted).to_string()));
        } else {
            let accesses = warmup + counted;
            options.push(("--workload", format!("{workload},accesses={accesses},seed={seed}")));
        }
        if self.factor != 1.0 {
            for (name, entries) in ENTRIES {
                let entries = (entries * self.factor).max(1.0);
                options.push(("--set", format!("walk.{name}={entries:.0}")));
            }
        }
        Row::new(self.row(), &options, &[])
    }
}

/// The walk caches of the preset and their entries.
const ENTRIES: [(&str, f64); 7] = [
    ("pml4_entries", 2.0),
    ("pdpt_entries", 4.0),
    ("pd_entries", 16.0),
    ("nested_pml4_entries", 2.0),
    ("nested_pdpt_entries", 4.0),
    ("nested_pd_entries", 16.0),
    ("ntlb_entries", 16.0),
];

/// Seeds, from 1.
pub(super) fn seeds() -> impl Iterator<Item = u64> + Clone {
    1..=SEEDS
}

/// A working set of random places.
pub(super) fn footprint(mebibytes: u64) -> (String, String) {
    let workload = format!("random:size={mebibytes}MiB,touch=yes");
    (format!("random, {mebibytes} MiB"), workload)
}

/// Every row once, with those recorded programs that there are.
pub(super) fn rows(scale: f64, programs: &[&Program]) -> Vec<Row> {
    let mut rows = Vec::new();
    for seed in seeds() {
        for program in programs {
            rows.push(Setting::of(program, false, ALL, seed).made(scale));
            rows.extend(STEPS.map(|step| Setting::of(program, true, step, seed).made(scale)));
        }
    }
    for program in &VARIED {
        for factor in FACTORS {
            let setting = Setting { factor, ..Setting::of(program, true, ALL, 1) };
            rows.push(setting.made(scale));
        }
    }
    for size in FOOTPRINTS {
        let (name, workload) = footprint(size);
        for step in ["2d", ALL] {
            let of = Setting::of(&PROGRAMS[0], true, step, 1);
            rows.push(Setting { program: &name, workload: &workload, ..of }.made(scale));
        }
    }
    // The surfaces have the ordinary setting among theirs.
    let mut seen = BTreeSet::new();
    rows.retain(|row| seen.insert(row.name.clone()));
    rows
}
