//! Background work: khugepaged in every kernel, and operations that policies use to change a running
//! kernel.

use crate::costs::Spending;
use crate::owner::SpaceId;
use crate::policy::{Feedback, Policy};
use crate::promote::{PromoteError, Promotion};
use crate::stack::{Exhausted, Stack};
use crate::thp::ThpMode;
use crate::tree::NodeId;
use strata_addr::{Frame, space::Lower, space::Upper};

impl Stack {
    /// When [`Stack::wake`] has something to do next, in seconds of simulated time.
    pub fn next_wake(&self, policy: &dyn Policy) -> f64 {
        let with_thp = self.nodes.iter().filter(|node| node.kernel.thp != ThpMode::Never);
        with_thp.map(|node| node.khugepaged_next).fold(policy.next_wake(), f64::min)
    }

    /// Does the background work that is due at `now`, in seconds of simulated time.
    ///
    /// # Errors
    /// [`Exhausted`], with the kernel.
    pub fn wake(
        &mut self,
        policy: &mut dyn Policy,
        now: f64,
        feedback: Feedback,
    ) -> Result<(), Exhausted> {
        self.account = Some(Spending::Background);
        let done = self.background(policy, now, feedback);
        self.account = None;
        done
    }

    fn background(
        &mut self,
        policy: &mut dyn Policy,
        now: f64,
        feedback: Feedback,
    ) -> Result<(), Exhausted> {
        if policy.next_wake() <= now {
            policy.wake(self, now, feedback)?;
        }
        // Guests first: what they make huge is there to be matched below.
        let ids: Vec<NodeId> = self.nodes().rev().collect();
        for id in ids {
            let node = &mut self.nodes[id];
            if node.khugepaged_next > now || node.kernel.thp == ThpMode::Never {
                continue;
            }
            let settings = self.thp.clone();
            let failed = node.kernel.khugepaged(&settings);
            let pause = match failed {
                Ok(false) => settings.scan_sleep,
                // Out of memory for a page table is no reason to die: it tries again later.
                Ok(true) | Err(_) => settings.alloc_sleep,
            };
            node.khugepaged_next = now + pause;
            self.settle(policy, id, Spending::Background)?;
        }
        Ok(())
    }

    /// Makes the region at `page` of a kernel's space huge; see the errors for when it is not.
    /// `target` names the HPAS region wanted, `None` leaves it in place or takes any.
    ///
    /// # Errors
    /// The outer error ends the run; the inner one tells why the region is as before.
    pub fn collapse(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        space: SpaceId,
        page: Frame<Upper>,
        target: Option<Frame<Lower>>,
    ) -> Result<Result<Promotion, PromoteError>, Exhausted> {
        let outcome = self.nodes[node].kernel.collapse(space, page, target, &self.thp);
        let guest = self.position(node).guest;
        let fault = if guest { Spending::GuestFault } else { Spending::HypervisorFault };
        self.settle(policy, node, fault)?;
        Ok(outcome)
    }

    /// Moves a base page of a kernel's space to a wanted frame, splitting a huge page if need be.
    /// Returns whether it is there.
    ///
    /// # Errors
    /// [`Exhausted`], with the kernel.
    pub fn migrate(
        &mut self,
        policy: &mut dyn Policy,
        node: NodeId,
        space: SpaceId,
        page: Frame<Upper>,
        to: Frame<Lower>,
    ) -> Result<bool, Exhausted> {
        let moved = self.nodes[node].kernel.migrate_to(space, page, to);
        self.settle(policy, node, Spending::HypervisorFault)?;
        Ok(moved.unwrap_or(false))
    }

    /// Cycles of background work charged and not yet drained.
    pub fn background_cycles(&self) -> u64 {
        self.spent.0[Spending::Background as usize]
    }

    /// Charges cycles of a policy's own scanning.
    pub fn charge_scan(&mut self, entries: u64) {
        let cycles = entries * self.costs.scan;
        self.spent.add(self.account.unwrap_or(Spending::Background), cycles);
    }
}
