//! Which way of a set makes room.

use super::WayMask;
use super::replacement::{Qlru, QlruMiss, QlruPlace, QlruUpdate};
use crate::host::LANES;

/// What a set knows of the order in which its ways were used.
pub(super) trait Order<const GROUPS: usize>: Clone {
    /// What all sets of a cache go by.
    type Rules;

    /// Of ways that were never used.
    fn new(ways: usize) -> Self;

    /// The line in a way is read.
    fn hit(&mut self, rules: &Self::Rules, ways: usize, way: usize, mask: &Mask);

    /// The way of the mask that a new line is put into. `empty` are those of the mask that hold none.
    fn fill(&mut self, rules: &mut Self::Rules, ways: usize, empty: u64, mask: &Mask) -> usize;
}

/// The first of the ways of a set of bits, which is not empty.
#[inline(always)]
fn first(bits: u64) -> usize {
    bits.trailing_zeros() as usize & 63
}

/// A mask as both orders want it.
#[derive(Clone, Debug)]
pub(super) struct Mask {
    pub(super) bits: u64,
    /// All bits of a byte set for a way that may be filled.
    bytes: [u8; 64],
}

impl Mask {
    pub(super) fn new(mask: WayMask) -> Self {
        let bits = mask.bits();
        Self { bits, bytes: std::array::from_fn(|way| 0u8.wrapping_sub((bits >> way & 1) as u8)) }
    }
}

/// True LRU: how many ways of the set were used since each was. A permutation, so that one way has each
/// age; and all loops are of a fixed length and without branches, for vectors.
#[derive(Clone)]
pub(super) struct Ages<const GROUPS: usize>([[u8; LANES]; GROUPS]);

impl<const GROUPS: usize> Ages<GROUPS> {
    #[inline(always)]
    fn touch(&mut self, way: usize) {
        let ages = self.0.as_flattened_mut();
        let before = ages[way];
        for age in &mut *ages {
            *age += u8::from(*age < before);
        }
        ages[way] = 0;
    }

    /// The way of the mask that makes room; every one of its ways has been used.
    #[inline(always)]
    fn victim(&self, mask: &Mask) -> usize {
        let ages = self.0.as_flattened().iter().zip(&mask.bytes);
        // At most 64 x 64 + 63.
        let keys =
            ages.zip(0i16..).map(|((age, mask), way)| i16::from((age + 1) & mask) << 6 | way);
        (keys.fold(0, i16::max) & 63) as usize
    }
}

impl<const GROUPS: usize> Order<GROUPS> for Ages<GROUPS> {
    type Rules = ();

    fn new(_: usize) -> Self {
        // Those beyond the ways are older than any of them, and stay so.
        Self(std::array::from_fn(|group| std::array::from_fn(|lane| (group * LANES + lane) as u8)))
    }

    #[inline(always)]
    fn hit(&mut self, (): &(), _: usize, way: usize, _: &Mask) {
        self.touch(way);
    }

    #[inline(always)]
    fn fill(&mut self, (): &mut (), _: usize, empty: u64, mask: &Mask) -> usize {
        let way = if empty == 0 { self.victim(mask) } else { first(empty) };
        self.touch(way);
        way
    }
}

/// Tree-PLRU: a bit for each node of a binary tree over the ways, set when the next victim is in its
/// upper half. Node 1 is the root, 2n and 2n + 1 are the halves of node n. Where a half has no way of
/// the mask the victim is in the other one.
#[derive(Clone)]
pub(super) struct Tree(u64);

impl Tree {
    #[inline(always)]
    fn touch(&mut self, ways: usize, way: usize) {
        let mut node = ways.next_power_of_two() + way;
        while node > 1 {
            let (parent, is_upper) = (node >> 1, node & 1);
            self.0 = self.0 & !(1 << parent) | ((is_upper ^ 1) as u64) << parent;
            node = parent;
        }
    }

    /// The way of the mask that makes room.
    #[inline(always)]
    fn victim(&self, ways: usize, mask: &Mask) -> usize {
        let mut half = ways.next_power_of_two() / 2;
        let (mut node, mut first) = (1, 0);
        while half > 0 {
            let below = u64::MAX >> (64 - half);
            let (lower, upper) = (mask.bits >> first & below, mask.bits >> (first + half) & below);
            let wants_upper = self.0 >> node & 1 != 0;
            let is_upper = lower == 0 || wants_upper && upper != 0;
            node = node << 1 | usize::from(is_upper);
            first += if is_upper { half } else { 0 };
            half /= 2;
        }
        first
    }
}

impl<const GROUPS: usize> Order<GROUPS> for Tree {
    type Rules = ();

    fn new(_: usize) -> Self {
        Self(0)
    }

    #[inline(always)]
    fn hit(&mut self, (): &(), ways: usize, way: usize, _: &Mask) {
        self.touch(ways, way);
    }

    #[inline(always)]
    fn fill(&mut self, (): &mut (), ways: usize, empty: u64, mask: &Mask) -> usize {
        let way = if empty == 0 { self.victim(ways, mask) } else { first(empty) };
        self.touch(ways, way);
        way
    }
}

/// MRU: a bit for each way that was not used since all others were. Others are those of the mask.
#[derive(Clone)]
pub(super) struct Unused(u64);

impl Unused {
    #[inline(always)]
    fn touch(&mut self, way: usize, mask: &Mask) {
        self.0 &= !(1 << way);
        if self.0 & mask.bits == 0 {
            self.0 |= mask.bits & !(1 << way);
        }
    }
}

impl<const GROUPS: usize> Order<GROUPS> for Unused {
    type Rules = ();

    fn new(_: usize) -> Self {
        Self(u64::MAX)
    }

    #[inline(always)]
    fn hit(&mut self, (): &(), _: usize, way: usize, mask: &Mask) {
        self.touch(way, mask);
    }

    #[inline(always)]
    fn fill(&mut self, (): &mut (), _: usize, empty: u64, mask: &Mask) -> usize {
        let unused = self.0 & mask.bits;
        // A mask of one way has none, and where masks overlap others may have used all.
        let wanted = [empty, unused].into_iter().find(|ways| *ways != 0);
        let way = first(wanted.unwrap_or(mask.bits));
        self.touch(way, mask);
        way
    }
}

/// Quad-age LRU: the two bits of each way's age, the low ones and the high ones. Ages rise in the ways of the
/// mask of whoever reads; how they do with masks is not published. Where others' reads left none of age 3
/// in the mask, the first of the oldest makes room.
#[derive(Clone)]
pub(super) struct Quad {
    low: u64,
    high: u64,
}

/// What a cache with quad-age LRU goes by.
pub(super) struct QuadRules {
    qlru: Qlru,
    /// Lines put in whose age was drawn.
    drawn: u64,
}

impl QuadRules {
    pub(super) fn new(qlru: Qlru) -> Self {
        Self { qlru, drawn: 0 }
    }

    /// The age of a line that is put in.
    #[inline(always)]
    fn age_of_new(&mut self) -> u8 {
        match self.qlru.miss {
            QlruMiss::Age(age) => age,
            QlruMiss::Drawn { once_in, age } => {
                self.drawn += 1;
                if draw(self.drawn).is_multiple_of(u64::from(once_in)) { age } else { 3 }
            }
        }
    }
}

/// The nth number drawn: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), so that a run is the same again.
pub(super) fn draw(n: u64) -> u64 {
    let z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl Quad {
    #[inline(always)]
    fn age(&self, way: usize) -> u8 {
        ((self.high >> way & 1) << 1 | self.low >> way & 1) as u8
    }

    #[inline(always)]
    fn set(&mut self, way: usize, age: u8) {
        let bit = |from: u8| u64::from(age >> from & 1) << way;
        self.low = self.low & !(1 << way) | bit(0);
        self.high = self.high & !(1 << way) | bit(1);
    }

    /// The oldest of some ways, and which they are.
    #[inline(always)]
    fn oldest(&self, ways: u64) -> (u8, u64) {
        let Self { low, high } = self;
        let of_age = [(3, high & low), (2, high & !low), (1, !high & low), (0, !high & !low)];
        let some = of_age.into_iter().find(|(_, of_age)| of_age & ways != 0);
        some.map_or((3, 0), |(age, of_age)| (age, of_age & ways))
    }

    /// Makes some ways older by so much; none of them becomes older than 3.
    #[inline(always)]
    fn rise(&mut self, ways: u64, by: u8) {
        match by {
            1 => {
                self.high ^= self.low & ways;
                self.low ^= ways;
            }
            2 => self.high ^= ways,
            3 => (self.low, self.high) = (self.low | ways, self.high | ways),
            _ => {}
        }
    }

    /// Ages rise, after the line in a way was used or before one is put in.
    #[inline(always)]
    fn update(&mut self, rules: &QuadRules, used: Option<usize>, mask: &Mask) {
        let all = mask.bits;
        let others = all & !used.map_or(0, |way| 1 << way);
        // Of no way at all none lacks anything.
        let lack = |ways: u64| 3 - self.oldest(ways).0;
        let (ways, by) = match rules.qlru.update {
            QlruUpdate::All => (all, lack(all)),
            QlruUpdate::Others => (others, lack(others)),
            QlruUpdate::AllByOne => (all, lack(all).min(1)),
            QlruUpdate::OthersByOne => (others, lack(all).min(1)),
        };
        self.rise(ways, by);
    }
}

impl<const GROUPS: usize> Order<GROUPS> for Quad {
    type Rules = QuadRules;

    fn new(_: usize) -> Self {
        Self { low: u64::MAX, high: u64::MAX }
    }

    #[inline(always)]
    fn hit(&mut self, rules: &QuadRules, _: usize, way: usize, mask: &Mask) {
        self.set(way, rules.qlru.hit[usize::from(self.age(way))]);
        if !rules.qlru.on_miss_only {
            self.update(rules, Some(way), mask);
        }
    }

    #[inline(always)]
    fn fill(&mut self, rules: &mut QuadRules, _: usize, empty: u64, mask: &Mask) -> usize {
        if rules.qlru.on_miss_only {
            self.update(rules, None, mask);
        }
        let way = match (rules.qlru.place, empty) {
            (QlruPlace::EmptyFromTheEnd, 1..) => (63 - empty.leading_zeros()) as usize,
            (_, 1..) => first(empty),
            (place, 0) => match self.oldest(mask.bits) {
                (0..3, _) if place == QlruPlace::FirstOrWay0 => first(mask.bits),
                (_, oldest) => first(oldest),
            },
        };
        self.set(way, rules.age_of_new());
        if !rules.qlru.on_miss_only {
            self.update(rules, Some(way), mask);
        }
        way
    }
}
