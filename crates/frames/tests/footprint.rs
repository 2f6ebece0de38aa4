//! A memory commits what is touched, not what it could hold.
#![cfg(target_os = "linux")]

use strata_frames::{Fragmenter, Frame, Memory, REGION_FRAMES};

const GIB: u64 = 1 << 18;

/// Resident bytes of this process (proc(5), statm, second field, in pages of 4 KiB).
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = statm.split(' ').nth(1).and_then(|field| field.parse::<u64>().ok());
    pages.expect("a number") * 4096
}

#[test]
fn large_memories_cost_little_until_used() {
    let frames = 640 * GIB;
    let before = resident();
    let mut memory = Memory::new(frames);
    let constructed = resident() - before;
    // Each bitmap has its first page touched, which may be a huge page.
    assert!(constructed < 64 << 20, "{constructed} bytes after construction");

    // The whole memory in use, without owners: under half a byte a frame.
    let everything = Fragmenter { target_fmfi: 1.0, ..Default::default() };
    everything.apply(&mut memory, |_, _| 0).unwrap();
    let fragmented = resident() - before;
    assert!(fragmented < frames / 2, "{fragmented} bytes for {frames} frames");

    for region in 0..64 {
        let start = Frame::new(region * REGION_FRAMES);
        let taken: Vec<Frame> = memory.allocated_in_region(start).collect();
        taken.into_iter().for_each(|frame| memory.set_owner(frame, 1));
    }
    let owned = resident() - before;
    assert!(owned < fragmented + (8 << 20), "{owned} bytes with 64 regions owned");
}
