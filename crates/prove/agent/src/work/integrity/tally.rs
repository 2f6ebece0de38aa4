//! What was done, counted.

use serde_json::{Map, Value};
use std::ops::AddAssign;

/// Something that threads do to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Give pages a new generation.
    Write,
    /// Verify pages.
    Verify,
    /// Verify pages and give them a new generation.
    Rewrite,
    /// Verify a whole 2 MiB.
    Whole,
    /// Leave 2 MiB alone for a while.
    Rest,
    /// Make pages equal to others.
    Same,
    /// Count words up together with other threads.
    Count,
    /// Have a child verify its copy of memory and change it.
    Fork,
    /// Unmap and map again 2 MiB.
    RenewHuge,
    /// Unmap and map again pages.
    RenewSmall,
    /// Give pages' contents back.
    GiveBack,
    /// Make pages read-only and writable again.
    Protect,
    /// Move 2 MiB to other addresses and back.
    MoveHuge,
    /// Move pages to other addresses and back.
    MoveSmall,
    /// Ask for a huge page.
    Collapse,
    /// Ask for swap.
    PageOut,
}

impl Operation {
    /// All of them; those of every thread come first.
    pub(super) const ALL: [(Self, &str); 16] = [
        (Self::Write, "write"),
        (Self::Verify, "verify"),
        (Self::Rewrite, "rewrite"),
        (Self::Whole, "whole"),
        (Self::Rest, "rest"),
        (Self::Same, "same"),
        (Self::Count, "count"),
        (Self::Fork, "fork"),
        (Self::RenewHuge, "renew_huge"),
        (Self::RenewSmall, "renew_small"),
        (Self::GiveBack, "give_back"),
        (Self::Protect, "protect"),
        (Self::MoveHuge, "move_huge"),
        (Self::MoveSmall, "move_small"),
        (Self::Collapse, "collapse"),
        (Self::PageOut, "page_out"),
    ];
}

/// Counts of one thread, or of all.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    operations: [u64; Operation::ALL.len()],
    /// Operations that the kernel refused, for it need not do everything that it is asked.
    pub(super) refused: u64,
    /// Operations that met memory that is left alone.
    pub(super) left_alone: u64,
    /// Pages whose every word was verified, by children too.
    pub(super) verified: u64,
    /// Pages written.
    pub(super) written: u64,
    /// Pages verified after a rest.
    pub(super) rested: u64,
}

impl Tally {
    pub(super) fn add(&mut self, operation: Operation) {
        self.operations[operation as usize] += 1;
    }

    /// Operations of one kind.
    #[cfg(test)]
    pub(super) fn of(&self, operation: Operation) -> u64 {
        self.operations[operation as usize]
    }

    pub(super) fn json(&self) -> Map<String, Value> {
        let operations: Map<String, Value> = Operation::ALL
            .iter()
            .map(|&(operation, name)| (name.into(), self.operations[operation as usize].into()))
            .collect();
        [
            ("verified_pages", self.verified.into()),
            ("rested_pages", self.rested.into()),
            ("written_pages", self.written.into()),
            ("left_alone", self.left_alone.into()),
            ("refused", self.refused.into()),
            ("operations", operations.into()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

impl AddAssign<&Self> for Tally {
    fn add_assign(&mut self, other: &Self) {
        for (sum, one) in self.operations.iter_mut().zip(other.operations) {
            *sum += one;
        }
        self.refused += other.refused;
        self.left_alone += other.left_alone;
        self.verified += other.verified;
        self.written += other.written;
        self.rested += other.rested;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_listed_in_their_order() {
        for (index, (operation, _)) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index);
        }
    }
}
