//! What the memory costs: nanoseconds for each operation, and how they relate.
//!
//! `cargo bench -p strata-frames`. Without `--bench` (as `cargo test` calls it) everything runs
//! once on a small memory.

use std::hint::black_box;
use std::time::Instant;
use strata_colours::{CacheIndex, Colour, Colours, SliceHash};
use strata_frames::{
    ColouredParameters, Fragmenter, Frame, HUGE_ORDER, Holders, Memory, REGION_FRAMES,
};

const GIB: u64 = 1 << 18;

struct Bench {
    gib: u64,
    operations: u64,
    rounds: u32,
}

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let bench = match full {
        true => Bench { gib: 128, operations: 2_000_000, rounds: 5 },
        false => Bench { gib: 1, operations: 1000, rounds: 1 },
    };
    bench.construction();
    bench.fragmenting();
    let clean = bench.single_frames("clean", &|| Memory::new(bench.gib * GIB));
    let fragmented = bench.single_frames("fragmented 0.9", &|| bench.fragmented(0.9));
    println!("{:<52}{:>10.2}", "ratio fragmented / clean", fragmented / clean);
    bench.single_frames("clean, 5 times the size", &|| Memory::new(5 * bench.gib * GIB));
    bench.anywhere();
    bench.huge_blocks();
    bench.reservations();
    bench.contiguity();
    bench.coloured("fragmented 0.9", bench.gib);
    bench.coloured("fragmented 0.9, 5 times the size", 5 * bench.gib);
}

impl Bench {
    fn fragmented(&self, target_fmfi: f64) -> Memory {
        let mut memory = Memory::new(self.gib * GIB);
        Fragmenter { target_fmfi, ..Default::default() }
            .apply(&mut memory, Holders::default())
            .expect("settings in range");
        memory
    }

    /// A frame of each of 32 colours in turn, and back in no order.
    fn coloured(&self, memory: &str, gib: u64) {
        let prepare = || {
            let mut memory = Self { gib, ..*self }.fragmented(0.9);
            let index = CacheIndex { line_bytes: 64, sets: 2048, slices: 1, hash: SliceHash::None };
            let colours = Colours::new(&index).expect("whole pages");
            memory.tell_colours(colours, ColouredParameters::default()).expect("few colours");
            memory
        };
        let what = format!("frame of a colour and back, {memory}");
        self.time(&what, self.operations, prepare, |memory| {
            let mut held = Vec::new();
            for operation in 0..self.operations {
                let colour = Colour::new((operation % 32) as u32);
                held.extend(memory.take_coloured(colour));
                if operation % 4 == 3 {
                    let at = (operation * 7919 % held.len() as u64) as usize;
                    memory.free(held.swap_remove(at), 0);
                }
            }
            black_box(held.len());
        });
    }

    /// Best of the rounds, in nanoseconds for one of `operations`.
    fn time<T>(
        &self,
        what: &str,
        operations: u64,
        mut prepare: impl FnMut() -> T,
        mut run: impl FnMut(&mut T),
    ) -> f64 {
        let best = (0..self.rounds)
            .map(|_| {
                let mut state = prepare();
                let start = Instant::now();
                run(&mut state);
                start.elapsed().as_nanos() as f64 / operations as f64
            })
            .fold(f64::INFINITY, f64::min);
        println!("{what:<52}{best:>10.1} ns");
        best
    }

    fn construction(&self) {
        for gib in [self.gib, 5 * self.gib] {
            self.time(
                &format!("construct {gib} GiB"),
                1,
                || None,
                |memory| *memory = black_box(Some(Memory::new(gib * GIB))),
            );
        }
    }

    fn fragmenting(&self) {
        for target_fmfi in [0.5, 1.0] {
            let fragmenter = Fragmenter { target_fmfi, ..Default::default() };
            self.time(
                &format!("fragment {} GiB to {target_fmfi}", self.gib),
                1,
                || Memory::new(self.gib * GIB),
                |memory| {
                    black_box(fragmenter.apply(memory, Holders::default())).expect("in range");
                },
            );
        }
    }

    /// Order 0: filling, freeing in random order, taking and freeing in turns. Returns the mean.
    fn single_frames(&self, name: &str, fresh: &dyn Fn() -> Memory) -> f64 {
        let n = self.operations;
        let fill = |memory: &mut Memory| -> Vec<Frame> {
            (0..n).map(|_| memory.alloc(0).expect("enough memory")).collect()
        };
        let filled = || {
            let mut memory = fresh();
            let mut frames = fill(&mut memory);
            shuffle(&mut frames);
            (memory, frames)
        };
        let alloc = self.time(&format!("{name}: alloc(0)"), n, fresh, |memory| {
            (0..n).for_each(|_| {
                black_box(memory.alloc(0));
            });
        });
        let free = self.time(&format!("{name}: free(0), random order"), n, filled, |state| {
            let (memory, frames) = state;
            frames.iter().for_each(|&frame| memory.free(frame, 0));
        });
        let churn = self.time(&format!("{name}: alloc(0) + free(0), random"), n, filled, |state| {
            let (memory, frames) = state;
            frames.iter_mut().for_each(|frame| {
                memory.free(*frame, 0);
                *frame = memory.alloc(0).expect("one is free");
            });
        });
        let at = self.time(&format!("{name}: free(0) + alloc_at(0), random"), n, filled, |state| {
            let (memory, frames) = state;
            frames.iter().for_each(|&frame| {
                memory.free(frame, 0);
                assert!(memory.alloc_at(frame, 0));
            });
        });
        (alloc + free + churn / 2.0 + at / 2.0) / 4.0
    }

    /// Frames all over the memory, as a stack with a reverse map uses them: each step misses
    /// the caches several times, which `owner` words alone would do.
    fn anywhere(&self) {
        let frames = || {
            let step = self.gib * GIB / self.operations;
            let mut frames: Vec<Frame> =
                (0..self.operations).map(|n| Frame::new(n * step)).collect();
            shuffle(&mut frames);
            frames
        };
        let fresh = || (Memory::new(self.gib * GIB), frames());
        let n = self.operations;
        self.time("anywhere: alloc_at(0) + free(0)", n, fresh, |(memory, frames)| {
            frames.iter().for_each(|&frame| {
                assert!(memory.alloc_at(frame, 0));
                memory.free(frame, 0);
            });
        });
        let taken = || {
            let (mut memory, frames) = fresh();
            frames.iter().for_each(|&frame| {
                assert!(memory.alloc_at(frame, 0));
                memory.set_owner(frame, 1);
            });
            (memory, frames)
        };
        self.time("anywhere: take_owner + free(0)", n, taken, |(memory, frames)| {
            frames.iter().for_each(|&frame| {
                memory.take_owner(frame);
                memory.free(frame, 0);
            });
        });
    }

    fn huge_blocks(&self) {
        let n = self.gib * 512;
        self.time(
            "alloc(9) + free(9)",
            n,
            || Memory::new(self.gib * GIB),
            |memory| {
                let blocks: Vec<Frame> = (0..n).filter_map(|_| memory.alloc(HUGE_ORDER)).collect();
                blocks.iter().for_each(|&block| memory.free(block, HUGE_ORDER));
            },
        );
    }

    fn reservations(&self) {
        let n = self.gib * 512;
        self.time(
            "reserve_region + alloc_reserved(0) + release_region",
            n,
            || Memory::new(self.gib * GIB),
            |memory| {
                for region in 0..n {
                    let start = Frame::new(region * REGION_FRAMES);
                    assert!(memory.reserve_region(start));
                    assert!(memory.alloc_reserved(start + 5, 0));
                    memory.release_region(start);
                }
            },
        );
    }

    fn contiguity(&self) {
        for target in [0.1, 0.5, 0.9] {
            let memory = self.fragmented(target);
            let n = self.operations / 1000;
            self.time(
                &format!("largest_run at {target}"),
                n,
                || (),
                |()| {
                    (0..n).for_each(|_| {
                        black_box(memory.largest_run());
                    });
                },
            );
            for regions in [2, 16, 100_000] {
                self.time(
                    &format!("next_fit({regions}) at {target}"),
                    n,
                    || (),
                    |()| {
                        let mut cursor = Frame::new(0);
                        (0..n).for_each(|_| {
                            if let Some(run) = black_box(memory.next_fit(cursor, regions)) {
                                cursor = run.start + run.regions * REGION_FRAMES;
                            }
                        });
                    },
                );
            }
        }
    }
}

/// Fisher-Yates with a fixed linear congruential generator.
fn shuffle(frames: &mut [Frame]) {
    let mut state = 1u64;
    for last in (1..frames.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        frames.swap(last, (state >> 33) as usize % (last + 1));
    }
}
