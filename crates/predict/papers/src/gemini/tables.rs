//! The published figures beside ours.

use super::beyond::{self, Real, SETS, SIDES};
use super::conditions::{Memory, PROGRAMS, Program, RATIO, SEEDS, Setting, Which, seeds};
use super::measure::Measure;
use super::published::{self, Figure, figures};
use super::region::{every_point, range, regions};
use super::{more_tables, rank::tau};
use crate::cells::{NOTHING, over_seeds, percent};
use crate::{Document, Found, Spread, Table};

/// A value of ours, in the form in which a figure shows it.
fn cell(figure: &Figure, spread: Option<Spread>) -> String {
    match figure.to {
        Some("gemini") => crate::cells::ratio(spread),
        _ => percent(spread),
    }
}

/// A published value in the same form.
fn published_cell(figure: &Figure, value: Option<f64>) -> String {
    value.map_or_else(
        || NOTHING.to_owned(),
        |value| match figure.to {
            // Next to no misses on one side: the number says nothing.
            Some("gemini") if value > 100.0 => "> 100".to_owned(),
            Some("gemini") => format!("{value:.2}"),
            _ => format!("{:.1} %", 100.0 * value),
        },
    )
}

/// Published programs of a figure and what stands for them.
fn bars(figure: &Figure, memory: Memory) -> Vec<(&'static str, &'static Program)> {
    let pairs = PROGRAMS.iter().flat_map(|program| {
        program.stands_for(figure.which).iter().map(move |published| (*published, program))
    });
    let column = figure.systems[0].0;
    pairs.filter(|(published, _)| figure.value(published, memory, column).is_some()).collect()
}

/// Ours of a bar.
fn bar(
    found: &Found,
    figure: &Figure,
    program: &Program,
    memory: Memory,
    policy: &str,
) -> Option<Spread> {
    let of = |seed| Setting::stated(figure.which, program, memory, seed);
    figure.measure.spread(found, of, policy, figure.to)
}

/// The mean over all bars of a system of ours, with its range over seeds.
fn average(found: &Found, figure: &Figure, memory: Memory, policy: &str) -> Option<Spread> {
    let bars = bars(figure, memory);
    over_seeds(seeds(), |seed| {
        let of = |(_, program): &(&str, &Program)| {
            let setting = Setting::stated(figure.which, program, memory, seed);
            figure.measure.relative(found, &setting, policy, figure.to)
        };
        let values = bars.iter().map(of).collect::<Option<Vec<f64>>>()?;
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    })
}

/// What averages of all bars are, published and here, and what they are over the grid.
fn averages(found: &Found, which: Which, times: usize) -> Table {
    let mut table = Table::new(
        "Averages",
        &[
            "Published: means of the bars of each figure, all programs (the papers' prose has others, which stand below). Ours: \
             the same over the programs that something stands for, and in brackets the least and the most \
             over seeds. Over the grid: the least and the most of all its points that have it; so far do the conditions that \
             the papers leave open move it.",
        ],
        &["figure", "what", "memory", "system", "published", "ours", "over the grid"],
    );
    for figure in figures(which) {
        for memory in figure.memory {
            for (column, policy) in figure.systems {
                let over_grid = range(found, which, times, figure.measure, policy, figure.to);
                let over_grid = over_grid.map_or_else(
                    || NOTHING.to_owned(),
                    |spread| {
                        let [least, most] = [spread.least, spread.most]
                            .map(|value| published_cell(figure, Some(value)));
                        format!("{least} - {most}")
                    },
                );
                table.row([
                    figure.name.to_owned(),
                    what(figure),
                    memory.to_string(),
                    (*policy).to_owned(),
                    published_cell(figure, figure.average(*memory, column)),
                    cell(figure, average(found, figure, *memory, policy)),
                    over_grid,
                ]);
            }
        }
    }
    table
}

/// What a figure shows, and relative to what.
fn what(figure: &Figure) -> String {
    match figure.to {
        Some(to) => format!("{} / {to}'s", figure.measure.name()),
        None => figure.measure.name().to_owned(),
    }
}

/// The systems of a figure from the best to the worst by some values; the system that the others are relative to is
/// among them.
fn order(figure: &Figure, value: impl Fn(&str, &str) -> Option<f64>) -> Option<Vec<&'static str>> {
    let mut systems: Vec<(&str, f64)> = Vec::new();
    for (column, policy) in figure.systems {
        systems.push((policy, value(column, policy)?));
    }
    systems.extend(figure.to.map(|to| (to, 1.0)));
    systems.sort_by(|one, other| match figure.measure.more_is_better() {
        true => other.1.total_cmp(&one.1),
        false => one.1.total_cmp(&other.1),
    });
    Some(systems.into_iter().map(|(policy, _)| policy).collect())
}

/// Kendall's tau of pairs of published and own values, for a cell.
fn correlation(pairs: &[(f64, f64)]) -> String {
    tau(pairs).map_or_else(|| NOTHING.to_owned(), |tau| format!("{tau:.2}"))
}

/// How far the orders are those of the papers.
fn orders(found: &Found, which: Which) -> Table {
    let mut table = Table::new(
        "Order of systems and of programs",
        &[
            "Orders are from the best to the worst, by the averages of the bars. A program has the published order when all pairs \
             of systems are ordered as its own bars are, with every seed; systems that are equal have no order. Rank correlation is Kendall's tau-b, 1 for the same order, 0 \
             for none, -1 for the reverse: over all bars of a figure, and over programs for each system \
             alone, which says whether who gains much there gains much here.",
        ],
        &[
            "figure",
            "memory",
            "published order",
            "our order",
            "programs in their own order",
            "tau of all bars",
            "tau over programs, by system",
        ],
    );
    for figure in figures(which) {
        for memory in figure.memory.iter().copied() {
            let bars = bars(figure, memory);
            let theirs = order(figure, |column, _| figure.average(memory, column));
            let ours = order(figure, |_, policy| {
                average(found, figure, memory, policy).map(|spread| spread.mean)
            });
            let as_published = |(published, program): &(&str, &Program)| {
                let theirs = order(figure, |column, _| figure.value(published, memory, column));
                let ours = seeds().map(|seed| {
                    let setting = Setting::stated(which, program, memory, seed);
                    order(figure, |_, policy| {
                        figure.measure.relative(found, &setting, policy, figure.to)
                    })
                });
                let ours = ours.collect::<Option<Vec<_>>>()?;
                Some(ours.into_iter().all(|ours| Some(ours) == theirs))
            };
            let in_order: Vec<bool> = bars.iter().filter_map(as_published).collect();
            let holds = in_order.iter().filter(|holds| **holds).count();
            let pairs = |systems: &[(&str, &str)]| -> Vec<(f64, f64)> {
                let all = bars.iter().flat_map(|of| systems.iter().map(move |system| (of, system)));
                let values = all.filter_map(|((published, program), (column, policy))| {
                    let ours = bar(found, figure, program, memory, policy)?.mean;
                    Some((figure.value(published, memory, column)?, ours))
                });
                values.collect()
            };
            let one_by_one = figure.systems.iter().map(|system| {
                format!("{}: {}", system.1, correlation(&pairs(std::slice::from_ref(system))))
            });
            let words = |order: Option<Vec<&str>>| {
                order.map_or_else(|| NOTHING.to_owned(), |order| order.join(", "))
            };
            table.row([
                figure.name.to_owned(),
                memory.to_string(),
                words(theirs),
                words(ours),
                match in_order.is_empty() {
                    true => NOTHING.to_owned(),
                    false => format!("{holds} of {}", in_order.len()),
                },
                correlation(&pairs(figure.systems)),
                one_by_one.collect::<Vec<_>>().join(", "),
            ]);
        }
    }
    table
}

/// A figure bar by bar.
fn bar_by_bar(found: &Found, figure: &Figure) -> Table {
    let mut table = Table::new(
        &format!("{}: {}", figure.name, what(figure)),
        &[],
        &["program", "memory", "system", "published", "ours"],
    );
    for memory in figure.memory.iter().copied() {
        for (published, program) in bars(figure, memory) {
            for (column, policy) in figure.systems {
                table.row([
                    format!("{published}: {}", program.name),
                    memory.to_string(),
                    (*policy).to_owned(),
                    published_cell(figure, figure.value(published, memory, column)),
                    cell(figure, bar(found, figure, program, memory, policy)),
                ]);
            }
        }
    }
    table
}

/// Gemini's micro-benchmark.
fn microbenchmark(found: &Found) -> Table {
    let mut table = Table::new(
        "Gemini, Fig. 2: a micro-benchmark",
        &[
            "Throughput of random accesses relative to base pages in both layers; memory is not fragmented. The paper gives no sizes. \
             `no-fill` is what its section 2.2 describes, a TLB that does not cache misaligned \
             translations; `splinter`, the default elsewhere, caches them as base pages.",
        ],
        &["set", "misaligned pages", "host-huge", "guest-huge", "aligned"],
    );
    for set in ["Small", "Large"] {
        let of = |column| {
            let value = published::cell(published::MICROBENCHMARK, set, column);
            value.map_or_else(|| NOTHING.to_owned(), |value| format!("{value:.1} %"))
        };
        let values = ["HostH-VMB", "HostB-VMH", "H/H"].map(of);
        let labels = [format!("published: {}", set.to_lowercase()), "published".to_owned()];
        table.row(labels.into_iter().chain(values));
    }
    for mebibytes in SETS {
        for no_fill in [true, false] {
            let values = SIDES.map(|policy| {
                let of = |seed| beyond::microbenchmark(mebibytes, no_fill, seed);
                percent(Measure::Throughput.spread(found, of, policy, Some("base")))
            });
            let misaligned = if no_fill { "no-fill" } else { "splinter" };
            let labels = [format!("{mebibytes} MiB"), misaligned.to_owned()];
            table.row(labels.into_iter().chain(values));
        }
    }
    table
}

fn stand_ins(which: Which) -> Table {
    let mut table = Table::new(
        "What stands for what",
        &["Generators, and why they are what they are and as large."],
        &["name", "programs", "footprint", "why"],
    );
    for program in PROGRAMS.iter().filter(|program| !program.stands_for(which).is_empty()) {
        table.row([
            program.name.to_owned(),
            program.stands_for(which).join(", "),
            format!("{} MiB", program.mebibytes),
            program.why.to_owned(),
        ]);
    }
    table
}

/// Everything.
pub(super) fn document(
    which: Which,
    found: &Found,
    times: usize,
    there: &[&Real],
    missing: &[&Real],
) -> Document {
    let (title, machine) = match which {
        Which::Gemini => ("Gemini", "A VM"),
        Which::XGemini => ("xGemini", "A nested VM"),
    };
    let head = format!(
        "{machine} on a modelled Xeon E5-2620 v4, as the paper's, with {RATIO} times the footprint of its program, and generators \
         that stand for the papers' programs. At the stated conditions fragmented memory has FMFI 0.8 in every \
         layer, half of the fragmenter's pages cannot move, and all of it has been backed; the papers name none of the \
         three, so a grid varies them, and footprint, memory, and what a TLB does with misaligned \
         translations. `crates/predict/papers/src/gemini` says what is run and why; it was written before these runs were made. A \
         value is the mean of {SEEDS} seeds, in brackets the least and the most.",
    );
    let restated = "FMFI 0.8 with a quarter of each fragmented region's frames occupied *is* 15.8 % of all regions free. That few of \
                    Linux's huge pages are aligned there restates that input: it is no finding."
        .to_owned();
    let mut tables = vec![
        averages(found, which, times),
        more_tables::prose(found, which),
        orders(found, which),
        regions(found, which, times),
    ];
    if which == Which::Gemini {
        tables.push(microbenchmark(found));
    }
    tables.extend(more_tables::tables(which, found, there, missing));
    tables.extend(figures(which).map(|figure| bar_by_bar(found, figure)));
    tables.push(every_point(found, which, times));
    tables.push(stand_ins(which));
    Document { title: title.to_owned(), head: vec![head, restated], tables }
}
