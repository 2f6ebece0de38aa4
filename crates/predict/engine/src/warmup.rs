//! What comes before counting begins.

use crate::Setup;
use strata_stream::Mark;

/// The part of a stream that is run and not counted: up to a mark, if that is waited for, and then a
/// number of accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Warmup {
    awaits_mark: bool,
    accesses: u64,
}

impl Warmup {
    /// What was asked for.
    pub(crate) fn new(setup: &Setup) -> Self {
        Self { awaits_mark: setup.from_mark, accesses: setup.warmup }
    }

    /// Whether everything counts from here on.
    #[inline]
    pub(crate) fn is_over(self) -> bool {
        !self.awaits_mark && self.accesses == 0
    }

    /// How many of the next `accesses` do not count yet.
    pub(crate) fn take(&mut self, accesses: usize) -> usize {
        if self.awaits_mark {
            return accesses;
        }
        let taken = self.accesses.min(accesses as u64);
        self.accesses -= taken;
        taken as usize
    }

    /// The stream has a mark. Gives whether everything counts from here on and did not before.
    pub(crate) fn mark(&mut self, mark: Mark) -> bool {
        let awaited = self.awaits_mark && mark == Mark::Begin;
        self.awaits_mark &= !awaited;
        awaited && self.is_over()
    }
}
