//! How one thread goes through a fixed piece of memory.

use super::random::{Permutation, SplitMix64, scale};
use super::zipf::Zipf;
use strata_addr::{Gva, Range, space::Virtual};
use strata_stream::Access;

/// Makes the accesses of one thread.
pub trait Pattern: Send {
    /// Appends the next `count` accesses.
    fn next(&mut self, count: usize, out: &mut Vec<Access>);
}

/// What all accesses of a generator have in common: size, and how often they store.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    load: u64,
    /// Stores among 2^24 accesses.
    stores: u64,
    bytes: u64,
}

/// Bits of a random number that decide between load and store: the low ones, as the high ones
/// choose the place.
const STORE_BITS: u64 = (1 << 24) - 1;

impl Shape {
    /// Accesses of `bytes` bytes, a fraction `stores` of which store.
    pub fn new(bytes: u32, stores: f64) -> Self {
        let load = Access::load(Gva::new(0), bytes).bits();
        Self { load, stores: (stores * (STORE_BITS + 1) as f64) as u64, bytes: bytes.into() }
    }

    /// Bytes of an access.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// An access at `addr`, which lies in the user half; `random` decides what it does.
    #[inline]
    pub fn access(&self, addr: u64, random: u64) -> Access {
        let store = u64::from((random & STORE_BITS) < self.stores);
        Access::from_bits(self.load | store << 63 | addr)
    }
}

/// Walks in equal steps. After a pass it starts again, `shift` bytes further on.
pub struct Walk {
    /// Where, how far apart.
    pub part: Range<Virtual>,
    pub stride: u64,
    /// Bytes by which each pass starts later, modulo the stride.
    pub shift: u64,
    pub shape: Shape,
    pub random: SplitMix64,
    next: u64,
    pass_start: u64,
}

impl Walk {
    /// From the start of `part`.
    pub fn new(
        part: Range<Virtual>,
        stride: u64,
        shift: u64,
        shape: Shape,
        random: SplitMix64,
    ) -> Self {
        let start = part.start.get();
        Self { part, stride, shift, shape, random, next: start, pass_start: start }
    }

    /// Accesses in the first pass over `bytes` bytes.
    pub fn per_pass(bytes: u64, stride: u64, access: u64) -> u64 {
        (bytes - access) / stride + 1
    }
}

impl Pattern for Walk {
    fn next(&mut self, count: usize, out: &mut Vec<Access>) {
        let last = self.part.end.get() - self.shape.bytes;
        out.extend((0..count).map(|_| {
            let addr = self.next;
            self.next += self.stride;
            if self.next > last {
                let start = self.part.start.get();
                let offset = self.pass_start - start + self.shift;
                self.pass_start = if offset < self.stride && start + offset <= last {
                    start + offset
                } else {
                    start
                };
                self.next = self.pass_start;
            }
            self.shape.access(addr, self.random.bits())
        }));
    }
}

/// Uniformly random words.
pub struct Uniform {
    pub base: u64,
    /// Words to choose from.
    pub words: u64,
    pub shape: Shape,
    pub random: SplitMix64,
}

impl Pattern for Uniform {
    fn next(&mut self, count: usize, out: &mut Vec<Access>) {
        // Local copies stay in registers.
        let Self { base, words, shape, mut random } = Self { random: self.random.clone(), ..*self };
        out.extend((0..count).map(|_| {
            let bits = random.bits();
            shape.access(base + scale(bits, words) * shape.bytes, bits)
        }));
        self.random = random;
    }
}

/// Items by Zipf's law.
pub struct Popular {
    pub base: u64,
    pub grain: u64,
    pub zipf: Zipf,
    /// Where each rank lies; `None` for in order.
    pub places: Option<Permutation>,
    pub shape: Shape,
    pub random: SplitMix64,
}

impl Pattern for Popular {
    fn next(&mut self, count: usize, out: &mut Vec<Access>) {
        let words = self.grain / self.shape.bytes;
        out.extend((0..count).map(|_| {
            let rank = self.zipf.sample(&mut self.random);
            let item = self.places.as_ref().map_or(rank, |places| places.apply(rank));
            let bits = self.random.bits();
            let addr = self.base + item * self.grain + scale(bits, words) * self.shape.bytes;
            self.shape.access(addr, bits)
        }));
    }
}

/// Nodes in the order of one random cycle through all.
pub struct Chase {
    pub base: u64,
    pub node: u64,
    pub nodes: u64,
    /// The order: the node after `order(i)` is `order(i + 1)`, so there is one cycle.
    pub order: Permutation,
    /// How far along the cycle the thread is.
    pub position: u64,
    pub shape: Shape,
    pub random: SplitMix64,
}

impl Pattern for Chase {
    fn next(&mut self, count: usize, out: &mut Vec<Access>) {
        out.extend((0..count).map(|_| {
            let addr = self.base + self.order.apply(self.position) * self.node;
            self.position = if self.position + 1 == self.nodes { 0 } else { self.position + 1 };
            self.shape.access(addr, self.random.bits())
        }));
    }
}

/// Random words, loaded and stored back.
pub struct Updates {
    pub base: u64,
    pub words: u64,
    pub shape: Shape,
    pub random: SplitMix64,
    /// The word loaded whose store is still to come.
    pub loaded: Option<Access>,
}

/// The store to where an access is.
fn store(access: Access) -> Access {
    Access::from_bits(access.bits() | 1 << 63)
}

impl Updates {
    #[inline]
    fn load(&mut self) -> Access {
        // A shape that never stores gives the load whatever the bits.
        let place = self.random.below(self.words);
        self.shape.access(self.base + place * self.shape.bytes, 0)
    }
}

impl Pattern for Updates {
    fn next(&mut self, mut count: usize, out: &mut Vec<Access>) {
        if count > 0
            && let Some(loaded) = self.loaded.take()
        {
            out.push(store(loaded));
            count -= 1;
        }
        for _ in 0..count / 2 {
            let load = self.load();
            out.extend_from_slice(&[load, store(load)]);
        }
        if count % 2 == 1 {
            let load = self.load();
            out.push(load);
            self.loaded = Some(load);
        }
    }
}
