//! A stream that gets a mark when somebody gives the cue.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use strata_stream::{Batch, Event, Fill, Mark, Source, SourceError, Step, WorkloadInfo};

/// The stream of `source`, without marks of its own, and with a [`Mark::Begin`] before what comes after the
/// cue.
pub struct Cue<S> {
    source: S,
    cue: Arc<AtomicBool>,
    is_given: bool,
    read: Batch,
}

impl<S: Source> Cue<S> {
    /// Waits for `cue` to be set.
    pub fn new(source: S, cue: Arc<AtomicBool>) -> Self {
        Self { source, cue, is_given: false, read: Batch::new() }
    }
}

impl<S: Source> Source for Cue<S> {
    fn info(&self) -> WorkloadInfo {
        self.source.info()
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        // Asked for before the source is, so that nothing after the cue comes before the mark.
        let is_due = self.cue.load(Relaxed);
        let mut read = mem::take(&mut self.read);
        let filled = self.source.fill(&mut read);
        if is_due && !mem::replace(&mut self.is_given, true) {
            batch.event(Event::Mark(Mark::Begin));
        }
        for step in read.steps() {
            match step {
                Step::Event(Event::Mark(_)) => {}
                Step::Event(event) => batch.event(*event),
                Step::Run { tid, instructions, accesses } => {
                    batch.run(tid, instructions, |out| out.extend_from_slice(accesses));
                }
            }
        }
        self.read = read;
        filled
    }

    fn detach(&mut self) -> bool {
        self.source.detach()
    }

    fn news(&mut self) -> Vec<String> {
        self.source.news()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_workloads::Generator;

    #[test]
    fn the_mark_comes_with_the_cue_and_once() {
        let marks = |batch: &Batch| {
            batch.steps().filter(|step| matches!(step, Step::Event(Event::Mark(_)))).count()
        };
        let flag = Arc::new(AtomicBool::new(false));
        let source = Generator::parse("random:size=1MiB,accesses=100k").unwrap();
        let mut cue = Cue::new(source, flag.clone());
        let mut batch = Batch::new();
        let mut accesses = 0;
        for (given, expected) in [(false, 0), (true, 1), (true, 0)] {
            flag.store(given, Relaxed);
            cue.fill(&mut batch).unwrap();
            assert_eq!(marks(&batch), expected);
            accesses += batch.len();
        }
        while cue.fill(&mut batch).unwrap() == Fill::More {
            accesses += batch.len();
        }
        assert_eq!(accesses + batch.len(), 100_000);
    }
}
