//! What `strata join --gain` says for people.

use crate::report_text::{Cells, paragraph};
use crate::snapshot_text::heading;
use std::fmt::Write;
use strata_engine::gain::{Compared, Gain};
use strata_text::number::{bytes, count, percent, ratio, share};

/// For people.
pub fn text(gain: &Gain, width: usize) -> String {
    let mut out = "\n".to_owned() + &heading("if all huge pages were well aligned");
    let Some(throughput) = gain.throughput else {
        let left = match gain.left_out {
            0 => "the guest has no huge pages, so alignment can gain nothing.".to_owned(),
            some => format!("nothing is known of the guest's {} huge pages.", count(some)),
        };
        paragraph(&mut out, &format!("No estimate: {left}"), width);
        return out;
    };
    let mut cells = Cells::new(["model", "now", "aligned"]);
    for (label, compared) in [
        ("L2 TLB misses per 1000", gain.l2_misses_per_1000),
        ("walk references per 1000", gain.walk_refs_per_1000),
        ("walk cycles per access", gain.walk_cycles_per_access),
        ("cycles per access", gain.cycles_per_access),
    ] {
        let figure = |side: fn(Compared) -> f64| ratio(compared.map(side));
        cells.row([label.to_owned(), figure(|both| both.now), figure(|both| both.aligned)]);
    }
    cells.row(["throughput".to_owned(), ratio(Some(1.0)), ratio(Some(throughput))]);
    out += &cells.to_string();
    for sentence in sentences(gain) {
        paragraph(&mut out, &sentence, width);
    }
    out
}

fn sentences(gain: &Gain) -> Vec<String> {
    let mut first = format!(
        "{} accesses to {} huge pages ({}), of which {} are well aligned now, on {}.",
        count(gain.accesses),
        count(gain.pages),
        bytes(gain.bytes()),
        percent(share(gain.well_aligned, gain.pages)),
        gain.cpu
    );
    if gain.left_out > 0 {
        let _ = write!(first, " {} are left out: not known.", count(gain.left_out));
    }
    if gain.base_pages_added > 0 {
        let _ = write!(
            first,
            " {} base pages that nothing backs yet count as backed, each by itself.",
            count(gain.base_pages_added)
        );
    }
    let mut all = vec![first];
    if gain.pages_judged > gain.pages {
        all.push(format!(
            "Only {} of {} are replayed, evenly chosen.",
            count(gain.pages),
            count(gain.pages_judged)
        ));
    }
    all.push(format!("Real: {}.", gain.real.join("; ")));
    all.push(format!(
        "Modelled: {}. Take it as about the most that alignment can give, not as a forecast: \
         programs that reuse what they touched miss less, and mostly gain less.",
        gain.modelled.join("; ")
    ));
    all.extend(gain.notes.iter().map(|note| format!("Note: {note}.")));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_replay_is_said() {
        let mut gain = Gain::default();
        assert!(text(&gain, 80).contains("has no huge pages"));
        gain.left_out = 3;
        assert!(text(&gain, 80).contains("nothing is known of the guest's 3 huge pages"));
    }
}
