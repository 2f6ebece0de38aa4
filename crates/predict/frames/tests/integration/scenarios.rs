//! Named situations of one [`Memory`].

use strata_frames::{Frame, MAX_ORDER, Memory, REGION_FRAMES, Run};

const F: fn(u64) -> Frame = Frame::new;

#[test]
fn a_fresh_memory_is_the_fewest_blocks() {
    let memory = Memory::new(3 * 1024 + 512 + 7);
    let blocks: Vec<u64> = (0..=MAX_ORDER).map(|order| memory.free_blocks(order)).collect();
    assert_eq!(blocks, [1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 3]);
    assert_eq!(memory.largest_run(), Some(Run { start: F(0), regions: 7 }));
    assert_eq!(memory.free_in_region(F(3590)), 7);
    assert_eq!(memory.free_in_region(F(4096)), 0);
    memory.check().unwrap();
}

#[test]
fn an_empty_memory_has_nothing_to_give() {
    let mut memory = Memory::new(0);
    assert_eq!(memory.alloc(0), None);
    assert!(!memory.alloc_at(F(0), 0));
    assert!(!memory.reserve_region(F(0)));
    assert_eq!((memory.largest_run(), memory.next_fit(F(0), 1)), (None, None));
    assert_eq!((memory.fmfi(9), memory.extfrag(9)), (1.0, Some(0.0)));
    memory.check().unwrap();
}

/// Frames past the end are nobody's: those that the last region would have, and those of no region.
#[test]
fn past_the_end_of_memory_nothing_is_free_and_nothing_allocated() {
    for frames in [100, 512, 700] {
        let mut memory = Memory::new(frames);
        assert!(memory.alloc_at(F(frames - 1), 0) && memory.is_allocated(F(frames - 1)));
        for past in [frames, frames + 1, 1024] {
            assert!(!memory.is_free(F(past), 0) && !memory.is_allocated(F(past)), "{past}");
            assert!(!memory.is_reserved(F(past)) && !memory.alloc_at(F(past), 0), "{past}");
            assert!(!memory.alloc_reserved(F(past), 0), "{past}");
        }
    }
}

#[test]
fn a_huge_block_is_freed_page_by_page_and_merges_again() {
    let mut memory = Memory::new(1024);
    let huge = memory.alloc(9).unwrap();
    for page in 0..512 {
        memory.free(huge + (page * 37 % 512), 0);
        memory.check().unwrap();
    }
    assert_eq!(memory.free_blocks(10), 1);
}

#[test]
fn alloc_takes_the_smallest_block_then_the_lowest() {
    let mut memory = Memory::new(4096);
    assert!(memory.alloc_at(F(0), 10));
    // Free: order 0 at 1000, order 2 at 500 and 600, and everything from 1024 on.
    memory.free(F(1000), 0);
    memory.free(F(600), 2);
    memory.free(F(500), 2);
    assert_eq!(memory.alloc(0), Some(F(1000)));
    assert_eq!(memory.alloc(0), Some(F(500)));
    assert_eq!(memory.alloc(1), Some(F(502)));
    assert_eq!(memory.alloc(3), Some(F(1024)));
}

#[test]
fn a_block_of_both_reserved_and_free_regions_can_be_freed_at_once() {
    let mut memory = Memory::new(1024);
    assert!(memory.reserve_region(F(512)));
    assert!(memory.alloc_reserved(F(512), 9));
    assert!(memory.alloc_at(F(0), 9));
    memory.free(F(0), 10);
    assert_eq!((memory.free_frames(), memory.reserved_free_frames()), (512, 512));
    assert_eq!(memory.release_region(F(512)), 512);
    assert_eq!(memory.free_blocks(10), 1);
    memory.check().unwrap();
}

#[test]
fn a_reserved_region_is_given_out_only_on_request() {
    let mut memory = Memory::new(1024);
    assert!(memory.reserve_region(F(3)));
    assert!(!memory.reserve_region(F(3)));
    for _ in 0..512 {
        assert!(memory.alloc(0).unwrap().get() >= REGION_FRAMES);
    }
    assert_eq!(memory.alloc(0), None);
    assert!(!memory.alloc_at(F(7), 0) && !memory.is_free(F(7), 0));
    assert!(!memory.alloc_reserved(F(600), 0));
    assert!(memory.alloc_reserved(F(7), 0));
    assert_eq!(memory.release_all_regions(), 511);
    assert!(memory.alloc(8).is_some());
    memory.check().unwrap();
}

#[test]
fn reserving_leaves_the_index_alone_and_the_buddy_view_not() {
    let mut memory = Memory::new(4096);
    memory.alloc(0).unwrap();
    let before = memory.fmfi(9);
    assert_eq!(before, 511.0 / 4095.0);
    memory.reserve_region(F(2048));
    assert_eq!(memory.fmfi(9), before);
    assert_eq!(memory.buddy_fmfi(9), 511.0 / (4095.0 - 512.0));
    memory.alloc_reserved(F(2048), 0);
    assert_eq!(memory.fmfi(9), 1022.0 / 4094.0);
}

#[test]
fn extfrag_tells_shortage_from_pieces() {
    let mut memory = Memory::new(1024);
    assert_eq!(memory.extfrag(9), None);
    memory.alloc(10).unwrap();
    // Every other page: the worst of pieces.
    (0..1024).step_by(2).for_each(|page| memory.free(F(page), 0));
    assert_eq!(memory.extfrag(9), Some(1.0 - 2.0 / 512.0));
    (0..1024).step_by(2).for_each(|page| assert!(memory.alloc_at(F(page), 0)));
    memory.free(F(0), 8);
    assert_eq!(memory.extfrag(9), Some(-0.5));
}

#[test]
fn owners_are_kept_and_given_up() {
    let mut memory = Memory::new(100);
    let frame = memory.alloc(0).unwrap();
    assert_eq!(memory.owner(frame), 0);
    memory.set_owner(frame, 42);
    assert_eq!((memory.owner(frame), memory.take_owner(frame)), (42, 42));
    memory.free(frame, 0);
    memory.check().unwrap();
}

#[cfg(debug_assertions)]
mod debug {
    use super::*;

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_double_free_is_caught() {
        let mut memory = Memory::new(100);
        let frame = memory.alloc(0).unwrap();
        memory.free(frame, 0);
        memory.free(frame, 0);
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn freeing_a_block_with_a_free_page_is_caught() {
        let mut memory = Memory::new(1024);
        let block = memory.alloc(9).unwrap();
        memory.free(block + 300, 0);
        memory.free(block, 9);
    }

    #[test]
    #[should_panic(expected = "is owned by 0x1 and wanted by 0x2")]
    fn a_second_owner_is_caught() {
        let mut memory = Memory::new(100);
        let frame = memory.alloc(0).unwrap();
        memory.set_owner(frame, 1);
        memory.set_owner(frame, 2);
    }

    #[test]
    #[should_panic(expected = "owned")]
    fn freeing_an_owned_frame_is_caught() {
        let mut memory = Memory::new(100);
        let block = memory.alloc(2).unwrap();
        memory.set_owner(block + 3, 1);
        memory.free(block, 2);
    }
}
