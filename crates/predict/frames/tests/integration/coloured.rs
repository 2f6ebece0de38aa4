//! Frames of wanted colours: the example of xPlace's figures, and random streams on a memory and on its
//! obviously right twin.

use crate::twin::{State, Twin};
use proptest::prelude::*;
use strata_addr::space::Lower;
use strata_colours::{CacheIndex, Colour, Colours, SliceHash};
use strata_frames::{
    ColouredParameters, ColouringError, Fragmenter, Frame, HUGE_ORDER, Holders, MAX_ORDER, Memory,
    REGION_FRAMES,
};
use strata_params::Parameters;

fn colours(count: u64) -> Colours {
    let hash = SliceHash::None;
    Colours::new(&CacheIndex { line_bytes: 64, sets: count * 64, slices: 1, hash }).unwrap()
}

fn settings(contiguity: bool, batch: u64) -> ColouredParameters {
    ColouredParameters { contiguity, batch, ..ColouredParameters::default() }
}

fn wanted(first: u64, frames: u64, count: u64) -> Vec<Colour<Lower>> {
    (0..frames).map(|i| Colour::new(((first + i) % count) as u32)).collect()
}

/// xPlace, Fig. 4: free are HPP 2-5, 12-15 and 16-31, and there are eight colours.
fn figure_4(contiguity: bool) -> Memory {
    let mut memory = Memory::new(32);
    (0..32).for_each(|_| assert!(memory.alloc(0).is_some()));
    for frame in (2..6).chain(12..32) {
        memory.free(Frame::new(frame), 0);
    }
    assert_eq!([1, 2, 4].map(|order| memory.free_blocks(order)), [2, 1, 1]);
    memory.tell_colours(colours(8), settings(contiguity, 63)).unwrap();
    memory
}

#[test]
fn four_pages_of_figure_4_split_a_large_block_of_a_plain_buddy_allocator() {
    let mut memory = figure_4(false);
    assert_eq!(memory.alloc_coloured(&wanted(2, 4, 8)), Some(Frame::new(18)));
    // HPP 16-31 is gone; HPP 16/17, 22/23 and 24-31 are left of it.
    assert_eq!([1, 2, 3, 4].map(|order| memory.free_blocks(order)), [4, 1, 1, 0]);
}

#[test]
fn four_pages_of_figure_5_are_the_two_small_blocks_of_the_smallest_region() {
    let mut memory = figure_4(true);
    assert_eq!(memory.alloc_coloured(&wanted(2, 4, 8)), Some(Frame::new(2)));
    assert_eq!([1, 2, 4].map(|order| memory.free_blocks(order)), [0, 1, 1]);
    // What does not fit there comes from the larger region, HPP 12-31.
    assert_eq!(memory.alloc_coloured(&wanted(3, 4, 8)), Some(Frame::new(19)));
    assert_eq!(memory.alloc_coloured(&wanted(4, 3, 8)), Some(Frame::new(12)));
    memory.check().unwrap();
}

#[test]
fn colours_that_do_not_follow_one_another_and_memories_that_do_not_tell_them_have_no_frames() {
    let mut memory = figure_4(true);
    let wanted = [2, 4].map(Colour::new);
    assert_eq!(memory.alloc_coloured(&wanted), None);
    assert_eq!(memory.alloc_coloured(&[]), None);
    let mut plain = Memory::new(32);
    assert_eq!(plain.take_coloured(Colour::new(0)), None);
    assert_eq!((plain.colours(), plain.listed_frames()), (None, 0));
    let error = plain.tell_colours(colours(1025), ColouredParameters::default()).unwrap_err();
    assert_eq!(error, ColouringError::Colours(1025));
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc(u32),
    AllocAt(u16, u32),
    /// Frees the n-th of the blocks allocated so far.
    Free(u16),
    Coloured(u64, u64),
    Take(u64),
    Drain,
    Reserve(u16),
    Release(u16),
}

fn op() -> impl Strategy<Value = Op> {
    let order = prop_oneof![4 => 0..=3u32, 2 => 4..=8u32, 1 => 9..=10u32];
    prop_oneof![
        6 => order.clone().prop_map(Op::Alloc),
        3 => (any::<u16>(), order).prop_map(|(at, order)| Op::AllocAt(at, order)),
        10 => any::<u16>().prop_map(Op::Free),
        12 => (any::<u64>(), prop_oneof![3 => Just(1u64), 2 => 2..9u64, 1 => 9..600u64])
            .prop_map(|(colour, frames)| Op::Coloured(colour, frames)),
        12 => any::<u64>().prop_map(Op::Take),
        1 => Just(Op::Drain),
        2 => any::<u16>().prop_map(Op::Reserve),
        2 => any::<u16>().prop_map(Op::Release),
    ]
}

/// The frames that are to be found, by going through all of them. `is_folded` says of a region that it
/// comes after those that are not.
fn expected(
    twin: &Twin,
    is_folded: impl Fn(u64) -> bool,
    contiguity: bool,
    (first, frames, count): (u64, u64, u64),
) -> Option<u64> {
    let in_row = |start: u64, end: u64| {
        (start..end).find(|at| at % count == first).filter(|at| at + frames <= end)
    };
    if !contiguity {
        return (0..=MAX_ORDER).filter(|order| 1 << order >= frames).find_map(|order| {
            twin.blocks(order).find_map(|start| in_row(start, start + (1 << order)))
        });
    }
    let mut rows: Vec<(u64, u64)> = Vec::new();
    for frame in 0..twin.states.len() as u64 {
        if twin.states[frame as usize] != State::Free {
            continue;
        }
        match rows.last_mut() {
            Some((_, end)) if *end == frame && !frame.is_multiple_of(REGION_FRAMES) => *end += 1,
            _ => rows.push((frame, frame + 1)),
        }
    }
    let single: Vec<u64> = twin.blocks(HUGE_ORDER).collect();
    let rank = |&(start, end): &(u64, u64)| {
        let folded = is_folded(start / REGION_FRAMES);
        match end - start {
            REGION_FRAMES => (2, u64::from(!single.contains(&start)), 0, start),
            length if folded => (1, start / REGION_FRAMES, length, start),
            length => (0, 0, length, start),
        }
    };
    let mut found: Vec<_> =
        rows.iter().filter(|(start, end)| in_row(*start, *end).is_some()).collect();
    found.sort_by_key(|row| rank(row));
    found.first().and_then(|(start, end)| in_row(*start, *end))
}

fn run(
    fragmenter: Option<Fragmenter>,
    frames: u64,
    count: u64,
    contiguity: bool,
    batch: u64,
    ops: Vec<Op>,
) -> Result<(), TestCaseError> {
    let mut memory = Memory::new(frames);
    // Colours are told apart before the memory is fragmented or after.
    if batch.is_multiple_of(2) {
        memory.tell_colours(colours(count), settings(contiguity, batch)).unwrap();
    }
    if let Some(fragmenter) = &fragmenter {
        fragmenter.apply(&mut memory, Holders { movable: 77, unmovable: 78 }).unwrap();
    }
    if !batch.is_multiple_of(2) {
        memory.tell_colours(colours(count), settings(contiguity, batch)).unwrap();
    }
    let mut twin = Twin::new(frames);
    let mut blocks: Vec<(u64, u32)> = Vec::new();
    for frame in 0..frames {
        if memory.is_allocated(Frame::new(frame)) {
            assert!(twin.alloc_at(frame, 0));
        }
    }
    // Of the frames in page lists the twin knows only that nobody else has them.
    let mut given: std::collections::BTreeSet<u64> = std::collections::BTreeSet::new();
    for op in ops {
        let folded: Vec<bool> = (0..frames.div_ceil(REGION_FRAMES))
            .map(|region| memory.is_folded(Frame::new(region * REGION_FRAMES)))
            .collect();
        let listed = memory.listed_frames();
        match op {
            Op::Alloc(order) => {
                let found = memory.alloc(order);
                if listed == 0 {
                    prop_assert_eq!(found, twin.alloc(order));
                } else if let Some(found) = found {
                    prop_assert!(twin.alloc_at(found.get(), order));
                } else {
                    prop_assert_eq!(memory.listed_frames(), 0);
                }
                blocks.extend(found.map(|frame| (frame.get(), order)));
            }
            Op::AllocAt(at, order) => {
                let at = (u64::from(at) * frames / 65536) & !((1 << order) - 1);
                let taken = memory.alloc_at(Frame::new(at), order);
                // Lists give back what is wanted.
                prop_assert_eq!(taken, twin.alloc_at(at, order));
                blocks.extend(taken.then_some((at, order)));
            }
            Op::Free(n) => {
                if !blocks.is_empty() {
                    let (start, order) = blocks.swap_remove(n as usize % blocks.len());
                    memory.free(Frame::new(start), order);
                    twin.free(start, order);
                    (start..start + (1 << order)).for_each(|frame| {
                        given.remove(&frame);
                    });
                }
            }
            Op::Coloured(first, wanting) => {
                if listed > 0 {
                    memory.drain();
                }
                let first = first % count;
                let found = memory.alloc_coloured(&wanted(first, wanting, count));
                let is_folded = |region: u64| folded[region as usize];
                let all = (first, wanting, count);
                let right = expected(&twin, is_folded, contiguity, all).map(Frame::new);
                prop_assert_eq!(found, right);
                for frame in found.into_iter().flat_map(|at| (0..wanting).map(move |i| at + i)) {
                    prop_assert!(twin.alloc_at(frame.get(), 0));
                    blocks.push((frame.get(), 0));
                }
            }
            Op::Take(colour) => {
                let colour = Colour::<Lower>::new((colour % count) as u32);
                let before = memory.free_of(colour);
                let found = memory.take_coloured(colour);
                prop_assert_eq!(found.is_some(), before > 0);
                prop_assert!(memory.listed_frames() <= 4 * batch);
                if let Some(frame) = found {
                    prop_assert_eq!(memory.colours().unwrap().of(frame), colour);
                    prop_assert_eq!(memory.free_of(colour), before - 1);
                    prop_assert!(twin.alloc_at(frame.get(), 0), "{:?} was not free", frame);
                    blocks.push((frame.get(), 0));
                    prop_assert!(given.insert(frame.get()));
                }
            }
            Op::Drain => {
                prop_assert_eq!(memory.drain(), listed);
                prop_assert_eq!(memory.listed_frames(), 0);
            }
            Op::Reserve(at) => {
                let region = u64::from(at) * frames / 65536 / REGION_FRAMES;
                if listed == 0 {
                    let reserved = memory.reserve_region(Frame::new(region * REGION_FRAMES));
                    prop_assert_eq!(reserved, twin.reserve(region));
                }
            }
            Op::Release(at) => {
                let region = u64::from(at) * frames / 65536 / REGION_FRAMES;
                let returned = memory.release_region(Frame::new(region * REGION_FRAMES));
                prop_assert_eq!(returned, twin.release(region));
            }
        }
        memory
            .check()
            .map_err(|violation| TestCaseError::fail(format!("{violation} after {op:?}")))?;
        for colour in 0..count.min(frames) {
            let free = (0..frames)
                .filter(|frame| frame % count == colour)
                .filter(|frame| twin.states[*frame as usize] == State::Free);
            prop_assert_eq!(memory.free_of(Colour::new(colour as u32)), free.count() as u64);
        }
        let used = twin.count(State::Used) + twin.count(State::ReservedUsed);
        prop_assert_eq!(memory.used_frames(), used);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn coloured_memory_agrees_with_its_twin(
        frames in prop_oneof![1..1500u64, 1500..5000u64, (1..5u64).prop_map(|n| n * 1024)],
        count in prop_oneof![Just(1u64), Just(8), Just(32), Just(36), Just(640)],
        contiguity: bool,
        batch in prop_oneof![Just(1u64), Just(8), Just(63), Just(64)],
        ops in prop::collection::vec(op(), 0..120),
    ) {
        run(None, frames, count, contiguity, batch, ops)?;
    }

    #[test]
    fn fragmented_memory_agrees_with_its_twin(
        frames in prop_oneof![1500..5000u64, (1..5u64).prop_map(|n| n * 1024)],
        target_fmfi in prop_oneof![Just(1.0), 0.0..1.0],
        occupied in prop_oneof![0.001..0.02, 0.1..0.9, Just(0.99)],
        seed: u64,
        count in prop_oneof![Just(8u64), Just(32), Just(36), Just(640)],
        contiguity: bool,
        batch in prop_oneof![Just(1u64), Just(8), Just(63), Just(64)],
        ops in prop::collection::vec(op(), 0..80),
    ) {
        let fragmenter = Fragmenter { target_fmfi, occupied, movable: 0.5, seed };
        run(Some(fragmenter), frames, count, contiguity, batch, ops)?;
    }
}

/// Pages asked for by colour, from one to four in a row, and given back in no order: what a guest's
/// faults and exits are to the host.
fn fmfi_after(contiguity: bool, seed: u64, fragmentation: f64) -> f64 {
    let mut memory = Memory::new(64 * REGION_FRAMES);
    let fragmenter = Fragmenter { target_fmfi: fragmentation, seed, ..Fragmenter::default() };
    fragmenter.apply(&mut memory, Holders::default()).unwrap();
    memory.tell_colours(colours(32), settings(contiguity, 63)).unwrap();
    let mut state = seed;
    let mut next = |end: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % end
    };
    let mut held: Vec<(Frame, u64)> = Vec::new();
    for _ in 0..20_000 {
        let frames = 1 + next(4);
        if let Some(at) = memory.alloc_coloured(&wanted(next(32), frames, 32)) {
            held.push((at, frames));
        }
        while memory.free_frames() < 16 * REGION_FRAMES || next(3) == 0 && !held.is_empty() {
            let (at, frames) = held.swap_remove(next(held.len() as u64) as usize);
            (0..frames).for_each(|i| memory.free(at + i, 0));
        }
    }
    memory.check().unwrap();
    memory.buddy_fmfi(HUGE_ORDER)
}

#[test]
fn the_contiguity_list_fragments_memory_no_more_than_a_plain_buddy_allocator() {
    for fragmentation in [0.0, 0.25, 0.5] {
        for seed in 1..6 {
            let [with, without] =
                [true, false].map(|contiguity| fmfi_after(contiguity, seed, fragmentation));
            assert!(with <= without, "FMFI {with} with and {without} without, seed {seed}");
        }
    }
}

#[test]
fn constants_are_those_of_linux_and_can_be_set() {
    let mut parameters = ColouredParameters::default();
    assert_eq!((parameters.batch, parameters.high), (63, 4));
    parameters.set("colours.batch", "31").unwrap();
    assert_eq!(parameters.batch, 31);
}

/// Regions of a colour of huge pages are given out from the lowest on, those that are wholly free.
#[test]
fn regions_of_a_colour_are_every_so_many() {
    let (hash, sets) = (SliceHash::None, 3 * 512 * 64);
    let of_base = colours(8);
    let index = CacheIndex { line_bytes: 64, sets, slices: 1, hash };
    let colours = Colours::of_huge_pages(&index).expect("three huge pages a way");
    let mut memory = Memory::new(9 * 512 + 5);
    // Some colours of base pages are told apart, too, and one page of region 4 is taken.
    memory.tell_colours(of_base, settings(true, 63)).unwrap();
    assert!(memory.alloc_at(Frame::new(4 * 512 + 7), 0));
    assert_eq!(
        [0, 1, 2].map(|colour| memory.free_regions_of(colours, Colour::new(colour))),
        [3, 2, 3]
    );
    let mut take = |colour| memory.alloc_region_of(colours, Colour::new(colour)).map(Frame::get);
    assert_eq!([1, 1, 1].map(&mut take), [Some(512), Some(7 * 512), None]);
    assert_eq!([0, 2].map(&mut take), [Some(0), Some(2 * 512)]);
    assert_eq!(memory.free_regions_of(colours, Colour::new(0)), 2);
    memory.check().unwrap();
}
