//! The last-level cache in detail: slices with a hash, several kinds of replacement, ways set apart for VMs,
//! inclusion, misses told apart.
//!
//! A machine has it only when one of these is asked for; otherwise it has the faster
//! [`Cache`](crate::cache::Cache), which does the same with none of them.
//!
//! - A mask of ways restricts what is filled, not what is found, as CAT does (SDM volume 3B, section
//!   17.19). Within a mask the line of its ways makes room whose turn it is.
//! - Misses of a VM are compared with a fully associative LRU cache of as many lines as its mask gives.
//!   VMs with equal masks share one. Where masks overlap but differ it is an approximation: each is
//!   compared with a cache that it does not share with the others.
//! - A line is of whoever filled it, as with CMT's occupancy; hits by others do not change that.
//! - Filled by victims, it is put a line by whose CPU dropped it out of its second level, into that
//!   owner's ways, and a read takes it out. So is the fully associative cache.

#[cfg(test)]
mod cachegrind;
mod counters;
mod mask;
mod model;
mod owner;
mod place;
mod replace;
mod replacement;
mod sets;
#[cfg(test)]
mod tests;
mod twin;

pub use counters::{LlcCounters, LlcUse, MissCauses};
pub use mask::{MaskError, WayMask};
pub use model::{LlcDesign, LlcFill, LlcOptions};
pub use owner::Owner;
pub use replacement::{Qlru, QlruMiss, QlruPlace, QlruUpdate, Replacement, UnknownReplacement};

use crate::cache::NO_LINE;
use crate::geometry::CacheGeometry;
use crate::host::{self, Vectors, Work};
use crate::limits::LINE_SHIFT;
use crate::read::{CAPACITY, Hits, Read};
use place::Places;
use replace::Mask;
use sets::{Evicted, Found, Sets, each_kind};
use twin::{Held, Twin};

/// How many reads ahead sets and twins are asked for.
const AHEAD: usize = 16;

/// An owner's part of the cache.
struct Part {
    mask: Mask,
    /// The twin of the mask, if misses are told apart.
    twin: Option<usize>,
    counters: LlcCounters,
    /// Lines it holds.
    lines: u64,
}

/// The last-level cache.
pub(crate) struct Llc {
    places: Places,
    sets: Sets,
    options: LlcOptions,
    geometry: CacheGeometry,
    parts: Vec<Part>,
    twins: Vec<(WayMask, Twin)>,
    /// What the twin said of each read of a batch; kept for its memory.
    held: Box<[Held; CAPACITY]>,
}

impl Llc {
    /// An empty cache; geometry and options have been checked.
    pub(crate) fn new(geometry: &CacheGeometry, options: &LlcOptions) -> Self {
        let mut llc = Self {
            places: Places::new(options.design.index(geometry)),
            sets: Sets::new(geometry.sets(), geometry.ways as usize, options.design.replacement),
            options: options.clone(),
            geometry: *geometry,
            parts: Vec::new(),
            twins: Vec::new(),
            held: Box::new([Held::Yes; CAPACITY]),
        };
        llc.admit(Owner(0));
        llc
    }

    /// Whether lines that drop out leave the private caches.
    pub(crate) fn is_inclusive(&self) -> bool {
        self.options.design.inclusive
    }

    /// Whether it is filled by what drops out of the second levels, with [`Llc::take`].
    pub(crate) fn is_filled_by_victims(&self) -> bool {
        self.options.design.fill == LlcFill::Victims
    }

    /// An owner, and all with a lower number, may use the cache.
    pub(crate) fn admit(&mut self, owner: Owner) {
        while self.parts.len() <= usize::from(owner.0) {
            let mask = self.mask(Owner(self.parts.len() as u16));
            let twin = self.options.classify.then(|| self.twin_of(mask));
            let counters = LlcCounters::default();
            self.parts.push(Part { mask: Mask::new(mask), twin, counters, lines: 0 });
        }
        let owners = self.parts.len();
        self.parts.iter_mut().for_each(|part| part.counters.evicted.resize(owners, 0));
    }

    fn twin_of(&mut self, mask: WayMask) -> usize {
        let known = self.twins.iter().position(|(other, _)| *other == mask);
        known.unwrap_or_else(|| {
            let lines = self.geometry.sets() * u64::from(mask.count());
            self.twins.push((mask, Twin::new(lines as usize)));
            self.twins.len() - 1
        })
    }

    /// The ways that an owner may fill.
    pub(crate) fn mask(&self, owner: Owner) -> WayMask {
        let mask = self.options.masks.get(usize::from(owner.0)).copied().flatten();
        mask.unwrap_or(WayMask::first(self.geometry.ways))
    }

    /// What an owner did, and what it has.
    pub(crate) fn use_of(&self, owner: Owner) -> LlcUse<'_> {
        let Part { counters, lines, .. } = &self.parts[usize::from(owner.0)];
        LlcUse {
            counters,
            ways: self.mask(owner),
            is_classified: self.options.classify,
            held_bytes: lines << LINE_SHIFT,
        }
    }

    /// What was counted for an owner since the last reset.
    #[cfg(test)]
    pub(crate) fn counters(&self, owner: Owner) -> &LlcCounters {
        &self.parts[usize::from(owner.0)].counters
    }

    /// Whether it holds a line.
    #[cfg(test)]
    pub(crate) fn holds(&self, line: u64) -> bool {
        let (set, tag) = self.places.of(line);
        self.sets.held().iter().any(|(other, held, _)| (*other, *held) == (set, tag))
    }

    /// Lines that an owner holds.
    #[cfg(test)]
    pub(crate) fn lines(&self, owner: Owner) -> u64 {
        self.parts[usize::from(owner.0)].lines
    }

    /// Counts anew for an owner; what is held stays.
    pub(crate) fn reset_counters(&mut self, owner: Owner) {
        let owners = self.parts.len();
        let counters = LlcCounters { evicted: vec![0; owners], ..LlcCounters::default() };
        self.parts[usize::from(owner.0)].counters = counters;
    }

    /// Books lines that left private caches since an owner's read put them out of this one.
    pub(crate) fn book_inclusion_victims(&mut self, owner: Owner, lines: u64) {
        self.parts[usize::from(owner.0)].counters.inclusion_victims += lines;
    }

    /// Looks lines up in order for an owner, and puts in those that are not there. The reads that missed
    /// are moved to the front, in order; returns how many. The others are counted in `hits`.
    pub(crate) fn read(&mut self, owner: Owner, reads: &mut [Read], hits: &mut Hits) -> usize {
        self.read_telling(owner, reads, hits, |_| ())
    }

    /// The same; every line that drops out is told.
    pub(crate) fn read_telling(
        &mut self,
        owner: Owner,
        reads: &mut [Read],
        hits: &mut Hits,
        tell: impl FnMut(u64),
    ) -> usize {
        debug_assert!(reads.len() <= CAPACITY);
        host::with_vectors(Look { llc: self, owner, reads, hits, tell })
    }

    /// Looks lines up in order for an owner, and takes out those that are there. After each of them the
    /// line that its second level dropped for it, if it did, is put in. Else as [`Llc::read`].
    pub(crate) fn take(
        &mut self,
        owner: Owner,
        reads: &mut [Read],
        victims: &[u64],
        hits: &mut Hits,
    ) -> usize {
        debug_assert!(reads.len() <= CAPACITY && reads.len() <= victims.len());
        host::with_vectors(Take { llc: self, owner, reads, victims, hits })
    }
}

impl Part {
    /// Counts a read that missed, by its cause.
    #[inline(always)]
    fn count_cause(&mut self, read: Read, held: Held) {
        let Part { counters, .. } = self;
        let causes = if read.is_data() { &mut counters.data } else { &mut counters.walks };
        match held {
            Held::Yes => causes.conflict += 1,
            Held::Dropped => causes.capacity += 1,
            Held::Never => causes.cold += 1,
        }
    }
}

/// Counts a line that an owner filled; returns the tag of the one that dropped out.
#[inline(always)]
fn count_fill(parts: &mut [Part], owner: Owner, found: Found) -> Option<i32> {
    parts[usize::from(owner.0)].lines += u64::from(found != Found::Hit);
    let Found::Replaced(Evicted { tag, owner: of }) = found else { return None };
    parts[usize::from(owner.0)].counters.evicted[usize::from(of.0)] += 1;
    parts[usize::from(of.0)].lines -= 1;
    Some(tag)
}

/// The arguments of [`Llc::read_telling`].
struct Look<'a, T> {
    llc: &'a mut Llc,
    owner: Owner,
    reads: &'a mut [Read],
    hits: &'a mut Hits,
    tell: T,
}

impl<T: FnMut(u64)> Work for Look<'_, T> {
    type Result = usize;

    #[inline(always)]
    fn work(self, vectors: impl Vectors) -> usize {
        let Self { llc, owner, reads, hits, mut tell } = self;
        let Llc { places, sets, parts, twins, held, .. } = llc;
        let classified = parts[usize::from(owner.0)].twin;
        if let Some(twin) = classified {
            ask_twin(&mut twins[twin].1, reads, &mut held[..], vectors);
        }
        let mut missed = 0;
        each_kind!(sets, ways => {
            reads[..AHEAD.min(reads.len())].iter().for_each(|read| {
                ways.prefetch(places.of(read.line()).0);
            });
            for at in 0..reads.len() {
                if let Some(later) = reads.get(at + AHEAD) {
                    ways.prefetch(places.of(later.line()).0);
                }
                let read = reads[at];
                let (set, tag) = places.of(read.line());
                let part = &mut parts[usize::from(owner.0)];
                let found = ways.read(set, tag, owner, &part.mask, vectors);
                if found == Found::Hit {
                    hits[read.class()] += 1;
                    let is_lucky = classified.is_some() && held[at] != Held::Yes;
                    part.counters.lucky_hits += u64::from(is_lucky);
                    continue;
                }
                reads[missed] = read;
                missed += 1;
                if classified.is_some() {
                    part.count_cause(read, held[at]);
                }
                if let Some(dropped) = count_fill(parts, owner, found) {
                    tell(places.line(set, dropped));
                }
            }
        });
        let counters = &mut parts[usize::from(owner.0)].counters;
        counters.reads += reads.len() as u64;
        counters.misses += missed as u64;
        missed
    }
}

/// The arguments of [`Llc::take`].
struct Take<'a> {
    llc: &'a mut Llc,
    owner: Owner,
    reads: &'a mut [Read],
    victims: &'a [u64],
    hits: &'a mut Hits,
}

impl Work for Take<'_> {
    type Result = usize;

    #[inline(always)]
    fn work(self, vectors: impl Vectors) -> usize {
        let Self { llc, owner, reads, victims, hits } = self;
        let Llc { places, sets, parts, twins, held, .. } = llc;
        let classified = parts[usize::from(owner.0)].twin;
        if let Some(twin) = classified {
            let twin = &mut twins[twin].1;
            for at in 0..reads.len() {
                if let Some(later) = reads.get(at + AHEAD) {
                    twin.prefetch(later.line());
                }
                held[at] = twin.take(reads[at].line(), vectors);
                if victims[at] != NO_LINE {
                    twin.put(victims[at], vectors);
                }
            }
        }
        let mut missed = 0;
        each_kind!(sets, ways => {
            for at in 0..reads.len() {
                if let Some(later) = reads.get(at + AHEAD) {
                    ways.prefetch(places.of(later.line()).0);
                }
                if let Some(later) = victims.get(at + AHEAD / 2).filter(|line| **line != NO_LINE) {
                    ways.prefetch(places.of(*later).0);
                }
                let read = reads[at];
                let (set, tag) = places.of(read.line());
                match ways.take(set, tag, vectors) {
                    Some(of) => {
                        hits[read.class()] += 1;
                        parts[usize::from(of.0)].lines -= 1;
                        let is_lucky = classified.is_some() && held[at] != Held::Yes;
                        parts[usize::from(owner.0)].counters.lucky_hits += u64::from(is_lucky);
                    }
                    None => {
                        reads[missed] = read;
                        missed += 1;
                        if classified.is_some() {
                            parts[usize::from(owner.0)].count_cause(read, held[at]);
                        }
                    }
                }
                if victims[at] != NO_LINE {
                    let (set, tag) = places.of(victims[at]);
                    let mask = &parts[usize::from(owner.0)].mask;
                    let found = ways.read(set, tag, owner, mask, vectors);
                    count_fill(parts, owner, found);
                }
            }
        });
        let counters = &mut parts[usize::from(owner.0)].counters;
        counters.reads += reads.len() as u64;
        counters.misses += missed as u64;
        missed
    }
}

/// Asks the fully associative cache the same.
#[inline(always)]
fn ask_twin(twin: &mut Twin, reads: &[Read], held: &mut [Held], vectors: impl Vectors) {
    reads[..AHEAD.min(reads.len())].iter().for_each(|read| twin.prefetch(read.line()));
    for at in 0..reads.len() {
        if let Some(later) = reads.get(at + AHEAD) {
            twin.prefetch(later.line());
        }
        held[at] = twin.read(reads[at].line(), vectors);
    }
}
