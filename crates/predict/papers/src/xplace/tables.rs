//! The tables: published figures, and ours where there are any.

use super::conditions::{
    INSENSITIVE, LATENCY, PLACEMENTS, Point, Program, Real, Setting, Surface, THROUGHPUT, WAYS,
    in_ways, pairs, seeds, surfaces, two_vms,
};
use crate::found::geometric_mean;
use crate::{Document, Found, Spread, Table};
use strata_engine::RunResult;

/// Where nothing was found.
const NOTHING: &str = "-";

/// A ratio with its range over seeds.
fn ratio(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || NOTHING.to_owned(),
        |Spread { mean, least, most, values }| match values {
            1 => format!("{mean:.2}"),
            _ => format!("{mean:.2} ({least:.2}-{most:.2})"),
        },
    )
}

/// A share with its range over seeds.
fn percent(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || NOTHING.to_owned(),
        |Spread { mean, least, most, .. }| {
            format!("{:.1} % ({:.1}-{:.1})", 100.0 * mean, 100.0 * least, 100.0 * most)
        },
    )
}

/// What is measured of two runs that are compared.
#[derive(Clone, Copy)]
enum Measure {
    Throughput,
    MeanLatency,
    TailLatency,
}

impl Measure {
    fn of(self, run: &RunResult) -> Option<f64> {
        let latency = || Some(&run.requests.as_ref()?.latency);
        match self {
            Self::Throughput => run.throughput(),
            Self::MeanLatency => Some(latency()?.mean),
            Self::TailLatency => latency()?.p99,
        }
    }

    /// One run over another.
    fn ratio(self, over: Option<&RunResult>, under: Option<&RunResult>) -> Option<f64> {
        Some(self.of(over?)? / self.of(under?)?)
    }
}

/// The share of references to the last level that missed it.
fn miss_ratio(run: &RunResult) -> Option<f64> {
    let llc = run.llc.as_ref().filter(|llc| llc.reads > 0)?;
    Some(llc.misses as f64 / llc.reads as f64)
}

/// Looks results up by their settings.
#[derive(Clone, Copy)]
struct Results<'a>(&'a Found);

impl<'a> Results<'a> {
    fn nested(self, setting: &Setting<'_>, policy: &str) -> Option<&'a RunResult> {
        self.0.run(&setting.row(true), policy)
    }

    fn native(self, setting: &Setting<'_>) -> Option<&'a RunResult> {
        self.0.run(&setting.row(false), "base")
    }

    /// xPlace over CoPlace.
    fn gain(self, setting: &Setting<'_>, measure: Measure) -> Option<f64> {
        measure.ratio(self.nested(setting, "xplace"), self.nested(setting, "coplace"))
    }

    /// How much the miss ratio grows from bare metal to a nested VM.
    fn growth(self, setting: &Setting<'_>, policy: &str) -> Option<f64> {
        let (nested, native) = (self.nested(setting, policy)?, self.native(setting)?);
        Some(miss_ratio(nested)? - miss_ratio(native)?)
    }

    /// For each seed the geometric mean over programs of what each has.
    fn over_programs(
        self,
        programs: &[Program],
        ways: u32,
        hash: bool,
        of: impl Fn(&Setting<'_>) -> Option<f64>,
    ) -> Option<Spread> {
        let mean = |seed| {
            let setting = |program| Setting { hash, ..Setting::ordinary(program, ways, seed) };
            let each = programs.iter().map(|program| of(&setting(program)));
            each.collect::<Option<Vec<f64>>>().map(|ratios| geometric_mean(&ratios))
        };
        Spread::of_ratios(seeds().map(mean).collect::<Option<Vec<f64>>>()?)
    }

    /// Over seeds, what one program has.
    fn over_seeds(
        self,
        program: &Program,
        ways: u32,
        of: impl Fn(&Setting<'_>) -> Option<f64>,
    ) -> Option<Vec<f64>> {
        seeds().map(|seed| of(&Setting::ordinary(program, ways, seed))).collect()
    }
}

/// A published change in percent, as a ratio.
fn published(change: Option<f64>) -> String {
    change.map_or_else(|| NOTHING.to_owned(), |change| format!("{:.2}", 1.0 + change / 100.0))
}

/// The averages that the paper prints, beside ours.
fn averages(results: Results<'_>) -> Table {
    let mut table = Table::new(
        "Averages beside those published",
        &[
            "xPlace over CoPlace in a nested VM: throughput above 1 and latency below 1 are better. Ours are \
           geometric means over the programs that stand for the paper's, and in brackets the range over \
           seeds; in the last column the cache is one piece without a hash, with LRU replacement.",
        ],
        &["figure", "ways", "published", "ours", "without a hash"],
    );
    let figures = [
        ("throughput", &THROUGHPUT[..], Measure::Throughput, [Some(22.0), None, Some(8.0)]),
        ("mean latency", &LATENCY[..], Measure::MeanLatency, [Some(-25.0), None, Some(-6.0)]),
        ("p99 latency", &LATENCY[..], Measure::TailLatency, [Some(-41.0), None, Some(-21.0)]),
    ];
    for (figure, programs, measure, changes) in figures {
        for (ways, change) in WAYS.into_iter().zip(changes) {
            let [hash, none] = [true, false].map(|hash| {
                let gain = |setting: &Setting<'_>| results.gain(setting, measure);
                ratio(results.over_programs(programs, ways, hash, gain))
            });
            table.row([figure.to_owned(), ways.to_string(), published(change), hash, none]);
        }
    }
    let section_3 = [(1, 97.0), (6, 72.0), (11, 51.0)];
    for (ways, change) in section_3 {
        table.row([
            "throughput, section 3 (canneal, ocean_ncp)".to_owned(),
            ways.to_string(),
            published(Some(change)),
            section_3_gain(results, ways, true),
            section_3_gain(results, ways, false),
        ]);
    }
    table
}

fn section_3_gain(results: Results<'_>, ways: u32, hash: bool) -> String {
    let [canneal, .., stencil] = &THROUGHPUT;
    let gain =
        |setting: &Setting<'_>| results.gain(&Setting { hash, ..*setting }, Measure::Throughput);
    let of = |program| results.over_seeds(program, ways, gain);
    let (Some(one), Some(other)) = (of(canneal), of(stencil)) else { return NOTHING.to_owned() };
    ratio(Spread::of_ratios(one.iter().zip(&other).map(|(one, other)| (one * other).sqrt())))
}

/// The throughput of every policy over bare metal.
fn throughput(results: Results<'_>) -> Table {
    let mut table = Table::new(
        "Throughput of each program",
        &[
            "Over bare metal with the same page placement. Vanilla is a nested VM whose hosts place pages as \
           Linux does; on it and with CoPlace the guest's colours are lost.",
        ],
        &["program", "ways", "vanilla", "CoPlace", "xPlace", "xPlace / CoPlace"],
    );
    for program in THROUGHPUT.iter().chain(&LATENCY) {
        for ways in WAYS {
            let over_native = |policy: &str| {
                let over = |setting: &Setting<'_>| {
                    Measure::Throughput
                        .ratio(results.nested(setting, policy), results.native(setting))
                };
                ratio(results.over_seeds(program, ways, over).and_then(Spread::of_ratios))
            };
            let gain = |setting: &Setting<'_>| results.gain(setting, Measure::Throughput);
            let gain = results.over_seeds(program, ways, gain).and_then(Spread::of_ratios);
            let [vanilla, coplace, xplace] = ["base", "coplace", "xplace"].map(over_native);
            let name = program.name.to_owned();
            table.row([name, ways.to_string(), vanilla, coplace, xplace, ratio(gain)]);
        }
    }
    table
}

/// Misses of the last level.
fn misses(results: Results<'_>) -> Table {
    let mut table = Table::new(
        "Misses of the last-level cache",
        &[
            "The share of its references that miss, on bare metal, and by how many points more in a nested VM. \
           The paper reports how much smaller the increase is under xPlace than under CoPlace: 28 % with 1 \
           way and 16 % with 11 for throughput-oriented programs, 31 % and 15 % for latency-sensitive ones.",
        ],
        &["program", "ways", "bare metal", "CoPlace: more", "xPlace: more", "smaller by"],
    );
    for program in THROUGHPUT.iter().chain(&LATENCY) {
        for ways in WAYS {
            let over = |of: &dyn Fn(&Setting<'_>) -> Option<f64>| {
                results.over_seeds(program, ways, of).and_then(Spread::of_values)
            };
            let native = over(&|setting| results.native(setting).and_then(miss_ratio));
            let [coplace, xplace] = ["coplace", "xplace"]
                .map(|policy| over(&|setting| results.growth(setting, policy)));
            // Of an increase that is none nothing can be said.
            let smaller = coplace.zip(xplace).filter(|(coplace, _)| coplace.mean > 0.001);
            let smaller = smaller.map_or_else(
                || NOTHING.to_owned(),
                |(coplace, xplace)| format!("{:.0} %", 100.0 * (1.0 - xplace.mean / coplace.mean)),
            );
            let cells = [percent(native), percent(coplace), percent(xplace), smaller];
            table.row([program.name.to_owned(), ways.to_string()].into_iter().chain(cells));
        }
    }
    table
}

fn latency(results: Results<'_>) -> Table {
    let mut table = Table::new(
        "Latency of each program",
        &[
            "xPlace over CoPlace, at 0.7 of the rate that CoPlace can serve. Service times are those of a run \
           without pauses; the queue is computed afterwards.",
        ],
        &["program", "ways", "mean", "p99"],
    );
    for program in &LATENCY {
        for ways in WAYS {
            let [mean, tail] = [Measure::MeanLatency, Measure::TailLatency].map(|measure| {
                let gain = |setting: &Setting<'_>| results.gain(setting, measure);
                ratio(results.over_seeds(program, ways, gain).and_then(Spread::of_ratios))
            });
            table.row([program.name.to_owned(), ways.to_string(), mean, tail]);
        }
    }
    table
}

/// Two VMs with different page placements.
fn together(results: Results<'_>) -> Table {
    let mut table = Table::new(
        "Two VMs with different page placements",
        &[
            "Bin hopping in the first, page colouring in the second, both in one guest hypervisor. xPlace over \
           CoPlace, the geometric mean of both VMs. Published: throughput 1.29 with 1 way and 1.16 with 11, \
           mean latency 0.73 and p99 0.56 with 11.",
        ],
        &["VMs", "ways", "throughput", "mean latency", "p99 latency"],
    );
    for pair in &pairs() {
        for ways in [1, 11] {
            let measures = [Measure::Throughput, Measure::MeanLatency, Measure::TailLatency];
            let cells = measures.map(|measure| {
                let of_seed = |seed| {
                    let report = results.0.report(&two_vms(pair, ways, seed))?;
                    let gains = report.vms.iter().map(|vm| {
                        let run = |policy: &str| vm.runs.iter().find(|run| run.policy == policy);
                        measure.ratio(run("xplace"), run("coplace"))
                    });
                    let gains =
                        gains.collect::<Option<Vec<f64>>>().filter(|gains| !gains.is_empty());
                    gains.map(|gains| geometric_mean(&gains))
                };
                ratio(
                    seeds().map(of_seed).collect::<Option<Vec<f64>>>().and_then(Spread::of_ratios),
                )
            });
            let name = format!("{}, {}", pair[0].name, pair[1].name);
            table.row([name, ways.to_string()].into_iter().chain(cells));
        }
    }
    table
}

fn overhead(results: Results<'_>) -> Table {
    let mut table = Table::new(
        "Overhead where the cache does not matter",
        &[
            "Throughput under xPlace over that of a vanilla nested VM, which reuses memory that is backed in \
           the wrong colours already. Published: about 0.98 for both programs. The paper calls a frame that \
           is replaced free; it has been zeroed or written by then, so that the page is copied here. The \
           last column leaves the copy out.",
        ],
        &["program", "xPlace / vanilla", "without the copy"],
    );
    for program in &INSENSITIVE {
        let over_vanilla = |copy| {
            let of = |seed| {
                let setting = Setting::whole(program, 11, seed, copy);
                let nested = |policy| results.nested(&setting, policy);
                Measure::Throughput.ratio(nested("xplace"), nested("base"))
            };
            ratio(seeds().map(of).collect::<Option<Vec<f64>>>().and_then(Spread::of_ratios))
        };
        table.row([program.name.to_owned(), over_vanilla(true), over_vanilla(false)]);
    }
    table
}

fn surface(results: Results<'_>, surface: &Surface) -> Table {
    let mut table = Table::new(surface.title, &[surface.about, "Seed 1 only."], &[""]);
    table.columns.extend(surface.columns.iter().cloned());
    let measure = if surface.latency { Measure::TailLatency } else { Measure::Throughput };
    for (name, points) in &surface.series {
        let cell = |point: &Point| point.borrowed(|setting| results.gain(setting, measure));
        let cells = points.iter().map(|point| {
            debug_assert!(surface.columns.contains(&point.column));
            cell(point).map_or_else(|| NOTHING.to_owned(), |gain| format!("{gain:.2}"))
        });
        table.row([name.clone()].into_iter().chain(cells));
    }
    table
}

fn stand_ins() -> Table {
    let mut table = Table::new(
        "What stands for what",
        &["The papers' programs are not in Debian, and which inputs they had is not published."],
        &["name", "program", "workload", "footprint"],
    );
    for program in THROUGHPUT.iter().chain(&LATENCY).chain(&INSENSITIVE) {
        let Program { name, of, workload, footprint } = program;
        table.row([*name, *of, *workload, *footprint].map(str::to_owned));
    }
    table
}

pub(super) fn document(found: &Found, there: &[&Real], missing: &[&Real]) -> Document {
    let results = Results(found);
    let mut tables = vec![
        averages(results),
        throughput(results),
        misses(results),
        latency(results),
        together(results),
        overhead(results),
    ];
    tables.extend(surfaces().iter().map(|of| surface(results, of)));
    tables.push(stand_ins());
    let head = format!(
        "A nested VM on a modelled Xeon Gold 6138, whose last-level cache has 27.5 MiB in 11 ways and 20 slices; \
         how it hashes is not published, so that a stand-in does. Guests place pages by bin hopping unless a \
         table says otherwise (of {} ways to do it), in memory of FMFI 0.8 at first, and fill {} of the cache. \
         Each program runs with {} seeds.",
        PLACEMENTS.len(),
        WAYS.map(in_ways).join(", ").replace(" ways, ", ", "),
        seeds().count(),
    );
    Document { title: "xPlace".to_owned(), head: vec![head], tables }
}
