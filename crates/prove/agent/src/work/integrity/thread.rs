//! What a thread does: operations on pieces of memory, chosen by a random stream of its own.

use super::chunk::{Chunk, PAGES};
use super::memory::{HUGE, Mismatch, Moved, child};
use super::pattern::{Contents, following};
use super::tally::{Operation, Tally};
use super::{End, World};
use nix::sys::mman::MmapAdvise;
use nix::sys::wait::{WaitStatus, waitpid};
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Contents that pages made equal can have.
pub(super) const VALUES: u32 = 4;
/// Pages that one operation takes at most, unless it takes a whole chunk.
const RUN: usize = 64;
/// Words that one operation counts up.
const COUNTS: usize = 64;

/// How often each operation is done: those of every thread, then those of the first one only.
const WEIGHTS: [(Operation, u32); 16] = [
    (Operation::Write, 12),
    (Operation::Verify, 12),
    (Operation::Rewrite, 12),
    (Operation::Count, 8),
    (Operation::Whole, 2),
    (Operation::Rest, 2),
    (Operation::Same, 2),
    (Operation::Fork, 4),
    (Operation::RenewHuge, 2),
    (Operation::RenewSmall, 6),
    (Operation::GiveBack, 6),
    (Operation::Protect, 6),
    (Operation::MoveHuge, 2),
    (Operation::MoveSmall, 4),
    (Operation::Collapse, 4),
    (Operation::PageOut, 2),
];
/// Of [`WEIGHTS`], the operations of every thread.
const COMMON: usize = 7;

/// A stream of numbers: Marsaglia's xorshift.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    fn operation(&mut self, of: &[(Operation, u32)]) -> Operation {
        let all: u32 = of.iter().map(|(_, weight)| weight).sum();
        let mut left = self.below(all as usize) as u32;
        for &(operation, weight) in of {
            match left.checked_sub(weight) {
                Some(rest) => left = rest,
                None => return operation,
            }
        }
        unreachable!("what is left is below the sum")
    }

    /// Some pages of a chunk.
    fn run(&mut self) -> Range<usize> {
        let first = self.below(PAGES);
        first..(first + 1 + self.below(RUN)).min(PAGES)
    }
}

/// One thread's life. Gives what it did, and what it found wrong.
pub(super) fn run(
    world: &World,
    seed: u64,
    number: usize,
    end: End,
) -> (Tally, Result<(), String>) {
    let begin = Instant::now();
    let random = (seed ^ (number as u64 + 1) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut thread = Thread { world, random: Random(random), tally: Tally::default() };
    let operations = if number == 0 { &WEIGHTS[..] } else { &WEIGHTS[..COMMON] };
    let mut result = Ok(());
    for round in 0..end.rounds {
        if world.stop.load(Relaxed) || end.time.is_some_and(|time| begin.elapsed() >= time) {
            break;
        }
        // Each once at first: where time is short, chance would leave some out.
        let operation = match operations.get(round as usize) {
            Some((operation, _)) => *operation,
            None => thread.random.operation(operations),
        };
        thread.tally.add(operation);
        result = thread.act(operation);
        if result.is_err() {
            world.stop.store(true, Relaxed);
            break;
        }
    }
    (thread.tally, result)
}

/// Verifies the words that threads count up.
pub(super) fn verify_shared(world: &World) -> Result<(), String> {
    world.shared.verify_all(&world.memory, &world.pattern).map_err(|wrong| world.lost(wrong))
}

impl World {
    /// Says what is wrong with a word that threads count up.
    fn lost(&self, wrong: Mismatch) -> String {
        let Mismatch { address, expected, found } = wrong;
        format!(
            "mismatch at {address:#x}, where threads count: expected {} to what has begun since \
             above {:#x}, found {} above {:#x}",
            expected as u32,
            expected >> 32,
            found as u32,
            found >> 32
        )
    }
}

#[derive(Debug)]
struct Thread<'a> {
    world: &'a World,
    random: Random,
    tally: Tally,
}

impl<'a> Thread<'a> {
    fn act(&mut self, operation: Operation) -> Result<(), String> {
        // Everything is drawn before anything is looked at that other threads change.
        let number = self.random.below(self.world.chunks.len());
        let pages = self.random.run();
        let choice = self.random.below(PAGES);
        if operation == Operation::Count {
            return self.count(choice);
        }
        let Some(chunk) = self.awake(number)? else {
            self.tally.left_alone += 1;
            return Ok(());
        };
        self.act_on(operation, chunk, pages, choice)
    }

    fn act_on(
        &mut self,
        operation: Operation,
        mut chunk: MutexGuard<'a, Chunk>,
        pages: Range<usize>,
        choice: usize,
    ) -> Result<(), String> {
        let World { memory, pattern, .. } = self.world;
        let at = chunk.address(pages.start);
        let bytes = chunk.address(pages.end) - at;
        match operation {
            Operation::Write => chunk.write(memory, pattern, pages, &mut self.tally),
            Operation::Verify => chunk.verify(memory, pattern, pages, &mut self.tally)?,
            Operation::Rewrite => {
                chunk.verify(memory, pattern, pages.clone(), &mut self.tally)?;
                chunk.write(memory, pattern, pages, &mut self.tally);
            }
            Operation::Whole => chunk.verify(memory, pattern, 0..PAGES, &mut self.tally)?,
            Operation::Rest => self.lay_down(&mut chunk, choice),
            Operation::Same => {
                let value = choice as u32 % VALUES;
                chunk.equal(memory, pattern, pages.start..PAGES, value, &mut self.tally);
                self.lay_down(&mut chunk, choice);
            }
            Operation::Count => unreachable!("it is of no chunk"),
            Operation::Fork => self.fork(chunk, pages)?,
            Operation::RenewHuge => self.renew(&mut chunk, 0..PAGES, choice)?,
            Operation::RenewSmall => self.renew(&mut chunk, pages, choice)?,
            Operation::GiveBack => {
                let done = memory.advise(at, bytes, MmapAdvise::MADV_DONTNEED);
                done.map_err(|error| format!("cannot give back memory at {at:#x}: {error}"))?;
                self.is_zero(&mut chunk, pages, choice)?;
            }
            Operation::Protect => {
                let tally = &mut self.tally;
                let verified = memory
                    .read_only(at, bytes, || chunk.verify(memory, pattern, pages.clone(), tally))?;
                self.accept(verified.transpose()?);
                chunk.write(memory, pattern, pages, &mut self.tally);
            }
            Operation::MoveHuge => self.shift(&chunk, 0..PAGES)?,
            Operation::MoveSmall => self.shift(&chunk, pages)?,
            Operation::Collapse => {
                let done = memory.collapse(chunk.at, HUGE);
                self.accept(done.ok());
            }
            Operation::PageOut => {
                let done = memory.advise(at, bytes, MmapAdvise::MADV_PAGEOUT);
                self.accept(done.ok());
            }
        }
        Ok(())
    }

    /// Notes whether the kernel did what it was asked.
    fn accept(&mut self, done: Option<()>) {
        self.tally.refused += u64::from(done.is_none());
    }

    /// A chunk, unless it is left alone. At the end of its rest it is verified.
    fn awake(&mut self, number: usize) -> Result<Option<MutexGuard<'a, Chunk>>, String> {
        let world = self.world;
        let mut chunk = world.chunk(number);
        if let Some(until) = chunk.rests {
            if Instant::now() < until {
                return Ok(None);
            }
            chunk.rests = None;
            world.resting.fetch_sub(1, Relaxed);
            chunk.verify(&world.memory, &world.pattern, 0..PAGES, &mut self.tally)?;
            self.tally.rested += PAGES as u64;
        }
        Ok(Some(chunk))
    }

    /// Leaves a chunk alone, if not too many are.
    fn lay_down(&mut self, chunk: &mut Chunk, choice: usize) {
        let world = self.world;
        if world.resting.fetch_add(1, Relaxed) < world.chunks.len() / 2 {
            // From half the longest rest to all of it.
            let time = world.rest.mul_f64((PAGES + choice) as f64 / (2 * PAGES) as f64);
            chunk.rests = Some(Instant::now() + time);
        } else {
            world.resting.fetch_sub(1, Relaxed);
        }
    }

    fn count(&mut self, choice: usize) -> Result<(), String> {
        let World { memory, pattern, shared, .. } = self.world;
        for _ in 0..COUNTS {
            // One word of many, or of the few in one cache line.
            let near = self.random.below(2) == 0;
            let word = if near {
                choice / 8 * 8 + self.random.below(8)
            } else {
                self.random.below(shared.words())
            };
            shared.count(memory, pattern, word).map_err(|wrong| self.world.lost(wrong))?;
        }
        Ok(())
    }

    fn renew(
        &mut self,
        chunk: &mut Chunk,
        pages: Range<usize>,
        choice: usize,
    ) -> Result<(), String> {
        let memory = &self.world.memory;
        let at = chunk.address(pages.start);
        let bytes = chunk.address(pages.end) - at;
        memory.renew(at, bytes)?;
        if let Some(advice) = chunk.advice {
            let done = memory.advise(at, bytes, advice);
            done.map_err(|error| format!("the kernel refuses {advice:?}: {error}"))?;
        }
        self.is_zero(chunk, pages, choice)
    }

    /// Pages were given back: verifies some, and writes to most again.
    fn is_zero(
        &mut self,
        chunk: &mut Chunk,
        pages: Range<usize>,
        choice: usize,
    ) -> Result<(), String> {
        const LOOKED_AT: usize = 16;
        let World { memory, pattern, .. } = self.world;
        chunk.forget(pages.clone());
        if choice.is_multiple_of(2) {
            let some = pages.start..pages.end.min(pages.start + LOOKED_AT);
            chunk.verify(memory, pattern, some, &mut self.tally)?;
        }
        if !choice.is_multiple_of(8) {
            chunk.write(memory, pattern, pages, &mut self.tally);
        }
        Ok(())
    }

    fn shift(&mut self, chunk: &Chunk, pages: Range<usize>) -> Result<(), String> {
        let World { memory, pattern, .. } = self.world;
        let at = chunk.address(pages.start);
        let bytes = chunk.address(pages.end) - at;
        let of = |page: usize| chunk.pages[(page - chunk.at) / super::super::region::PAGE].contents;
        match memory.aside_and_back(pattern, at, bytes, of)? {
            Moved::Refused => self.accept(None),
            Moved::Whole => self.tally.verified += pages.len() as u64,
            Moved::Wrong(mismatch) => return Err(chunk.describe(memory, pattern, mismatch)),
        }
        Ok(())
    }

    /// A child verifies its copy and changes part of it, while this process changes its own.
    fn fork(
        &mut self,
        mut chunk: MutexGuard<'a, Chunk>,
        pages: Range<usize>,
    ) -> Result<(), String> {
        let World { memory, pattern, letter, .. } = self.world;
        let born = child(letter, || {
            let own = |number: usize| Contents::Own(following(chunk.pages[number].last) ^ 1 << 17);
            for (number, page) in chunk.pages.iter().enumerate() {
                memory.verify(pattern, page.contents, chunk.address(number))?;
                if pages.contains(&number) {
                    memory.fill(pattern, own(number), chunk.address(number));
                }
            }
            for (number, page) in chunk.pages.iter().enumerate() {
                let contents = if pages.contains(&number) { own(number) } else { page.contents };
                memory.verify(pattern, contents, chunk.address(number))?;
            }
            Ok(())
        });
        let Ok(pid) = born else {
            self.tally.refused += 1;
            return Ok(());
        };
        let last = (pages.start + RUN).min(PAGES);
        chunk.write(memory, pattern, pages.start..last, &mut self.tally);
        drop(chunk);
        let status =
            waitpid(pid, None).map_err(|error| format!("cannot wait for a child: {error}"))?;
        match status {
            WaitStatus::Exited(_, 0) => {
                self.tally.verified += 2 * PAGES as u64;
                Ok(())
            }
            _ => Err(match letter.read() {
                Some(Mismatch { address, expected, found }) => format!(
                    "mismatch at {address:#x} in a child: expected {expected:#018x}, found \
                     {found:#018x} ({})",
                    pattern.wrong(found, address, 0)
                ),
                None => format!("a child ended with {status:?}"),
            }),
        }
    }
}
