//! What is run, and why.
//!
//! The testbed is a Xeon Gold 6138 whose last level has 27.5 MiB in 11 ways (xPlace 6.1), so the CPU is
//! `skylake-gold-6138`, with its slices and their hash (`--llc cpu`), and VMs fill 1, 6 or 11 ways. Guests are
//! fresh and have 8 GiB, as the paper's. Those that reuse memory, which the paper has none of, have 1 GiB:
//! backing all of it before each run takes as long as the run. The paper does not say how fragmented the
//! hosts' memory was, so it is moderately so, and a table shows what that matters. Its VMs have 16 vCPUs; how many
//! threads its programs had is not said, so they have one, and a table shows what more do. (When results were
//! first seen guests had 1 GiB, and there were no tables of threads and of memory.)
//!
//! With one VM its guests hop from bin to bin, and so they do here; by that it means what Linux does by
//! itself, so a table shows that placement and others. Programs have touched their memory when counting
//! begins: a first look showed that those of 128 and 184 MiB spent most of a short run on first touches,
//! which a run of minutes does not. PARSEC and SPLASH-2x are not in Debian: own kernels stand for them, with
//! the sizes of their input `simlarge`, since the paper names none. Real programs stand beside them where
//! they are recorded.
//!
//! That cache is filled by what the second level drops, which the model learnt after the results had been
//! seen. So it is filled by misses here (`cache.llc_design.fill`) as it was at first, and a surface shows
//! both.
//!
//! Lengths are what fits into a quarter of an hour on two cores; with fewer, the slowest of a hundred requests
//! is of very few.

use crate::Row;

/// Ways of the last-level cache that VMs fill.
pub(super) const WAYS: [u32; 3] = [1, 6, 11];

/// Bytes of the last-level cache.
pub(super) const LLC: u64 = 28_835_840;

/// Seeds of the model and the workload.
const SEEDS: u64 = 3;

/// Policies in a nested VM.
const POLICIES: &str = "base,coplace,xplace";

/// A program of the paper and what stands for it.
pub(super) struct Program {
    pub(super) name: &'static str,
    /// The published program.
    pub(super) of: &'static str,
    /// The generator, without accesses and seed.
    pub(super) workload: &'static str,
    /// How much memory it uses here, and why so much.
    pub(super) footprint: &'static str,
}

/// A prepared workload.
pub(super) struct Real {
    /// Its name, without `prepared:`.
    pub(super) name: &'static str,
    /// The published program it stands for.
    pub(super) of: &'static str,
    /// Clients ask it for something.
    pub(super) requests: bool,
}

impl Real {
    const fn new(name: &'static str, of: &'static str, requests: bool) -> Self {
        Self { name, of, requests }
    }

    /// What `--workload` is told.
    pub(super) fn workload(&self) -> String {
        format!("prepared:{}", self.name)
    }
}

/// Real programs, as `strata workloads prepare` records them.
pub(super) const REAL: [Real; 8] = [
    Real::new("redis", "TailBench Masstree", true),
    Real::new("memcached", "TailBench Masstree", true),
    Real::new("sqlite", "TailBench Silo and Shore", false),
    Real::new("x264", "PARSEC x264", false),
    Real::new("matrix", "TailBench Img-dnn", false),
    Real::new("sparse", "none: NPB CG", false),
    Real::new("gcc", "none", false),
    Real::new("xz", "half of PARSEC dedup", false),
];

/// Ways that real programs and the two VMs fill: the least and the most.
pub(super) const FEW_AND_ALL: [u32; 2] = [1, 11];

/// Throughput-oriented programs.
pub(super) const THROUGHPUT: [Program; 4] = [
    Program {
        name: "canneal",
        of: "PARSEC canneal",
        workload: "canneal:size=77MiB,touch=yes",
        footprint: "77 MiB: the 400,000 elements of simlarge",
    },
    Program {
        name: "streamcluster",
        of: "PARSEC streamcluster",
        workload: "streamcluster:size=8MiB,touch=yes",
        footprint: "8 MiB: the 16,384 points of 128 dimensions of simlarge",
    },
    Program {
        name: "dedup",
        of: "PARSEC dedup",
        workload: "dedup:size=184MiB,touch=yes",
        footprint: "184 MiB, the file of simlarge; a run sees the beginning of it",
    },
    Program {
        name: "stencil",
        of: "SPLASH-2x ocean_ncp",
        workload: "strided:size=53MiB,stride=4112,stores=0.2,touch=yes",
        footprint: "53 MiB: 25 grids of 514 x 514 doubles, walked down their columns",
    },
];

/// Latency-sensitive programs; an operation is a request.
pub(super) const LATENCY: [Program; 3] = [
    Program {
        name: "masstree",
        of: "TailBench Masstree",
        workload: "btree:size=128MiB,gets=0.5,theta=0.99,request=1,touch=yes",
        footprint: "128 MiB",
    },
    Program {
        name: "specjbb",
        of: "TailBench Specjbb",
        workload: "zipf:size=64MiB,grain=256,request=100,touch=yes",
        footprint: "64 MiB",
    },
    Program {
        name: "img-dnn",
        of: "TailBench Img-dnn",
        workload: "sequential:size=12MiB,stride=64,stores=0,request=20000,touch=yes",
        footprint: "12 MiB of weights, read from start to end",
    },
];

/// Programs to which the cache does not matter.
pub(super) const INSENSITIVE: [Program; 3] = [
    Program {
        name: "volrend",
        of: "SPLASH-2x Volrend",
        workload: "random:size=512KiB",
        footprint: "512 KiB: fits the second level, as its rays do",
    },
    Program {
        name: "shore",
        of: "Shore with TPC-C",
        workload: "churn:size=64MiB,min=4KiB,max=64KiB,work=64",
        footprint: "64 MiB of pages that come and go; its disk is left out",
    },
    Program {
        name: "first touches",
        of: "none: new memory and nothing else",
        workload: "sequential:size=512MiB,stride=4KiB,passes=1",
        footprint: "512 MiB, a page an access",
    },
];

/// Sizes of a working set, as shares of the whole last-level cache in percent.
pub(super) const OCCUPANCY: [u64; 6] = [5, 25, 50, 75, 100, 200];

/// FMFI of all layers.
pub(super) const FRAGMENTATION: [&str; 4] = ["none", "0.5", "0.8", "0.95"];

/// Threads of a program; the paper's VMs have 16 vCPUs.
pub(super) const THREADS: [&str; 3] = ["1", "4", "16"];

/// Memory of a guest: the paper's, and less.
pub(super) const MEMORY: [&str; 3] = ["1GiB", GUEST, "32GiB"];

/// A guest's memory in all tables but the one over it, and those of memory that is reused.
pub(super) const GUEST: &str = "8GiB";

/// The same where it is reused.
const REUSED: &str = "1GiB";

/// How guests place pages.
pub(super) const PLACEMENTS: [&str; 6] =
    ["linux", "random", "bin-hopping", "colouring", "best-bin", "hierarchical"];

/// Shares of what CoPlace can serve at which requests arrive.
pub(super) const LOADS: [&str; 4] = ["0.3", "0.5", "0.7", "0.9"];

/// Which lines are put into the last level.
pub(super) const FILLS: [&str; 2] = [FILL, "victims"];

/// Those of all tables but the one over them.
pub(super) const FILL: &str = "misses";

/// The load of all tables but the one over loads.
pub(super) const LOAD: &str = "0.7";

/// One setting; every table begins with the ordinary one.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) name: &'a str,
    pub(super) workload: &'a str,
    pub(super) ways: u32,
    pub(super) seed: u64,
    pub(super) hash: bool,
    /// Which lines are put into the last level.
    pub(super) fill: &'a str,
    pub(super) placement: &'a str,
    pub(super) fragmentation: &'a str,
    /// Bytes of the guest's memory.
    pub(super) memory: &'a str,
    pub(super) load: &'a str,
    pub(super) reused: bool,
    /// Replacing a frame copies the page.
    pub(super) copy: bool,
    /// What it serves is requests.
    pub(super) requests: bool,
    /// First touches count, too.
    pub(super) whole: bool,
}

impl<'a> Setting<'a> {
    pub(super) fn ordinary(program: &'a Program, ways: u32, seed: u64) -> Self {
        Self {
            name: program.name,
            workload: program.workload,
            ways,
            seed,
            hash: true,
            fill: FILL,
            placement: "bin-hopping",
            fragmentation: "0.8",
            memory: GUEST,
            load: LOAD,
            reused: false,
            copy: true,
            requests: program.workload.contains("request="),
            whole: false,
        }
    }

    /// A real program, whose workload [`Real::workload`] gives.
    pub(super) fn real(program: &'a Real, workload: &'a str, ways: u32, seed: u64) -> Self {
        let Real { name, requests, .. } = *program;
        Self { name, workload, requests, ..Self::ordinary(&THROUGHPUT[0], ways, seed) }
    }

    /// A program from its first touch on, in memory that is backed already.
    pub(super) fn whole(program: &'a Program, ways: u32, seed: u64, copy: bool) -> Self {
        let ordinary = Self::ordinary(program, ways, seed);
        Self { reused: true, whole: true, memory: REUSED, copy, ..ordinary }
    }

    /// The name of its row, in a nested VM or on bare metal.
    pub(super) fn row(&self, nested: bool) -> String {
        let Self { name, ways, seed, hash, fill, placement, fragmentation, .. } = self;
        let Self { memory, load, reused, .. } = self;
        let on = if nested { "nested" } else { "native" };
        let mut row = format!("{name}, {ways} ways, seed {seed}, {on}");
        let mut besides = |differs: bool, words: String| {
            if differs {
                row += &format!(", {words}");
            }
        };
        besides(!hash, "no hash".to_owned());
        besides(*fill != FILL, (*fill).to_owned());
        besides(*placement != "bin-hopping", (*placement).to_owned());
        besides(*fragmentation != "0.8", format!("FMFI {fragmentation}"));
        besides(*memory != if *reused { REUSED } else { GUEST }, (*memory).to_owned());
        besides(*load != LOAD, format!("load {load}"));
        besides(*reused, "reused".to_owned());
        besides(!self.copy, "free".to_owned());
        besides(self.whole, "whole".to_owned());
        row
    }

    pub(super) fn rows(&self, scale: f64, into: &mut Vec<Row>) {
        for nested in [true, false] {
            into.push(self.made(nested, scale));
        }
    }

    pub(super) fn made(&self, nested: bool, scale: f64) -> Row {
        let Self { workload, ways, seed, placement, fragmentation, memory, .. } = self;
        let stack = if nested { ("nested", POLICIES) } else { ("native", "base") };
        let mut options = vec![
            ("--stack", stack.0.to_owned()),
            ("--policy", stack.1.to_owned()),
            ("--cpu", "skylake-gold-6138".to_owned()),
            ("--memory", (*memory).to_owned()),
            ("--fragmentation", (*fragmentation).to_owned()),
            ("--placement", (*placement).to_owned()),
            ("--llc-ways", ways.to_string()),
            ("--seed", seed.to_string()),
        ];
        if workload.starts_with("prepared:") {
            let [warmup, all] = recorded_lengths(scale);
            options.push(("--workload", (*workload).to_owned()));
            options.push(("--warmup", warmup.to_string()));
            options.push(("--limit", all.to_string()));
        } else {
            let [warmup, counted] = lengths(scale);
            options.push(("--workload", with_length(workload, warmup + counted, *seed)));
            if !self.whole && !has_length(workload) {
                options.push(("--warmup", warmup.to_string()));
            }
        }
        if self.hash {
            options.push(("--llc", "cpu".to_owned()));
            options.push(filled_by(self.fill));
        }
        if self.requests {
            let of = if nested { "coplace" } else { "base" };
            options.push(("--request-load", format!("{}@{of}", self.load)));
        }
        if !self.copy {
            options.push(("--set", "xplace.copy=false".to_owned()));
        }
        let switches: &[&str] = if self.reused { &["--reused"] } else { &[] };
        Row::new(self.row(nested), &options, switches)
    }
}

/// The option by which these lines are put into the last level.
fn filled_by(fill: &str) -> (&'static str, String) {
    ("--set", format!("cache.llc_design.fill={fill}"))
}

/// Accesses of the warm-up and those that count.
fn lengths(scale: f64) -> [u64; 2] {
    [8e6, 8e6].map(|accesses: f64| ((accesses * scale) as u64).max(1000))
}

/// Accesses of a recording: of its warm-up, and all. More than 20 million are not recorded.
fn recorded_lengths(scale: f64) -> [u64; 2] {
    [8e6, 20e6].map(|accesses: f64| ((accesses * scale.min(1.0)) as u64).max(1000))
}

/// A workload of so many accesses, unless it says itself how long it is.
fn with_length(workload: &str, accesses: u64, seed: u64) -> String {
    if has_length(workload) {
        return format!("{workload},seed={seed}");
    }
    format!("{workload},accesses={accesses},seed={seed}")
}

fn has_length(workload: &str) -> bool {
    workload.contains("passes=")
}

/// Seeds, from 1.
pub(super) fn seeds() -> impl Iterator<Item = u64> + Clone {
    1..=SEEDS
}

/// A working set of random places, so many percent of the last-level cache.
pub(super) fn working_set(percent: u64) -> (String, String) {
    let bytes = (LLC * percent / 100) & !4095;
    (format!("working set of {percent} %"), format!("random:size={bytes}"))
}

/// The name of the row of two VMs in one guest hypervisor.
pub(super) fn two_vms(pair: &[&Program; 2], ways: u32, seed: u64) -> String {
    format!("{} and {}, {ways} ways, seed {seed}, two VMs", pair[0].name, pair[1].name)
}

/// The VMs of the paper's section 6.4: bin hopping in one, page colouring in the other.
pub(super) fn pairs() -> [[&'static Program; 2]; 2] {
    [[&THROUGHPUT[0], &THROUGHPUT[3]], [&LATENCY[1], &LATENCY[0]]]
}

pub(super) fn two_vms_row(pair: &[&Program; 2], ways: u32, seed: u64, scale: f64) -> Row {
    let [warmup, counted] = lengths(scale);
    let vm = |name: &str, placement: &str, program: &Program| {
        let workload = with_length(program.workload, warmup + counted, seed);
        format!("{name}:in=h,memory={GUEST},placement={placement},workload={workload}")
    };
    let mut options = vec![
        ("--policy", "coplace,xplace".to_owned()),
        ("--cpu", "skylake-gold-6138".to_owned()),
        ("--llc", "cpu".to_owned()),
        filled_by(FILL),
        ("--llc-ways", ways.to_string()),
        ("--seed", seed.to_string()),
        ("--warmup", warmup.to_string()),
        ("--vm", "h".to_owned()),
        ("--vm", vm("vm1", "bin-hopping", pair[0])),
        ("--vm", vm("vm2", "colouring", pair[1])),
    ];
    if pair[0].workload.contains("request=") {
        options.push(("--request-load", format!("{LOAD}@coplace")));
    }
    Row::new(two_vms(pair, ways, seed), &options, &[])
}

/// A number of ways in words.
pub(super) fn in_ways(ways: u32) -> String {
    format!("{ways} way{}", if ways == 1 { "" } else { "s" })
}
