//! A memory commits what is touched, not what it could hold.
#![cfg(target_os = "linux")]

use strata_frames::{Fragmenter, Frame, Holders, Memory, REGION_FRAMES};

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

    // All of it fragmented: a bit a region, and the patterns.
    let everything = Fragmenter { target_fmfi: 1.0, ..Default::default() };
    everything.apply(&mut memory, Holders { movable: 1, unmovable: 2 }).unwrap();
    let fragmented = resident() - before;
    assert!(fragmented < constructed + (8 << 20), "{fragmented} bytes for {frames} frames");

    // What is touched costs its frames' states and owners, 3 KiB a region.
    let taken: Vec<Frame> =
        (0..512 * 1024).map(|_| memory.alloc(0).expect("half is free")).collect();
    let regions = taken.last().expect("frames were taken").get() / REGION_FRAMES + 1;
    let touched = resident() - before - fragmented;
    let list = taken.capacity() as u64 * 8;
    assert!(touched < list + regions * 3072 + (16 << 20), "{touched} bytes for {regions} regions");
}
