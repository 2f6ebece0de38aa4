//! Objects that come and go.

use super::random::SplitMix64;
use super::spec::Spec;
use super::{BASE, Common, PID, Plan, pages, pages_to_bytes, place, range};
use std::collections::{BTreeMap, BTreeSet};
use strata_addr::{PageSize, Range, space::Virtual};
use strata_stream::{Access, Advice, Batch, Event, Fill, Tid};

/// Keeps about `size` bytes of objects alive. Each turn makes an object, stores once to each of
/// its base pages, and then works on random live objects; when there is more than `size`, objects
/// chosen at random are freed first.
pub struct Churn {
    common: Common,
    /// Sizes of objects, in bytes.
    smallest: u64,
    largest: u64,
    /// Accesses to random objects for each new page.
    work: u64,
    /// Whether memory is given back with `madvise(MADV_DONTNEED)`, and stays mapped.
    keep_mapped: bool,
    arena: Arena,
    objects: Vec<Range<Virtual>>,
    live: u64,
    /// Pages of the newest object still to be touched, then accesses to random objects.
    to_touch: u64,
    to_work: u64,
    turns: u64,
    left: u64,
    random: SplitMix64,
    started: bool,
}

impl Churn {
    /// The workload that `spec` asks for.
    ///
    /// # Errors
    /// One line, for a bad value.
    pub fn new(spec: &Spec, common: Common) -> Result<Self, String> {
        let smallest = spec.size("min", PageSize::Base.bytes(), common.size)?;
        let largest = spec.size("max", PageSize::Base.bytes(), common.size)?;
        if smallest > largest {
            return Err(spec.wrong("min", "must not be above max"));
        }
        Ok(Self {
            random: SplitMix64::new(common.seed, 0),
            common,
            smallest,
            largest,
            work: spec.count("work", 0, 1 << 20)?,
            keep_mapped: spec.choice("release", &["unmap", "dontneed"])? == 1,
            arena: Arena::new(BASE),
            objects: Vec::new(),
            live: 0,
            to_touch: 0,
            to_work: 0,
            turns: 0,
            left: common.accesses,
            started: false,
        })
    }

    /// Frees what is too much and makes the next object.
    fn turn(&mut self, batch: &mut Batch) {
        let ratio = self.largest as f64 / self.smallest as f64;
        let bytes = self.smallest as f64 * libm::exp(self.random.unit() * libm::log(ratio));
        let bytes = pages_to_bytes(pages((bytes as u64).clamp(self.smallest, self.largest)));
        while self.live + bytes > self.common.size && !self.objects.is_empty() {
            let victim = self.random.below(self.objects.len() as u64) as usize;
            let object = self.objects.swap_remove(victim);
            batch.event(if self.keep_mapped {
                Event::Advise { pid: PID, range: object, advice: Advice::DontNeed }
            } else {
                Event::Unmap { pid: PID, range: object }
            });
            self.arena.free(object.start.get(), object.bytes());
            self.live -= object.bytes();
        }
        let (start, fresh) = self.arena.allocate(bytes);
        let object = range(start, bytes);
        if fresh || !self.keep_mapped {
            self.common.map(batch, object);
        }
        self.objects.push(object);
        self.live += bytes;
        self.to_touch = pages(bytes);
        self.to_work = pages(bytes) * self.work;
        self.turns += 1;
    }

    fn touch(&mut self, batch: &mut Batch) {
        let object = self.objects.last().expect("touched when made");
        let count = self.common.turn().min(self.to_touch).min(self.left);
        let first = pages(object.bytes()) - self.to_touch;
        let bytes = self.common.shape.bytes() as u32;
        let store = |page| Access::store(object.start + pages_to_bytes(page), bytes);
        let tid = self.tid();
        self.common.run(batch, tid, count, |out| out.extend((first..first + count).map(store)));
        self.to_touch -= count;
        self.left -= count;
    }

    fn work(&mut self, batch: &mut Batch) {
        let count = self.common.turn().min(self.to_work).min(self.left);
        let tid = self.tid();
        let Self { common, random, objects, .. } = self;
        let shape = common.shape;
        common.run(batch, tid, count, |out| {
            out.extend((0..count).map(|_| {
                let object = objects[random.below(objects.len() as u64) as usize];
                let bits = random.bits();
                shape.access(place(object, shape.bytes(), bits), bits)
            }));
        });
        self.to_work -= count;
        self.left -= count;
    }

    fn tid(&self) -> Tid {
        Tid(((self.turns - 1) % self.common.threads) as u32)
    }
}

impl Plan for Churn {
    fn fill(&mut self, batch: &mut Batch) -> Fill {
        if !std::mem::replace(&mut self.started, true) {
            self.common.start(batch);
        }
        while !batch.is_full() {
            if self.left == 0 {
                return Fill::End;
            } else if self.to_touch > 0 {
                self.touch(batch);
            } else if self.to_work > 0 {
                self.work(batch);
            } else {
                self.turn(batch);
            }
        }
        Fill::More
    }

    fn accesses(&self) -> u64 {
        self.common.accesses
    }

    fn footprint(&self) -> u64 {
        // At any one time; objects that follow one another may use different addresses.
        pages_to_bytes(pages(self.common.size).min(self.common.accesses))
    }
}

/// Addresses, given out best fit first, so that memory freed is used again.
#[derive(Debug)]
struct Arena {
    /// Free ranges below `top`: bytes by start, and the other way round. Never adjacent.
    by_start: BTreeMap<u64, u64>,
    by_bytes: BTreeSet<(u64, u64)>,
    top: u64,
}

impl Arena {
    fn new(base: u64) -> Self {
        Self { by_start: BTreeMap::new(), by_bytes: BTreeSet::new(), top: base }
    }

    /// Gives out `bytes`; also whether they have never been given out before.
    fn allocate(&mut self, bytes: u64) -> (u64, bool) {
        match self.by_bytes.range((bytes, 0)..).next() {
            Some(&(hole, start)) => {
                self.remove(start, hole);
                if hole > bytes {
                    self.insert(start + bytes, hole - bytes);
                }
                (start, false)
            }
            None => {
                let start = self.top;
                self.top += bytes;
                (start, true)
            }
        }
    }

    fn free(&mut self, mut start: u64, mut bytes: u64) {
        if let Some((&before, &length)) = self.by_start.range(..start).next_back()
            && before + length == start
        {
            self.remove(before, length);
            start = before;
            bytes += length;
        }
        if let Some(&length) = self.by_start.get(&(start + bytes)) {
            self.remove(start + bytes, length);
            bytes += length;
        }
        self.insert(start, bytes);
    }

    fn insert(&mut self, start: u64, bytes: u64) {
        self.by_start.insert(start, bytes);
        self.by_bytes.insert((bytes, start));
    }

    fn remove(&mut self, start: u64, bytes: u64) {
        self.by_start.remove(&start);
        self.by_bytes.remove(&(bytes, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_arena_never_gives_out_a_page_twice(
            steps in prop::collection::vec((1u64..20, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut arena = Arena::new(0);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (bytes, index) in steps {
                if bytes % 2 == 0 && !live.is_empty() {
                    let (start, bytes) = live.swap_remove(index.index(live.len()));
                    arena.free(start, bytes);
                } else {
                    let (start, _) = arena.allocate(bytes);
                    prop_assert!(live.iter().all(|&(s, b)| start + bytes <= s || s + b <= start));
                    live.push((start, bytes));
                }
                // Free and live ranges tile the arena, and free ones are merged.
                let free: u64 = arena.by_start.values().sum();
                prop_assert_eq!(free + live.iter().map(|l| l.1).sum::<u64>(), arena.top);
                prop_assert_eq!(arena.by_bytes.len(), arena.by_start.len());
                let merged = arena.by_start.iter().zip(arena.by_start.keys().skip(1));
                prop_assert!(merged.into_iter().all(|((&s, &b), &next)| s + b < next));
            }
        }
    }
}
