//! Whoever says where windows lie while a stream is read.

use super::aim::Aim;
use super::auto::Auto;
use super::phases::{Phases, Planned};
use std::sync::Arc;
use strata_addr::{Range, space::Virtual};
use strata_stream::{Access, Batch, Edge, Event, Pid, Placed, Sampling, Tid};

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
pub struct Chooser {
    kind: Kind,
    /// What was told last as read first in a gap.
    read: Option<(Pid, Range<Virtual>)>,
}

#[derive(Clone, Debug)]
enum Kind {
    Auto(Box<Auto>),
    Phases(Planned),
}

impl Chooser {
    /// For a stream that is sampled with these lengths.
    pub fn new(sampling: Sampling, aimed: Aimed) -> Self {
        let kind = match aimed {
            Aimed::Auto(aim) => Kind::Auto(Box::new(Auto::new(sampling, aim))),
            Aimed::Phases(phases) => Kind::Phases(Planned::new(phases)),
        };
        Self { kind, read: None }
    }

    /// The intervals that were placed and are not over, the present one first.
    pub fn placed(&self) -> Vec<Placed> {
        match &self.kind {
            Kind::Auto(auto) => auto.placed().collect(),
            Kind::Phases(planned) => planned.placed().collect(),
        }
    }

    /// What is seen outside of gaps.
    pub fn run(&mut self, pid: Pid, tid: Tid, instructions: u64, accesses: &[Access]) {
        if let Kind::Auto(auto) = &mut self.kind {
            auto.run(pid, tid, instructions, accesses);
        }
    }

    /// Something happened, in a gap or outside.
    pub fn event(&mut self, event: &Event) {
        if let Kind::Auto(auto) = &mut self.kind {
            auto.event(event);
        }
    }

    /// Pages were touched first in a gap, or begun before it.
    fn touched(&mut self, told: &Event) {
        let Kind::Auto(auto) = &mut self.kind else { return };
        match *told {
            Event::Touched { pid, range, store } => {
                // What was read and then stored to is told twice, and was touched first once.
                if self.read.take() != Some((pid, range)) {
                    auto.touched(pid, range, false);
                }
                self.read = (!store).then_some((pid, range));
            }
            Event::Begun { pid, range } => auto.touched(pid, range, true),
            _ => {}
        }
    }

    /// What is to be told after an edge, which is passed thereafter.
    pub fn told(&mut self, edge: Edge) -> Vec<Event> {
        match &mut self.kind {
            Kind::Auto(auto) => auto.told(),
            Kind::Phases(planned) => planned.told(edge),
        }
    }

    /// An edge is passed. Where a window is over, gives the interval after the next one.
    pub fn edge(&mut self, edge: Edge) -> Option<Placed> {
        match &mut self.kind {
            Kind::Auto(auto) => auto.edge(edge),
            Kind::Phases(planned) => planned.edge(edge),
        }
    }

    /// What a reader must know of the choice.
    pub fn notes(&self) -> Vec<String> {
        match &self.kind {
            Kind::Auto(auto) => auto.notes(),
            Kind::Phases(planned) => vec![planned.note()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampled::Reach;
    use strata_addr::Gva;
    use strata_stream::Array;

    /// Lines from `first` to `end` of each of 512 pages.
    fn lines(first: u64, end: u64) -> Vec<Access> {
        let at = |page: u64, line: u64| Gva::new((1 << 32) + (page << 12) + line * 64);
        let loads = |page| (first..end).map(move |line| Access::load(at(page, line), 8));
        (0..512).flat_map(loads).collect()
    }

    #[test]
    fn who_places_intervals_hears_of_pages_and_tells_what_they_hide() {
        let array = Array::LastLevelCache;
        let reaches = vec![Reach { array, entries: 64 << 10, ways: 16, cycles: 100.0 }];
        let aim = Aim { within: 0.02, base_cpi: 0.5, reaches };
        let guessed = |told: &[fn(Range<Virtual>) -> Event]| {
            let sampling = Auto::sampling(1);
            let mut chooser = Some(Chooser::new(sampling, Aimed::Auto(aim.clone())));
            let mut batch = Batch::new();
            let run = |chooser: &mut Option<Chooser>, accesses: &[Access]| {
                chooser.as_mut().unwrap().run(Pid(0), Tid(0), sampling.window, accesses);
            };
            run(&mut chooser, &lines(0, 16));
            chooser.as_mut().unwrap().edge(Edge::Interval);
            for event in told {
                let range = Range::sized(Gva::new(1 << 32), 512 << 12);
                tell_touched(event(range), &mut chooser, &mut batch);
            }
            assert_eq!(batch.items().len(), told.len(), "the stream hears of it, too");
            chooser.as_mut().unwrap().edge(Edge::Warm);
            chooser.as_mut().unwrap().edge(Edge::Window);
            run(&mut chooser, &lines(0, 32));
            chooser.as_mut().unwrap().edge(Edge::Gap);
            match chooser.as_mut().unwrap().told(Edge::Interval)[..] {
                [Event::Warmed { guessed, .. }] => guessed,
                ref others => panic!("{others:?}"),
            }
        };
        let begun = |range| Event::Begun { pid: Pid(0), range };
        let read = |range| Event::Touched { pid: Pid(0), range, store: false };
        let stored = |range| Event::Touched { pid: Pid(0), range, store: true };
        assert_eq!(guessed(&[]), 0);
        assert!(guessed(&[begun]) > 512 * 16);
        // No line is used first more than once, and no page that is read and then stored to.
        assert!(guessed(&[stored]) > 512 * 16);
        assert_eq!(guessed(&[read, stored]), guessed(&[stored]));
        assert!(guessed(&[stored, stored]) > guessed(&[stored]), "there may be another page");
    }
}
