//! Which way of a set makes room.

use super::WayMask;
use crate::host::LANES;

/// What a set knows of the order in which its ways were used.
pub(super) trait Order<const GROUPS: usize>: Clone {
    /// Of ways that were never used.
    fn new(ways: usize) -> Self;

    /// A way is used.
    fn touch(&mut self, ways: usize, way: usize);

    /// The way of the mask that makes room; every one of its ways has been used.
    fn victim(&self, ways: usize, mask: &Mask) -> usize;
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

impl<const GROUPS: usize> Order<GROUPS> for Ages<GROUPS> {
    fn new(_: usize) -> Self {
        // Those beyond the ways are older than any of them, and stay so.
        Self(std::array::from_fn(|group| std::array::from_fn(|lane| (group * LANES + lane) as u8)))
    }

    #[inline(always)]
    fn touch(&mut self, _: usize, way: usize) {
        let ages = self.0.as_flattened_mut();
        let before = ages[way];
        for age in &mut *ages {
            *age += u8::from(*age < before);
        }
        ages[way] = 0;
    }

    #[inline(always)]
    fn victim(&self, _: usize, mask: &Mask) -> usize {
        let ages = self.0.as_flattened().iter().zip(&mask.bytes);
        // At most 64 x 64 + 63.
        let keys =
            ages.zip(0i16..).map(|((age, mask), way)| i16::from((age + 1) & mask) << 6 | way);
        (keys.fold(0, i16::max) & 63) as usize
    }
}

/// Tree-PLRU: a bit for each node of a binary tree over the ways, set when the next victim is in its
/// upper half. Node 1 is the root, 2n and 2n + 1 are the halves of node n. Where a half has no way of
/// the mask the victim is in the other one.
#[derive(Clone)]
pub(super) struct Tree(u64);

impl<const GROUPS: usize> Order<GROUPS> for Tree {
    fn new(_: usize) -> Self {
        Self(0)
    }

    #[inline(always)]
    fn touch(&mut self, ways: usize, way: usize) {
        let mut node = ways.next_power_of_two() + way;
        while node > 1 {
            let (parent, is_upper) = (node >> 1, node & 1);
            self.0 = self.0 & !(1 << parent) | ((is_upper ^ 1) as u64) << parent;
            node = parent;
        }
    }

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
