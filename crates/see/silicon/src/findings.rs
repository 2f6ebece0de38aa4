//! What curves say of caches and TLBs.
//!
//! Sizes are between two points of a curve: the last that fits and the first that does not. Everything is
//! read from minima: what disturbs a load only ever makes it longer.

use crate::curve::{Curves, Pages, Point, Stride, median};

/// Neighbours that differ by less are one plateau.
const FLAT: f64 = 1.12;

/// Plateaus that differ by less are one level.
const SAME_LEVEL: f64 = 1.35;

/// Cycles below which a difference of two loads is none, on a machine that nothing disturbs.
const NOTHING: f64 = 2.0;

/// Between the last size that fits and the first that does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The last size that fits.
    pub fits: u64,
    /// The first that does not; none if everything measured fitted.
    pub exceeds: Option<u64>,
}

impl Reach {
    /// Whether a size lies between.
    pub fn holds(self, size: u64) -> bool {
        size >= self.fits && self.exceeds.is_none_or(|exceeds| size < exceeds)
    }
}

/// A data cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheLevel {
    /// Its size in bytes.
    pub bytes: Reach,
    /// What a hit takes.
    pub hit: Latency,
}

/// Cycles of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// In the quickest rounds.
    pub cycles: f64,
    /// How much longer the median round takes, in the middle of the sizes that it is read from.
    pub spread: f64,
}

/// TLBs as one page size sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Translation {
    /// Pages that the first level holds.
    pub l1: Option<Reach>,
    /// Cycles that a hit in the second level costs over one in the first.
    pub l2_hit: Option<f64>,
    /// Pages that the second level holds.
    pub l2: Option<Reach>,
    /// Cycles of a walk over the hit in the second level, with tables in caches.
    pub walk: Option<f64>,
    /// How much longer the median round takes than the quickest, in the middle of the curve.
    pub spread: f64,
}

/// What curves say.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// Cycles in a microsecond.
    pub mhz: f64,
    /// How much longer the median round of additions takes than the quickest.
    pub mhz_spread: f64,
    /// Caches that show, the first level first; memory is none of them.
    pub caches: Vec<CacheLevel>,
    /// A load from memory, by huge pages.
    pub memory: Option<Latency>,
    /// TLBs for base pages.
    pub base: Translation,
    /// TLBs for huge pages.
    pub huge: Translation,
    /// Lines in one huge page miss the TLB as those in base pages do, as where a hypervisor backs huge pages with
    /// base pages: each then has several entries of the TLB, and loads anywhere pay for walks.
    pub split: bool,
    /// How much longer the median round takes than the quickest, in the middle of all points.
    pub spread: f64,
}

impl Findings {
    /// Above this spread, differences of a few cycles are lost.
    pub const NOISY: f64 = 0.2;

    /// The machine is too noisy to tell.
    pub fn is_noisy(&self) -> bool {
        self.spread > Self::NOISY
    }
}

/// Reads curves.
pub fn find(curves: &Curves) -> Findings {
    let cycles = |points: &[Point]| -> Vec<(u64, f64)> {
        points.iter().map(|point| (point.lines, point.least / curves.cycle)).collect()
    };
    let spreads = |stride, pages| -> Vec<f64> {
        curves.points(stride, pages).iter().map(Point::spread).collect()
    };
    let lines = cycles(curves.points(Stride::Line, Pages::Huge));
    let (caches, memory) = levels(&lines, &spreads(Stride::Line, Pages::Huge));
    let over = |dear: &[(u64, f64)], cheap: &[(u64, f64)]| -> Vec<(u64, f64)> {
        let pairs = dear.iter().filter_map(|&(lines, dear)| {
            let cheap = cheap.iter().find(|(same, _)| *same == lines)?.1;
            Some((lines, dear - cheap))
        });
        pairs.collect()
    };
    let base = cycles(curves.points(Stride::BasePage, Pages::Base));
    let by_huge = cycles(curves.points(Stride::BasePage, Pages::Huge));
    let huge = cycles(curves.points(Stride::HugePage, Pages::Huge));
    // Not over huge pages at the same distance: those may be split below, and then cost as much.
    let mut base = translation(&over(&base, &lines));
    let mut by_huge = translation(&over(&by_huge, &lines));
    let mut huge = translation(&over(&huge, &lines));
    let split = match (base.l1, by_huge.l1.take()) {
        (Some(base), Some(huge)) => huge.exceeds.is_some_and(|lines| lines <= 2 * base.fits),
        _ => false,
    };
    // What costs far more than a hit of base pages is a walk: the second level holds nothing of it.
    if let (Some(hit), Some(first)) = (base.l2_hit, huge.l2_hit)
        && first > 2.0 * hit + 2.0 * NOTHING
    {
        huge = Translation { l1: huge.l1, walk: Some(first - hit), ..Translation::default() };
    }
    base.spread = median(spreads(Stride::BasePage, Pages::Base));
    huge.spread = median(spreads(Stride::HugePage, Pages::Huge));
    Findings {
        mhz: 1000.0 / curves.cycle,
        mhz_spread: curves.cycle_spread,
        caches,
        memory,
        base,
        huge,
        split,
        spread: curves.spread(),
    }
}

/// Caches and memory from cycles over lines that lie side by side, and how far rounds of each were apart.
fn levels(points: &[(u64, f64)], spreads: &[f64]) -> (Vec<CacheLevel>, Option<Latency>) {
    // Plateaus: first and last point of each, and their level.
    let mut plateaus: Vec<(usize, usize, f64)> = Vec::new();
    let mut at = 0;
    while at < points.len() {
        let mut last = at;
        while last + 1 < points.len() && points[last + 1].1 < points[last].1 * FLAT {
            last += 1;
        }
        let level = median(points[at..=last].iter().map(|point| point.1).collect());
        match plateaus.last_mut() {
            Some((from, to, of)) if level < *of * SAME_LEVEL && *to + 1 == at => {
                *to = last;
                *of = median(points[*from..=last].iter().map(|point| point.1).collect());
            }
            // A point by itself is on its way from a level to the next.
            _ if last > at => plateaus.push((at, last, level)),
            _ => {}
        }
        at = last + 1;
    }
    let ends = plateaus.last().is_some_and(|(_, to, _)| to + 1 == points.len());
    let memory = if ends && plateaus.len() > 1 { plateaus.pop() } else { None };
    let latency = |&(from, to, cycles): &(usize, usize, f64)| Latency {
        cycles,
        spread: median(spreads[from..=to].to_vec()),
    };
    let cache = |plateau @ (_, to, _): &(usize, usize, f64)| CacheLevel {
        bytes: Reach {
            fits: points[*to].0 * 64,
            exceeds: points.get(to + 1).map(|point| point.0 * 64),
        },
        hit: latency(plateau),
    };
    (plateaus.iter().map(cache).collect(), memory.as_ref().map(latency))
}

/// TLBs from what a load costs beyond the same with nothing to translate.
fn translation(extra: &[(u64, f64)]) -> Translation {
    let mut found = Translation::default();
    // What differs while everything fits is noise: the smallest sizes tell how much of it there is.
    let first: Vec<f64> = extra.iter().take(4).map(|point| point.1.abs()).collect();
    let nothing = NOTHING.max(2.0 * median(first));
    let reach = |fits: usize| Reach {
        fits: extra[fits].0,
        exceeds: extra.get(fits + 1).map(|point| point.0),
    };
    // Two in a row, so that one disturbed point ends nothing.
    let beyond = |from: usize, most: f64| {
        (from..extra.len())
            .find(|&at| extra[at].1 > most && extra.get(at + 1).is_none_or(|next| next.1 > most))
    };
    if extra.is_empty() {
        return found;
    }
    let Some(first_miss) = beyond(0, nothing) else {
        found.l1 = Some(reach(extra.len() - 1));
        return found;
    };
    if first_miss == 0 {
        return found;
    }
    found.l1 = Some(reach(first_miss - 1));
    // The second level begins where every load misses the first, which not every replacement does at once.
    let settled = (first_miss + 1).min(extra.len() - 1);
    let hit = extra[settled].1;
    // A walk that caches serve may cost no more than a hit in the first of them.
    let walks = beyond(settled, hit * 1.25 + nothing);
    let end = walks.unwrap_or(extra.len());
    let cost = median(extra[settled..end].iter().map(|point| point.1).collect());
    found.l2_hit = Some(cost);
    found.l2 = Some(reach(end - 1));
    if let Some(walks) = walks {
        // From twice the reach, where every load walks, to eight times, where tables are still in caches.
        let fits = extra[walks - 1].0;
        let beyond = extra.iter().filter(|point| (2 * fits..=8 * fits).contains(&point.0));
        let all: Vec<f64> = beyond.map(|point| point.1).collect();
        if !all.is_empty() {
            found.walk = Some(median(all) - cost);
        }
    }
    found
}
