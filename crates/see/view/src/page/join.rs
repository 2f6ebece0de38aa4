//! The page of `strata join`, and what that of the lab has of it.

use super::{Page, list};
use crate::figures::bars::{Bar, Bars, Part, Plot};
use crate::figures::{STATES, lanes, of};
use crate::html::{escaped, numbers, table};
use crate::input::join::{Join, Totals};
use crate::number::{percent, share, whole};
use crate::svg::key;
use std::fmt::Write;

/// Programs drawn; the table has all.
const MOST_PROGRAMS: usize = 24;

/// The page.
pub fn page(join: &Join, json: &str) -> String {
    let hosts: Vec<&str> = join.layers.iter().map(|layer| layer.host.as_str()).collect();
    let mut page = Page { title: hosts.join(" on "), about: about(join), sections: Vec::new() };
    page.add("verdict", "Verdict", "", verdict(join));
    sections(&mut page, join, "regions");
    page.finish(json)
}

/// Everything but the head. `path` is where the regions are in the JSON.
pub fn sections(page: &mut Page, join: &Join, path: &str) {
    page.add(
        "shares",
        "Huge pages and their alignment",
        "Huge pages of the guest. Only those that every layer below backs by one huge page are one \
         entry of the TLB.",
        shares(&join.totals),
    );
    let lanes = join.regions.as_ref().map(|regions| lanes::one("the guest", regions, path));
    page.add(
        "regions",
        "Huge page by huge page",
        "Each column is a huge page of the guest, the same one in every lane. Colour says whether it is \
         one entry of the TLB in the end, hatching which layer has base pages there.",
        lanes.filter(|lanes| !lanes.is_empty()).map_or_else(String::new, |drawn| lanes::keys() + &drawn),
    );
    page.add(
        "causes",
        "Who broke them, and what helps",
        "Misaligned huge pages by the highest layer that breaks them up.",
        causes(join),
    );
    page.add(
        "layers",
        "Layer by layer",
        "Huge pages of each layer, and how many of them the next layer backs by a huge page.",
        layers(join),
    );
    page.add("programs", "Programs of the guest", "", programs(join));
    page.add("notes", "Before trusting the numbers", "", list(&join.notes));
}

fn about(join: &Join) -> String {
    let kernels = join.layers.iter().map(|layer| format!("{}: Linux {}", layer.name, layer.kernel));
    let text = kernels.collect::<Vec<_>>().join(" \u{b7} ");
    format!("<p class=about>joined snapshots of live layers \u{b7} {}</p>", escaped(&text))
}

/// What it comes to, in words.
pub fn verdict(join: &Join) -> String {
    let totals = &join.totals;
    let judged = totals.well_aligned + totals.misaligned;
    let mut said = match (totals.huge, judged) {
        (0, _) => "The guest has no huge pages.".to_owned(),
        (huge, 0) => format!("None of the guest's {huge} huge pages could be judged."),
        (_, judged) => format!(
            "{} of the guest's huge pages that could be judged are well aligned.",
            of(totals.well_aligned, judged)
        ),
    };
    if let Some(cause) = join.causes.first() {
        let _ = write!(
            said,
            " Of the {} others, {} are due to {}: {}. What helps: {}.",
            whole(totals.misaligned),
            percent(share(cause.pages, totals.misaligned)),
            cause.layer,
            cause.cause,
            cause.remedy.trim_end_matches('.')
        );
    }
    format!("<p class=verdict>{}</p>", escaped(&said))
}

fn plot(unit: &'static str) -> Plot {
    Plot { left: 190.0, right: 790.0, pitch: 26.0, exact: None, unit }
}

fn shares(totals: &Totals) -> String {
    let counts =
        [totals.well_aligned, totals.type1, totals.type2, totals.uncertain, totals.unknown];
    let kinds = STATES.into_iter().chain([
        ("doubt", "uncertain", "it changed while it was read"),
        ("base4k", "unknown", "a layer below could not be seen"),
    ]);
    let kinds: Vec<_> = kinds.zip(counts).collect();
    let parts =
        kinds.iter().filter(|(_, pages)| *pages > 0).map(|((class, name, what), pages)| Part {
            class,
            words: format!("{name}: {} huge pages. {what}", of(*pages, totals.huge)),
            value: *pages as f64,
        });
    let mut bars = Bars::default();
    let note = match totals.huge {
        0 => "no huge pages".to_owned(),
        huge => format!("{} of {huge} well aligned", totals.well_aligned),
    };
    bars.bar(Bar { label: "the guest".into(), parts: parts.collect(), note, ..Bar::default() });
    let shown = |class: &str, pages: u64| pages > 0 || !matches!(class, "doubt" | "base4k");
    let keys: String = kinds
        .iter()
        .filter(|((class, ..), pages)| shown(class, *pages))
        .map(|((class, name, _), _)| key(class, name))
        .collect();
    let rows: Vec<Vec<String>> =
        kinds.iter().map(|((_, name, _), pages)| vec![(*name).to_owned(), whole(*pages)]).collect();
    let label = format!("Well aligned: {}", of(totals.well_aligned, totals.huge));
    format!(
        "<div class=keys>{keys}</div>{}{}",
        bars.draw(&label, plot("huge pages of the guest, 2 MiB each")),
        numbers("Numbers", &table(&["", "huge pages"], &rows, 1))
    )
}

fn causes(join: &Join) -> String {
    if join.causes.is_empty() {
        return String::new();
    }
    let mut bars = Bars::default();
    let mut rows = Vec::new();
    for cause in &join.causes {
        let label = format!("{} {}", cause.layer, cause.cause);
        let part = percent(share(cause.pages, join.totals.misaligned));
        let words = format!("{label}: {} huge pages, {part} of the misaligned", cause.pages);
        let parts = vec![Part { class: "type2", words, value: cause.pages as f64 }];
        let note = format!("{} ({part})", whole(cause.pages));
        bars.bar(Bar { label, parts, note, ..Bar::default() });
        let cells = [&cause.layer, &cause.cause, &cause.remedy];
        rows.push(cells.into_iter().cloned().chain([whole(cause.pages)]).collect());
    }
    let head = ["layer", "cause", "what helps", "huge pages"];
    bars.draw("Misaligned huge pages by cause", plot("misaligned huge pages"))
        + &table(&head, &rows, 3)
}

fn layers(join: &Join) -> String {
    let mut bars = Bars::default();
    for pair in &join.pairs {
        let label = format!("{} on {}", pair.upper, pair.lower);
        let broken = pair.upper_huge.saturating_sub(pair.lower_huge);
        let part = |class, name: &str, pages: u64| Part {
            class,
            words: format!("{label}: {name}, {}", of(pages, pair.upper_huge)),
            value: pages as f64,
        };
        let parts = vec![
            part("aligned", "backed by a huge page", pair.lower_huge),
            part("type2", "not backed by one", broken),
        ];
        let note = format!("{} of {}", pair.lower_huge, pair.upper_huge);
        bars.bar(Bar { label: label.clone(), parts, note, ..Bar::default() });
    }
    let keys = key("aligned", "backed by a huge page") + &key("type2", "not backed by one");
    let rows: Vec<Vec<String>> = join
        .layers
        .iter()
        .map(|layer| {
            let words = [&layer.name, &layer.host, &layer.kernel].map(Clone::clone);
            let numbers = [format!("{:.2}", layer.fmfi), whole(layer.free_huge_pages)];
            words.into_iter().chain(numbers).collect()
        })
        .collect();
    let head = ["layer", "host", "kernel", "FMFI", "free huge pages"];
    format!(
        "<div class=keys>{keys}</div>{}{}",
        bars.draw(
            "Huge pages of each layer backed by the next",
            plot("huge pages of the upper layer")
        ),
        table(&head, &rows, 3)
    )
}

fn programs(join: &Join) -> String {
    if join.processes.is_empty() {
        return String::new();
    }
    let mut bars = Bars::default();
    for process in join.processes.iter().take(MOST_PROGRAMS) {
        let label = format!("{} ({})", process.name, process.pid);
        let part = |class, name: &str, pages: u64| Part {
            class,
            words: format!("{label}: {name}, {}", of(pages, process.huge)),
            value: pages as f64,
        };
        let unjudged = process.huge.saturating_sub(process.well_aligned + process.misaligned);
        let parts = vec![
            part("aligned", "well aligned", process.well_aligned),
            part("type2", "misaligned", process.misaligned),
            part("base4k", "not judged", unjudged),
        ];
        let note = process.main_cause.clone().unwrap_or_default();
        bars.bar(Bar { label: label.clone(), parts, note, ..Bar::default() });
    }
    let rows: Vec<Vec<String>> = join
        .processes
        .iter()
        .map(|process| {
            let counts = [process.huge, process.well_aligned, process.misaligned].map(whole);
            let cause = process.main_cause.clone().unwrap_or_default();
            [process.name.clone(), process.pid.to_string(), cause]
                .into_iter()
                .chain(counts)
                .collect()
        })
        .collect();
    let head = ["program", "pid", "main cause", "huge pages", "well aligned", "misaligned"];
    let keys =
        key("aligned", "well aligned") + &key("type2", "misaligned") + &key("base4k", "not judged");
    format!(
        "<div class=keys>{keys}</div>{}{}",
        bars.draw("Huge pages of programs", plot("huge pages")),
        numbers("Numbers", &table(&head, &rows, 3))
    )
}
