//! `--sample`: which parts of a stream are run in detail.

use crate::failure::unknown;
use std::fmt;
use std::str::FromStr;
use strata_engine::RunResult;
use strata_hardware::{CacheGeometry, CpuModel, TlbLevel};
use strata_phases::Settings;
use strata_stream::{Array, Sampling};
use strata_text::number::{count, percent};
use strata_workloads::{Aim, Aimed, Auto, Reach};

/// How narrow `auto` makes intervals if nothing is said, in hundredths of a percent.
const WITHIN: u32 = 200;

/// The shortest intervals that are told apart by phases if nothing is said, in instructions.
const PHASES_INTERVAL: u64 = 500_000;

/// What warms up a window of a phase if nothing is said, in instructions.
const PHASES_WARM: u64 = 1_600_000;

/// Most phases if nothing is said.
const PHASES_MOST: u64 = 20;

/// No more phases than this can be asked for.
const MOST: u64 = 100;

/// How the note of a sampled recording begins.
pub const NOTE: &str = "sampled: ";

/// What is said of a stream of which nothing was left out.
pub const NOT_SAMPLED: &str = "as far as it was run too short to be sampled, or without gaps between windows: \
                               nothing here is estimated from windows";

/// The keys of `--sample`.
const KEYS: [&str; 4] = ["interval", "window", "warm", "whole"];

/// Those after `phases`.
const PHASES_KEYS: [&str; 3] = ["interval", "warm", "most"];

/// How a stream is to be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// As the program needs it.
    Auto {
        /// Half the width of the widest interval, in hundredths of a percent.
        within: u32,
    },
    /// Windows of each phase of the program.
    Phases {
        /// The shortest intervals that are told apart.
        interval: u64,
        /// What comes before a window.
        warm: u64,
        /// Most phases.
        most: u64,
    },
    /// With these lengths, in instructions.
    Given {
        /// From one window to the next, on average.
        interval: u64,
        /// What counts.
        window: u64,
        /// What comes before it.
        warm: u64,
        /// What is traced whole at the beginning.
        whole: u64,
    },
}

/// How the parts of a stream are chosen that are run in detail.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// With lengths that were given, at places that are drawn.
    Given(Sampling),
    /// While the stream is read, so that something is reached.
    Auto(Sampling, Aim),
    /// By phases that an earlier run is to find.
    Phases(Settings),
}

/// Which parts of a stream are run in detail.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts {
    /// Their lengths and places.
    pub sampling: Sampling,
    /// Who places them, if they are not drawn.
    pub aimed: Option<Aimed>,
}

impl Sample {
    /// How parts of the stream are chosen, at places that `seed` decides. What warming has to fill is what `cpu` has.
    pub fn choice(self, seed: u64, cpu: &CpuModel) -> Choice {
        match self {
            Self::Auto { within } => {
                Choice::Auto(Auto::sampling(seed), aim(cpu, f64::from(within) / 10_000.0))
            }
            Self::Phases { interval, warm, most } => {
                Choice::Phases(Settings { interval, warm, most: most as usize, seed })
            }
            Self::Given { interval, window, warm, whole } => {
                Choice::Given(Sampling { interval, window, warm, whole, adaptive: false, seed })
            }
        }
    }
}

/// The arrays of a CPU that hold most, and what misses in them cost.
fn aim(cpu: &CpuModel, within: f64) -> Aim {
    let exposed = 1.0 - cpu.core.data_overlap;
    let lines = |array, cache: &CacheGeometry, cycles: u32| Reach {
        array,
        entries: cache.bytes / 64,
        ways: cache.ways,
        cycles: f64::from(cycles) * exposed,
    };
    let cache = &cpu.cache;
    let pages = |array, level: &TlbLevel, cycles| {
        let of_base = level.0.iter().find(|(sizes, _)| sizes.contains("4k"));
        of_base.map(|(_, tlb)| Reach { array, entries: tlb.entries.into(), ways: tlb.ways, cycles })
    };
    // A walk of a VM whose references all hit the first-level cache.
    let walk = 24.0 * f64::from(cache.l1d.cycles) * (1.0 - cpu.core.walk_overlap);
    let mut reaches = vec![
        lines(Array::LastLevelCache, &cache.llc, cache.memory_cycles),
        lines(Array::L2Cache, &cache.l2, cache.llc.cycles),
    ];
    reaches.extend(pages(Array::L2Tlb, &cpu.tlb.l2, walk));
    reaches.extend(pages(Array::L1Tlb, &cpu.tlb.l1, cpu.tlb.l2_hit_cycles.into()));
    reaches.retain(|reach| reach.entries > 0);
    reaches.sort_by_key(|reach| std::cmp::Reverse(reach.entries));
    Aim { within, base_cpi: cpu.core.base_cpi, reaches }
}

impl FromStr for Sample {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("auto")
            && (rest.is_empty() || rest.starts_with(','))
        {
            return Ok(Self::Auto { within: within(rest)? });
        }
        if let Some(rest) = text.strip_prefix("phases")
            && (rest.is_empty() || rest.starts_with(','))
        {
            return phases(rest.strip_prefix(','));
        }
        let [interval, window, warm, whole] =
            values(text, KEYS, "there are interval, window, warm and whole")?;
        let (Some(interval), Some(window)) = (interval, window) else {
            return Err(
                "an interval and a window are needed, as in interval=10M,window=100k".into()
            );
        };
        let warm = warm.unwrap_or(0);
        if window == 0 {
            return Err("a window of no instructions counts nothing; make it longer".into());
        }
        if warm.saturating_add(window) > interval {
            return Err(format!(
                "a window of {} after {} to warm up is longer than the interval of {}; make the \
                 interval longer",
                count(window),
                count(warm),
                count(interval)
            ));
        }
        let whole = whole.unwrap_or(usual_whole(interval));
        Ok(Self::Given { interval, window, warm, whole })
    }
}

/// What is run whole at the beginning if nothing is said: the first interval, so that a program that ends before
/// there is a window is not judged by nothing; of a very long one what `auto` runs.
fn usual_whole(interval: u64) -> u64 {
    interval.min(Auto::sampling(0).whole)
}

/// How narrow intervals were to be when a recording with these notes was made, if it was made so.
pub fn asked_of(notes: &[String]) -> Option<f64> {
    let lengths = notes.iter().find_map(|note| note.strip_prefix(NOTE))?;
    match lengths.parse() {
        Ok(Sample::Auto { within }) => Some(f64::from(within) / 10_000.0),
        _ => None,
    }
}

/// What a reader must know of intervals that are wider than asked for, if any are. Of what takes hardly any
/// cycles no interval was asked for.
pub fn too_wide(runs: &[RunResult], within: f64) -> Option<String> {
    const SMALL: f64 = 0.01;
    /// What misses of the first level of the TLB take, on the bill.
    const LOOKUPS: &str = "second-level TLB";
    let share = |part: u64, run: &RunResult| part as f64 / run.cycles.max(1) as f64;
    let widths = runs.iter().filter_map(|run| Some((run, run.sampled.as_ref()?))).flat_map(
        |(run, sampled)| {
            let lookups = run.bill.iter().find(|item| item.name == LOOKUPS);
            let lookups = lookups.map_or(0, |item| item.cycles);
            // Of cycles in walks, lookups that hit are a part.
            let walks = share(run.cycles_by_kind.walks.saturating_sub(lookups), run);
            let lookups = share(lookups, run);
            let data = share(run.cycles_by_kind.data, run);
            [
                ("cycles", "cycles", 1.0),
                ("L1 TLB misses", "tlb.l1_misses", lookups),
                ("L2 TLB misses", "tlb.l2_misses", walks),
                ("cycles in walks", "walk_cycles", walks),
                ("misses of the last-level cache", "counters.strata.data_memory", data),
            ]
            .into_iter()
            .filter(|(_, _, share)| *share >= SMALL)
            .filter_map(|(label, name, _)| {
                let bounds = sampled.bounds.get(name)?;
                Some((bounds.relative(run.bounded(name)), label, run))
            })
            .collect::<Vec<_>>()
        },
    );
    let (width, label, run) = widths.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (width > within).then(|| {
        format!(
            "intervals are wider than asked for (±{}): of what takes a hundredth of all cycles or more, the widest is \
             ±{}, of {label} under {} on {}; a longer run would narrow it",
            percent(within),
            percent(width),
            run.policy,
            run.stack
        )
    })
}

/// The values of keys, as `key=value,key=value`.
fn values<const N: usize>(
    text: &str,
    keys: [&str; N],
    all: &str,
) -> Result<[Option<u64>; N], String> {
    let mut values = [None; N];
    for part in text.split(',') {
        let Some((key, value)) = part.split_once('=') else {
            return Err(format!(
                "'{part}' is no length; give auto, phases, or interval=N,window=N,warm=N,whole=N"
            ));
        };
        let Some(index) = keys.iter().position(|known| *known == key) else {
            return Err(unknown("key", key, keys, all));
        };
        if values[index].is_some() {
            return Err(format!("{key} is given twice; give it once"));
        }
        values[index] = Some(strata_text::parse_count(value)?);
    }
    Ok(values)
}

/// What follows `phases`, if anything does.
fn phases(rest: Option<&str>) -> Result<Sample, String> {
    let keys = "after phases there are interval, warm and most";
    let given = rest.map(|rest| values(rest, PHASES_KEYS, keys)).transpose()?;
    let [interval, warm, most] = given.unwrap_or_default();
    let interval = interval.unwrap_or(PHASES_INTERVAL);
    if interval < 1000 {
        return Err(
            "intervals of fewer than 1000 instructions say nothing; make them longer".into()
        );
    }
    let most = most.unwrap_or(PHASES_MOST);
    if !(1..=MOST).contains(&most) {
        return Err(format!("there are from 1 to {MOST} phases; '{most}' is no number of them"));
    }
    Ok(Sample::Phases { interval, warm: warm.unwrap_or(PHASES_WARM), most })
}

/// What follows `auto`: nothing, or how narrow intervals are to be.
fn within(rest: &str) -> Result<u32, String> {
    let Some(given) = rest.strip_prefix(',') else { return Ok(WITHIN) };
    let Some(value) = given.strip_prefix("within=") else {
        return Err(format!("'{given}' does not go with auto; write auto, or auto,within=2%"));
    };
    let percent = match value.strip_suffix('%') {
        Some(percent) => percent.trim().parse().ok(),
        None => value.parse::<f64>().ok().map(|share| share * 100.0),
    };
    let hundredths = percent.map(|percent| (percent * 100.0).round()).unwrap_or(0.0);
    if !(1.0..=10_000.0).contains(&hundredths) {
        return Err(format!(
            "'{value}' is no width of an interval; write one from 0.01% to 100%, as 2% or 0.02"
        ));
    }
    Ok(hundredths as u32)
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto { within: WITHIN } => f.write_str("auto"),
            Self::Auto { within } => write!(f, "auto,within={}%", f64::from(*within) / 100.0),
            Self::Phases { interval, warm, most } => {
                f.write_str("phases")?;
                let values = [
                    ("interval", interval, PHASES_INTERVAL),
                    ("warm", warm, PHASES_WARM),
                    ("most", most, PHASES_MOST),
                ];
                let own = values.iter().filter(|(_, value, usual)| *value != usual);
                own.into_iter().try_for_each(|(key, value, _)| write!(f, ",{key}={value}"))
            }
            Self::Given { interval, window, warm, whole } => {
                write!(f, "interval={interval},window={window},warm={warm}")?;
                if *whole != usual_whole(*interval) {
                    write!(f, ",whole={whole}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_engine::report::{BillItem, Bounds, Cycles, Sampled, Tlb};

    #[test]
    fn lengths_are_read_as_they_are_printed() {
        for text in [
            "auto",
            "auto,within=0.5%",
            "phases",
            "phases,interval=2000,warm=0,most=3",
            "interval=1000,window=10,warm=0",
            "interval=9,window=4,warm=5,whole=7",
        ] {
            assert_eq!(text.parse::<Sample>().unwrap().to_string(), text);
        }
        assert_eq!("auto,within=0.02".parse(), "auto".parse::<Sample>());
        assert_eq!("phases,interval=500k,warm=1600k".parse(), "phases".parse::<Sample>());
        let short: Sample = "interval=10M,window=100k".parse().unwrap();
        assert_eq!(short.to_string(), "interval=10000000,window=100000,warm=0");
    }

    #[test]
    fn an_interval_is_too_wide_where_its_figure_takes_cycles() {
        let said = |lookups: u64, off: f64, walks: u64| {
            let name = "second-level TLB".to_owned();
            let bill = vec![BillItem { name, cycles: lookups, ..BillItem::default() }];
            let [l1, cycles] = [off, 0.0].map(|off| Bounds { low: 1000.0, high: 1000.0 + off });
            let of_walks = Bounds { low: 100.0, high: 130.0 };
            let bounds = [("tlb.l1_misses", l1), ("cycles", cycles), ("tlb.l2_misses", of_walks)];
            let bounds = bounds.map(|(name, bounds)| (name.to_owned(), bounds)).into();
            let tlb = Tlb { l1_misses: 1000, l2_misses: 100, ..Tlb::default() };
            let sampled = Some(Sampled { bounds, ..Sampled::default() });
            let cycles_by_kind = Cycles { walks: lookups + walks, ..Cycles::default() };
            let run = RunResult {
                cycles: 1000,
                bill,
                tlb,
                sampled,
                cycles_by_kind,
                ..RunResult::default()
            };
            too_wide(&[run], 0.02)
        };
        let wide = said(10, 100.0, 9).expect("it is too wide");
        assert!(wide.contains("the widest is ±10 %, of L1 TLB misses"), "{wide}");
        assert_eq!([said(10, 19.0, 9), said(9, 100.0, 9)], [None, None]);
        let wide = said(9, 0.0, 10).expect("walks take a hundredth");
        assert!(wide.contains("the widest is ±30 %, of L2 TLB misses"), "{wide}");
    }

    #[test]
    fn a_recording_says_how_narrow_intervals_were_to_be() {
        let asked = |note: &str| asked_of(&["recording of: ls".to_owned(), note.to_owned()]);
        assert_eq!(asked("sampled: auto"), Some(0.02));
        assert_eq!(asked("sampled: auto,within=0.5%"), Some(0.005));
        let without = ["sampled: interval=1000,window=10,warm=0", "sampled: phases", "auto"];
        assert_eq!(without.map(asked), [None; 3]);
    }

    #[test]
    fn what_makes_no_sense_is_told_with_a_remedy() {
        let cases = [
            ("interval=1k,window=900,warm=101", "make the interval longer"),
            ("interval=1k", "an interval and a window are needed"),
            ("interval=1k,window=0", "make it longer"),
            ("interval=1k,windw=1", "did you mean 'window'?"),
            ("interval=1k,window=1,window=2", "give it once"),
            ("often", "give auto, phases, or"),
            ("phases,most=0", "from 1 to 100 phases"),
            ("phases,interval=10", "make them longer"),
            ("phases,window=10", "after phases there are"),
            ("phases,5", "'5' is no length"),
        ];
        for (text, expected) in cases {
            let message = text.parse::<Sample>().unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }
}
