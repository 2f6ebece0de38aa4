//! Telling colours apart costs less than a thousandth of the memory.
#![cfg(target_os = "linux")]

use strata_colours::{CacheIndex, Colour, Colours, SliceHash};
use strata_frames::{
    ColouredParameters, Fragmenter, Frame, Holders, MAX_COLOURS, Memory, REGION_FRAMES,
};

const GIB: u64 = 1 << 18;

/// Resident bytes of this process (proc(5), statm, second field, in pages of 4 KiB).
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = statm.split(' ').nth(1).and_then(|field| field.parse::<u64>().ok());
    pages.expect("a number") * 4096
}

fn colours(count: u32) -> Colours {
    let (sets, hash) = (u64::from(count) * 64, SliceHash::None);
    Colours::new(&CacheIndex { line_bytes: 64, sets, slices: 1, hash }).expect("whole pages")
}

/// Bytes of the books of a memory that is all taken but for `free` of every `period` frames.
fn books(frames: u64, count: u32, free: u64, period: u64) -> u64 {
    let mut memory = Memory::new(frames);
    while memory.alloc(10).is_some() {}
    for frame in (0..frames).filter(|frame| frame % period < free) {
        memory.free(Frame::new(frame), 0);
    }
    let before = resident();
    memory.tell_colours(colours(count), ColouredParameters::default()).expect("few colours");
    let after = resident();
    // One lookup of each colour.
    for colour in 0..count {
        memory.take_coloured(Colour::new(colour));
    }
    after.saturating_sub(before)
}

#[test]
fn books_are_below_a_thousandth_of_the_memory() {
    // All of a large memory fragmented, and nothing of that touched: next to nothing.
    let mut memory = Memory::new(640 * GIB);
    let everything = Fragmenter { target_fmfi: 1.0, ..Default::default() };
    everything.apply(&mut memory, Holders { movable: 1, unmovable: 2 }).expect("settings in range");
    let before = resident();
    memory.tell_colours(colours(32), ColouredParameters::default()).expect("few colours");
    let books_of_all = resident() - before;
    assert!(books_of_all < 4 << 20, "{books_of_all} bytes");
    // And what is touched costs in proportion.
    for page in 0..u32::try_from(GIB).expect("fits") {
        memory.take_coloured(Colour::new(page % 32)).expect("most is free");
    }
    drop(memory);
    // The worst there is: rows of every short length, alone.
    let frames = 2 * GIB;
    for count in [8, 32, 640, MAX_COLOURS] {
        for free in [1, 2, 5, 8, 9, 12, REGION_FRAMES / 4] {
            let bytes = books(frames, count, free, free + 1);
            let share = bytes as f64 / (frames * 4096) as f64;
            assert!(share < 1e-3, "{count} colours, rows of {free}: {bytes} bytes, {share}");
        }
    }
}
