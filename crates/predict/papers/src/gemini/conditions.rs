//! What is run for the figures of Gemini (EuroSys 2023) and of xGemini (IEEE TC 2024), and why.
//!
//! Everything here was written before the runs that the pages show, and no constant of the model was chosen for
//! them. An earlier page, of smaller programs at one point of the grid, had been seen.
//!
//! **Stated by the papers**: the CPU, a Xeon E5-2620 v4, which is the default preset; a guest with 32 GB for
//! programs of more than 10 GB, so three times the footprint; one with 100 GB when nested, in 110 GB of 128 (the
//! proportions that L1 and the host have here by default); clean-slate VMs, or VMs in which a workload ran before
//! that used 30 GB of 32; memory of every layer fragmented by a program that measured FMFI, or not fragmented.
//!
//! **Not stated**: how fragmented, so FMFI is 0.8, the command's default; how much of what the fragmenter holds can
//! move, so half, the default; in which order layers were fragmented, so the layers below have backed what is
//! fragmented (`fragmentation.backed`), since programs inside the guests did it; what a TLB does with
//! misaligned translations but in Gemini 2.2, so it keeps the smaller page, the default; the load of servers, so
//! 0.7 of what base pages can serve. The grid varies all of them but the load.
//!
//! The fragmenter keeps a quarter of the frames of what it fragments, the default; a twentieth where guests are fresh, or
//! hardly larger than their programs. (A first run had a quarter there, too: at one point of the grid the host then
//! had less memory than its guest, and ran out of it.)
//!
//! **Otherwise than the papers**: one thread in place of up to 32; programs that are far smaller, 12 to 1024 MiB, where
//! 1536 entries reach 6 MiB of base pages (the grid goes to 6 GiB, twice what as many huge pages reach); runs of
//! hundredths of a second, with time 500 times as fast for background work, so that a run stands for tens of
//! seconds. With all that both papers' runs take half an hour on two cores; `--scale` makes them longer, and time
//! slower in proportion. Generators stand for programs. Sphinx, Moses and Xapian have none that is like them.

use crate::Row;
use std::fmt;

/// Seeds of model and workload at the stated conditions and in the grid.
pub(super) const SEEDS: u64 = 5;

/// Seeds where something is left out, and of real programs.
pub(super) const FEW_SEEDS: u64 = 3;

/// Memory of the guest over the footprint, as the papers state it.
pub(super) const RATIO: f64 = 3.0;

/// FMFI of every layer that is fragmented.
pub(super) const FMFI: &str = "0.8";

/// Share of the fragmenter's pages that cannot move.
pub(super) const UNMOVABLE: &str = "0.5";

/// What runs before counting begins, besides first touches, and what counts.
const ACCESSES: [f64; 2] = [5e5, 3e5];

/// How much faster time passes for background work, in runs of that length.
pub(super) const TIME_SCALE: f64 = 500.0;

/// Share of what base pages can serve at which requests arrive.
const LOAD: &str = "0.7@base";

/// Mebibytes of the smallest guest.
const LEAST_MEMORY: u64 = 64;

/// A generator that stands for programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Program {
    /// How tables call it.
    pub(super) name: &'static str,
    /// The generator without size, accesses and seed.
    spec: &'static str,
    /// Its size.
    pub(super) mebibytes: u64,
    /// The programs of Gemini's figures that it stands for.
    pub(super) gemini: &'static [&'static str],
    /// The programs of xGemini's.
    pub(super) xgemini: &'static [&'static str],
    /// Why it, and why so large.
    pub(super) why: &'static str,
}

impl Program {
    const fn new(
        name: &'static str,
        spec: &'static str,
        mebibytes: u64,
        gemini: &'static [&'static str],
        xgemini: &'static [&'static str],
        why: &'static str,
    ) -> Self {
        Self { name, spec, mebibytes, gemini, xgemini, why }
    }

    /// One that stands for no published program.
    pub(super) const fn generator(name: &'static str, spec: &'static str, mebibytes: u64) -> Self {
        Self::new(name, spec, mebibytes, &[], &[], "")
    }

    /// The same in another size.
    pub(super) fn in_size(self, mebibytes: u64) -> Self {
        Self { mebibytes, ..self }
    }

    /// The published programs that it stands for.
    pub(super) fn stands_for(&self, paper: Which) -> &'static [&'static str] {
        match paper {
            Which::Gemini => self.gemini,
            Which::XGemini => self.xgemini,
        }
    }
}

/// The paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Gemini: a VM.
    Gemini,
    /// xGemini: a nested VM.
    XGemini,
}

impl Which {
    /// Its machine.
    pub(super) fn stack(self) -> &'static str {
        match self {
            Self::Gemini => "vm",
            Self::XGemini => "nested",
        }
    }

    /// The policies of its figures.
    fn policies(self) -> &'static str {
        match self {
            Self::Gemini => "base,host-huge,thp,gemini",
            Self::XGemini => "base,gemini,xgemini",
        }
    }

    /// Those of the grid and of what goes beyond the figures.
    pub(super) fn few_policies(self) -> &'static str {
        match self {
            Self::Gemini => "base,thp,gemini",
            Self::XGemini => "base,gemini,xgemini",
        }
    }

    /// Its own system.
    pub(super) fn own(self) -> &'static str {
        match self {
            Self::Gemini => "gemini",
            Self::XGemini => "xgemini",
        }
    }

    /// The system that it is compared with above all.
    pub(super) fn other(self) -> &'static str {
        match self {
            Self::Gemini => "thp",
            Self::XGemini => "gemini",
        }
    }
}

/// What stands for the programs of the figures.
pub(super) const PROGRAMS: [Program; 15] = [
    Program::new(
        "canneal",
        "canneal:touch=yes",
        192,
        &["Canneal"],
        &["Canneal"],
        "PARSEC's algorithm, a million elements",
    ),
    Program::new(
        "streamcluster",
        "streamcluster:touch=yes",
        128,
        &["Streamcl."],
        &["Streamcl."],
        "PARSEC's algorithm, a quarter of a million points",
    ),
    Program::new(
        "dedup",
        "dedup:touch=yes",
        184,
        &["Dedup"],
        &["Dedup"],
        "PARSEC's algorithm, the file of its input `simlarge`",
    ),
    Program::new(
        "sparse rows",
        "random:stores=0.1,touch=yes",
        256,
        &["CG.D"],
        &[],
        "elements of a vector as a sparse matrix names them",
    ),
    Program::new(
        "columns",
        "strided:touch=yes",
        256,
        &[],
        &["FFT"],
        "steps of a page, as between the rows of a transposed matrix",
    ),
    Program::new("pointers", "chase:touch=yes", 256, &["429.mcf"], &[], "a network of nodes"),
    Program::new(
        "static arrays",
        "random:touch=yes",
        1024,
        &["SVM"],
        &[],
        "large arrays, used uniformly (Gemini 6.2); the largest, as the paper's 30 GB",
    ),
    Program::new(
        "hash table",
        "zipf:theta=0,stores=0.5,request=20,touch=yes",
        384,
        &["Redis", "Memcached"],
        &[],
        "random keys, half of them set (Gemini, Table 2)",
    ),
    Program::new(
        "key-value store",
        "btree:value=256,request=1,touch=yes",
        384,
        &["RocksDB"],
        &[],
        "random keys, half of them set (Gemini, Table 2), in order",
    ),
    Program::new(
        "tree",
        "btree:request=1,touch=yes",
        256,
        &["Masstree"],
        &["Masstree"],
        "Masstree's own structure, half get, half put (Gemini, Table 2)",
    ),
    Program::new(
        "orders",
        "btree:gets=0.65,theta=0.99,request=10,touch=yes",
        64,
        &["Silo"],
        &["Silo"],
        "orders of ten items in a few warehouses, as TPC-C has them",
    ),
    Program::new(
        "growing heap",
        "heap:bytes=64,request=100",
        32,
        &["Specjbb"],
        &["Specjbb"],
        "a heap between two collections; as large as a run fills",
    ),
    Program::new(
        "weights",
        "sequential:stride=64,stores=0,request=500,touch=yes",
        12,
        &["Img-dnn"],
        &["Img-dnn"],
        "weights that each image goes through, as in `strata paper xplace`",
    ),
    Program::new(
        "grids",
        "sequential:stride=64,touch=yes",
        96,
        &[],
        &["Facesim", "x264"],
        "arrays, one after the other",
    ),
    Program::new(
        "scene",
        "random:stores=0,touch=yes",
        192,
        &[],
        &["Raytrace"],
        "rays in all directions through a scene that is only read",
    ),
];

/// Programs of the grid: uniform, skewed, a tree, and memory that comes and goes. They have no size of their
/// own.
pub(super) const GRID_PROGRAMS: [Program; 4] = [
    Program::new("random", "random:touch=yes", 0, &[], &[], "uniform"),
    Program::new("zipf", "zipf:touch=yes", 0, &[], &[], "skewed"),
    Program::new("btree", "btree:touch=yes", 0, &[], &[], "a tree"),
    Program::new(
        "churn",
        "churn",
        0,
        &[],
        &[],
        "memory that comes and goes, of which a run touches a gibibyte at most",
    ),
];

/// Programs to which TLB misses matter little (xGemini V.C, Fig. 16: Xapian and Ferret).
pub(super) const INSENSITIVE: [Program; 2] = [
    Program::new("small set", "random:touch=yes", 2, &[], &[], "within the TLB's reach"),
    Program::new("stream", "sequential:stride=8,touch=yes", 64, &[], &[], "512 loads a page"),
];

/// Memory before a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// Fragmented alike in every layer, which the layers below have backed.
    Fragmented,
    /// Not fragmented, and nothing backed.
    Clean,
}

impl Memory {
    /// Both, the one that the papers care for first.
    pub(super) const ALL: [Self; 2] = [Self::Fragmented, Self::Clean];

    /// As the data files name it.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Fragmented => "frag",
            Self::Clean => "nofrag",
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Clean { "not fragmented" } else { "fragmented" })
    }
}

/// One run: a program on a machine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) which: Which,
    /// Program and size, for the name of the row.
    pub(super) name: String,
    /// The generator without its accesses and seed, or a prepared workload.
    pub(super) workload: String,
    pub(super) mebibytes: u64,
    pub(super) ratio: f64,
    pub(super) fmfi: &'static str,
    pub(super) unmovable: &'static str,
    pub(super) backed: bool,
    pub(super) no_fill: bool,
    /// A workload ran before: the share of what it used that is left of it.
    pub(super) reused: Option<&'static str>,
    pub(super) policies: &'static str,
    pub(super) seed: u64,
    /// Parameters besides.
    pub(super) set: Vec<(String, String)>,
}

impl Setting {
    /// A program at the stated conditions.
    pub(super) fn stated(which: Which, program: &Program, memory: Memory, seed: u64) -> Self {
        let fragmented = memory == Memory::Fragmented;
        Self {
            which,
            name: format!("{}, {} MiB", program.name, program.mebibytes),
            workload: sized(program.spec, program.mebibytes),
            mebibytes: program.mebibytes,
            ratio: RATIO,
            fmfi: if fragmented { FMFI } else { "0" },
            unmovable: UNMOVABLE,
            backed: fragmented,
            no_fill: false,
            reused: None,
            policies: which.policies(),
            seed,
            set: Vec::new(),
        }
    }

    /// With a parameter set.
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        self.set.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The name of its row: what it is, and what is not as stated.
    pub(super) fn row_name(&self) -> String {
        let Self { which, name, ratio, fmfi, unmovable, backed, seed, .. } = self;
        let stack = which.stack();
        let before = if *backed { "backed" } else { "fresh" };
        let mut row = format!(
            "{stack}: {name}, memory x{ratio}, FMFI {fmfi}, {unmovable} unmovable, {before}, seed {seed}"
        );
        if self.no_fill {
            row += ", no-fill";
        }
        if let Some(left) = self.reused {
            row += &format!(", reused, {left} left");
        }
        if self.policies != which.policies() {
            row += &format!(", {}", self.policies);
        }
        for (name, value) in &self.set {
            row += &format!(", {name}={value}");
        }
        row
    }

    /// Mebibytes of the guest's memory.
    fn memory(&self) -> u64 {
        ((self.mebibytes as f64 * self.ratio).ceil() as u64).max(LEAST_MEMORY)
    }

    /// Its run.
    pub(super) fn row(&self, scale: f64) -> Row {
        let mut options = vec![
            ("--stack", self.which.stack().to_owned()),
            ("--policy", self.policies.to_owned()),
            ("--cpu", "broadwell-e5-2620v4".to_owned()),
            ("--memory", format!("{}MiB", self.memory())),
            ("--fragmentation", self.fmfi.to_owned()),
            ("--seed", self.seed.to_string()),
        ];
        options.extend(self.stream(scale));
        if self.no_fill {
            options.push(("--tlb-misaligned", "no-fill".to_owned()));
        }
        let mut set = vec![("time.scale", (TIME_SCALE / scale).to_string())];
        if self.fmfi != "0" {
            let movable = 1.0 - self.unmovable.parse::<f64>().expect("it is a number");
            set.push(("fragmentation.movable", movable.to_string()));
            if self.ratio < 2.0 || !self.backed {
                // With more the program would not fit, or a hypervisor's memory not hold its guest's: what is
                // backed beforehand has `fragmentation.spare` for that.
                set.push(("fragmentation.occupied", "0.05".to_owned()));
            }
            if self.backed {
                set.push(("fragmentation.backed", "true".to_owned()));
            }
        }
        if let Some(left) = self.reused {
            set.push(("reused.left", left.to_owned()));
        }
        let own = self.set.iter().map(|(name, value)| (name.as_str(), value.clone()));
        // What is set here takes the place of what is set otherwise.
        set.retain(|(name, _)| self.set.iter().all(|(own, _)| own != name));
        set.extend(own);
        options.extend(set.iter().map(|(name, value)| ("--set", format!("{name}={value}"))));
        if self.workload.contains("request=") {
            options.push(("--request-load", LOAD.to_owned()));
        }
        let switches: &[&str] = if self.reused.is_some() { &["--reused"] } else { &[] };
        Row::new(self.row_name(), &options, switches)
    }

    /// The workload and how much of it runs.
    fn stream(&self, scale: f64) -> Vec<(&'static str, String)> {
        let lengths = |scale: f64| ACCESSES.map(|accesses| ((accesses * scale) as u64).max(1000));
        if self.workload.starts_with("prepared:") {
            // Recordings end.
            let [warmup, counted] = lengths(scale.min(2.0));
            return vec![
                ("--workload", self.workload.clone()),
                ("--warmup", warmup.to_string()),
                ("--limit", counted.to_string()),
            ];
        }
        let touched = if self.workload.contains("touch=yes") { self.mebibytes << 8 } else { 0 };
        let [warmup, counted] = lengths(scale);
        let warmup = warmup + touched;
        // Touches come before the accesses, and are not among them.
        let all = warmup - touched + counted;
        let workload = format!("{},accesses={all},seed={}", self.workload, self.seed);
        vec![("--workload", workload), ("--warmup", warmup.to_string())]
    }
}

/// A generator of a size.
pub(super) fn sized(spec: &str, mebibytes: u64) -> String {
    let (kind, keys) = spec.split_once(':').unwrap_or((spec, ""));
    let comma = if keys.is_empty() { "" } else { "," };
    format!("{kind}:size={mebibytes}MiB{comma}{keys}")
}

/// Seeds, from 1.
pub(super) fn seeds() -> impl Iterator<Item = u64> + Clone {
    1..=SEEDS
}
