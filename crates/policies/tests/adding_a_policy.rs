//! The worked example of `docs/adding-a-policy.md`: the code between the marks is the code in the
//! document, to the letter, and does what the document says.

#[path = "../../stack/tests/world/mod.rs"]
mod world;

// [policy]
use strata_addr::PageSize;
use strata_paging::Region;
use strata_stack::{
    AlignAreas, Exhausted, Kernel, KernelSettings, NodeId, PageFault, Placement, Policy, Position,
    Stack, ThpMode,
};

/// Promotes an HPAS region once most of it is in use, in every layer on its own, as Ingens does
/// (OSDI 2016, section 5).
#[derive(Debug)]
pub struct Utilization {
    /// Base pages of 512 that must be present.
    pub threshold: u16,
}

impl Policy for Utilization {
    fn settings(&mut self, _at: Position) -> KernelSettings {
        KernelSettings { thp: ThpMode::Always, align_areas: AlignAreas::Never, fragmented: true }
    }

    fn place(&mut self, _node: NodeId, _kernel: &mut Kernel, _fault: &PageFault) -> Placement {
        Placement::Base
    }

    fn mapped(
        &mut self,
        stack: &mut Stack,
        node: NodeId,
        fault: &PageFault,
        _size: PageSize,
    ) -> Result<(), Exhausted> {
        let region = fault.page.floor(PageSize::Huge);
        let space = stack.kernel(node).space(fault.space).expect("it has just faulted");
        if let Region::Base { present, .. } = space.table().region(region)
            && present >= self.threshold
        {
            // The inner result tells why a region stays as it is; here it may simply stay so.
            let _ = stack.collapse(self, node, fault.space, region, None)?;
        }
        Ok(())
    }
}
// [/policy]

use proptest::prelude::*;
use world::{PAGES, World, op};

#[test]
fn the_document_shows_this_code() {
    let own = include_str!("adding_a_policy.rs");
    let document = include_str!("../../../docs/adding-a-policy.md");
    let (_, rest) = own.split_once("// [policy]\n").unwrap();
    let (policy, _) = rest.split_once("// [/policy]").unwrap();
    assert!(document.contains(policy), "docs/adding-a-policy.md shows another policy:\n{policy}");
}

#[test]
fn it_promotes_what_is_used_and_nothing_else() {
    let mut world = World::new(2, 0.0, Box::new(Utilization { threshold: 460 }));
    for page in 0..PAGES / 2 {
        world.touch(0, page, true);
    }
    for page in (PAGES / 2..PAGES).step_by(2) {
        world.touch(0, page, true);
    }
    let alignment = world.stack.alignment(world.guest);
    // Of the densely used half, the first region is not wholly inside the area.
    assert_eq!(alignment.guest_huge, PAGES / 2 / 512 - 1);
    world.finish();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn nothing_is_lost(layers in 1usize..=4, ops in prop::collection::vec(op(), 1..30)) {
        let mut world = World::new(layers, 0.5, Box::new(Utilization { threshold: 100 }));
        for op in &ops {
            world.apply(op);
            world.check();
        }
        world.finish();
    }
}
