//! What the prose of the papers says, what is left of it without each mechanism and with other constants, real programs, and
//! what others measured.

use super::beyond::{
    self, AFTER, DMT, Ground, PAIRS, Real, VARIED, WITHOUT_OF_STRATA, ablated, dmt_name,
    insensitive, pair_name, real, reused, unaided, without,
};
use super::conditions::{FEW_SEEDS, INSENSITIVE, Memory, PROGRAMS, Program, Setting, Which, seeds};
use super::measure::Measure;
use super::published::{REUSED, cell, figures};
use super::sensitivity::{CASES, Verdict, case, claims, constants};
use crate::cells::{NOTHING, over_seeds, percent, ratio};
use crate::{Found, Spread, Table};
use strata_engine::{RunResult, StackKind};

/// The mean over cases of what each seed gives.
fn mean_over<T>(cases: &[T], of: impl Fn(&T, u64) -> Option<f64>) -> Option<Spread> {
    over_seeds(seeds(), |seed| {
        let values = cases.iter().map(|case| of(case, seed)).collect::<Option<Vec<f64>>>()?;
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    })
}

/// The programs of a paper's figures.
fn programs(which: Which) -> Vec<&'static Program> {
    PROGRAMS.iter().filter(|program| !program.stands_for(which).is_empty()).collect()
}

/// Averages that only the papers' prose has.
pub(super) fn prose(found: &Found, which: Which) -> Table {
    let mut table = Table::new(
        "What the prose says",
        &["Averages that are not those of bars, or whose bars are not to be had."],
        &["where", "what", "published in the prose", "ours"],
    );
    let stated = |memory, measure: Measure, policy: &'static str, to| {
        let programs = programs(which);
        mean_over(&programs, |program, seed| {
            measure.relative(found, &Setting::stated(which, program, memory, seed), policy, to)
        })
    };
    let mut row = |place: &str, what: &str, published: &str, ours: String| {
        table.row([place, what, published].map(str::to_owned).into_iter().chain([ours]));
    };
    let frag = Memory::Fragmented;
    let base = Some("base");
    let fmfi = |measure, memory| {
        let of = |policy| stated(memory, measure, policy, None);
        let more = of(which.own()).zip(of("base")).map(|(own, base)| own.mean - base.mean);
        more.map_or_else(|| NOTHING.to_owned(), |more| format!("{:+.1} points", 100.0 * more))
    };
    match which {
        Which::Gemini => {
            let both: Vec<(&Program, Memory)> = programs(which)
                .into_iter()
                .flat_map(|program| Memory::ALL.map(|memory| (program, memory)))
                .collect();
            let throughput = |policy| {
                percent(mean_over(&both, |(program, memory), seed| {
                    let setting = Setting::stated(which, program, *memory, seed);
                    Measure::Throughput.relative(found, &setting, policy, base)
                }))
            };
            let what = "throughput of Gemini, fragmented or not, / base";
            row("6.2", what, "172 %", throughput("gemini"));
            let what = "throughput of others but Translation-ranger (ours: THP's) / base";
            row("6.2", what, "122 %", throughput("thp"));
            let misses = ratio(stated(frag, Measure::Misses, "thp", Some("gemini")));
            row("6.2", "TLB misses of all other systems (ours: THP's) / Gemini's", "2.39", misses);
            let aligned = |policy| percent(stated(frag, Measure::Aligned, policy, None));
            row("6.2", "well aligned, Gemini", "66 %", aligned("gemini"));
            row("6.2", "well aligned, others at most (ours: THP)", "33 %", aligned("thp"));
            let after = |measure: Measure, policy, to| {
                mean_over(&AFTER, |name, seed| {
                    measure.relative(found, &reused(which, name, seed), policy, to)
                })
            };
            let value = percent(after(Measure::Throughput, "gemini", base));
            row("6.3", "reused VM, throughput of Gemini / base", "165 %", value);
            let value = ratio(after(Measure::Misses, "thp", Some("gemini")));
            row(
                "6.3",
                "reused VM, TLB misses of other systems (ours: THP's) / Gemini's",
                "4.6",
                value,
            );
            let value = percent(after(Measure::Aligned, "gemini", None));
            row("6.3", "reused VM, well aligned under Gemini", "88 %", value);
            let pairs =
                mean_over(&PAIRS, |pair, seed| beside(found, which, pair, seed, "thp", "gemini"));
            row(
                "6.5",
                "two VMs, throughput of others (ours: THP's) / Gemini's",
                "63 %",
                percent(pairs),
            );
        }
        Which::XGemini => {
            for (memory, more, fewer, over, misses) in [
                (frag, "118.8 %", "46.2 %", "115.3 %", "62.3 %"),
                (Memory::Clean, "116.5 %", "65.0 %", "109.4 %", "96.3 %"),
            ] {
                let of = |measure, to| percent(stated(memory, measure, "xgemini", to));
                let what = |what: &str| format!("{what}, {memory}");
                let value = of(Measure::Throughput, base);
                row("V.A", &what("throughput of xGemini / base"), more, value);
                let value = of(Measure::Misses, base);
                row("V.A", &what("TLB misses of xGemini / base"), fewer, value);
                let value = of(Measure::Throughput, Some("gemini"));
                row("V.A", &what("throughput of xGemini / dual Gemini"), over, value);
                let value = of(Measure::Misses, Some("gemini"));
                row("V.A", &what("TLB misses of xGemini / dual Gemini"), misses, value);
            }
            for (memory, mean, tail) in
                [(Memory::Clean, "72.0 %", "71.6 %"), (frag, "73.9 %", "71.5 %")]
            {
                let servers: Vec<&Program> = figures(which)
                    .filter(|figure| figure.measure == Measure::MeanLatency)
                    .flat_map(|figure| {
                        let shown = move |program: &&Program| {
                            let mut names = program.stands_for(which).iter();
                            names.any(|name| figure.value(name, memory, "xGemini").is_some())
                        };
                        programs(which).into_iter().filter(shown)
                    })
                    .collect();
                for (measure, published) in
                    [(Measure::MeanLatency, mean), (Measure::TailLatency, tail)]
                {
                    let ours = mean_over(&servers, |program, seed| {
                        let setting = Setting::stated(which, program, memory, seed);
                        measure.relative(found, &setting, "xgemini", base)
                    });
                    let what = format!("{} of xGemini / base, {memory}", measure.name());
                    row("V.B", &what, published, percent(ours));
                }
            }
            let beside = |over, under| {
                percent(mean_over(&PAIRS, |pair, seed| {
                    beside(found, which, pair, seed, over, under)
                }))
            };
            let value = beside("xgemini", "base");
            row("V.C", "two VMs, throughput of xGemini / vanilla", "107.6 %", value);
            let value = beside("xgemini", "gemini");
            row("V.C", "two VMs, throughput of xGemini / dual Gemini", "112.2 %", value);
            let value = beside("thp", "base");
            row(
                "V.C",
                "two VMs, throughput of THP / vanilla, which the paper's vanilla has not",
                "-",
                value,
            );
            let insensitive = mean_over(&INSENSITIVE, |program, seed| {
                let setting = insensitive(which, program, frag, seed);
                Measure::Throughput.relative(found, &setting, "xgemini", base)
            });
            row(
                "V.C",
                "throughput of xGemini / base, insensitive programs",
                "104.0 %",
                percent(insensitive),
            );
        }
    }
    for memory in Memory::ALL {
        let xgemini = which == Which::XGemini;
        for (measure, layer) in [(Measure::HostFmfi, "host"), (Measure::GuestFmfi, "guest")] {
            let published = if xgemini && layer == "host" { "+2 %" } else { NOTHING };
            let place = if xgemini { "V.B" } else { NOTHING };
            let what = format!("FMFI at the end, of the {layer}, above base, {memory}");
            row(place, &what, published, fmfi(measure, memory));
        }
    }
    table
}

/// Throughput of the measured VM of a pair under one policy over that under another.
fn beside(
    found: &Found,
    which: Which,
    pair: &[(&str, u64); 2],
    seed: u64,
    over: &str,
    under: &str,
) -> Option<f64> {
    let row = pair_name(which, pair, seed);
    let of = |policy| Measure::Throughput.of(found.vm(&row, "measured", policy)?);
    Some(of(over)? / of(under)?)
}

fn in_reused_vm(found: &Found, which: Which) -> Table {
    let policies = which.few_policies().split(',').skip(1).collect::<Vec<_>>();
    let mut table = Table::new(
        "A reused VM",
        &[
            "A workload before used nine tenths of the guest's memory and read files in between, of which a tenth of what it used \
             is left, here and there (`reused.left`): memory is as that left it. The published shares are Gemini's Table 4.",
        ],
        &[
            "program",
            "system",
            "published: well aligned",
            "well aligned",
            "TLB misses / base",
            "throughput / base",
        ],
    );
    for name in AFTER {
        for policy in &policies {
            let of = |seed| reused(which, name, seed);
            let theirs = match (which, *policy) {
                (Which::Gemini, "thp") => Some("THP"),
                (Which::Gemini, "gemini") => Some("Gemini"),
                _ => None,
            };
            let program = beyond::program(name);
            let theirs = theirs.and_then(|column| {
                let row = format!("{} (reused)", program.gemini.first()?);
                cell(REUSED, &row, column)
            });
            let base = Some("base");
            table.row([
                name.to_owned(),
                (*policy).to_owned(),
                theirs.map_or_else(|| NOTHING.to_owned(), |value| format!("{value:.0} %")),
                percent(Measure::Aligned.spread(found, of, policy, None)),
                percent(Measure::Misses.spread(found, of, policy, base)),
                percent(Measure::Throughput.spread(found, of, policy, base)),
            ]);
        }
    }
    table
}

fn two_vms(found: &Found, which: Which) -> Table {
    let policies: Vec<&str> = beyond::policies_of_pairs(which).split(',').skip(1).collect();
    let mut table = Table::new(
        "Two VMs on one host",
        &[
            "Throughput of the first relative to base pages in both, in fragmented memory as stated. The one beside it begins anew \
             until the first has ended; each has cores of its own, they share memory and the last-level cache.",
        ],
        &["measured", "beside"],
    );
    table.columns.extend(policies.iter().map(|policy| (*policy).to_owned()));
    for pair in &PAIRS {
        let cells = policies.iter().map(|policy| {
            percent(over_seeds(seeds(), |seed| beside(found, which, pair, seed, policy, "base")))
        });
        table.row(pair.iter().map(|(name, _)| (*name).to_owned()).chain(cells));
    }
    table
}

fn insensitive_programs(found: &Found, which: Which) -> Table {
    let policies: Vec<&str> = which.few_policies().split(',').skip(1).collect();
    let mut table = Table::new(
        "Programs that TLB misses matter little to",
        &["Throughput relative to base pages: what the systems cost where they bring nothing."],
        &["program", "memory"],
    );
    table.columns.extend(policies.iter().map(|policy| (*policy).to_owned()));
    for of in &INSENSITIVE {
        for memory in Memory::ALL {
            let cells = policies.iter().map(|policy| {
                let with = |seed| insensitive(which, of, memory, seed);
                percent(Measure::Throughput.spread(found, with, policy, Some("base")))
            });
            table.row([of.name.to_owned(), memory.to_string()].into_iter().chain(cells));
        }
    }
    table
}

fn ablation(found: &Found, which: Which) -> Table {
    let own = which.own();
    let published = match which {
        Which::Gemini => {
            "Gemini's own breakdown (6.4, Fig. 16): EMA and booking contribute 66 % to its throughput, the bucket 34 %. Beside it: what \
             of the gain over base pages is lost without one of them."
        }
        Which::XGemini => "The paper has no breakdown.",
    };
    let mut table = Table::new(
        "Without one mechanism",
        &[
            published,
            "Throughput and TLB misses are relative to base pages. Lost is the part of the gain in throughput that \
             is gone without the mechanism: more than 100 % where less than base pages is left, below 0 where it \
             is better without. Where all of it gains less than 1 % there is nothing to lose. Three seeds.",
        ],
        &["program", "memory", "without", "throughput", "TLB misses", "well aligned", "lost"],
    );
    for ground in Ground::all(which) {
        for of in &VARIED {
            for out in without(which) {
                let left = |seed| ablated(which, of, ground, out, seed);
                let whole = |seed| ablated(which, of, ground, &without(which)[0], seed);
                let names = [of.name.to_owned(), ground.to_string(), out.name.to_owned()];
                table.row(names.into_iter().chain(beside_all(found, own, left, whole)));
            }
        }
    }
    table
}

/// Throughput, TLB misses, alignment and what is lost of the gain, of what is left of a system beside all of it.
fn beside_all(
    found: &Found,
    system: &str,
    left: impl Fn(u64) -> Setting,
    whole: impl Fn(u64) -> Setting,
) -> [String; 4] {
    let throughput =
        |setting: Setting| Measure::Throughput.relative(found, &setting, system, Some("base"));
    let lost = over_seeds(1..=FEW_SEEDS, |seed| {
        let (left, all) = (throughput(left(seed))?, throughput(whole(seed))?);
        (all > 1.01).then(|| (all - left) / (all - 1.0))
    });
    [
        percent(Measure::Throughput.of_few_seeds(found, &left, system, Some("base"))),
        percent(Measure::Misses.of_few_seeds(found, &left, system, Some("base"))),
        percent(Measure::Aligned.of_few_seeds(found, &left, system, None)),
        percent(lost),
    ]
}

/// What each addition of the kernel in `linux/` brings.
fn additions(found: &Found) -> Table {
    let mut table = Table::new(
        "What the kernel adds to xGemini",
        &[
            "The policy `strata`, which does what the kernel in `linux/` does, without one of its additions or all \
             of them. Figures are those of *Without one mechanism*. The kernel changes nothing in guests: xGemini's \
             half there it has not. Three seeds.",
        ],
        &["program", "memory", "without", "throughput", "TLB misses", "well aligned", "lost"],
    );
    for memory in Memory::ALL {
        for of in &VARIED {
            for out in &WITHOUT_OF_STRATA {
                let left = |seed| unaided(of, memory, out, seed);
                let whole = |seed| unaided(of, memory, &WITHOUT_OF_STRATA[0], seed);
                let names = [of.name.to_owned(), memory.to_string(), out.name.to_owned()];
                table.row(names.into_iter().chain(beside_all(found, "strata", left, whole)));
            }
        }
    }
    table
}

/// In words.
fn verdict(verdict: Option<Verdict>) -> &'static str {
    match verdict {
        Some(Verdict::Holds) => "holds",
        Some(Verdict::Level) => "level",
        Some(Verdict::Reversed) => "reversed",
        None => NOTHING,
    }
}

/// Which conclusions another value of a constant changes.
fn sensitivity(found: &Found, which: Which) -> Table {
    let mut table = Table::new(
        "What depends on constants",
        &[
            "Constants that no source confirms (`?` in model.md), and choices of ours, at a quarter and at four times their values, one \
             at a time, with seed 1. Of each conclusion: in how many of two cases (keys in fragmented memory, objects in memory that is not, each \
             of 96 MiB) it is what it is with the default (first row: holds / level within 1 % / reversed); then \
             what it becomes where it changes.",
        ],
        &["constant", "value"],
    );
    let claims = claims(which);
    table.columns.extend(claims.iter().map(|claim| claim.words()));
    let judged = |claim: &super::sensitivity::Claim, constant| {
        CASES.map(|of| claim.judge(found, &case(which, of, constant)))
    };
    let defaults: Vec<_> = claims.iter().map(|claim| judged(claim, None)).collect();
    let cells = defaults.iter().map(|verdicts| verdicts.map(verdict).join(" / "));
    table.row(["as it is".to_owned(), String::new()].into_iter().chain(cells));
    for constant in constants(which) {
        for value in constant.values {
            let cells = claims.iter().zip(&defaults).map(|(claim, default)| {
                let now = judged(claim, Some((constant, value)));
                if now.iter().any(Option::is_none) {
                    return NOTHING.to_owned();
                }
                let changed: Vec<&str> = now
                    .iter()
                    .zip(default)
                    .filter(|(now, then)| now != then)
                    .map(|(now, _)| verdict(*now))
                    .collect();
                match changed.len() {
                    0 => "same".to_owned(),
                    some => format!("{} same; {}", CASES.len() - some, changed.join(", ")),
                }
            });
            let value = format!("{value}, not {}", constant.usual());
            let labels = [constant.name.to_owned(), value];
            table.row(labels.into_iter().chain(cells));
        }
    }
    table
}

fn real_programs(found: &Found, which: Which, there: &[&Real], missing: &[&Real]) -> Table {
    let mut table = Table::new(
        "Real programs",
        &[
            "Of Debian packages, recorded by `strata workloads prepare`, at the stated conditions in a guest of 216 MiB. Relative to base \
             pages. Three seeds.",
        ],
        &["program", "stands for", "memory", "system", "TLB misses", "well aligned", "throughput"],
    );
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter().map(|program| program.name).collect();
        table.text.push(format!("Left out, as they are not recorded here: {}.", names.join(", ")));
    }
    for of in there {
        for memory in Memory::ALL {
            for policy in [which.other(), which.own()] {
                let with = |seed| real(which, of, memory, seed);
                let published = of.stands_for(which);
                table.row([
                    of.name.to_owned(),
                    if published.is_empty() { NOTHING } else { published }.to_owned(),
                    memory.to_string(),
                    policy.to_owned(),
                    percent(Measure::Misses.of_few_seeds(found, with, policy, Some("base"))),
                    percent(Measure::Aligned.of_few_seeds(found, with, policy, None)),
                    percent(Measure::Throughput.of_few_seeds(found, with, policy, Some("base"))),
                ]);
            }
        }
    }
    table
}

/// What DMT's authors measured on a processor that this repository has a preset of.
fn anchors(found: &Found) -> Table {
    let mut table = Table::new(
        "Measured by others: DMT",
        &[
            "DMT (ASPLOS 2024), measured on a Xeon Gold 6138 with base pages: walks take 21 % of time natively, 43 % in a VM, 48 % in a \
             nested VM; a program in a VM takes 1.46 times its native time, and 4.13 times that nested, where exits dominate. Its \
             programs have 75 GiB and more and run for minutes. Ours have 0.5 to 1 GiB, and have touched their memory before \
             counting begins, so that there are hardly any exits: what is to be compared is walks. No figure of \
             DMT was used to set a constant but the sizes of walk caches.",
        ],
        &[
            "program",
            "walks: native",
            "walks: VM",
            "walks: nested VM",
            "VM / native",
            "nested / VM",
        ],
    );
    table.row(["published", "21 %", "43 %", "48 %", "1.46", "4.13"].map(str::to_owned));
    let run = |of, seed, stack| {
        let report = found.report(&dmt_name(of, seed))?;
        report.runs.iter().find(|run| run.stack == stack)
    };
    let stacks = [StackKind::Native, StackKind::Vm, StackKind::Nested];
    for of in &DMT {
        let share = |stack| {
            percent(over_seeds(seeds(), |seed| {
                let run: &RunResult = run(of, seed, stack)?;
                (run.cycles > 0).then(|| run.walk_cycles as f64 / run.cycles as f64)
            }))
        };
        let times = |over, under| {
            ratio(over_seeds(seeds(), |seed| {
                let [over, under] = [over, under].map(|stack| run(of, seed, stack));
                Some(over?.elapsed_cycles as f64 / under?.elapsed_cycles as f64)
            }))
        };
        let [native, vm, nested] = stacks;
        let shares = stacks.map(share);
        let times = [times(vm, native), times(nested, vm)];
        table.row([of.0.to_owned()].into_iter().chain(shares).chain(times));
    }
    table
}

/// All of them but the prose.
pub(super) fn tables(
    which: Which,
    found: &Found,
    there: &[&Real],
    missing: &[&Real],
) -> Vec<Table> {
    let mut tables = vec![
        in_reused_vm(found, which),
        two_vms(found, which),
        insensitive_programs(found, which),
        ablation(found, which),
        sensitivity(found, which),
        real_programs(found, which, there, missing),
    ];
    match which {
        Which::Gemini => tables.push(anchors(found)),
        Which::XGemini => tables.push(additions(found)),
    }
    tables
}
