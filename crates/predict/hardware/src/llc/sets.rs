//! The sets of the last-level cache: tags, owners, and the order of use.

use super::place::EMPTY;
use super::replace::{Ages, Mask, Order, Quad, QuadRules, Tree, Unused};
use super::{Owner, Replacement};
use crate::host::{self, LANES, Vectors};

/// One set. Ways keep their places, since a mask names places.
#[derive(Clone)]
#[repr(align(32))]
struct Set<const GROUPS: usize, O> {
    tags: [[i32; LANES]; GROUPS],
    owners: [[Owner; LANES]; GROUPS],
    order: O,
}

/// A line that dropped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Evicted {
    pub(super) tag: i32,
    pub(super) owner: Owner,
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Hit,
    /// The line was put into a way that was empty.
    Filled,
    /// The line was put in the place of another.
    Replaced(Evicted),
}

/// Sets of up to `GROUPS` x 8 ways.
pub(super) struct Ways<const GROUPS: usize, O: Order<GROUPS>> {
    sets: Box<[Set<GROUPS, O>]>,
    ways: usize,
    rules: O::Rules,
}

impl<const GROUPS: usize, O: Order<GROUPS>> Ways<GROUPS, O> {
    fn new(sets: u64, ways: usize, rules: O::Rules) -> Self {
        let (tags, owners) = ([[EMPTY; LANES]; GROUPS], [[Owner(0); LANES]; GROUPS]);
        let set = Set { tags, owners, order: O::new(ways) };
        Self { sets: vec![set; sets as usize].into_boxed_slice(), ways, rules }
    }

    /// Asks for a set.
    #[inline(always)]
    pub(super) fn prefetch(&self, set: usize) {
        host::prefetch(&self.sets, set);
        if GROUPS > 1 {
            let set = &self.sets[set];
            host::prefetch(set.tags.as_flattened(), 2 * LANES);
            host::prefetch(set.owners.as_flattened(), self.ways - 1);
        }
    }

    /// Looks a line up, and puts it in when it is not there.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        set: usize,
        tag: i32,
        owner: Owner,
        mask: &Mask,
        vectors: impl Vectors,
    ) -> Found {
        let Self { sets, ways, rules } = self;
        let Set { tags, owners, order } = &mut sets[set];
        let found = places(tags, tag, vectors);
        if found != 0 {
            order.hit(rules, *ways, found.trailing_zeros() as usize, mask);
            return Found::Hit;
        }
        let empty = places(tags, EMPTY, vectors) & mask.bits;
        let way = order.fill(rules, *ways, empty, mask);
        let before = std::mem::replace(&mut tags.as_flattened_mut()[way], tag);
        let owner_before = std::mem::replace(&mut owners.as_flattened_mut()[way], owner);
        match before {
            EMPTY => Found::Filled,
            tag => Found::Replaced(Evicted { tag, owner: owner_before }),
        }
    }

    /// Takes a line out, if it is there; returns whose it was.
    #[inline(always)]
    pub(super) fn take(&mut self, set: usize, tag: i32, vectors: impl Vectors) -> Option<Owner> {
        let Set { tags, owners, .. } = &mut self.sets[set];
        let found = places(tags, tag, vectors);
        if found == 0 {
            return None;
        }
        let way = found.trailing_zeros() as usize;
        tags.as_flattened_mut()[way] = EMPTY;
        Some(owners.as_flattened()[way])
    }

    /// The lines held: set, tag and owner.
    #[cfg(test)]
    fn held(&self) -> Vec<(usize, i32, Owner)> {
        let mut held = Vec::new();
        for (number, set) in self.sets.iter().enumerate() {
            let ways = set.tags.as_flattened().iter().zip(set.owners.as_flattened());
            let ways = ways.filter(|(tag, _)| **tag != EMPTY);
            held.extend(ways.map(|(tag, owner)| (number, *tag, *owner)));
        }
        held
    }
}

/// Sets of one way, which may be very many: a tag and an owner each, in memory that the computer gives when
/// it is used.
pub(super) struct Direct {
    tags: Box<[i32]>,
    owners: Box<[u16]>,
}

impl Direct {
    fn new(sets: u64) -> Self {
        let sets = sets as usize;
        Self { tags: vec![EMPTY; sets].into(), owners: vec![0; sets].into() }
    }

    /// See [`Ways::prefetch`].
    #[inline(always)]
    pub(super) fn prefetch(&self, set: usize) {
        host::prefetch(&self.tags, set);
        host::prefetch(&self.owners, set);
    }

    /// See [`Ways::read`].
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        set: usize,
        tag: i32,
        owner: Owner,
        _: &Mask,
        _: impl Vectors,
    ) -> Found {
        let before = std::mem::replace(&mut self.tags[set], tag);
        if before == tag {
            return Found::Hit;
        }
        let owner_before = Owner(std::mem::replace(&mut self.owners[set], owner.0));
        match before {
            EMPTY => Found::Filled,
            tag => Found::Replaced(Evicted { tag, owner: owner_before }),
        }
    }

    /// See [`Ways::take`].
    #[inline(always)]
    pub(super) fn take(&mut self, set: usize, tag: i32, _: impl Vectors) -> Option<Owner> {
        if self.tags[set] != tag {
            return None;
        }
        self.tags[set] = EMPTY;
        Some(Owner(self.owners[set]))
    }

    /// The lines held: set, tag and owner.
    #[cfg(test)]
    fn held(&self) -> Vec<(usize, i32, Owner)> {
        let lines = self.tags.iter().zip(&self.owners).enumerate();
        let lines = lines.filter(|(_, (tag, _))| **tag != EMPTY);
        lines.map(|(set, (tag, owner))| (set, *tag, Owner(*owner))).collect()
    }
}

/// A bit for each way with this tag.
#[inline(always)]
fn places<const GROUPS: usize>(
    tags: &[[i32; LANES]; GROUPS],
    tag: i32,
    vectors: impl Vectors,
) -> u64 {
    let mut found = 0u64;
    for (group, first) in tags.iter().zip((0..).step_by(LANES)) {
        found |= u64::from(vectors.equal(group, tag)) << first;
    }
    found
}

/// Sets of any associativity and replacement. The usual ones have code of their own.
pub(super) enum Sets {
    Direct(Direct),
    Lru8(Ways<1, Ages<1>>),
    Lru16(Ways<2, Ages<2>>),
    Lru24(Ways<3, Ages<3>>),
    Lru64(Ways<8, Ages<8>>),
    Tree8(Ways<1, Tree>),
    Tree16(Ways<2, Tree>),
    Tree24(Ways<3, Tree>),
    Tree64(Ways<8, Tree>),
    Mru8(Ways<1, Unused>),
    Mru16(Ways<2, Unused>),
    Mru24(Ways<3, Unused>),
    Mru64(Ways<8, Unused>),
    Quad8(Ways<1, Quad>),
    Quad16(Ways<2, Quad>),
    Quad24(Ways<3, Quad>),
    Quad64(Ways<8, Quad>),
}

/// The same expression for every kind of sets.
macro_rules! each_kind {
    ($sets:expr, $ways:pat => $do:expr) => {
        match $sets {
            Sets::Direct($ways) => $do,
            Sets::Lru8($ways) => $do,
            Sets::Lru16($ways) => $do,
            Sets::Lru24($ways) => $do,
            Sets::Lru64($ways) => $do,
            Sets::Tree8($ways) => $do,
            Sets::Tree16($ways) => $do,
            Sets::Tree24($ways) => $do,
            Sets::Tree64($ways) => $do,
            Sets::Mru8($ways) => $do,
            Sets::Mru16($ways) => $do,
            Sets::Mru24($ways) => $do,
            Sets::Mru64($ways) => $do,
            Sets::Quad8($ways) => $do,
            Sets::Quad16($ways) => $do,
            Sets::Quad24($ways) => $do,
            Sets::Quad64($ways) => $do,
        }
    };
}
pub(super) use each_kind;

impl Sets {
    pub(super) fn new(sets: u64, ways: usize, replacement: Replacement) -> Self {
        match (replacement, ways) {
            (_, 1) => Self::Direct(Direct::new(sets)),
            (Replacement::Lru, 0..=8) => Self::Lru8(Ways::new(sets, ways, ())),
            (Replacement::Lru, 9..=16) => Self::Lru16(Ways::new(sets, ways, ())),
            (Replacement::Lru, 17..=24) => Self::Lru24(Ways::new(sets, ways, ())),
            (Replacement::Lru, _) => Self::Lru64(Ways::new(sets, ways, ())),
            (Replacement::TreePlru, 0..=8) => Self::Tree8(Ways::new(sets, ways, ())),
            (Replacement::TreePlru, 9..=16) => Self::Tree16(Ways::new(sets, ways, ())),
            (Replacement::TreePlru, 17..=24) => Self::Tree24(Ways::new(sets, ways, ())),
            (Replacement::TreePlru, _) => Self::Tree64(Ways::new(sets, ways, ())),
            (Replacement::Mru, 0..=8) => Self::Mru8(Ways::new(sets, ways, ())),
            (Replacement::Mru, 9..=16) => Self::Mru16(Ways::new(sets, ways, ())),
            (Replacement::Mru, 17..=24) => Self::Mru24(Ways::new(sets, ways, ())),
            (Replacement::Mru, _) => Self::Mru64(Ways::new(sets, ways, ())),
            (Replacement::Qlru(qlru), 0..=8) => {
                Self::Quad8(Ways::new(sets, ways, QuadRules::new(qlru)))
            }
            (Replacement::Qlru(qlru), 9..=16) => {
                Self::Quad16(Ways::new(sets, ways, QuadRules::new(qlru)))
            }
            (Replacement::Qlru(qlru), 17..=24) => {
                Self::Quad24(Ways::new(sets, ways, QuadRules::new(qlru)))
            }
            (Replacement::Qlru(qlru), _) => {
                Self::Quad64(Ways::new(sets, ways, QuadRules::new(qlru)))
            }
        }
    }

    /// The lines held: set, tag and owner.
    #[cfg(test)]
    pub(super) fn held(&self) -> Vec<(usize, i32, Owner)> {
        each_kind!(self, ways => ways.held())
    }
}
