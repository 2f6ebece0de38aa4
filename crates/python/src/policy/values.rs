//! What hooks are told and what they answer.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use strata_addr::{Frame, PageSize};
use strata_colours::Colour;
use strata_stack::{
    AlignAreas, HugeAdvice, KernelSettings, NodeId, PageFault, Placement, PlacementCounts, ThpMode,
    TradeCounts,
};

/// Where a kernel is in the tree of kernels.
#[pyclass(module = "strata", frozen, get_all)]
pub struct Position {
    node: usize,
    level: u8,
    vms: u16,
    vm: usize,
    is_guest: bool,
}

impl From<strata_stack::Position> for Position {
    fn from(at: strata_stack::Position) -> Self {
        Self {
            node: at.node.index(),
            level: at.level,
            vms: at.vms,
            vm: at.vm.index(),
            is_guest: at.is_guest(),
        }
    }
}

/// A page fault. Pages and frames are numbers of 4 KiB.
#[pyclass(module = "strata", frozen, get_all)]
pub struct Fault {
    space: u16,
    vm: Option<usize>,
    vm_page: Option<u64>,
    backs: Option<(usize, u64)>,
    page: u64,
    huge_possible: bool,
    area_start: u64,
    area_end: u64,
    area_huge: &'static str,
}

impl From<&PageFault> for Fault {
    fn from(fault: &PageFault) -> Self {
        Self {
            space: fault.space.0,
            vm: fault.vm.map(NodeId::index),
            vm_page: fault.vm_page.map(Frame::get),
            backs: fault.backs.map(|(guest, page)| (guest.index(), page.get())),
            page: fault.page.get(),
            huge_possible: fault.huge_possible,
            area_start: fault.vma.range.start.get(),
            area_end: fault.vma.range.end.get(),
            area_huge: advice_name(fault.vma.huge),
        }
    }
}

/// A move that a policy is asked about.
#[pyclass(module = "strata", frozen, get_all)]
pub struct MoveAsked {
    node: usize,
    space: u16,
    page: u64,
    to: Option<u64>,
    size: &'static str,
}

impl From<&strata_stack::Move> for MoveAsked {
    fn from(asked: &strata_stack::Move) -> Self {
        Self {
            node: asked.node.index(),
            space: asked.space.0,
            page: asked.page.get(),
            to: asked.to.map(Frame::get),
            size: size_name(asked.size),
        }
    }
}

/// What hardware showed since it was last told.
#[pyclass(module = "strata", frozen, get_all)]
pub struct Feedback {
    tlb_misses: u64,
    accesses: u64,
    walk_cycles: f64,
    memory_cycles: f64,
    frequency_hz: f64,
}

impl From<strata_stack::Feedback> for Feedback {
    fn from(of: strata_stack::Feedback) -> Self {
        Self {
            tlb_misses: of.tlb_misses,
            accesses: of.accesses,
            walk_cycles: of.walk_cycles,
            memory_cycles: of.memory_cycles,
            frequency_hz: of.frequency,
        }
    }
}

pub fn size_name(size: PageSize) -> &'static str {
    match size {
        PageSize::Base => "4k",
        PageSize::Huge => "2m",
        PageSize::Giant => "1g",
    }
}

fn advice_name(advice: HugeAdvice) -> &'static str {
    match advice {
        HugeAdvice::Default => "default",
        HugeAdvice::Wanted => "wanted",
        HugeAdvice::Refused => "refused",
    }
}

/// The one of some choices that has this name.
fn named<T: Copy>(what: &str, given: &str, choices: &[(&str, T)]) -> PyResult<T> {
    let found = choices.iter().find(|(name, _)| *name == given);
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| format!("'{name}'")).collect();
        PyValueError::new_err(format!("{what} is '{given}'; give one of {}", names.join(", ")))
    })
}

pub fn advice(answer: &Bound<'_, PyAny>) -> PyResult<HugeAdvice> {
    let all = [HugeAdvice::Default, HugeAdvice::Wanted, HugeAdvice::Refused];
    named("vm_memory", answer.extract()?, &all.map(|advice| (advice_name(advice), advice)))
}

/// What `settings` answers: an object with these attributes, as `strata.Settings` has them.
pub fn settings(answer: &Bound<'_, PyAny>) -> PyResult<KernelSettings> {
    let text = |name: &str| answer.getattr(name)?.extract::<String>();
    let thp =
        [("never", ThpMode::Never), ("madvise", ThpMode::Madvise), ("always", ThpMode::Always)];
    let areas = [
        ("never", AlignAreas::Never),
        ("always", AlignAreas::Always),
        ("needless", AlignAreas::Needless),
    ];
    Ok(KernelSettings {
        thp: named("thp", &text("thp")?, &thp)?,
        align_areas: named("align_areas", &text("align_areas")?, &areas)?,
        fragmented: answer.getattr("fragmented")?.extract()?,
        coloured: answer.getattr("coloured")?.extract()?,
    })
}

/// What `place` answers: `"linux"`, `"base"`, or a pair with a frame or a colour.
pub fn placement(answer: &Bound<'_, PyAny>) -> PyResult<Placement> {
    if let Ok(pair) = answer.cast::<PyTuple>() {
        let (how, number): (String, u64) = pair.extract()?;
        let frame = Frame::new(number);
        return match how.as_str() {
            "base_at" => Ok(Placement::BaseAt(frame)),
            "huge_at" => Ok(Placement::HugeAt(frame)),
            "base_of" => Ok(Placement::BaseOf(Colour::new(pair.get_item(1)?.extract()?))),
            _ => named(
                "the first of what place gave",
                &how,
                &[
                    ("base_at", Placement::Base),
                    ("huge_at", Placement::Base),
                    ("base_of", Placement::Base),
                ],
            ),
        };
    }
    named("place", answer.extract()?, &[("linux", Placement::Linux), ("base", Placement::Base)])
}

/// A count of a mapping; 0 if it has none of this name.
fn count(of: &Bound<'_, PyAny>, name: &str) -> PyResult<u64> {
    if of.contains(name)? { of.get_item(name)?.extract() } else { Ok(0) }
}

/// What `placement` answers, if it does.
pub fn placement_counts(answer: &Bound<'_, PyAny>) -> PyResult<Option<PlacementCounts>> {
    if answer.is_none() {
        return Ok(None);
    }
    Ok(Some(PlacementCounts {
        checks: count(answer, "checks")?,
        replaced: count(answer, "replaced")?,
        colour_was_out: count(answer, "colour_was_out")?,
        moves_refused: count(answer, "moves_refused")?,
        backed: count(answer, "backed")?,
        violations: count(answer, "violations")?,
    }))
}

/// What `trade` answers, if it does.
pub fn trade_counts(answer: &Bound<'_, PyAny>) -> PyResult<Option<TradeCounts>> {
    if answer.is_none() {
        return Ok(None);
    }
    Ok(Some(TradeCounts {
        rows: count(answer, "rows")?,
        filling: count(answer, "filling")?,
        coloured: count(answer, "coloured")?,
        row_gain: count(answer, "row_gain")?,
        colour_gain: count(answer, "colour_gain")?,
    }))
}
