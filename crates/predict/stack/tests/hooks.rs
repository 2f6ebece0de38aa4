//! What a policy does in a hook meets what the stack is about to do.

#[allow(dead_code)] // one test needs little of it
mod world;

use strata_addr::PageSize;
use strata_stack::{
    AlignAreas, ExitReason, KernelOutOfMemory, KernelSettings, NodeId, PageFault, Policy, Position,
    Stack, ThpMode,
};
use world::{PAGES, World};

/// Base pages. Backs what was just mapped at once, if so told, as a policy may that then acts on it.
struct Backs(bool);

impl Policy for Backs {
    fn settings(&mut self, _: Position) -> KernelSettings {
        let (thp, align_areas) = (ThpMode::Never, AlignAreas::Never);
        KernelSettings { thp, align_areas, fragmented: true, coloured: false }
    }

    fn mapped(
        &mut self,
        stack: &mut Stack,
        _: NodeId,
        fault: &PageFault,
        _: PageSize,
    ) -> Result<(), KernelOutOfMemory> {
        match (fault.vm, fault.vm_page) {
            (Some(vm), Some(page)) if self.0 => stack.back(self, vm, page),
            _ => Ok(()),
        }
    }
}

/// Whoever maps it, a page gets one entry in the second stage, and the host one exit for the write.
#[test]
fn a_page_that_a_policy_backs_itself_is_written_once() {
    let writes = |policy: Backs| {
        let mut world = World::trapping(3, Box::new(policy));
        for page in 0..PAGES {
            world.touch(0, page, true);
        }
        world.check();
        let below = world.stack.below(world.guest).expect("it is nested");
        world.stack.exits().of(below, ExitReason::SecondStageWrite)
    };
    let usual = writes(Backs(false));
    assert!(usual >= PAGES, "{usual}");
    assert_eq!(writes(Backs(true)), usual);
}
