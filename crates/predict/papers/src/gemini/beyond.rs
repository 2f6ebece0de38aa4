//! What is run beside figures and grid: the micro-benchmark, a reused VM, two VMs on a host, programs that TLB misses
//! matter little to, mechanisms left out one by one, real programs, and what others measured.

use super::conditions::{
    FEW_SEEDS, INSENSITIVE, Memory, PROGRAMS, Program, Setting, Which, seeds, sized,
};
use crate::Row;
use std::fmt;

/// Mebibytes of the sets of the micro-benchmark (Gemini, Fig. 2, which names no sizes): within the reach of 1536
/// base pages, four times as large, and far larger.
pub(super) const SETS: [u64; 3] = [4, 24, 1024];

/// Policies of the micro-benchmark.
pub(super) const SIDES: [&str; 3] = ["host-huge", "guest-huge", "aligned"];

/// The micro-benchmark: random accesses in memory that is not fragmented.
pub(super) fn microbenchmark(mebibytes: u64, no_fill: bool, seed: u64) -> Setting {
    let program = INSENSITIVE[0].in_size(mebibytes);
    let stated = Setting::stated(Which::Gemini, &program, Memory::Clean, seed);
    let name = format!("random places, {mebibytes} MiB");
    Setting { name, no_fill, policies: "base,host-huge,guest-huge,aligned", ..stated }
}

/// A program of the figures.
pub(super) fn program(name: &str) -> &'static Program {
    PROGRAMS.iter().find(|program| program.name == name).expect("it is one of them")
}

/// Programs that run after another in a reused VM (Gemini 6.3).
pub(super) const AFTER: [&str; 4] = ["hash table", "tree", "canneal", "sparse rows"];

/// What the workload before leaves in the guest: one page in ten of what it used, for what it read of files. The
/// paper says nothing of that. With 0 it would be a VM as if nothing had been there.
pub(super) const LEFT: &str = "0.1";

/// A program in a reused VM: the one before fragments memory, and no program whose purpose that is.
pub(super) fn reused(which: Which, name: &str, seed: u64) -> Setting {
    let stated = Setting::stated(which, program(name), Memory::Clean, seed);
    Setting { reused: Some(LEFT), policies: which.few_policies(), ..stated }
}

/// Pairs of VMs: who is measured, and who is beside it (Gemini, Fig. 17: Canneal and Streamcluster beside SVM and
/// beside SP.D, which is not sensitive to TLB misses). xGemini's Fig. 14 names no pairs that the text has.
pub(super) const PAIRS: [[(&str, u64); 2]; 4] = [
    [("canneal", 192), ("static arrays", 256)],
    [("streamcluster", 128), ("static arrays", 256)],
    [("canneal", 192), ("stream", 64)],
    [("streamcluster", 128), ("stream", 64)],
];

/// Policies of both VMs of a pair.
pub(super) fn policies_of_pairs(which: Which) -> &'static str {
    match which {
        Which::Gemini => "base,thp,gemini",
        Which::XGemini => "base,thp,gemini,xgemini",
    }
}

fn sized_program((name, mebibytes): (&str, u64)) -> Program {
    let mut all = PROGRAMS.iter().chain(&INSENSITIVE);
    all.find(|program| program.name == name).expect("it is one of them").in_size(mebibytes)
}

/// The name of the row of a pair.
pub(super) fn pair_name(which: Which, pair: &[(&str, u64); 2], seed: u64) -> String {
    let [one, other] = pair;
    format!("{}: {} beside {}, seed {seed}", which.stack(), one.0, other.0)
}

/// A pair in fragmented memory.
fn pair(which: Which, pair: &[(&str, u64); 2], seed: u64, scale: f64) -> Row {
    let settings = pair.map(|of| {
        let mut setting = Setting::stated(which, &sized_program(of), Memory::Fragmented, seed);
        setting.policies = policies_of_pairs(which);
        setting.workload = setting.workload.replace("request=20,", "");
        setting
    });
    let rows = settings.each_ref().map(|setting| setting.row(scale).words);
    let value = |row: &[String], option: &str| {
        let at = row.iter().position(|word| word == option).expect("every row has it");
        row[at + 1].clone()
    };
    let vm = |name: &str, row: &[String], repeat: &str| {
        let [memory, workload] = ["--memory", "--workload"].map(|option| value(row, option));
        format!("{name}:memory={memory}{repeat},workload={workload}")
    };
    let mut options = vec![
        ("--vm", vm("measured", &rows[0], "")),
        ("--vm", vm("beside", &rows[1], ",repeat=true")),
    ];
    for option in ["--stack", "--policy", "--cpu", "--fragmentation", "--seed", "--warmup"] {
        options.push((option, value(&rows[0], option)));
    }
    let set = rows[0].windows(2).filter(|words| words[0] == "--set");
    options.extend(set.map(|words| ("--set", words[1].clone())));
    Row::new(pair_name(which, pair, seed), &options, &[])
}

/// A program to which TLB misses matter little.
pub(super) fn insensitive(which: Which, of: &Program, memory: Memory, seed: u64) -> Setting {
    let stated = Setting::stated(which, of, memory, seed);
    Setting { policies: which.few_policies(), ..stated }
}

/// A mechanism left out.
pub(super) struct Without {
    /// What it is.
    pub(super) name: &'static str,
    /// The parameters that leave it out.
    set: &'static [(&'static str, &'static str)],
}

impl Without {
    fn leave_out(&self, of: Setting) -> Setting {
        self.set.iter().fold(of, |setting, (name, value)| setting.with(name, value))
    }
}

/// What is left out of Gemini.
const WITHOUT_OF_GEMINI: [Without; 5] = [
    Without { name: "nothing", set: &[] },
    Without {
        name: "EMA and booking",
        set: &[("ema.enabled", "false"), ("booking.enabled", "false")],
    },
    Without { name: "EMA", set: &[("ema.enabled", "false")] },
    Without { name: "booking", set: &[("booking.enabled", "false")] },
    Without { name: "bucket", set: &[("gemini.bucket", "false")] },
];

/// What is left out of xGemini.
const WITHOUT_OF_XGEMINI: [Without; 8] = [
    Without { name: "nothing", set: &[] },
    Without { name: "NEMA guest", set: &[("ema.enabled", "false")] },
    Without { name: "NEMA host", set: &[("xgemini.nema_host", "false")] },
    Without { name: "NWHPC", set: &[("xgemini.nwhpc", "false")] },
    Without { name: "Huge Aligner", set: &[("huge_aligner.enabled", "false")] },
    Without { name: "pseudo huge pages", set: &[("xgemini.pseudo_huge", "false")] },
    Without { name: "booking", set: &[("booking.enabled", "false")] },
    Without { name: "bucket", set: &[("gemini.bucket", "false")] },
];

/// What is left out of a system, nothing first.
pub(super) fn without(which: Which) -> &'static [Without] {
    match which {
        Which::Gemini => &WITHOUT_OF_GEMINI,
        Which::XGemini => &WITHOUT_OF_XGEMINI,
    }
}

/// What runs where something is left out or varied: a table of keys, memory that comes and goes, a heap that grows.
pub(super) const VARIED: [Program; 3] = [
    program_of("keys", "zipf:theta=0,stores=0.5,touch=yes", 96),
    program_of("objects", "churn", 96),
    program_of("heap", "heap:bytes=64", 32),
];

const fn program_of(name: &'static str, spec: &'static str, mebibytes: u64) -> Program {
    Program::generator(name, spec, mebibytes)
}

/// Where mechanisms are left out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground {
    /// Memory of every layer.
    memory: Memory,
    /// The hypervisor in a VM has base pages alone, so that every huge page of its guest needs a pseudo huge page.
    base_pages_between: bool,
}

impl Ground {
    const fn stated(memory: Memory) -> Self {
        Self { memory, base_pages_between: false }
    }

    const BASE_PAGES_BETWEEN: Self = Self { memory: Memory::Clean, base_pages_between: true };

    /// All for a paper.
    pub(super) fn all(which: Which) -> Vec<Self> {
        let between = (which == Which::XGemini).then_some(Self::BASE_PAGES_BETWEEN);
        Memory::ALL.map(Self::stated).into_iter().chain(between).collect()
    }

    fn setting(self, which: Which, of: &Program, seed: u64) -> Setting {
        let stated = Setting::stated(which, of, self.memory, seed);
        match self.base_pages_between {
            true => stated.with("xgemini.l1_thp", "false"),
            false => stated,
        }
    }
}

impl fmt::Display for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let between = if self.base_pages_between { ", L1 with base pages" } else { "" };
        write!(f, "{}{between}", self.memory)
    }
}

/// A program with a mechanism left out, beside base pages.
pub(super) fn ablated(
    which: Which,
    of: &Program,
    ground: Ground,
    without: &Without,
    seed: u64,
) -> Setting {
    let policies = match which {
        Which::Gemini => "base,gemini",
        Which::XGemini => "base,xgemini",
    };
    let plain = Setting { policies, ..ground.setting(which, of, seed) };
    without.leave_out(plain)
}

/// What the kernel in `linux/` has beyond xGemini, left out one by one of the policy `strata`, and all of it. What
/// keeps tables writable is left out of this, as it is of AMD's instructions.
pub(super) const WITHOUT_OF_STRATA: [Without; 7] = [
    Without { name: "nothing", set: &[] },
    Without { name: "compaction", set: &[("strata.compact", "false")] },
    Without { name: "taking huge pages apart", set: &[("strata.take_apart", "false")] },
    Without { name: "filling ahead", set: &[("strata.fill_ahead", "false")] },
    Without { name: "placing page by page", set: &[("strata.one_by_one", "false")] },
    Without { name: "mapping around", set: &[("strata.map_around", "false")] },
    Without {
        name: "all of these",
        set: &[
            ("strata.compact", "false"),
            ("strata.take_apart", "false"),
            ("strata.fill_ahead", "false"),
            ("strata.one_by_one", "false"),
            ("strata.map_around", "false"),
        ],
    },
];

/// A program under the policy of the kernel in `linux/` without one of its additions.
pub(super) fn unaided(of: &Program, memory: Memory, without: &Without, seed: u64) -> Setting {
    let stated = Setting::stated(Which::XGemini, of, memory, seed);
    without.leave_out(Setting { policies: "base,strata", ..stated })
}

/// A prepared workload.
pub(super) struct Real {
    /// Its name, without `prepared:`.
    pub(super) name: &'static str,
    pub(super) gemini: &'static str,
    pub(super) xgemini: &'static str,
}

impl Real {
    /// The published program that it stands for; empty for none.
    pub(super) fn stands_for(&self, which: Which) -> &'static str {
        match which {
            Which::Gemini => self.gemini,
            Which::XGemini => self.xgemini,
        }
    }
}

/// Real programs of Debian packages, as `strata workloads prepare` records them.
pub(super) const REAL: [Real; 7] = [
    Real { name: "redis", gemini: "Redis", xgemini: "Masstree" },
    Real { name: "memcached", gemini: "Memcached", xgemini: "Masstree" },
    Real { name: "sqlite", gemini: "Silo", xgemini: "Silo" },
    Real { name: "omindex", gemini: "", xgemini: "" },
    Real { name: "x264", gemini: "", xgemini: "x264" },
    Real { name: "matrix", gemini: "Img-dnn", xgemini: "Img-dnn" },
    Real { name: "sparse", gemini: "CG.D", xgemini: "" },
];

/// A real program, in a guest of three times the largest of them.
pub(super) fn real(which: Which, of: &Real, memory: Memory, seed: u64) -> Setting {
    let any = VARIED[0].in_size(72);
    let stated = Setting::stated(which, &any, memory, seed);
    Setting { name: of.name.to_owned(), workload: format!("prepared:{}", of.name), ..stated }
}

/// Programs for what DMT measured: of its own, those that a generator is like. Its footprints, of 75 GiB and
/// more, are of another size than these, which leave the walk caches all the same.
pub(super) const DMT: [(&str, &str, u64); 4] = [
    ("GUPS", "gups:touch=yes", 1024),
    ("Redis", "zipf:theta=0,touch=yes", 1024),
    ("BTree", "btree:touch=yes", 1024),
    ("Canneal", "canneal:touch=yes", 480),
];

/// The name of a row for DMT.
pub(super) fn dmt_name((name, ..): &(&str, &str, u64), seed: u64) -> String {
    format!("DMT: {name}, seed {seed}")
}

/// A program with base pages natively, in a VM and in a nested VM, on the processor that DMT measured on.
fn dmt(of: &(&str, &str, u64), seed: u64, scale: f64) -> Row {
    let (_, spec, mebibytes) = of;
    let counted = ((4e5 * scale) as u64).max(1000);
    let workload = format!("{},accesses={},seed={seed}", sized(spec, *mebibytes), 2 * counted);
    let options = [
        ("--stack", "native,vm,nested".to_owned()),
        ("--policy", "base".to_owned()),
        ("--cpu", "skylake-gold-6138".to_owned()),
        ("--memory", "2GiB".to_owned()),
        ("--fragmentation", "none".to_owned()),
        ("--seed", seed.to_string()),
        ("--workload", workload),
        ("--warmup", ((mebibytes << 8) + counted).to_string()),
    ];
    Row::new(dmt_name(of, seed), &options, &[])
}

/// Mechanisms left out one by one.
fn left_out(which: Which, seed: u64) -> impl Iterator<Item = Setting> {
    let of_paper = Ground::all(which).into_iter().flat_map(move |ground| {
        let each =
            move |of| without(which).iter().map(move |out| ablated(which, of, ground, out, seed));
        VARIED.iter().flat_map(each)
    });
    let memories = Memory::ALL.into_iter().filter(move |_| which == Which::XGemini);
    let of_kernel = memories.flat_map(move |memory| {
        let each =
            move |of| WITHOUT_OF_STRATA.iter().map(move |out| unaided(of, memory, out, seed));
        VARIED.iter().flat_map(each)
    });
    of_paper.chain(of_kernel)
}

/// All of that but the sensitivity.
pub(super) fn rows(which: Which, scale: f64, recorded: &[&Real]) -> Vec<Row> {
    let mut rows = Vec::new();
    for seed in seeds() {
        if which == Which::Gemini {
            for mebibytes in SETS {
                let sets = [true, false].map(|no_fill| microbenchmark(mebibytes, no_fill, seed));
                rows.extend(sets.iter().map(|setting| setting.row(scale)));
            }
            rows.extend(DMT.iter().map(|of| dmt(of, seed, scale)));
        }
        rows.extend(AFTER.iter().map(|name| reused(which, name, seed).row(scale)));
        rows.extend(PAIRS.iter().map(|of| pair(which, of, seed, scale)));
        for memory in Memory::ALL {
            for of in &INSENSITIVE {
                rows.push(insensitive(which, of, memory, seed).row(scale));
            }
            let recorded = recorded.iter().filter(|_| seed <= FEW_SEEDS);
            rows.extend(recorded.map(|of| real(which, of, memory, seed).row(scale)));
        }
        if seed <= FEW_SEEDS {
            rows.extend(left_out(which, seed).map(|setting| setting.row(scale)));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_mechanism_left_out_is_a_run_of_its_own() {
        for (which, runs) in [(Which::Gemini, 3 * 2 * 5), (Which::XGemini, 3 * 3 * 8 + 3 * 2 * 7)] {
            let names: HashSet<String> =
                left_out(which, 1).map(|setting| setting.row_name()).collect();
            assert_eq!(names.len(), runs, "{which:?}");
        }
    }
}
