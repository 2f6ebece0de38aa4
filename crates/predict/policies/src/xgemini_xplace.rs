//! xGemini and xPlace together, on one host, across an unmodified guest hypervisor.
//!
//! A region of the guest's memory that xGemini puts in a row has HPA = GPA modulo 2 MiB. So where table t is
//! the identity and the number of colours divides the 512 frames of a row, each of its pages has the
//! colour that xPlace would give it: a row is coloured, too. What is left over is coloured page by page. Both
//! cost a copy of a page that has to move, so the first question for each page is whether its region has, or
//! can have, a place as a row. A region of which most is elsewhere already is a row at the price of moving
//! all of it; whether that pays is estimated for each of them, from how often the guest's accessed bits were
//! found set there and from what hardware says of walks and of memory.

use crate::budget::Budget;
use crate::colour_table::ColourTableParameters;
use crate::leftovers::{LeftoverParameters, Leftovers, REGION};
use crate::parameters::{ParameterSet, PolicyParameters};
use crate::recolour::{Recolouring, Recolours, check};
use crate::xgemini::{XGemini, XGeminiSettings};
use crate::xplace::XPlaceParameters;
use strata_addr::{Frame, PageSize, space::Upper};
use strata_paging::Region;
use strata_stack::{KernelOutOfMemory, NodeId, PageFault, Stack};

/// The sets of parameters that it reads.
pub const SETS: &[ParameterSet] = &{
    let mut sets = [ParameterSet::of::<LeftoverParameters>(); XGeminiSettings::SETS.len() + 3];
    let mut at = 0;
    while at < XGeminiSettings::SETS.len() {
        sets[at] = XGeminiSettings::SETS[at];
        at += 1;
    }
    sets[at] = ParameterSet::of::<ColourTableParameters>();
    sets[at + 1] = ParameterSet::of::<XPlaceParameters>();
    sets
};

/// The policy: xGemini that colours what it leaves over.
pub fn policy(parameters: &PolicyParameters) -> XGemini {
    XGemini::with_leftovers(XGeminiSettings::from(parameters), Leftovers::new(parameters))
}

impl Recolours for XGemini {
    fn recolouring(&mut self) -> &mut Recolouring {
        &mut self.leftovers.as_mut().expect("only who has leftovers recolours").recolouring
    }
}

impl XGemini {
    /// A guest hypervisor wrote entries of its second stage: base pages go to the row of their region if it
    /// has one or may become one, else to a frame of their colour. Where it is a huge page the region is
    /// looked at later, as a whole.
    pub(crate) fn colour_leftovers(
        &mut self,
        stack: &mut Stack,
        vm: NodeId,
        page: Frame<Upper>,
        size: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        for i in 0..size.base_pages() {
            // Between several guest hypervisors it may be a page of one of them.
            let Some(leftovers) = &mut self.leftovers else { return Ok(()) };
            let backs = leftovers.recolouring.backs(stack, vm, page + i);
            let Some((guest, page)) = backs else { continue };
            let region = (guest, page.floor(PageSize::Huge).get());
            if size != PageSize::Base {
                // All of it lies in its row already where the host placed it as it was touched.
                let may_be_row = page.is_aligned(size) && !leftovers.is_coloured(region);
                let first = Frame::new(region.1);
                let shadow = stack.hardware_second_stage(guest);
                let row = shadow.is_some_and(|s| matches!(s.region(first), Region::Huge(_)));
                if row || may_be_row && stack.promote_shadow(self, guest, first)? {
                    continue;
                }
                if !self.leftovers.as_ref().is_some_and(|own| own.is_coloured(region))
                    && self.steer(stack, guest, page)?
                {
                    self.placed(stack, guest, page)?;
                    continue;
                }
                if let Some(leftovers) = &mut self.leftovers {
                    leftovers.enqueue(region);
                }
                continue;
            }
            let may_be_row = !leftovers.is_coloured(region);
            if may_be_row && self.steer(stack, guest, page)? {
                self.placed(stack, guest, page)?;
            } else if !check(self, stack, guest, page)?
                && let Some(leftovers) = &mut self.leftovers
            {
                leftovers.enqueue(region);
            }
        }
        Ok(())
    }

    /// A base page of a guest's that the host backs in a frame of another colour goes to one of its own.
    pub(crate) fn colour_mapped(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        fault: &PageFault,
    ) -> Result<(), KernelOutOfMemory> {
        let Some(leftovers) = &mut self.leftovers else { return Ok(()) };
        let wrong = leftovers.recolouring.wrong_of_fault(stack.kernel(node), fault);
        let Some((guest, colour)) = wrong else { return Ok(()) };
        let copies = leftovers.recolouring.copies;
        let page = (fault.space, fault.page);
        let moved = stack.recolour(self, node, page, colour, copies)?;
        self.recolouring().note_replaced(guest, moved);
        Ok(())
    }

    /// Before rows are made in a round: what is known of reuse and pressure.
    pub(crate) fn measure(&mut self, stack: &mut Stack, now: f64) {
        let guests = self.coordination.guests().to_vec();
        if let Some(leftovers) = &mut self.leftovers {
            leftovers.begin_round(now);
            leftovers.measure_reuse(stack, &guests);
        }
    }

    /// Looks at the regions whose pages may have any colour, within the budget. Those that are rows have all
    /// right, and those that fill up as rows will have. Where a colour was out it is asked for again in the next
    /// round.
    pub(crate) fn colour_queued(
        &mut self,
        stack: &mut Stack,
        budget: &Budget,
    ) -> Result<(), KernelOutOfMemory> {
        let mut lacking = Vec::new();
        while !budget.is_spent(stack)
            && let Some((guest, region)) =
                self.leftovers.as_mut().and_then(|leftovers| leftovers.queue.pop_first())
        {
            let first = Frame::new(region);
            let table = stack.hardware_second_stage(guest);
            if table.is_some_and(|table| matches!(table.region(first), Region::Huge(_))) {
                continue;
            }
            stack.charge_scan(REGION);
            // Where guest hypervisors have it in one piece, a row costs no more than colours.
            if self.collapse_below(stack, guest, first)? {
                stack.promote_shadow(self, guest, first)?;
                continue;
            }
            let mut is_right = true;
            for page in (0..REGION).map(|i| first + i) {
                if stack.compose(guest, page).is_some() {
                    is_right &= check(self, stack, guest, page)?;
                }
            }
            if !is_right {
                lacking.push((guest, region));
            }
        }
        if let Some(leftovers) = &mut self.leftovers {
            leftovers.queue.extend(lacking);
        }
        Ok(())
    }
}
