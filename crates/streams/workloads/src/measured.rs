//! A stream whose footprint is counted while it passes.

use crate::Footprint;
use strata_stream::{Batch, Fill, Source, SourceError, Step, WorkloadInfo};

/// A [`Source`] that counts the distinct base pages touched, for streams that do not know their
/// footprint beforehand, or no more than a bound: live programs, foreign traces and generators.
pub struct Measured<S> {
    source: S,
    footprint: Footprint,
    begun: bool,
}

impl<S: Source> Measured<S> {
    /// The same stream, counted.
    pub fn new(source: S) -> Self {
        Self { source, footprint: Footprint::default(), begun: false }
    }
}

impl<S: Source> Source for Measured<S> {
    /// What the source knows; once it was read from, with the footprint of what passed.
    fn info(&self) -> WorkloadInfo {
        let mut info = self.source.info();
        if self.begun {
            info.footprint_bytes = Some(self.footprint.bytes());
        }
        info
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        let filled = self.source.fill(batch);
        for step in batch.steps() {
            match step {
                Step::Event(event) => self.footprint.event(event),
                Step::Run { tid, accesses, .. } => self.footprint.run(tid, accesses),
            }
        }
        self.begun = true;
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
    use crate::Generator;

    #[test]
    fn the_footprint_is_that_of_the_stream() {
        let spec = "sequential:size=1MiB,stride=4KiB,passes=2";
        struct Blind(Generator);
        impl Source for Blind {
            fn info(&self) -> WorkloadInfo {
                WorkloadInfo { footprint_bytes: None, ..self.0.info() }
            }
            fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
                self.0.fill(batch)
            }
        }
        let mut measured = Measured::new(Blind(Generator::parse(spec).unwrap()));
        assert_eq!(measured.info().footprint_bytes, None);
        let mut batch = Batch::new();
        while measured.fill(&mut batch).unwrap() == Fill::More {}
        assert_eq!(measured.info().footprint_bytes, Some(1 << 20));
    }
}
