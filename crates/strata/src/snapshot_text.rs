//! The texts of `strata scan`, `strata join` and `strata top`.

use crate::report_text::{Cells, paragraph};
use anstyle::Style;
use std::fmt::Write;
use strata_inspect::join::colours::ColourUse;
use strata_inspect::join::report::{HotMemory, Join, JoinedLayer, VmReport};
use strata_inspect::snapshot::hot::By;
use strata_inspect::snapshot::model::Blind;
use strata_inspect::{Snapshot, delay};
use strata_text::number::{bytes, count, percent, seconds, share};

const BOLD: Style = Style::new().bold();

/// Rows of processes and causes shown; the JSON has them all.
const ROWS: usize = 10;

/// A heading.
pub fn heading(text: &str) -> String {
    format!("{BOLD}{text}{BOLD:#}\n")
}

/// What could not be seen, and what that costs.
pub fn blind(blind: &[Blind], width: usize) -> String {
    let mut out = String::new();
    for blind in blind {
        paragraph(&mut out, &format!("not seen: {}; so: {}", blind.what, blind.cost), width);
    }
    out
}

/// The processes of a layer with huge pages.
pub fn processes(snapshot: &Snapshot) -> String {
    let mut rows: Vec<(u64, u32, &str)> = snapshot
        .processes
        .iter()
        .map(|process| {
            let huge = process.areas.iter().map(|area| area.huge.len() as u64).sum();
            (huge, process.pid, process.name.as_str())
        })
        .collect();
    if rows.is_empty() {
        return "no process has huge pages\n".to_owned();
    }
    rows.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut cells = Cells::new(["process", "pid", "huge pages"]);
    for (huge, pid, name) in rows.iter().take(ROWS) {
        cells.row([(*name).to_owned(), pid.to_string(), count(*huge)]);
    }
    let mut out = cells.to_string();
    more(&mut out, rows.len(), "processes");
    out
}

fn more(out: &mut String, all: usize, what: &str) {
    if all > ROWS {
        let _ = writeln!(out, "and {} more {what}", all - ROWS);
    }
}

/// How a VM's memory is backed and why not better.
pub fn vm(vm: &VmReport, width: usize) -> String {
    let regions: u64 = vm.backing.values().sum();
    let mut out = heading(&format!("{}, {}", vm.vm, bytes(vm.memory_bytes)));
    paragraph(&mut out, &format!("memory slots: {}", vm.slots_evidence), width);
    let mut cells = Cells::new(["backed", "2 MiB regions", "share"]);
    for (class, &number) in &vm.backing {
        cells.row([(*class).to_owned(), count(number), percent(share(number, regions))]);
    }
    if !vm.backing.is_empty() {
        out += &cells.to_string();
    }
    let mut causes: Vec<_> = vm.causes.iter().collect();
    causes.sort_by(|a, b| b.1.cmp(a.1));
    let mut cells = Cells::new(["not usable as huge", "2 MiB regions", "share"]);
    for (cause, number) in &causes {
        cells.row([(**cause).to_owned(), count(**number), percent(share(**number, regions))]);
    }
    if !causes.is_empty() {
        out += &cells.to_string();
    }
    if let Some(hot) = &vm.hot {
        paragraph(&mut out, &hot_memory(hot), width);
    }
    out += &colour_uses(&vm.colours);
    if let (Some(small), Some(large)) = (vm.kvm.get("pages_4k"), vm.kvm.get("pages_2m")) {
        let (small, large) = (count(*small), count(*large));
        let mut text = format!("KVM itself maps {small} base and {large} huge pages now");
        if let Some(pseudo) = vm.pseudo_huge.filter(|&pages| pages > 0) {
            let _ = write!(
                text,
                ", and huge what the VM has in base pages for {} huge pages of guests of its own",
                count(pseudo)
            );
        }
        paragraph(&mut out, &text, width);
    }
    out
}

/// What a VM used while it was watched.
fn hot_memory(hot: &HotMemory) -> String {
    let HotMemory { by, milliseconds, watched, pages } = *hot;
    let how = match by {
        By::PageIdle => format!("used within {}", seconds(milliseconds as f64 / 1000.0)),
        By::KernelFlags => {
            "referenced or active by the kernel's flags, whenever that was".to_owned()
        }
    };
    format!(
        "hot: {} of {} base pages watched, {how} ({}); a huge page counts as a whole",
        count(pages),
        count(watched),
        by.name()
    )
}

/// How a VM's memory lies over the colours of the layer's caches.
fn colour_uses(uses: &[ColourUse]) -> String {
    if uses.is_empty() {
        return String::new();
    }
    let mut cells =
        Cells::new(["cache", "slices", "colours", "used", "fullest", "most shared with"]);
    for used in uses {
        let shared = used.shared_with.first();
        let shared = shared.map(|other| format!("{}: {}", other.vm, percent(other.share)));
        cells.row([
            used.cache.clone(),
            slices(used),
            used.colours.to_string(),
            used.used.to_string(),
            over_mean(used.fullest),
            shared.unwrap_or_default(),
        ]);
    }
    cells.to_string() + &hot_colours(uses)
}

/// How many slices a cache has, as far as anybody knows.
fn slices(used: &ColourUse) -> String {
    match (used.slices_assumed, used.complex_index) {
        (1, _) => "1".to_owned(),
        (slices, Some(true)) => format!("{slices} (assumed, hash told)"),
        (slices, _) => format!("{slices} (assumed)"),
    }
}

fn over_mean(ratio: f64) -> String {
    format!("{ratio:.2} x mean")
}

/// The same of the memory that was used while somebody watched.
fn hot_colours(uses: &[ColourUse]) -> String {
    let hot: Vec<_> = uses.iter().filter_map(|used| Some((used, used.hot.as_ref()?))).collect();
    if hot.is_empty() {
        return String::new();
    }
    let mut cells = Cells::new(["hot", "pages", "used", "fullest"]);
    for (used, hot) in hot {
        let of = format!("{} of {}", hot.used, used.colours);
        cells.row([used.cache.clone(), count(hot.pages), of, over_mean(hot.fullest)]);
    }
    cells.to_string()
}

/// Whether the guest's colours survive, a sentence for each cache.
fn colouring(join: &Join, width: usize) -> String {
    let mut out = String::new();
    for it in &join.colouring {
        let mut about = it.colours.to_string();
        if it.slices_assumed > 1 {
            let _ = write!(about, ", {} slices assumed", it.slices_assumed);
        }
        if it.guest_colours != it.colours {
            let _ = write!(about, ", the guest is told of {}", it.guest_colours);
        }
        let end = match it.survives {
            true => "what the guest keeps apart stays apart",
            false => "what the guest keeps apart meets in the cache",
        };
        let text = format!(
            "Colours of {} ({about}): {} of {} pages keep the guest's, {} would by chance; {end}.",
            it.cache,
            percent(it.kept),
            count(it.pages),
            percent(it.by_chance),
        );
        paragraph(&mut out, &text, width);
    }
    out
}

/// A join as a table.
pub fn joined(join: &Join, width: usize) -> String {
    let totals = &join.totals;
    let guest = join.layers.first().map_or("", |layer| layer.host.as_str());
    let mut out = heading(&format!("{guest}: {} huge pages", count(totals.huge)));
    let in_one_block = match join.mappings_visible {
        true => "  in one block, not mapped huge",
        false => "  in one block, mapping not visible",
    };
    let mut cells = Cells::new(["guest huge pages", "pages", "share"]);
    for (label, number) in [
        ("well aligned", totals.well_aligned),
        ("  pseudo huge among them", totals.pseudo_huge),
        ("misaligned", totals.misaligned),
        ("  type 1: nothing below", totals.type1),
        ("  type 2: something below", totals.type2),
        (in_one_block, totals.one_block),
        ("uncertain", totals.uncertain),
        ("unknown", totals.unknown),
    ] {
        if number > 0 || !label.starts_with([' ', 'u']) {
            cells.row([label.to_owned(), count(number), percent(share(number, totals.huge))]);
        }
    }
    out += &cells.to_string();
    out.push('\n');
    out += &causes(join, width);
    out += &pairs(join);
    out += &process_rows(join);
    for layer in &join.layers {
        out += &layer_lines(layer, width);
    }
    out += &colouring(join, width);
    for note in &join.notes {
        paragraph(&mut out, &format!("Note: {note}."), width);
    }
    out
}

fn causes(join: &Join, width: usize) -> String {
    if join.causes.is_empty() {
        return String::new();
    }
    let mut cells = Cells::new(["responsible", "pages", "share"]);
    for cause in join.causes.iter().take(ROWS) {
        let label = format!("{} {}", cause.layer, cause.cause.name());
        let part = percent(share(cause.pages, join.totals.misaligned));
        cells.row([label, count(cause.pages), part]);
    }
    let mut out = cells.to_string();
    more(&mut out, join.causes.len(), "causes");
    for cause in join.causes.iter().take(ROWS) {
        let mut text = format!("{} {}: {}.", cause.layer, cause.cause.name(), cause.remedy);
        if let (Some(behind), Some(remedy)) = (cause.behind, cause.behind_remedy) {
            let _ = write!(text, " Then {}: {remedy}.", behind.name());
        }
        paragraph(&mut out, &text, width);
    }
    out.push('\n');
    out
}

fn pairs(join: &Join) -> String {
    let mut cells =
        Cells::new(["layers", "huge above", "huge below", "unused below", "of it free"]);
    for pair in &join.pairs {
        cells.row([
            format!("{} on {}", pair.upper, pair.lower),
            count(pair.upper_huge),
            count(pair.lower_huge),
            count(pair.lower_unused),
            count(pair.lower_unused_free),
        ]);
    }
    cells.to_string() + "\n"
}

fn process_rows(join: &Join) -> String {
    if join.processes.is_empty() {
        return String::new();
    }
    let mut cells = Cells::new(["process", "pid", "huge", "well aligned", "main cause"]);
    for process in join.processes.iter().take(ROWS) {
        let part = percent(share(process.well_aligned, process.huge));
        cells.row([
            process.name.clone(),
            process.pid.to_string(),
            count(process.huge),
            part,
            process.main_cause.clone().unwrap_or_default(),
        ]);
    }
    let mut out = cells.to_string();
    more(&mut out, join.processes.len(), "processes");
    out.push('\n');
    out
}

fn layer_lines(layer: &JoinedLayer, width: usize) -> String {
    let mut out = String::new();
    let mut text = format!(
        "{}: {}, Linux {}, FMFI {:.2}, {} free huge pages",
        layer.name,
        layer.host,
        layer.kernel,
        layer.fmfi,
        count(layer.free_huge_pages)
    );
    if let Some(vm) = &layer.vm {
        let _ = write!(text, "; scanned {} the layer above", delay(layer.after_upper_ms));
        if layer.by_own_clocks && layer.after_upper_ms.is_some() {
            text += " if their clocks agree";
        }
        let _ = write!(text, "; VM {}, {}; slots {}", vm.vm, vm.matched, vm.slots_evidence);
    }
    if layer.uncertain_regions > 0 {
        let _ = write!(text, "; {} regions uncertain", count(layer.uncertain_regions));
    }
    paragraph(&mut out, &(text + "."), width);
    out + &blind(&layer.blind, width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_inspect::join::report::Totals;

    #[test]
    fn what_is_in_one_block_is_called_unmapped_only_where_that_can_be_seen() {
        let totals = Totals {
            huge: 4,
            well_aligned: 2,
            pseudo_huge: 1,
            misaligned: 2,
            type2: 2,
            one_block: 1,
            ..Totals::default()
        };
        let hidden = Join { totals, ..Join::default() };
        let visible = Join { mappings_visible: true, ..hidden.clone() };
        let lines = |join: &Join| -> Vec<String> {
            let text = joined(join, 80);
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
        };
        for (join, words) in [
            (hidden, "in one block, mapping not visible 1 25 %"),
            (visible, "in one block, not mapped huge 1 25 %"),
        ] {
            let lines = lines(&join);
            let at = |words: &str| lines.iter().position(|line| line == words);
            let (well, pseudo) = (at("well aligned 2 50 %"), at("pseudo huge among them 1 25 %"));
            assert_eq!(pseudo, well.map(|line| line + 1), "{lines:?}");
            assert!(at("misaligned 2 50 %") < at(words), "{lines:?}");
        }
    }
}
