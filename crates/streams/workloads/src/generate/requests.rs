//! Requests of a number of accesses each.

use super::Common;
use super::spec::Spec;
use strata_stream::{Access, Batch, Event, Mark, Tid};

/// Cuts the accesses of each thread into requests.
pub struct Requests {
    /// Accesses that serve a request; 0 for no requests.
    each: u64,
    /// Accesses of its present request that each thread has made.
    served: Vec<u64>,
}

impl Requests {
    /// What `spec` asks for.
    ///
    /// # Errors
    /// One line, for a bad value.
    pub fn new(spec: &Spec, common: &Common) -> Result<Self, String> {
        let each = spec.count("request", 0, 1 << 40)?;
        Ok(Self { each, served: vec![0; common.threads as usize] })
    }

    /// Makes `count` accesses of a thread. `next` makes so many at a time: requests change nothing in
    /// their order.
    pub fn run(
        &mut self,
        tid: Tid,
        count: u64,
        common: &Common,
        batch: &mut Batch,
        mut next: impl FnMut(u64, &mut Vec<Access>),
    ) {
        if self.each == 0 {
            return common.run(batch, tid, count, |out| next(count, out));
        }
        let served = &mut self.served[tid.0 as usize];
        let mut rest = count;
        while rest > 0 {
            if *served == 0 {
                batch.event(Event::Request { tid, mark: Mark::Begin });
            }
            let piece = rest.min(self.each - *served);
            common.run(batch, tid, piece, |out| next(piece, out));
            rest -= piece;
            *served += piece;
            if *served == self.each {
                batch.event(Event::Request { tid, mark: Mark::End });
                *served = 0;
            }
        }
    }
}
