//! A hypervisor's memory for its VM.

use super::shadow::Shadow;
use super::table::{Pool, Table};
use std::collections::BTreeMap;

/// What a hypervisor keeps for its VM.
pub(super) enum Kept {
    /// A shadow of the VM's page table.
    Shadow(Shadow),
    /// A second stage.
    Nested(Table),
}

/// A hypervisor's memory for its VM: which of its frames are the VM's, and the table that says so to
/// whoever walks it.
pub(super) struct Memory {
    pub(super) kept: Kept,
    /// By frame of the VM.
    backing: BTreeMap<u64, u64>,
    pub(super) pool: Pool,
    /// How many frames were given to the VM.
    pub(super) backed: u64,
}

impl Memory {
    pub(super) fn shadow() -> Self {
        let mut pool = Pool::default();
        let kept = Kept::Shadow(Shadow::new(Table::of_pages(&mut pool)));
        Self { kept, backing: BTreeMap::new(), pool, backed: 0 }
    }

    pub(super) fn nested() -> Self {
        let mut pool = Pool::default();
        let kept = Kept::Nested(Table::second_stage(&mut pool));
        Self { kept, backing: BTreeMap::new(), pool, backed: 0 }
    }

    /// The frame behind a frame of the VM's; one is given when there is none.
    pub(super) fn back(&mut self, frame: u64) -> u64 {
        let Self { backing, pool, backed, .. } = self;
        *backing.entry(frame).or_insert_with(|| {
            *backed += 1;
            pool.take()
        })
    }

    /// The frame behind a frame of the VM's, if it has one.
    pub(super) fn behind(&self, frame: u64) -> Option<u64> {
        self.backing.get(&frame).copied()
    }

    /// The table that hardware or the hypervisor below reads.
    pub(super) const fn table(&self) -> &Table {
        match &self.kept {
            Kept::Shadow(shadow) => &shadow.table,
            Kept::Nested(table) => table,
        }
    }
}
