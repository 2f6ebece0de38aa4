//! The tables: published figures, and ours where there are any.

use super::conditions::{
    FEW_AND_ALL, INSENSITIVE, LATENCY, PLACEMENTS, Program, Real, Setting, THROUGHPUT, WAYS,
    in_ways, pairs, seeds, two_vms,
};
use super::measure::{Measure, miss_ratio};
use super::published;
use super::surfaces::{Point, Surface, surfaces};
use crate::cells::{NOTHING, percent, ratio};
use crate::found::geometric_mean;
use crate::{Document, Found, Spread, Table};
use strata_engine::RunResult;

/// An increase of a share that is as good as none.
const SLIGHT: f64 = 0.001;

/// Whether what was found goes the published way, by the ends of its range over seeds; both are ratios.
fn direction(published: Option<f64>, found: Option<Spread>) -> String {
    let (Some(published), Some(found)) = (published, found) else { return NOTHING.to_owned() };
    let down = published < 1.0;
    let word = match (found.least > 1.0, found.most < 1.0) {
        (false, false) => "within seeds",
        (_, below) if below == down => "as published",
        _ => "not",
    };
    word.to_owned()
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

    /// For each seed, xPlace over CoPlace of several programs: the geometric mean of each one's ratio, or of
    /// misses the ratio of the sums of what each has more than on bare metal.
    fn over_programs(
        self,
        programs: &[&Program],
        ways: u32,
        hash: bool,
        measure: Measure,
    ) -> Option<Spread> {
        let of_seed = |seed| {
            let setting = |program| Setting { hash, ..Setting::ordinary(program, ways, seed) };
            let settings = programs.iter().map(|program| setting(program));
            if !matches!(measure, Measure::Misses) {
                let each = settings.map(|setting| self.gain(&setting, measure));
                return each.collect::<Option<Vec<f64>>>().map(|each| geometric_mean(&each));
            }
            let settings: Vec<_> = settings.collect();
            let sum = |policy| {
                let each = settings.iter().map(|setting| self.growth(setting, policy));
                each.sum::<Option<f64>>()
            };
            let (coplace, xplace) = (sum("coplace")?, sum("xplace")?);
            (coplace > SLIGHT * programs.len() as f64).then(|| xplace / coplace)
        };
        Spread::of_values(seeds().map(of_seed).collect::<Option<Vec<f64>>>()?)
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

/// A published ratio.
fn published(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| NOTHING.to_owned(), |ratio| format!("{ratio:.2}"))
}

/// A group of programs and the setting under which the paper prints their average.
struct Group<'a> {
    figure: &'static str,
    programs: Vec<&'a Program>,
    measure: Measure,
    setting: &'static str,
}

/// The groups of which averages are printed.
fn groups() -> Vec<Group<'static>> {
    let [canneal, .., stencil] = &THROUGHPUT;
    let group = |figure, programs: &[&'static Program], measure, setting| Group {
        figure,
        programs: programs.to_vec(),
        measure,
        setting,
    };
    let [throughput, latency] = [THROUGHPUT.iter().collect::<Vec<_>>(), LATENCY.iter().collect()];
    let two = [canneal, stencil];
    vec![
        group("throughput", &throughput, Measure::Throughput, published::THROUGHPUT),
        group("mean latency", &latency, Measure::MeanLatency, published::LATENCY),
        group("p99 latency", &latency, Measure::TailLatency, published::LATENCY),
        group(
            "more misses, throughput programs",
            &throughput,
            Measure::Misses,
            published::THROUGHPUT,
        ),
        group("more misses, latency programs", &latency, Measure::Misses, published::LATENCY),
        group(
            "throughput, section 3 (canneal, ocean_ncp)",
            &two,
            Measure::Throughput,
            published::SECTION_3,
        ),
        group(
            "more misses, section 3 (canneal, ocean_ncp)",
            &two,
            Measure::Misses,
            published::SECTION_3,
        ),
    ]
}

/// The averages that the paper prints, beside ours.
fn averages(results: Results<'_>) -> Table {
    let mut table = Table::new(
        "Averages beside those published",
        &[
            "xPlace over CoPlace in a nested VM: throughput above 1, latency and misses below 1 are better. Ours \
             are means over the programs that stand for the paper's, geometric ones but for misses, and in \
             brackets the range over seeds. A direction is as published when it is so with every seed, and \
             within seeds when it is not the same with all. More misses are those by which the share that \
             misses is larger than on bare metal, summed over programs; where CoPlace has less than 0.1 points \
             more, there is nothing to compare. In the last column the cache is one piece without a hash.",
        ],
        &["figure", "ways", "published", "ours", "direction", "without a hash"],
    );
    for Group { figure, programs, measure, setting } in groups() {
        for ways in WAYS {
            let published_ratio = published::ratio(setting, Some(ways), measure);
            let [hash, none] =
                [true, false].map(|hash| results.over_programs(&programs, ways, hash, measure));
            table.row([
                figure.to_owned(),
                ways.to_string(),
                published(published_ratio),
                ratio(hash),
                direction(published_ratio, hash),
                ratio(none),
            ]);
        }
    }
    table
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
            "The share of a program's loads and stores that miss it, of those that get there, on bare metal, and by \
             how many points more do in a nested VM. References of page walks are left out. The last column \
             is how much smaller the increase is under xPlace than under CoPlace, where that has one.",
        ],
        &[
            "program",
            "ways",
            "bare metal",
            "vanilla: more",
            "CoPlace: more",
            "xPlace: more",
            "smaller by",
        ],
    );
    for program in THROUGHPUT.iter().chain(&LATENCY) {
        for ways in WAYS {
            let over = |of: &dyn Fn(&Setting<'_>) -> Option<f64>| {
                results.over_seeds(program, ways, of).and_then(Spread::of_values)
            };
            let native = over(&|setting| results.native(setting).and_then(miss_ratio));
            let [vanilla, coplace, xplace] = ["base", "coplace", "xplace"]
                .map(|policy| over(&|setting| results.growth(setting, policy)));
            let smaller = smaller(coplace, xplace);
            let cells = [native, vanilla, coplace, xplace].map(percent);
            let cells = cells.into_iter().chain([smaller]);
            table.row([program.name.to_owned(), ways.to_string()].into_iter().chain(cells));
        }
    }
    table
}

/// How much smaller one increase is than another; of an increase that is none nothing can be said.
fn smaller(coplace: Option<Spread>, xplace: Option<Spread>) -> String {
    let both = coplace.zip(xplace).filter(|(coplace, _)| coplace.mean > SLIGHT);
    both.map_or_else(
        || NOTHING.to_owned(),
        |(coplace, xplace)| format!("{:.0} %", 100.0 * (1.0 - xplace.mean / coplace.mean)),
    )
}

fn latency(results: Results<'_>) -> Table {
    let mut table = Table::new(
        "Latency of each program",
        &[
            "xPlace over CoPlace, at 0.7 of the rate that CoPlace can serve. Service times are those of a run \
           without pauses; the queue is computed afterwards. Of single programs the paper prints Img-dnn's: \
             mean 0.76, p99 0.70.",
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
             CoPlace, the geometric mean of both VMs. Of their misses the paper prints no number; ours are \
             ratios of the shares that miss.",
        ],
        &["VMs", "ways", "figure", "published", "ours", "direction"],
    );
    for pair in &pairs() {
        let name = format!("{}, {}", pair[0].name, pair[1].name);
        let measures = match pair[0].workload.contains("request=") {
            true => &[
                ("mean latency", Measure::MeanLatency),
                ("p99 latency", Measure::TailLatency),
                ("miss ratio", Measure::Misses),
            ][..],
            false => &[("throughput", Measure::Throughput), ("miss ratio", Measure::Misses)],
        };
        for ways in FEW_AND_ALL {
            for (figure, measure) in measures {
                let of_seed = |seed| {
                    let report = results.0.report(&two_vms(pair, ways, seed))?;
                    let gains = report.vms.iter().map(|vm| {
                        let run = |policy: &str| vm.runs.iter().find(|run| run.policy == policy);
                        measure.ratio(run("xplace"), run("coplace"))
                    });
                    let gains = gains.collect::<Option<Vec<f64>>>()?;
                    (!gains.is_empty()).then(|| geometric_mean(&gains))
                };
                let ours = seeds().map(of_seed).collect::<Option<Vec<f64>>>();
                let ours = ours.and_then(Spread::of_ratios);
                let theirs = published::ratio(published::TWO_VMS, Some(ways), *measure);
                table.row([
                    name.clone(),
                    ways.to_string(),
                    (*figure).to_owned(),
                    published(theirs),
                    ratio(ours),
                    direction(theirs, ours),
                ]);
            }
        }
    }
    table
}

/// What replacing frames costs where the cache does not matter.
fn overhead(results: Results<'_>) -> Table {
    let mut table = Table::new(
        "Overhead where the cache does not matter",
        &[
            "Throughput under xPlace over that of a vanilla nested VM, which reuses memory, 1 GiB, that is backed in \
             the wrong colours already, from the first touch on. The paper calls a frame that is replaced free; \
             it has been zeroed or written by then, so that the page is copied here. The last column leaves \
             the copy out.",
        ],
        &["program", "published", "xPlace / vanilla", "direction", "without the copy"],
    );
    for program in &INSENSITIVE {
        let over_vanilla = |copy| whole(results, program, 11, copy, "base");
        let theirs = (program.name != "first touches")
            .then(|| published::ratio(published::OVERHEAD, None, Measure::Throughput))
            .flatten();
        let copied = over_vanilla(true);
        table.row([
            program.name.to_owned(),
            published(theirs),
            ratio(copied),
            direction(theirs, copied),
            ratio(over_vanilla(false)),
        ]);
    }
    table
}

/// The throughput under xPlace over that under another policy, first touches and reused memory included.
fn whole(
    results: Results<'_>,
    program: &Program,
    ways: u32,
    copy: bool,
    policy: &str,
) -> Option<Spread> {
    let of = |seed| {
        let setting = Setting::whole(program, ways, seed, copy);
        let nested = |policy| results.nested(&setting, policy);
        Measure::Throughput.ratio(nested("xplace"), nested(policy))
    };
    seeds().map(of).collect::<Option<Vec<f64>>>().and_then(Spread::of_ratios)
}

/// Free against copy where the cache matters.
fn copies(results: Results<'_>) -> Table {
    let mut table = Table::new(
        "Copying what is replaced, or not",
        &[
            "Throughput of xPlace over CoPlace from the first touch on, in memory, 1 GiB, that is backed in the wrong \
             colours already. A run here is 16 million accesses, so that replacing weighs more than in one of \
             minutes.",
        ],
        &["program", "ways", "with the copy", "without"],
    );
    for program in &THROUGHPUT {
        for ways in FEW_AND_ALL {
            let cell = |copy| ratio(whole(results, program, ways, copy, "coplace"));
            table.row([program.name.to_owned(), ways.to_string(), cell(true), cell(false)]);
        }
    }
    table
}

/// Real programs, those that are recorded.
fn real_programs(results: Results<'_>, there: &[&Real], missing: &[&Real]) -> Table {
    let mut table = Table::new(
        "Real programs",
        &[
            "Recorded by `strata workloads prepare`. xPlace over CoPlace, latencies at 0.7 of what CoPlace can \
             serve; misses as in the table above.",
        ],
        &[
            "program",
            "stands for",
            "ways",
            "throughput",
            "mean latency",
            "p99 latency",
            "misses on bare metal",
            "CoPlace: more",
            "xPlace: more",
        ],
    );
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter().map(|program| program.name).collect();
        table.text.push(format!("Left out, as they are not recorded here: {}.", names.join(", ")));
    }
    for program in there {
        let workload = program.workload();
        for ways in FEW_AND_ALL {
            let over = |of: &dyn Fn(&Setting<'_>) -> Option<f64>| -> Option<Vec<f64>> {
                seeds().map(|seed| of(&Setting::real(program, &workload, ways, seed))).collect()
            };
            let gain = |measure| {
                let gains = over(&|setting| results.gain(setting, measure));
                ratio(gains.and_then(Spread::of_ratios))
            };
            let native = over(&|setting| results.native(setting).and_then(miss_ratio));
            let more = |policy: &str| {
                percent(
                    over(&|setting| results.growth(setting, policy)).and_then(Spread::of_values),
                )
            };
            table.row([
                program.name.to_owned(),
                program.of.to_owned(),
                ways.to_string(),
                gain(Measure::Throughput),
                gain(Measure::MeanLatency),
                gain(Measure::TailLatency),
                percent(native.and_then(Spread::of_values)),
                more("coplace"),
                more("xplace"),
            ]);
        }
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
        &["name", "program", "workload", "footprint", "published footprint"],
    );
    for program in THROUGHPUT.iter().chain(&LATENCY).chain(&INSENSITIVE) {
        let Program { name, of, workload, footprint } = program;
        let theirs = if of.starts_with("none") { NOTHING } else { "not published" };
        table.row([*name, *of, *workload, *footprint, theirs].map(str::to_owned));
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
        copies(results),
        real_programs(results, there, missing),
    ];
    tables.extend(surfaces().iter().map(|of| surface(results, of)));
    tables.push(stand_ins());
    let head = format!(
        "A nested VM with 8 GiB on a modelled Xeon Gold 6138, whose last-level cache has 27.5 MiB in 11 ways and 20 slices, \
         with their hash as measured (McCalpin, TR-2021-03). Guests place pages by bin hopping unless a \
         table says otherwise (of {} ways to do it), in memory of FMFI 0.8 at first, and fill {} of the cache. \
         Each program runs with {} seeds.",
        PLACEMENTS.len(),
        WAYS.map(in_ways).join(", ").replace(" ways, ", ", "),
        seeds().count(),
    );
    Document { title: "xPlace".to_owned(), head: vec![head], tables }
}
