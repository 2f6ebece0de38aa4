//! A heap that grows, by `brk` or as one array that is enlarged with `mremap`.

use super::random::SplitMix64;
use super::requests::Requests;
use super::spec::Spec;
use super::{BASE, Common, PID, Plan, pages, pages_to_bytes, place, range};
use strata_addr::PageSize;
use strata_stream::{Backing, Batch, Event, Fill, Protection, Tid};

/// Where the heap of a position-dependent program might begin; not aligned to huge pages, as the
/// kernel starts the heap at a random base page.
const HEAP: u64 = 0x1234_5000;

/// How the heap grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// `brk`: in place.
    Break,
    /// `mremap`: the array doubles when full and moves to a new place, as `realloc` of a large
    /// array does when its neighbour is in the way.
    Move,
}

/// A heap that grows step by step. In each step half of the accesses store to the new part,
/// evenly spaced, and half go to random places of the heap so far.
pub struct Heap {
    common: Common,
    growth: Growth,
    step_bytes: u64,
    steps: u64,
    /// The step that is under way, its accesses, and how many are done.
    step: u64,
    quota: u64,
    done: u64,
    /// The heap, the part in use and where the part of this step begins.
    start: u64,
    used: u64,
    new_part: u64,
    /// Mapped bytes, and the first address that no move has used.
    capacity: u64,
    free: u64,
    random: SplitMix64,
    requests: Requests,
    started: bool,
}

impl Heap {
    /// The workload that `spec` asks for.
    ///
    /// # Errors
    /// One line, for a bad value.
    pub fn new(spec: &Spec, mut common: Common) -> Result<Self, String> {
        let step_bytes = spec.size("step", PageSize::Base.bytes(), common.size)?;
        let step_bytes = pages_to_bytes(pages(step_bytes));
        common.size = pages_to_bytes(pages(common.size));
        let growth = match spec.choice("grow", &["brk", "mremap"])? {
            0 => Growth::Break,
            _ => Growth::Move,
        };
        let start = if growth == Growth::Break { HEAP } else { BASE };
        Ok(Self {
            random: SplitMix64::new(common.seed, 0),
            requests: Requests::new(spec, &common)?,
            common,
            growth,
            step_bytes,
            steps: common.size.div_ceil(step_bytes),
            step: 0,
            quota: 0,
            done: 0,
            start,
            used: 0,
            new_part: 0,
            capacity: 0,
            free: start,
            started: false,
        })
    }

    /// Begins the next step.
    fn grow(&mut self, batch: &mut Batch) {
        self.new_part = self.used;
        self.used = (self.used + self.step_bytes).min(self.common.size);
        match self.growth {
            Growth::Break => batch.event(Event::Map {
                pid: PID,
                range: range(self.start + self.new_part, self.used - self.new_part),
                backing: Backing::Heap,
                protection: Protection::READ_WRITE,
                fixed: false,
            }),
            Growth::Move if self.capacity == 0 => {
                self.capacity = self.used;
                self.free = self.start + self.capacity;
                self.common.map(batch, range(self.start, self.capacity));
            }
            Growth::Move if self.used > self.capacity => {
                let from = range(self.start, self.capacity);
                self.capacity = (2 * self.capacity).min(self.common.size);
                self.start = self.free;
                self.free += self.capacity;
                batch.event(Event::Remap { pid: PID, from, to: range(self.start, self.capacity) });
            }
            Growth::Move => {}
        }
        // Rounded over the steps, so that their sum is right.
        let share = |step: u64| {
            (u128::from(self.common.accesses) * u128::from(step) / u128::from(self.steps)) as u64
        };
        self.quota = share(self.step + 1) - share(self.step);
        self.done = 0;
        self.step += 1;
    }

    /// One turn of accesses.
    fn work(&mut self, batch: &mut Batch) {
        let Self { common, random, requests, done, quota, .. } = self;
        let count = common.turn().min(*quota - *done);
        let tid = Tid(((self.step - 1) % common.threads) as u32);
        let shape = common.shape;
        let (new, heap) = (
            range(self.start + self.new_part, self.used - self.new_part),
            range(self.start, self.used),
        );
        let filling = quota.div_ceil(2);
        let words = new.bytes() / shape.bytes();
        requests.run(tid, count, common, batch, |count, out| {
            out.extend((*done..*done + count).map(|i| {
                if i < filling {
                    let word = u128::from(words) * u128::from(i) / u128::from(filling);
                    // Random bits of zero always store, unless nothing does.
                    shape.access(new.start.get() + word as u64 * shape.bytes(), 0)
                } else {
                    let bits = random.bits();
                    shape.access(place(heap, shape.bytes(), bits), bits)
                }
            }));
            *done += count;
        });
    }
}

impl Plan for Heap {
    fn fill(&mut self, batch: &mut Batch) -> Fill {
        if !std::mem::replace(&mut self.started, true) {
            self.common.start(batch);
        }
        while !batch.is_full() {
            if self.done < self.quota {
                self.work(batch);
            } else if self.step < self.steps {
                self.grow(batch);
            } else {
                return Fill::End;
            }
        }
        Fill::More
    }

    fn accesses(&self) -> u64 {
        self.common.accesses
    }

    fn footprint(&self) -> u64 {
        // Moved pages keep their frames; addresses left behind do not count.
        pages_to_bytes(pages(self.common.size).min(self.common.accesses))
    }
}
