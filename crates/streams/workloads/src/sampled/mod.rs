//! A stream of which only windows are kept, with what page tables show of the rest.

mod aim;
mod arrays;
mod auto;
mod chooser;
mod guesses;
mod lru;
mod pages;
mod phases;
mod pilot;
mod profile;
mod trial;
mod warming;

pub use aim::{Aim, Reach};
pub use auto::Auto;
pub use chooser::{Aimed, Chooser, tell_touched};
pub use pages::Touches;
pub use phases::{Marker, Phases};
pub use profile::profile;
use strata_stream::{
    Access, Batch, Edge, Event, Fill, Sampling, Schedule, Source, SourceError, Step, Tid,
    WorkloadInfo,
};

/// A [`Source`] that gives windows of another one, and of the gaps between them the events, the
/// instructions and the pages touched first: what live capture gives of a program when it is sampled.
pub struct Sampled<S> {
    source: S,
    schedule: Schedule,
    read: Batch,
    touches: Touches,
    /// Instructions of all threads so far.
    clock: u64,
    in_gap: bool,
    /// Instructions in the gap that have not been told, by thread in order of appearance.
    skipped: Vec<(Tid, u64)>,
    /// Places the intervals, if their places are not drawn.
    chooser: Option<Chooser>,
}

impl<S: Source> Sampled<S> {
    /// What `sampling` leaves of `source`.
    pub fn new(source: S, sampling: Sampling) -> Self {
        Self {
            source,
            schedule: Schedule::new(sampling),
            read: Batch::new(),
            touches: Touches::default(),
            clock: 0,
            in_gap: false,
            skipped: Vec::new(),
            chooser: None,
        }
    }

    /// What is left of `source` when windows lie as `aimed` says.
    pub fn aimed(source: S, sampling: Sampling, aimed: Aimed) -> Self {
        Self { chooser: Some(Chooser::new(sampling, aimed)), ..Self::new(source, sampling) }
    }

    /// Accesses by one thread, cut where the sampled parts begin and end; accesses are where they would be
    /// if all instructions of the run had as many.
    fn run(&mut self, tid: Tid, instructions: u64, accesses: &[Access], batch: &mut Batch) {
        let (mut done, mut used) = (0, 0);
        loop {
            let (at, edge) = self.schedule.peek();
            let left = at - self.clock;
            // An edge that is due comes before what follows it.
            if left > 0 && left >= instructions - done {
                break;
            }
            if instructions == done && accesses.len() == used {
                return;
            }
            done += left;
            let until = match instructions {
                0 => 0,
                all => (accesses.len() as u128 * u128::from(done) / u128::from(all)) as usize,
            };
            self.piece(tid, left, &accesses[used..until], batch);
            used = until;
            self.pass(edge, batch);
        }
        self.piece(tid, instructions - done, &accesses[used..], batch);
    }

    /// Part of a run that lies between two edges.
    fn piece(&mut self, tid: Tid, instructions: u64, accesses: &[Access], batch: &mut Batch) {
        self.clock += instructions;
        self.touches.run(tid, accesses, self.in_gap);
        if !self.in_gap {
            if let Some(chooser) = &mut self.chooser {
                chooser.run(self.touches.owner(tid), tid, instructions, accesses);
            }
            batch.run(tid, instructions, |out| out.extend_from_slice(accesses));
        } else if instructions > 0 {
            match self.skipped.iter_mut().find(|(known, _)| *known == tid) {
                Some((_, sum)) => *sum += instructions,
                None => self.skipped.push((tid, instructions)),
            }
        }
    }

    fn pass(&mut self, edge: Edge, batch: &mut Batch) {
        if matches!(edge, Edge::Warm | Edge::Window) && self.in_gap {
            self.tell_skipped(batch);
            self.touches.tell(None, &mut |told| tell_touched(told, &mut self.chooser, batch));
        }
        self.tell_skipped(batch);
        self.in_gap = matches!(edge, Edge::Interval | Edge::Gap);
        batch.event(Event::Sampling(edge));
        if let Some(chooser) = &mut self.chooser {
            if let (Edge::Interval, Some(placed)) = (edge, chooser.placed().first()) {
                self.schedule.place(*placed);
            }
            chooser.told(edge).into_iter().for_each(|event| batch.event(event));
            chooser.edge(edge);
        }
        if self.in_gap {
            self.touches.tell_begun(&mut |told| tell_touched(told, &mut self.chooser, batch));
        }
        self.schedule.advance();
    }

    fn tell_skipped(&mut self, batch: &mut Batch) {
        for (tid, instructions) in self.skipped.drain(..) {
            batch.event(Event::Skipped { tid, instructions });
        }
    }

    fn event(&mut self, event: &Event, batch: &mut Batch) {
        self.tell_skipped(batch);
        self.touches.event(event, &mut |told| tell_touched(told, &mut self.chooser, batch));
        self.chooser.iter_mut().for_each(|chooser| chooser.event(event));
        batch.event(*event);
    }
}

impl<S: Source> Source for Sampled<S> {
    fn info(&self) -> WorkloadInfo {
        let mut info = self.source.info();
        let found: Vec<String> = self.chooser.iter().flat_map(Chooser::notes).collect();
        // A recording of what is left is to say so as well.
        if let Some(recorded) = &mut info.recorded {
            recorded.notes.extend_from_slice(&found);
        }
        info.notes.extend(found);
        info
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        let mut read = std::mem::take(&mut self.read);
        let filled = self.source.fill(&mut read);
        for step in read.steps() {
            match step {
                // A recording that was cut off does not say so anywhere else.
                Step::Event(Event::Sampling(_)) => {
                    return Err(SourceError::Invalid(
                        "the recording is sampled already: leave --sample out".to_owned(),
                    ));
                }
                Step::Event(event) => self.event(event, batch),
                Step::Run { tid, instructions, accesses } => {
                    self.run(tid, instructions, accesses, batch);
                }
            }
        }
        self.read = read;
        if !matches!(filled, Ok(Fill::More)) {
            self.tell_skipped(batch);
            self.touches.tell(None, &mut |told| tell_touched(told, &mut self.chooser, batch));
        }
        filled
    }

    fn detach(&mut self) -> bool {
        self.source.detach()
    }

    fn news(&mut self) -> Vec<String> {
        self.source.news()
    }
}
