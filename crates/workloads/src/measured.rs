//! A stream whose footprint is counted while it passes.

use crate::Footprint;
use strata_stream::{Batch, Fill, Source, SourceError, Step, WorkloadInfo};

/// A [`Source`] that counts the distinct base pages touched, for streams that do not know their
/// footprint beforehand: live programs and foreign traces.
pub struct Measured<S> {
    source: S,
    footprint: Footprint,
    ended: bool,
}

impl<S: Source> Measured<S> {
    /// The same stream, counted.
    pub fn new(source: S) -> Self {
        Self { source, footprint: Footprint::default(), ended: false }
    }
}

impl<S: Source> Source for Measured<S> {
    /// What the source knows; after its end, or an error, with the footprint of what passed.
    fn info(&self) -> WorkloadInfo {
        let mut info = self.source.info();
        if self.ended {
            info.footprint_bytes.get_or_insert(self.footprint.bytes());
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
        self.ended |= !matches!(filled, Ok(Fill::More));
        filled
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
