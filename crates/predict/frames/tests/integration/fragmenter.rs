//! A [`Fragmenter`] reaches its target, at random, the same way for the same seed.

use strata_frames::{
    Fragmented, Fragmenter, FragmenterError, Frame, HUGE_ORDER, Holders, Memory, REGION_FRAMES,
};

const GIB: u64 = 1 << 18;

const HOLDERS: Holders = Holders { movable: 7, unmovable: 9 };

/// Fragments, and lists the frames taken with their owners.
fn apply(fragmenter: &Fragmenter, memory: &mut Memory) -> (Fragmented, Vec<(Frame, u64)>) {
    let done = fragmenter.apply(memory, HOLDERS).expect("settings in range");
    let frames =
        (0..memory.frames()).map(|frame| (Frame::new(frame), memory.owner(Frame::new(frame))));
    let taken: Vec<_> = frames.filter(|(_, owner)| *owner != 0).collect();
    (done, taken)
}

#[test]
fn reaches_the_target_at_every_size_and_seed() {
    for frames in [GIB / 4, GIB + 77, 4 * GIB] {
        for seed in 0..4 {
            for target in [0.1, 0.3, 0.5, 0.75, 0.9, 0.97] {
                for occupied in [0.05, 0.25, 0.6] {
                    let mut memory = Memory::new(frames);
                    let fragmenter =
                        Fragmenter { target_fmfi: target, occupied, seed, ..Default::default() };
                    let done = fragmenter.apply(&mut memory, HOLDERS).unwrap();
                    let reached = memory.fmfi(HUGE_ORDER);
                    assert!((reached - target).abs() <= 0.01, "{fragmenter:?}: {done:?}");
                    assert_eq!(done.fmfi, reached);
                    assert_eq!(done.frames, memory.used_frames());
                }
            }
        }
    }
}

#[test]
fn reports_what_it_took_and_sets_owners() {
    let mut memory = Memory::new(GIB);
    let (done, taken) = apply(&Fragmenter { target_fmfi: 0.6, ..Default::default() }, &mut memory);
    memory.check().unwrap();
    assert_eq!(done.frames, taken.len() as u64);
    let movable = taken.iter().filter(|(_, owner)| *owner == HOLDERS.movable).count();
    assert!(taken.iter().all(|&(frame, owner)| {
        memory.is_allocated(frame) && [HOLDERS.movable, HOLDERS.unmovable].contains(&owner)
    }));

    let mut regions: Vec<u64> = taken.iter().map(|(f, _)| f.get() / REGION_FRAMES).collect();
    regions.dedup();
    assert_eq!(done.regions, regions.len() as u64);
    // The defaults: a quarter taken, half of it movable.
    let share = done.frames as f64 / (done.regions * REGION_FRAMES) as f64;
    assert!((share - 0.25).abs() < 0.01, "{share}");
    assert!((movable as f64 / done.frames as f64 - 0.5).abs() < 0.02, "{movable} of {done:?}");
}

/// Holes at random positions: each position of a region is taken about as often as any other,
/// and hardly two regions look the same.
#[test]
fn holes_are_scattered() {
    let mut memory = Memory::new(4 * GIB);
    let (done, taken) = apply(&Fragmenter { target_fmfi: 1.0, ..Default::default() }, &mut memory);
    let mut by_position = [0u64; REGION_FRAMES as usize];
    taken.iter().for_each(|(f, _)| by_position[(f.get() % REGION_FRAMES) as usize] += 1);
    let mean = done.frames as f64 / REGION_FRAMES as f64;
    // Binomial: five standard deviations around the mean of 2048 regions.
    let spread = 5.0 * (mean * 0.75).sqrt();
    assert!(by_position.iter().all(|&n| (n as f64 - mean).abs() < spread), "{by_position:?}");

    let mut patterns: Vec<Vec<u64>> = (0..memory.frames() / REGION_FRAMES)
        .map(|region| {
            let start = Frame::new(region * REGION_FRAMES);
            memory.allocated_in_region(start).map(|frame| frame - start).collect()
        })
        .collect();
    let regions = patterns.len();
    patterns.sort_unstable();
    patterns.dedup();
    // Of two million: by chance one of 2048 is like another in two memories of three.
    assert!(patterns.len() >= regions - 6, "{} of {regions}", patterns.len());
}

/// Regions at random: every eighth of the memory is broken up about as much as the whole.
#[test]
fn regions_are_scattered() {
    let mut memory = Memory::new(4 * GIB);
    let (done, taken) = apply(&Fragmenter { target_fmfi: 0.5, ..Default::default() }, &mut memory);
    for eighth in 0..8 {
        let frames = taken.iter().filter(|(f, _)| f.get() / (GIB / 2) == eighth).count();
        let share = frames as f64 / done.frames as f64;
        // Of about 1170 regions 146 are expected here, drawn without replacement: 40 is five
        // standard deviations.
        assert!((share - 0.125).abs() < 40.0 / 1170.0, "eighth {eighth}: {share}");
    }
}

#[test]
fn the_extremes_mean_nothing_and_everything() {
    let mut memory = Memory::new(GIB);
    let (done, taken) = apply(&Fragmenter::default(), &mut memory);
    assert_eq!((done.frames, taken.len(), memory.used_frames()), (0, 0, 0));

    let (done, _) = apply(&Fragmenter { target_fmfi: 1.0, ..Default::default() }, &mut memory);
    assert_eq!(done.fmfi, 1.0);
    assert_eq!(done.regions, GIB / REGION_FRAMES);
    assert_eq!(memory.alloc(HUGE_ORDER), None);
    assert_eq!(memory.largest_run(), None);
    memory.check().unwrap();
}

#[test]
fn one_frame_is_enough_to_break_a_region() {
    let mut memory = Memory::new(GIB);
    let fragmenter = Fragmenter { target_fmfi: 1.0, occupied: 1e-9, ..Default::default() };
    let (done, _) = apply(&fragmenter, &mut memory);
    assert_eq!((done.frames, done.fmfi), (GIB / REGION_FRAMES, 1.0));
}

#[test]
fn same_seed_same_frames() {
    let run = |seed| {
        let mut memory = Memory::new(GIB);
        apply(&Fragmenter { target_fmfi: 0.4, seed, ..Default::default() }, &mut memory)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).1, run(2).1);
}

#[test]
fn works_around_what_is_there() {
    let mut memory = Memory::new(GIB);
    let reserved = Frame::new(40 * REGION_FRAMES);
    for _ in 0..3000 {
        memory.alloc(0).unwrap();
    }
    assert!(memory.reserve_region(reserved));
    let (done, taken) = apply(&Fragmenter { target_fmfi: 0.7, ..Default::default() }, &mut memory);
    assert!((done.fmfi - 0.7).abs() < 0.01);
    assert!(taken.iter().all(|(frame, _)| frame.get() >= 3000));
    assert_eq!(memory.free_in_region(reserved), REGION_FRAMES as u32);
    memory.check().unwrap();

    // A second run finds the target reached.
    let again = Fragmenter { target_fmfi: 0.5, ..Default::default() };
    assert_eq!(apply(&again, &mut memory).0.frames, 0);
    // One that wants more leaves what is there.
    let more = Fragmenter { target_fmfi: 0.9, seed: 5, ..Default::default() };
    let (done, all) = apply(&more, &mut memory);
    assert!((done.fmfi - 0.9).abs() < 0.01);
    assert_eq!(all.len() as u64, taken.len() as u64 + done.frames);
    assert!(taken.iter().all(|frame| all.binary_search(frame).is_ok()));
    memory.check().unwrap();
}

#[test]
fn settings_out_of_range_are_refused() {
    let good = Fragmenter { target_fmfi: 0.5, ..Default::default() };
    for (bad, error) in [
        (Fragmenter { target_fmfi: 1.5, ..good.clone() }, FragmenterError::Target(1.5)),
        (Fragmenter { occupied: 0.0, ..good.clone() }, FragmenterError::Occupied(0.0)),
        (Fragmenter { occupied: 1.0, ..good.clone() }, FragmenterError::Occupied(1.0)),
        (Fragmenter { movable: -0.1, ..good.clone() }, FragmenterError::Movable(-0.1)),
    ] {
        let mut memory = Memory::new(GIB);
        assert_eq!(bad.apply(&mut memory, HOLDERS), Err(error));
        assert_eq!(memory.used_frames(), 0);
    }
    let nan = Fragmenter { target_fmfi: f64::NAN, ..good };
    assert!(nan.apply(&mut Memory::new(GIB), HOLDERS).is_err());
}
