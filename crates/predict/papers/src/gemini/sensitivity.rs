//! Every constant that no source confirms (`?` in `docs/model.md`), at a quarter and at four times its value: which
//! conclusions depend on it?

use super::beyond::VARIED;
use super::conditions::{Memory, Setting, TIME_SCALE, Which};
use super::measure::Measure;
use crate::{Found, Row};

/// A constant and the values that it is given.
pub(super) struct Constant {
    pub(super) name: &'static str,
    /// Its default.
    default: &'static str,
    /// A quarter of it and four times it, as far as that can be.
    pub(super) values: &'static [&'static str],
}

impl Constant {
    /// Its value in the other runs.
    pub(super) fn usual(&self) -> String {
        match self.name {
            "time.scale" => TIME_SCALE.to_string(),
            "reused.left" => super::beyond::LEFT.to_owned(),
            _ => self.default.to_owned(),
        }
    }
}

const fn constant(
    name: &'static str,
    default: &'static str,
    values: &'static [&'static str],
) -> Constant {
    Constant { name, default, values }
}

/// Those that matter in these runs. Shares end at 1, numbers of entries and cycles at 1; what is 0 by default has no
/// quarter. Those in the second part have a source or are choices of ours, and are estimates all the same.
pub(super) const CONSTANTS: [Constant; 41] = [
    constant("fault.cycles", "1000", &["250", "4000"]),
    constant("zero.cycles", "512", &["128", "2048"]),
    constant("copy.cycles", "1024", &["256", "4096"]),
    constant("migrate.cycles", "1000", &["250", "4000"]),
    constant("scan.cycles", "10", &["3", "40"]),
    constant("shootdown.cycles", "2000", &["500", "8000"]),
    constant("exit.handed_on", "10000", &["2500", "40000"]),
    constant("exit.invalidation", "2000", &["500", "8000"]),
    constant("exit.vmresume", "10000", &["2500", "40000"]),
    constant("exit.vmptrld", "2000", &["500", "8000"]),
    constant("exit.handler", "4700", &["1175", "18800"]),
    constant("fragmentation.occupied", "0.25", &["0.0625", "0.5"]),
    constant("fragmentation.movable", "0.5", &["0.125", "1"]),
    constant("fragmentation.spare", "0.5", &["0.125", "1"]),
    constant("gemini.bucket_fmfi", "0.95", &["0.2375", "1"]),
    constant("gemini.bucket_return", "0.5", &["0.125", "1"]),
    constant("core.base_cpi", "0.5", &["0.125", "2"]),
    constant("core.data_overlap", "0.6", &["0.15", "0.9"]),
    constant("core.walk_overlap", "0.0", &["0.25", "0.75"]),
    constant("walk.nested_pd_entries", "32", &["8", "128"]),
    constant("walk.nested_pdpt_entries", "4", &["1", "16"]),
    constant("walk.nested_pml4_entries", "2", &["1", "8"]),
    constant("walk.ntlb_cycles", "1", &["4"]),
    constant("walk.ntlb_entries", "16", &["4", "64"]),
    constant("walk.pd_entries", "32", &["8", "128"]),
    constant("walk.pdpt_entries", "4", &["1", "16"]),
    constant("walk.pml4_entries", "2", &["1", "8"]),
    constant("walk.pwc_cycles", "1", &["4"]),
    constant("cache.llc.cycles", "50", &["13", "200"]),
    constant("cache.memory_cycles", "200", &["50", "800"]),
    constant("time.scale", "1", &["125", "2000"]),
    constant("reused.share", "0.9", &["0.225"]),
    constant("reused.left", "0", &["0.025", "0.4"]),
    constant("booking.initial", "5", &["1.25", "20"]),
    constant("booking.period", "1", &["0.25", "4"]),
    constant("booking.cap", "0.5", &["0.125", "1"]),
    constant("gemini.scan_period", "1", &["0.25", "4"]),
    constant("xgemini.period", "1", &["0.25", "4"]),
    constant("xgemini.share", "0.05", &["0.0125", "0.2"]),
    constant("huge_aligner.threshold", "0", &["0.25", "0.7"]),
    constant("ema.prealloc_pages", "256", &["64", "512"]),
];

/// Where the second part begins.
#[cfg(test)]
const CHOSEN: usize = 30;

/// Constants with a `?` that no run here can notice, by how their names begin, and why.
#[cfg(test)]
const NOT_HERE: [(&str, &str); 24] = [
    ("exit.vmread", "the processor has VMCS shadowing"),
    ("exit.vmwrite", "the processor has VMCS shadowing"),
    ("nested.copied_field", "no VMCS is copied where its instructions are used"),
    ("exit.vmclear", "a guest hypervisor clears a VMCS when a vCPU moves"),
    ("exit.vmrun", "of AMD's processors"),
    ("exit.vmload", "of AMD's processors"),
    ("exit.vmsave", "of AMD's processors"),
    ("exit.stgi", "of AMD's processors"),
    ("exit.clgi", "of AMD's processors"),
    ("exit.page_fault", "of shadow paging, `strata paper nestcloud` has it"),
    ("exit.control_register", "of shadow paging"),
    ("exit.external_interrupt", "there are no interrupts"),
    ("exit.apic", "there are no interrupts"),
    ("exit.halt", "nobody waits"),
    ("exit.io", "there are no devices"),
    ("exit.msr", "of today's KVM in L1"),
    ("gemini.promote_share", "of another pace of promotion than the paper's"),
    ("cache.l4.cycles", "there is no such cache"),
    ("cache.llc_design.replacement", "of `--llc cpu`"),
    ("walk.pml5_entries", "of five levels"),
    ("walk.nested_pml5_entries", "of five levels"),
    ("xgemini_xplace.", "of another policy"),
    ("ksm.", "KSM is off"),
    ("balloon.", "there is none"),
];

/// The parameters that only a system has which the other paper does not run.
fn is_known(which: Which, name: &str) -> bool {
    let nested = ["xgemini.", "huge_aligner.", "nested.", "exit.vm", "exit.handed", "exit.invalid"];
    which == Which::XGemini || !nested.iter().any(|start| name.starts_with(start))
}

/// The constants that a paper's runs can notice.
pub(super) fn constants(which: Which) -> impl Iterator<Item = &'static Constant> {
    CONSTANTS.iter().filter(move |constant| is_known(which, constant.name))
}

/// What is run: programs by their places in [`VARIED`], and memory. The VM is a reused one where the constant is one of
/// reused VMs.
pub(super) const CASES: [(usize, Memory); 2] = [(0, Memory::Fragmented), (1, Memory::Clean)];

/// A case with a constant at a value; at its default, where there is none.
pub(super) fn case(
    which: Which,
    (program, memory): (usize, Memory),
    constant: Option<(&Constant, &str)>,
) -> Setting {
    let stated = Setting::stated(which, &VARIED[program], memory, 1);
    let mut setting = Setting { policies: which.few_policies(), ..stated };
    let Some((constant, value)) = constant else { return setting };
    if constant.name.starts_with("reused.") {
        setting.reused = Some(super::beyond::LEFT);
    }
    setting.with(constant.name, value)
}

/// All runs.
pub(super) fn rows(which: Which, scale: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    for of in CASES {
        rows.push(case(which, of, None).row(scale));
        for constant in constants(which) {
            let values = constant.values.iter();
            rows.extend(values.map(|value| case(which, of, Some((constant, value))).row(scale)));
        }
    }
    rows
}

/// A conclusion: that one system is better than another by a measure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) measure: Measure,
    /// Who is better.
    pub(super) better: &'static str,
    /// Than whom.
    pub(super) than: &'static str,
}

/// The conclusions of a paper that figures of both stand for.
pub(super) fn claims(which: Which) -> [Claim; 6] {
    let (own, other) = (which.own(), which.other());
    let claim = |measure, better, than| Claim { measure, better, than };
    [
        claim(Measure::Throughput, own, other),
        claim(Measure::Throughput, other, "base"),
        claim(Measure::Misses, own, other),
        claim(Measure::Misses, other, "base"),
        claim(Measure::Aligned, own, other),
        claim(Measure::Throughput, own, "base"),
    ]
}

/// What is found of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is so.
    Holds,
    /// Both are within 1 % of each other, or of one share in a hundred.
    Level,
    /// It is the other way round.
    Reversed,
}

impl Claim {
    /// In words.
    pub(super) fn words(&self) -> String {
        let Self { measure, better, than } = self;
        let words = match measure {
            Measure::Misses => "misses less than",
            Measure::Aligned => "aligns more than",
            _ => "has more throughput than",
        };
        format!("{better} {words} {than}")
    }

    /// What a run says of it.
    pub(super) fn judge(&self, found: &Found, setting: &Setting) -> Option<Verdict> {
        let of = |policy| self.measure.relative(found, setting, policy, None);
        Some(compare(self.measure, of(self.better)?, of(self.than)?))
    }
}

/// One value against another.
pub(super) fn compare(measure: Measure, better: f64, than: f64) -> Verdict {
    let (more, less) = if measure.more_is_better() { (better, than) } else { (than, better) };
    let slight = match measure {
        Measure::Aligned => 0.01,
        _ => 0.01 * less.abs(),
    };
    match more - less {
        apart if apart > slight => Verdict::Holds,
        apart if apart < -slight => Verdict::Reversed,
        _ => Verdict::Level,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = include_str!("../../../../../docs/model.md");

    /// Constants of the model's documentation: name, default, whether no source confirms it.
    fn documented() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        MODEL.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
            let name = cells.next()?.strip_suffix('`')?;
            Some((name, cells.next()?, line.contains("`?`")))
        })
    }

    #[test]
    fn every_constant_without_a_source_is_tried_or_cannot_matter() {
        for (name, _, unconfirmed) in documented() {
            let tried = CONSTANTS[..CHOSEN].iter().any(|constant| constant.name == name);
            let left_out = NOT_HERE.iter().any(|(start, _)| name.starts_with(start));
            assert!(tried || !unconfirmed || left_out, "{name} is neither tried nor left out");
            assert!(!tried || unconfirmed, "{name} has a source");
        }
        assert!(documented().filter(|(.., unconfirmed)| *unconfirmed).count() > 50);
    }

    #[test]
    fn values_are_around_the_default() {
        for constant in &CONSTANTS {
            let found = documented().find(|(name, ..)| *name == constant.name);
            assert_eq!(
                found.map(|(_, default, _)| default),
                Some(constant.default),
                "{}",
                constant.name
            );
            let default: f64 = constant.default.parse().unwrap();
            for value in constant.values {
                assert_ne!(value.parse::<f64>().unwrap(), default, "{}", constant.name);
            }
        }
    }

    #[test]
    fn one_per_cent_apart_is_level() {
        assert_eq!(compare(Measure::Throughput, 1.02, 1.0), Verdict::Holds);
        assert_eq!(compare(Measure::Throughput, 1.005, 1.0), Verdict::Level);
        assert_eq!(compare(Measure::Throughput, 0.9, 1.0), Verdict::Reversed);
        assert_eq!(compare(Measure::Misses, 0.9, 1.0), Verdict::Holds);
        assert_eq!(compare(Measure::Aligned, 0.305, 0.30), Verdict::Level);
        assert_eq!(compare(Measure::Aligned, 0.2, 0.3), Verdict::Reversed);
    }
}
