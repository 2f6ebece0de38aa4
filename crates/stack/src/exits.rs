//! VM exits, by the VM that took them and why.

use crate::costs::Costs;
use crate::tree::NodeId;

/// Why a VM exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ExitReason {
    /// The VM touched memory of its own that the second stage hardware walks for it does not map
    /// (EPT violation, SDM volume 3C, section 29.3.3.2; nested page fault, APM volume 2, section
    /// 15.25.6).
    SecondStageViolation = 0,
    /// The host hands such a violation of a nested guest on to the guest hypervisor, whose own second
    /// stage does not map the page either.
    HandedOn = 1,
    /// A hypervisor in the VM wrote an entry of its own second stage, which is write-protected.
    SecondStageWrite = 2,
    /// A hypervisor in the VM invalidated cached translations of a guest of its own (INVEPT, SDM
    /// volume 3C, section 31.3; INVLPGA, APM volume 3).
    Invalidation = 3,
}

impl ExitReason {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 4] =
        [Self::SecondStageViolation, Self::HandedOn, Self::SecondStageWrite, Self::Invalidation];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SecondStageViolation => "second_stage_violation",
            Self::HandedOn => "handed_on",
            Self::SecondStageWrite => "second_stage_write",
            Self::Invalidation => "invalidation",
        }
    }

    /// Cycles of one such exit.
    pub(crate) fn cycles(self, costs: &Costs) -> u64 {
        match self {
            Self::HandedOn => costs.reflect,
            Self::SecondStageViolation | Self::SecondStageWrite | Self::Invalidation => costs.exit,
        }
    }
}

/// Counts of exits by VM and reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExitCounts {
    /// By number of the VM's kernel.
    counts: Vec<[u64; ExitReason::ALL.len()]>,
}

impl ExitCounts {
    pub(crate) fn add(&mut self, vm: NodeId, reason: ExitReason, exits: u64) {
        if self.counts.len() <= vm.index() {
            self.counts.resize(vm.index() + 1, Default::default());
        }
        self.counts[vm.index()][reason as usize] += exits;
    }

    /// Exits that a VM took for a reason.
    pub fn of(&self, vm: NodeId, reason: ExitReason) -> u64 {
        self.counts.get(vm.index()).map_or(0, |counts| counts[reason as usize])
    }
}
