//! Where windows lie that were chosen from phases, by an earlier run.

use std::sync::Arc;
use strata_phases::Windows;
use strata_stream::{Edge, Event, Placed, Sampling};
use strata_text::number::count;

/// Instructions of the gap after the last window: longer than any program.
const FOR_EVER: u64 = u64::MAX / 4;

/// How phases were told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// By the code that intervals run.
    Code,
    /// By the memory that they access, where nothing is known of code.
    Memory,
}

/// Windows of phases, and how these were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phases {
    /// Phases and windows.
    pub windows: Windows,
    /// By what intervals were compared.
    pub marker: Marker,
}

impl Phases {
    /// The lengths of a stream that is sampled so.
    pub fn sampling(&self) -> Sampling {
        let Windows { length, warm, .. } = self.windows;
        let interval = FOR_EVER;
        Sampling { interval, window: length, warm, whole: 0, adaptive: true, seed: 0 }
    }

    /// What a reader must know of them.
    pub fn note(&self) -> String {
        let Windows { length, phases, windows, .. } = &self.windows;
        let intervals: u64 = phases.iter().map(|phase| phase.intervals).sum();
        let marker = match self.marker {
            Marker::Code => {
                "by the blocks of code that they run, as a run before this one counted them"
            }
            Marker::Memory => {
                "by the pages that they access, as the stream holds no addresses of code"
            }
        };
        format!(
            "{} intervals of {} instructions were told apart {marker}; {} of them are windows",
            count(intervals),
            count(*length),
            windows.len()
        )
    }
}

/// Places windows while the stream is read.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    phases: Arc<Phases>,
    /// Windows that are over.
    over: usize,
}

impl Planned {
    pub(super) fn new(phases: Arc<Phases>) -> Self {
        Self { phases, over: 0 }
    }

    pub(super) fn note(&self) -> String {
        self.phases.note()
    }

    /// The present interval and the next one.
    pub(super) fn placed(&self) -> impl Iterator<Item = Placed> {
        [self.over, self.over + 1].into_iter().map(|number| self.interval(number))
    }

    /// An edge is passed. Where a window is over, gives the interval after the next one.
    pub(super) fn edge(&mut self, edge: Edge) -> Option<Placed> {
        if edge != Edge::Gap {
            return None;
        }
        self.over += 1;
        Some(self.interval(self.over + 1))
    }

    /// An interval ends where its window does.
    fn interval(&self, number: usize) -> Placed {
        let Windows { length: window, .. } = self.phases.windows;
        let end = match number.checked_sub(1).map(|before| self.phases.windows.windows.get(before))
        {
            None => 0,
            Some(Some(before)) => before.start + window,
            Some(None) => FOR_EVER,
        };
        let number_of = number as u64;
        match self.phases.windows.warmed().nth(number) {
            Some((own, warm)) => {
                let (gap, length) = (own.start - end - warm, own.start - end + window);
                Placed { number: number_of, start: end, length, gap, warm }
            }
            None => {
                Placed { number: number_of, start: end, length: FOR_EVER, gap: FOR_EVER, warm: 0 }
            }
        }
    }

    /// What is told where an interval begins: all phases at first, then that of the window.
    pub(super) fn told(&self, edge: Edge) -> Vec<Event> {
        if edge != Edge::Interval {
            return Vec::new();
        }
        let Windows { phases, windows, .. } = &self.phases.windows;
        let event = |number: usize| Event::Phase {
            phase: number as u32,
            intervals: phases[number].intervals,
            instructions: phases[number].instructions,
        };
        let all = if self.over == 0 { 0..phases.len() } else { 0..0 };
        let own = windows.get(self.over).map(|window| window.phase);
        all.chain(own).map(event).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_phases::{Phase, Window};
    use strata_stream::Schedule;

    fn phases(starts: &[(u64, usize)]) -> Arc<Phases> {
        let phases = [(9, 910), (2, 200)]
            .map(|(intervals, instructions)| Phase { intervals, instructions })
            .to_vec();
        let windows = starts.iter().map(|(start, phase)| Window { start: *start, phase: *phase });
        let windows = Windows { length: 100, warm: 70, phases, windows: windows.collect() };
        Arc::new(Phases { windows, marker: Marker::Code })
    }

    #[test]
    fn edges_lie_where_windows_do() {
        let phases = phases(&[(0, 1), (300, 0), (400, 1), (550, 0)]);
        let mut schedule = Schedule::new(phases.sampling());
        let mut planned = Planned::new(phases);
        let mut found = Vec::new();
        for _ in 0..17 {
            let (at, edge) = schedule.peek();
            if edge == Edge::Interval {
                schedule.place(planned.placed().next().unwrap());
            }
            planned.edge(edge);
            found.push(at);
            schedule.advance();
        }
        let windows =
            [[0, 0, 0, 100], [100, 230, 300, 400], [400, 400, 400, 500], [500, 500, 550, 650]];
        assert_eq!(found[..16], windows.concat());
        assert_eq!(found[16], 650);
        assert!(schedule.peek().0 >= FOR_EVER, "no window follows the last");
    }

    #[test]
    fn intervals_are_placed_two_ahead_and_phases_told_before_windows() {
        let mut planned = Planned::new(phases(&[(300, 0), (900, 1)]));
        let numbers: Vec<u64> = planned.placed().map(|placed| placed.number).collect();
        assert_eq!(numbers, [0, 1]);
        let told = |planned: &Planned| -> Vec<u32> {
            let number = |event| match event {
                Event::Phase { phase, .. } => phase,
                other => panic!("{other:?}"),
            };
            planned.told(Edge::Interval).into_iter().map(number).collect()
        };
        assert_eq!(told(&planned), [0, 1, 0]);
        assert_eq!(planned.told(Edge::Window), []);
        assert_eq!(planned.edge(Edge::Window), None);
        assert_eq!(planned.edge(Edge::Gap).map(|placed| placed.number), Some(2));
        assert_eq!(told(&planned), [1]);
        assert_eq!(planned.edge(Edge::Gap).map(|placed| placed.length), Some(FOR_EVER));
        assert!(told(&planned).is_empty());
    }

    #[test]
    fn the_note_tells_how_phases_were_found() {
        let phases = phases(&[(300, 0), (900, 1)]);
        let expected = "11 intervals of 100 instructions were told apart by the blocks of code";
        assert!(phases.note().starts_with(expected), "{}", phases.note());
        assert!(phases.note().ends_with("; 2 of them are windows"), "{}", phases.note());
        let memory = Phases { marker: Marker::Memory, ..(*phases).clone() };
        assert!(memory.note().contains("by the pages that they access"));
    }
}
