//! What a report says of requests.

use crate::lines::Lines;
use strata_engine::RunResult;
use strata_engine::report::{Requests, Times};
use strata_text::number::{count, ratio, seconds};

/// Whether any run served requests.
fn any(lines: &Lines<'_>) -> bool {
    lines.runs.iter().any(|run| run.requests.is_some())
}

/// The rows of latencies over those of the first run.
pub fn relative(lines: &mut Lines<'_>) {
    if !any(lines) {
        return;
    }
    let of = |time: fn(&Times) -> Option<f64>| {
        move |run: &RunResult| run.requests.as_ref().and_then(|r| time(&r.latency)).unwrap_or(0.0)
    };
    lines.relative("mean latency", of(|times| Some(times.mean)));
    lines.relative("p99 latency", of(|times| times.p99));
}

/// The rows of requests.
pub fn rows(lines: &mut Lines<'_>) {
    if !any(lines) {
        return;
    }
    fn row(lines: &mut Lines<'_>, label: &str, cell: impl Fn(&Requests) -> Option<String>) {
        let none = || "-".to_owned();
        lines.row(label, |run| run.requests.as_ref().and_then(&cell).unwrap_or_else(none));
    }
    lines.heading("requests");
    row(lines, "requests served", |requests| Some(count(requests.served)));
    row(lines, "load", |requests| Some(ratio(Some(requests.load))));
    row(lines, "service time", |requests| Some(seconds(requests.service.mean)));
    row(lines, "latency mean", |requests| Some(seconds(requests.latency.mean)));
    row(lines, "latency p95", |requests| requests.latency.p95.map(seconds));
    row(lines, "latency p99", |requests| requests.latency.p99.map(seconds));
}

/// What the latencies of a stack are, and how far they go.
pub fn sentences(runs: &[&RunResult]) -> Vec<String> {
    let of_requests: Vec<(&str, &Requests)> =
        runs.iter().filter_map(|run| Some((run.policy.as_str(), run.requests.as_ref()?))).collect();
    let Some((_, first)) = of_requests.first() else { return Vec::new() };
    let Requests { reference, servers, arrivals_per_second, .. } = first;
    let servers = match servers {
        1 => "one server".to_owned(),
        servers => format!("{} servers", count(*servers)),
    };
    let share = of_requests.iter().find(|(policy, _)| policy == reference);
    let share = share.map_or(String::new(), |(_, of)| {
        format!(", {} of what {reference} can serve", ratio(Some(of.load)))
    });
    let mut sentences = vec![format!(
        "Latencies are those of {} requests a second that arrive at random and wait for {servers}{share}. \
         Service times are of a run without pauses, so that what others do to TLBs and caches while a \
         server is idle is not in them.",
        count(*arrivals_per_second as u64)
    )];
    let names = |which: fn(&Requests) -> bool| {
        let names = of_requests.iter().filter(|(_, of)| which(of)).map(|(policy, _)| *policy);
        names.collect::<Vec<_>>().join(", ")
    };
    let overloaded = names(|of| of.load >= 1.0);
    if !overloaded.is_empty() {
        sentences.push(format!(
            "That is too much for {overloaded}: latencies there grow with the length of the stream."
        ));
    }
    if first.queued < first.served {
        sentences.push(format!(
            "{} of {} requests went through the queue.",
            count(first.queued),
            count(first.served)
        ));
    }
    let dropped: u64 = first.dropped;
    if dropped > 0 {
        sentences
            .push(format!("Left out are requests that began and did not end: {}.", count(dropped)));
    }
    sentences
}
