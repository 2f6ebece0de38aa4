//! What dominates and what would help, in two or three sentences computed from the numbers.

use strata_addr::PageSize;
use strata_engine::report::Cycles;
use strata_engine::{RunResult, words};
use strata_text::number::{percent, ratio, share};

/// Differences below this share are not worth a recommendation.
const NOTABLE: f64 = 0.02;

/// Where time can go, with the words for it and what is known to help.
struct Kind {
    name: &'static str,
    cycles: fn(&Cycles) -> u64,
    remedy: &'static str,
}

const FAULTS_AND_EXITS: &str = "faults and exits";

const KINDS: [Kind; 5] = [
    Kind {
        name: "TLB misses",
        cycles: |cycles| cycles.walks,
        remedy: "Larger translations help: huge pages that all layers back.",
    },
    Kind {
        name: "data misses",
        cycles: |cycles| cycles.data,
        remedy: "Huge pages cannot help with those; a smaller or more local data set can.",
    },
    Kind {
        name: FAULTS_AND_EXITS,
        cycles: touching,
        remedy: "Fewer, larger allocations and memory the layers below already back help.",
    },
    Kind {
        name: "background work",
        cycles: |cycles| cycles.background,
        remedy: "Scanning less often or with a smaller budget helps.",
    },
    Kind {
        name: "TLB shootdowns",
        cycles: |cycles| cycles.shootdowns,
        remedy: "Fewer migrations and unmappings while many threads run help.",
    },
];

/// What to say about the runs of one stack. The first is the one compared with.
pub fn sentences(runs: &[&RunResult]) -> Vec<String> {
    let Some(&first) = runs.first() else { return Vec::new() };
    // What ran out of memory says nothing of its policy, as the head of the report does.
    if first.out_of_memory {
        return Vec::new();
    }
    if first.cycles == 0 {
        return vec!["Nothing was counted: no access came after the warm-up.".to_owned()];
    }
    let runs: Vec<&RunResult> = runs.iter().copied().filter(|run| !run.out_of_memory).collect();
    let mut sentences = vec![dominates(first)];
    sentences.extend(first_touch(first));
    let (best, text) = best(first, &runs).unzip();
    sentences.extend(text);
    sentences.extend(runs.iter().filter_map(|run| behind(run, &runs)));
    sentences.extend(bound(first, &runs));
    sentences.extend(best.flatten().and_then(|best| steady(first, best)));
    sentences
}

/// Cycles of faults and exits: what first touch costs, and touching again what was given back.
fn touching(cycles: &Cycles) -> u64 {
    cycles.faults + cycles.exits
}

/// Faults of the guest for each page it touched, above which some pages faulted more than once.
const AGAIN: f64 = 1.1;

/// Whether faults and exits are paid once or go on, where they are worth a word. Under base pages
/// each page touched takes one fault of the guest, and more only if it was given back.
fn first_touch(first: &RunResult) -> Option<String> {
    let part = share(touching(&first.cycles_by_kind), first.cycles_by_kind.total());
    let pages = first.memory.touched_bytes / PageSize::Base.bytes();
    if part < NOTABLE || pages == 0 || first.layers.is_empty() {
        return None;
    }
    let each = first.faults.guest as f64 / pages as f64;
    Some(if each <= AGAIN {
        "Faults and exits come mostly with the first touch of memory, once, and weigh less the longer \
         the program runs."
            .to_owned()
    } else {
        format!(
            "The guest took {} faults for each page: memory is given back and touched again, so that \
             faults and exits go on.",
            ratio(Some(each))
        )
    })
}

/// What the best policy gains where neither faults nor exits come any more.
fn steady(first: &RunResult, best: &RunResult) -> Option<String> {
    let part = share(touching(&first.cycles_by_kind), first.cycles_by_kind.total());
    let rest = |run: &RunResult| run.cycles_by_kind.total() - touching(&run.cycles_by_kind);
    if part < NOTABLE || rest(best) == 0 || best.policy == first.policy {
        return None;
    }
    let factor = ratio(Some(rest(first) as f64 / rest(best) as f64));
    Some(format!(
        "In the steady state, the cycles without faults and exits, {} is {factor} times as fast.",
        best.policy
    ))
}

fn dominates(run: &RunResult) -> String {
    let total = run.cycles_by_kind.total();
    let part = |kind: &Kind| share((kind.cycles)(&run.cycles_by_kind), total);
    let largest = KINDS.iter().max_by(|a, b| part(a).total_cmp(&part(b))).expect("not empty");
    let policy = &run.policy;
    if part(largest) < NOTABLE {
        return format!(
            "Under {policy} the program computes: neither memory nor virtualisation holds it up."
        );
    }
    let mut others: Vec<&Kind> =
        KINDS.iter().filter(|kind| kind.name != largest.name && part(kind) >= NOTABLE).collect();
    others.sort_by(|a, b| part(b).total_cmp(&part(a)));
    let mut text =
        format!("Under {policy}, {} take {} of the cycles", largest.name, percent(part(largest)));
    for (index, kind) in others.iter().take(2).enumerate() {
        let joint = if index == 0 { ", against" } else { " and" };
        text += &format!("{joint} {} in {}", percent(part(kind)), kind.name);
    }
    format!("{text}. {}", remedy(largest, run))
}

/// What is known to help, which is no shadow paging where that is what exits.
fn remedy(kind: &Kind, run: &RunResult) -> &'static str {
    let exits = |name: &str| run.exits.get(name).copied().unwrap_or(0);
    let shadows = exits("page_fault") + exits("l1_page_fault");
    if kind.name == FAULTS_AND_EXITS && shadows * 2 > run.exits.values().sum() {
        return "Most exits are page faults of shadow paging, of which a second stage has none: \
                leave --paging out to see that.";
    }
    kind.remedy
}

/// Which policy is fastest and by what it wins, if one does.
fn best<'a>(first: &RunResult, runs: &[&'a RunResult]) -> Option<(Option<&'a RunResult>, String)> {
    let gain = |run: &RunResult| run.relative_throughput.unwrap_or(0.0);
    let rivals: Vec<&RunResult> =
        runs.iter().copied().filter(|run| !words(&run.policy).upper_bound).collect();
    let most = rivals.iter().map(|run| gain(run)).fold(0.0, f64::max);
    if runs.len() == 1 || rivals.is_empty() {
        return None;
    }
    if most < 1.0 + NOTABLE {
        let first = &first.policy;
        return Some((None, format!("No policy is notably faster than {first}.")));
    }
    // The plainest of those that are as good as the fastest: the others gain nothing over it.
    let mut equals = rivals.iter().filter(|run| gain(run) >= most * (1.0 - NOTABLE));
    let best = *equals.next().expect("the fastest is among them");
    let equals: Vec<&str> = equals.map(|run| run.policy.as_str()).collect();
    let factor = ratio(best.relative_throughput);
    let saved = |kind: &Kind| {
        let cycles = |run: &RunResult| (kind.cycles)(&run.cycles_by_kind) as i128;
        cycles(first) - cycles(best)
    };
    let main = KINDS.iter().max_by_key(|kind| saved(kind)).expect("not empty");
    let mut text = match equals[..] {
        [] => format!("{} is fastest, {factor} times {}", best.policy, first.policy),
        _ => {
            let (policy, names) = (&best.policy, joined(&equals));
            let margin = percent(NOTABLE);
            format!(
                "{policy} is {factor} times as fast as {}, {names} within {margin} of that",
                first.policy
            )
        }
    };
    if saved(main) > 0 {
        let whole = (main.cycles)(&first.cycles_by_kind);
        let less = share(saved(main) as u64, whole);
        text += &format!(": it saves {} of the cycles of {}", percent(less), main.name);
    }
    let alignment = &best.alignment;
    if alignment.guest_huge > 0 {
        let aligned = share(alignment.well_aligned, alignment.guest_huge);
        text += &format!(", with {} of its huge pages well aligned", percent(aligned));
    }
    Some((Some(best), text + "."))
}

/// `a`, `a and b`, `a, b and c`.
fn joined(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

/// Why a policy is behind another one, where that is known.
fn behind(run: &RunResult, runs: &[&RunResult]) -> Option<String> {
    let behind = words(&run.policy).behind?;
    let other = runs.iter().find(|other| other.policy == behind.other)?;
    let slower = run.relative_throughput? < other.relative_throughput? * (1.0 - NOTABLE);
    (slower && run.stack.layers() <= behind.most_layers).then(|| behind.why.to_owned())
}

/// How far the best policy is from what alignment could give.
fn bound(first: &RunResult, runs: &[&RunResult]) -> Option<String> {
    let ideal =
        runs.iter().find(|run| words(&run.policy).upper_bound && run.policy != first.policy)?;
    let ideal_gain = ideal.relative_throughput?;
    let rivals = runs.iter().filter(|run| !words(&run.policy).upper_bound);
    let best = rivals.filter_map(|run| run.relative_throughput).fold(1.0, f64::max);
    let factor = ratio(ideal.relative_throughput);
    Some(if ideal_gain < 1.0 + NOTABLE {
        format!("Perfect alignment would give {factor} times: this is not bound by translation.")
    } else if best > ideal_gain * (1.0 + NOTABLE) {
        format!("Perfect alignment alone would give {factor} times: what helps is something else.")
    } else if best >= ideal_gain * (1.0 - NOTABLE) {
        format!("That is all that perfect alignment can give ({factor} times).")
    } else {
        format!("Perfect alignment would give {factor} times.")
    })
}
