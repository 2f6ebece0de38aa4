//! Random streams of operations on a [`Memory`] and on its obviously right twin.

use crate::twin::{State, Twin};
use proptest::prelude::*;
use strata_frames::{Fragmenter, Frame, Holders, MAX_ORDER, Memory, REGION_FRAMES};

/// Positions are shares of the memory, in 65536ths, cut to the alignment the operation needs.
#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc(u32),
    AllocAt(u16, u32),
    Free(u16, u32),
    /// Frees the n-th of the blocks allocated so far, as it was allocated.
    FreeBlock(u16),
    /// Frees a piece of the n-th block, or more than it, if all of that is allocated.
    FreePiece(u16, u16, u32),
    Reserve(u16),
    AllocReserved(u16, u32),
    /// Allocates in the n-th reserved region.
    AllocInside(u8, u16, u32),
    Release(u16),
    ReleaseAll,
    /// Takes a frame from its owner, and gives it to another if the word is not 0.
    Own(u16, u64),
}

fn op() -> impl Strategy<Value = Op> {
    // Small orders as often as large ones take frames, so that memory neither fills nor empties.
    let order = || prop_oneof![4 => 0..=3u32, 3 => 4..=8u32, 2 => 9..=10u32];
    let small = || prop_oneof![3 => 0..=6u32, 1 => 7..=9u32];
    prop_oneof![
        24 => order().prop_map(Op::Alloc),
        8 => (any::<u16>(), order()).prop_map(|(at, order)| Op::AllocAt(at, order)),
        12 => any::<u16>().prop_map(Op::FreeBlock),
        8 => (any::<u16>(), any::<u16>(), order())
            .prop_map(|(n, at, order)| Op::FreePiece(n, at, order)),
        4 => (any::<u16>(), order()).prop_map(|(at, order)| Op::Free(at, order)),
        16 => any::<u16>().prop_map(Op::Reserve),
        2 => (any::<u16>(), small()).prop_map(|(at, order)| Op::AllocReserved(at, order)),
        16 => (any::<u8>(), any::<u16>(), small())
            .prop_map(|(n, at, order)| Op::AllocInside(n, at, order)),
        4 => any::<u16>().prop_map(Op::Release),
        1 => Just(Op::ReleaseAll),
        8 => (any::<u16>(), 0..4u64).prop_map(|(at, owner)| Op::Own(at, owner)),
    ]
}

/// Both memories, and what is needed to choose the operands.
struct Pair {
    memory: Memory,
    twin: Twin,
    owners: Vec<u64>,
    least_regions: u64,
    /// Start and order of what was allocated, freed since or not.
    blocks: Vec<(u64, u32)>,
}

impl Pair {
    fn new(frames: u64) -> Self {
        Self {
            memory: Memory::new(frames),
            twin: Twin::new(frames),
            owners: vec![0; frames as usize],
            least_regions: frames / REGION_FRAMES,
            blocks: Vec::new(),
        }
    }

    /// The memory is fragmented, and nothing of that written; in the twin all of it is.
    fn fragmented(frames: u64, fragmenter: &Fragmenter) -> Self {
        let mut pair = Self::new(frames);
        // Some belong to nobody.
        let unmovable = (fragmenter.seed % 2) << 60;
        fragmenter.apply(&mut pair.memory, Holders { movable: 77, unmovable }).unwrap();
        for number in 0..frames {
            let frame = Frame::new(number);
            pair.owners[number as usize] = pair.memory.owner(frame);
            if pair.memory.is_allocated(frame) {
                assert!(pair.twin.alloc_at(number, 0));
            }
        }
        assert_eq!(pair.memory.folded_frames(), pair.memory.used_frames());
        pair.memory.watch_free_regions();
        pair.least_regions = pair.memory.free_regions();
        pair
    }

    fn position(&self, share: u16, order: u32) -> u64 {
        let frame = u64::from(share) * self.memory.frames() / 65536;
        frame & !((1 << order) - 1)
    }

    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        let Self { memory, twin, .. } = self;
        match op {
            Op::Alloc(order) => {
                let found = memory.alloc(order);
                prop_assert_eq!(found, twin.alloc(order));
                self.blocks.extend(found.map(|frame| (frame.get(), order)));
            }
            Op::AllocAt(at, order) => {
                let start = self.position(at, order);
                let free = self.memory.is_free(Frame::new(start), order);
                let taken = self.memory.alloc_at(Frame::new(start), order);
                prop_assert_eq!(free, taken);
                prop_assert_eq!(taken, self.twin.alloc_at(start, order));
                self.blocks.extend(taken.then_some((start, order)));
            }
            Op::Free(at, order) => self.free(self.position(at, order), order),
            Op::FreeBlock(n) => {
                if let Some((start, order)) = self.block(n) {
                    self.free(start, order);
                }
            }
            Op::FreePiece(n, at, order) => {
                if let Some((start, whole)) = self.block(n) {
                    let frame = start + (u64::from(at) & ((1 << whole) - 1));
                    self.free(frame & !((1 << order) - 1), order);
                }
            }
            Op::Reserve(at) => {
                let start = self.position(at, 0);
                let reserved = self.memory.reserve_region(Frame::new(start));
                prop_assert_eq!(reserved, self.twin.reserve(start / REGION_FRAMES));
            }
            Op::AllocReserved(at, order) => {
                let start = self.position(at, order);
                let taken = self.memory.alloc_reserved(Frame::new(start), order);
                prop_assert_eq!(taken, self.twin.alloc_reserved(start, order));
            }
            Op::AllocInside(n, at, order) => {
                let regions = self.twin.reserved_regions();
                if !regions.is_empty() {
                    let region = regions[n as usize % regions.len()].get();
                    let start =
                        region + (u64::from(at) % REGION_FRAMES) / (1 << order) * (1 << order);
                    let taken = self.memory.alloc_reserved(Frame::new(start), order);
                    prop_assert_eq!(taken, self.twin.alloc_reserved(start, order));
                    self.blocks.extend(taken.then_some((start, order)));
                }
            }
            Op::Release(at) => {
                let start = self.position(at, 0);
                let returned = self.memory.release_region(Frame::new(start));
                prop_assert_eq!(returned, self.twin.release(start / REGION_FRAMES));
            }
            Op::ReleaseAll => {
                let returned = memory.release_all_regions();
                let regions = twin.reserved_regions();
                let expected: u64 =
                    regions.into_iter().map(|r| twin.release(r.get() / REGION_FRAMES)).sum();
                prop_assert_eq!(returned, expected);
            }
            Op::Own(at, owner) => {
                let start = self.position(at, 0);
                if self.twin.can_free(start, 0) {
                    let memory = &mut self.memory;
                    let before = memory.take_owner(Frame::new(start));
                    prop_assert_eq!(
                        before,
                        std::mem::replace(&mut self.owners[start as usize], owner)
                    );
                    if owner != 0 {
                        memory.set_owner(Frame::new(start), owner);
                    }
                }
            }
        }
        Ok(())
    }

    fn block(&self, n: u16) -> Option<(u64, u32)> {
        self.blocks.get(n as usize % self.blocks.len().max(1)).copied()
    }

    fn free(&mut self, start: u64, order: u32) {
        if self.twin.can_free(start, order) {
            for frame in start..start + (1 << order) {
                let owner = std::mem::take(&mut self.owners[frame as usize]);
                // A folded region is unfolded by freeing, too, where nobody owns the frame.
                if owner != 0 {
                    assert_eq!(self.memory.take_owner(Frame::new(frame)), owner);
                }
            }
            self.memory.free(Frame::new(start), order);
            self.twin.free(start, order);
        }
    }

    fn compare_counters(&self) -> Result<(), TestCaseError> {
        let Self { memory, twin, .. } = self;
        let used = twin.count(State::Used) + twin.count(State::ReservedUsed);
        prop_assert_eq!(memory.free_frames(), twin.count(State::Free));
        prop_assert_eq!(memory.reserved_free_frames(), twin.count(State::ReservedFree));
        prop_assert_eq!(memory.used_frames(), used);
        for order in 0..=MAX_ORDER {
            prop_assert_eq!(memory.free_blocks(order), twin.blocks(order).count() as u64);
            prop_assert_eq!(memory.fmfi(order), twin.fmfi(order, true));
            prop_assert_eq!(memory.buddy_fmfi(order), twin.fmfi(order, false));
            prop_assert_eq!(memory.extfrag(order), twin.extfrag(order));
        }
        Ok(())
    }

    fn compare_regions(&self) -> Result<(), TestCaseError> {
        let Self { memory, twin, .. } = self;
        let reserved = twin.reserved_regions();
        prop_assert_eq!(memory.reserved_regions(), reserved.len() as u64);
        prop_assert_eq!(memory.reservations().collect::<Vec<_>>(), reserved);
        let runs = twin.runs();
        prop_assert!(memory.runs().map(|run| (run.start, run.regions)).eq(runs.iter().copied()));
        // Of equals `max_by_key` takes the last, so backwards the lowest.
        let largest = runs.iter().rev().max_by_key(|(_, length)| *length).copied();
        prop_assert_eq!(memory.largest_run().map(|run| (run.start, run.regions)), largest);
        for cursor in (0..memory.frames() + 600).step_by(300) {
            for regions in 1..5 {
                let run = memory.next_fit(Frame::new(cursor), regions);
                prop_assert!(run.is_none_or(|run| run.regions == regions));
                prop_assert_eq!(run.map(|run| run.start), twin.next_fit(cursor, regions));
            }
        }
        Ok(())
    }

    fn compare_frames(&self) -> Result<(), TestCaseError> {
        let Self { memory, twin, .. } = self;
        for (number, states) in twin.states.chunks(REGION_FRAMES as usize).enumerate() {
            let start = Frame::new(number as u64 * REGION_FRAMES);
            let used = |state: &State| matches!(state, State::Used | State::ReservedUsed);
            let expected: Vec<Frame> = states
                .iter()
                .enumerate()
                .filter(|(_, state)| used(state))
                .map(|(i, _)| start + i as u64)
                .collect();
            let last = start + (states.len() as u64 - 1);
            prop_assert_eq!(memory.free_in_region(last) as usize, states.len() - expected.len());
            prop_assert_eq!(memory.allocated_in_region(start).collect::<Vec<_>>(), expected);
        }
        for (frame, &owner) in (0..).map(Frame::new).zip(&self.owners) {
            prop_assert_eq!(memory.owner(frame), owner);
            prop_assert_eq!(memory.is_allocated(frame), twin.can_free(frame.get(), 0));
            for order in (0..=MAX_ORDER).filter(|order| frame.get() % (1 << order) == 0) {
                let free = twin.all(frame.get(), order, State::Free);
                prop_assert_eq!(memory.is_free(frame, order), free);
            }
        }
        Ok(())
    }

    /// All operations, with looks at everything on the way.
    fn run(&mut self, ops: Vec<Op>) -> Result<(), TestCaseError> {
        self.compare_counters()?;
        for (number, op) in ops.into_iter().enumerate() {
            self.apply(op)?;
            let free_regions = self.twin.runs().iter().map(|(_, regions)| regions).sum();
            prop_assert_eq!(self.memory.free_regions(), free_regions);
            self.least_regions = self.least_regions.min(free_regions);
            prop_assert_eq!(self.memory.least_free_regions(), self.least_regions);
            self.memory.check().map_err(|violation| {
                TestCaseError::fail(format!("{violation} after {op:?}, operation {number}"))
            })?;
            if number % 8 == 0 {
                self.compare_counters()?;
                self.compare_regions()?;
            }
        }
        self.compare_counters()?;
        self.compare_regions()?;
        self.compare_frames()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn memory_agrees_with_its_twin(
        frames in prop_oneof![1..1500u64, 1500..9000u64, (1..10u64).prop_map(|n| n * 1024)],
        ops in prop::collection::vec(op(), 0..160),
    ) {
        Pair::new(frames).run(ops)?;
    }

    #[test]
    fn a_fragmented_memory_agrees_with_one_that_is_written_at_once(
        frames in prop_oneof![1500..9000u64, (1..10u64).prop_map(|n| n * 1024)],
        target_fmfi in prop_oneof![Just(1.0), 0.0..1.0],
        // Large blocks are free where little is taken, and whole regions are taken where all is.
        occupied in prop_oneof![0.001..0.02, 0.1..0.9, Just(0.9999)],
        movable in 0.0..1.0,
        seed: u64,
        ops in prop::collection::vec(op(), 0..160),
    ) {
        let fragmenter = Fragmenter { target_fmfi, occupied, movable, seed };
        Pair::fragmented(frames, &fragmenter).run(ops)?;
    }
}

/// The streams must reach what they are to test: reserved and used frames side by side.
#[test]
fn streams_reach_every_state() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut seen = [0u64; 4];
    for _ in 0..20 {
        let ops = prop::collection::vec(op(), 100).new_tree(&mut runner).unwrap().current();
        let mut pair = Pair::new(9000);
        for op in ops {
            pair.apply(op).unwrap();
        }
        let states = [State::Free, State::Used, State::ReservedFree, State::ReservedUsed];
        for (seen, state) in seen.iter_mut().zip(states) {
            *seen += u64::from(pair.twin.count(state) > 0);
        }
    }
    assert!(seen.iter().all(|&streams| streams >= 8), "of 20 streams, with each state: {seen:?}");
}
