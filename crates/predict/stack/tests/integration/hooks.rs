//! What a policy does in a hook meets what the stack is about to do.

use crate::world::{Op, PAGES, World};
use strata_addr::{Frame, PageSize, space::Upper};
use strata_paging::Region;
use strata_stack::{
    AlignAreas, ExitReason, KernelOutOfMemory, KernelSettings, NodeId, PageFault, Policy, Position,
    Stack, ThpMode,
};

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

/// A host with huge pages that maps base pages for its VM 16 at a time. The guest has no huge pages.
struct Around;

const AROUND: u64 = 16;

impl Policy for Around {
    fn settings(&mut self, at: Position) -> KernelSettings {
        let thp = if at.is_guest() { ThpMode::Never } else { ThpMode::Always };
        KernelSettings { thp, align_areas: AlignAreas::Never, fragmented: true, coloured: false }
    }

    fn mapped_at_once(&self, _: NodeId) -> u64 {
        AROUND
    }
}

/// Where a huge page of the host's was split, a fault of the VM brings the pages between two multiples of 16, and none
/// that the VM must not write: of these it would fault again.
#[test]
fn a_fault_maps_what_the_host_has_around_it() {
    let mut world = World::new(2, 0.0, Box::new(Around));
    (0..PAGES).for_each(|page| world.touch(0, page, true));
    let guest = world.guest;
    let frame_of = |world: &World, page: u64| -> Frame<Upper> {
        let (_, space) = world.stack.kernel(guest).spaces().next().unwrap();
        let gva: Frame<Upper> = Frame::new(0x4000_5000 / 4096 + page);
        space.table().mapping(gva.addr()).unwrap().frame.cross()
    };
    // Two pages that ksmd merges are in a huge page, which it splits.
    world.apply(&Op::Alike { pid: 0, page: 1000, pages: 2, content: 1 });
    let merged = [1000, 1001].map(|page| frame_of(&world, page));
    let region = merged[0].floor(PageSize::Huge);
    assert!(matches!(world.stack.second_stage(guest).region(region), Region::Huge(_)));
    world.ksm(u64::MAX);
    let is_mapped = |world: &World, page: Frame<Upper>| {
        world.stack.second_stage(guest).mapping(page.addr()).is_some()
    };
    let (first, other) = (merged[0].get() / AROUND * AROUND, (merged[0].get() % AROUND) ^ 8);
    let pages = (first..first + AROUND).map(Frame::new);
    assert!(pages.clone().all(|page| !is_mapped(&world, page)));
    // A page of the same 16.
    let touched = (0..PAGES).find(|page| frame_of(&world, *page).get() == first + other).unwrap();
    world.touch(0, touched, true);
    for page in pages {
        assert_eq!(is_mapped(&world, page), !merged.contains(&page), "{page:?}");
    }
    let beyond = [first - 1, first + AROUND].map(Frame::new);
    assert!(beyond.iter().all(|page| !is_mapped(&world, *page)));
    world.check();
    world.finish();
}
