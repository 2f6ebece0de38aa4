//! The frame behind each page of a guest's memory in the real colour that table t has for it, page by page,
//! across guest hypervisors: what xPlace does (section 5), for every policy that does it.
//!
//! A guest hypervisor's second stage is write-protected, so the host sees each change of it. It then
//! knows the guest's page, follows it down to the frame behind, and replaces the frame if its colour is not
//! the one that table t has for the page's virtual colour. What the host would move on its own later, huge
//! pages included, it may move only where every page has its colour again.

use crate::colour_table::{ColourTableParameters, ColourTables};
use strata_addr::{Frame, space::Lower, space::Upper};
use strata_colours::{Colour, Colours, VirtualCache};
use strata_stack::{
    Kernel, KernelOutOfMemory, Move, NodeId, PageFault, PlacementCounts, Policy, Position, Stack,
};

/// What a policy knows of the colours of guests' memory.
#[derive(Debug)]
pub(crate) struct Recolouring {
    tables: ColourTables,
    /// A replaced frame is copied.
    pub copies: bool,
    guests: Vec<NodeId>,
}

/// A policy that recolours. What it does to a running stack is given the policy itself, so that faults that
/// are caused below are placed by it, too.
pub(crate) trait Recolours: Policy + Sized {
    /// What it knows.
    fn recolouring(&mut self) -> &mut Recolouring;
}

impl Recolouring {
    pub fn new(table: ColourTableParameters, copies: bool) -> Self {
        Self { tables: ColourTables::new(table), copies, guests: Vec::new() }
    }

    /// A VM is told of a last-level cache unlike the host's.
    pub fn tell(&mut self, vm: NodeId, cache: VirtualCache) {
        self.tables.tell(vm, cache);
    }

    /// A kernel is told of.
    pub fn add(&mut self, at: Position) {
        if at.is_guest() && !self.guests.contains(&at.node) {
            self.guests.push(at.node);
        }
    }

    /// Whether a guest's memory is to lie by colour: not where another policy governs its kernel.
    fn governs(&self, guest: NodeId) -> bool {
        self.guests.contains(&guest)
    }

    /// The guest, and the page of its memory, that a page of a VM's memory backs, if it is to lie by colour.
    pub fn backs(
        &self,
        stack: &Stack,
        vm: NodeId,
        page: Frame<Upper>,
    ) -> Option<(NodeId, Frame<Upper>)> {
        stack.backs(vm, page).filter(|(guest, _)| self.governs(*guest))
    }

    /// The guest for whose page the host answers a fault, and the colour that the frame is to have; `None`
    /// while nobody knows what a guest hypervisor will use it for.
    pub fn of_fault(
        &mut self,
        kernel: &Kernel,
        fault: &PageFault,
    ) -> Option<(NodeId, Colour<Lower>)> {
        let colours = kernel.memory().colours()?;
        let (guest, page) = fault.backs.filter(|(guest, _)| self.governs(*guest))?;
        Some((guest, self.tables.wanted(guest, colours, page)))
    }

    /// The guest, and the colour wanted, if the host has mapped the page of a fault in a frame of another.
    pub fn wrong_of_fault(
        &mut self,
        kernel: &Kernel,
        fault: &PageFault,
    ) -> Option<(NodeId, Colour<Lower>)> {
        let found = self.of_fault(kernel, fault)?;
        let colours = kernel.memory().colours()?;
        let frame = kernel.frame_behind(fault.space, fault.page)?;
        (colours.of(frame) != found.1).then_some(found)
    }

    /// A frame of a wrong colour was replaced, or there was none of the right one.
    pub fn note_replaced(&mut self, guest: NodeId, replaced: bool) {
        let counts = self.tables.counts(guest);
        counts.replaced += u64::from(replaced);
        counts.colour_was_out += u64::from(!replaced);
    }

    /// Whether a page may be moved: by the host only to where all that it backs of guests has its colour. A
    /// refusal is counted.
    pub fn may_move(&mut self, stack: &Stack, asked: &Move) -> bool {
        let Some((vm, colours)) = coloured_vm(stack, asked) else { return true };
        let mut concerned = None;
        let may = keeps_colours(colours, asked, |i| {
            let page = of_vm(stack, vm, asked, i)?;
            let (guest, page) = self.backs(stack, vm, page)?;
            concerned = Some(guest);
            Some(self.tables.wanted(guest, colours, page))
        });
        if let Some(guest) = concerned.filter(|_| !may) {
            self.tables.counts(guest).moves_refused += 1;
        }
        may
    }

    /// Virtual colours of a guest's memory, those first whose real ones the host is shortest of.
    pub fn by_shortage(&mut self, stack: &Stack, guest: NodeId) -> Vec<Colour<Lower>> {
        self.tables.by_shortage(stack, guest)
    }

    /// Whether a frame has the colour of the guest's page that a page of a VM's memory backs.
    pub fn may_merge(
        &mut self,
        stack: &Stack,
        vm: NodeId,
        page: Frame<Upper>,
        frame: Frame<Lower>,
    ) -> bool {
        let guest = self.backs(stack, vm, page);
        guest.is_none_or(|(guest, page)| self.tables.suits(stack, guest, page, frame))
    }

    pub fn ended(&mut self, kernels: &[NodeId]) {
        self.tables.forget(kernels);
        self.guests.retain(|guest| !kernels.contains(guest));
    }

    pub fn report(&self, stack: &Stack, guest: NodeId) -> Option<PlacementCounts> {
        self.tables.report(stack, guest)
    }
}

/// The VM whose memory is about to be moved, where that is by a host that tells these colours apart.
pub(crate) fn coloured_vm(stack: &Stack, asked: &Move) -> Option<(NodeId, Colours)> {
    let vm = stack.above(asked.node, asked.space).filter(|_| asked.node == NodeId::HOST)?;
    Some((vm, stack.kernel(asked.node).memory().colours()?))
}

/// The page of a VM's memory that is the `i`th of those that are about to be moved.
pub(crate) fn of_vm(stack: &Stack, vm: NodeId, asked: &Move, i: u64) -> Option<Frame<Upper>> {
    let slot = stack.hva(vm, Frame::new(0)).get();
    let page = (asked.page.floor(asked.size) + i).get().checked_sub(slot)?;
    (page < stack.kernel(vm).memory().frames()).then(|| Frame::new(page))
}

/// Whether all pages that are about to be moved will have the colours that they want, those that want any.
/// Places aligned to the size are alike where the number of colours divides that of the pages.
pub(crate) fn keeps_colours(
    colours: Colours,
    asked: &Move,
    mut wanted: impl FnMut(u64) -> Option<Colour<Lower>>,
) -> bool {
    let pages = asked.size.base_pages();
    let alike = pages.is_multiple_of(u64::from(colours.count()));
    let to = asked.to.or(alike.then(|| Frame::new(0)));
    (0..pages)
        .all(|i| wanted(i).is_none_or(|wanted| to.is_some_and(|to| colours.of(to + i) == wanted)))
}

/// Puts the frame behind a guest's page in the colour that table t has for it, if every hypervisor
/// between guest and host maps the page. Returns whether there was one of that colour.
pub(crate) fn check<P: Recolours>(
    policy: &mut P,
    stack: &mut Stack,
    guest: NodeId,
    page: Frame<Upper>,
) -> Result<bool, KernelOutOfMemory> {
    // Down to the host's own VM: that is what the host can place.
    let (mut at, mut vm) = (page, guest);
    while let Some(below) = stack.below(vm).filter(|below| *below != NodeId::HOST) {
        match stack.second_stage(vm).translate(at.addr()) {
            Some(backing) => at = backing.page().cross(),
            None => return Ok(true),
        }
        vm = below;
    }
    let host = stack.kernel(NodeId::HOST);
    let Some(colours) = host.memory().colours() else { return Ok(true) };
    let own = policy.recolouring();
    let colour = own.tables.wanted(guest, colours, page);
    own.tables.counts(guest).checks += 1;
    let (process, hva) = (stack.vm_process(vm), stack.hva(vm, at));
    let mut is_right = true;
    if let Some(frame) = host.frame_behind(process, hva) {
        if colours.of(frame) == colour {
            return Ok(true);
        }
        let copies = own.copies;
        is_right = stack.recolour(policy, NodeId::HOST, (process, hva), colour, copies)?;
        policy.recolouring().note_replaced(guest, is_right);
    }
    // Without a frame it gets one now, of its colour; a frame that was replaced took its entry with it.
    stack.back(policy, vm, at)?;
    Ok(is_right)
}
