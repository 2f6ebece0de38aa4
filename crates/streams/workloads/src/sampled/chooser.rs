//! Whoever says where windows lie while a stream is read.

use super::auto::{Aim, Auto};
use super::phases::{Phases, Planned};
use std::sync::Arc;
use strata_stream::{Access, Batch, Edge, Event, Pid, Placed, Sampling};

/// Where windows lie if it is not the seed alone that says so.
#[derive(Clone, Debug, PartialEq)]
pub enum Aimed {
    /// As earlier ones showed.
    Auto(Aim),
    /// Where an earlier run has phases.
    Phases(Arc<Phases>),
}

/// Tells a stream of pages that were touched first in a gap, or begun before it, and whoever places its intervals.
pub fn tell_touched(told: Event, chooser: &mut Option<Chooser>, batch: &mut Batch) {
    if let Some(chooser) = chooser {
        chooser.touched(&told);
    }
    batch.event(told);
}

/// Places the intervals of one stream.
#[derive(Clone, Debug)]
pub struct Chooser(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Auto(Box<Auto>),
    Phases(Planned),
}

impl Chooser {
    /// For a stream that is sampled with these lengths.
    pub fn new(sampling: Sampling, aimed: Aimed) -> Self {
        Self(match aimed {
            Aimed::Auto(aim) => Kind::Auto(Box::new(Auto::new(sampling, aim))),
            Aimed::Phases(phases) => Kind::Phases(Planned::new(phases)),
        })
    }

    /// The intervals that were placed and are not over, the present one first.
    pub fn placed(&self) -> Vec<Placed> {
        match &self.0 {
            Kind::Auto(auto) => auto.placed().collect(),
            Kind::Phases(planned) => planned.placed().collect(),
        }
    }

    /// What is seen outside of gaps.
    pub fn run(&mut self, pid: Pid, instructions: u64, accesses: &[Access]) {
        if let Kind::Auto(auto) = &mut self.0 {
            auto.run(pid, instructions, accesses);
        }
    }

    /// Pages were touched first in a gap, or begun before it.
    fn touched(&mut self, told: &Event) {
        let Kind::Auto(auto) = &mut self.0 else { return };
        match told {
            Event::Touched { pid, range, .. } => auto.touched(*pid, *range, false),
            Event::Begun { pid, range } => auto.touched(*pid, *range, true),
            _ => {}
        }
    }

    /// What is to be told after an edge, which is passed thereafter.
    pub fn told(&mut self, edge: Edge) -> Vec<Event> {
        match &mut self.0 {
            Kind::Auto(auto) => auto.told(),
            Kind::Phases(planned) => planned.told(edge),
        }
    }

    /// An edge is passed. Where a window is over, gives the interval after the next one.
    pub fn edge(&mut self, edge: Edge) -> Option<Placed> {
        match &mut self.0 {
            Kind::Auto(auto) => auto.edge(edge),
            Kind::Phases(planned) => planned.edge(edge),
        }
    }

    /// What a reader must know of the choice.
    pub fn notes(&self) -> Vec<String> {
        match &self.0 {
            Kind::Auto(auto) => auto.notes(),
            Kind::Phases(planned) => vec![planned.note()],
        }
    }
}
