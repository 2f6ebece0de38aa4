//! The positions of a two-dimensional walk, and what became of each: read from a cache or memory, or
//! saved by a walk cache.

use crate::by_level::ByLevel;
use std::fmt;
use strata_addr::PageSize;
use strata_counters::counters;

/// Place of a reference in a two-dimensional walk.
///
/// ```text
///            n4    n3    n2    n1    G
///   gL4     g4n4  g4n3  g4n2  g4n1   g4
///   ...
///   gL1     g1n4  g1n3  g1n2  g1n1   g1
///   data    dn4   dn3   dn2   dn1
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WalkPosition {
    /// Guest level whose entry is wanted, 5 to 1; 0 for the data itself.
    pub guest: u8,
    /// Level of the second stage that is read, 5 to 1; 0 for the guest entry itself.
    pub nested: u8,
}

/// Levels of a table, and none.
const COLUMNS: usize = 6;

impl WalkPosition {
    /// Number of places, the unused one of the data included.
    pub const COUNT: usize = COLUMNS * COLUMNS;

    /// Place in an array over all positions.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.guest as usize * COLUMNS + self.nested as usize
    }

    /// Whether the position with this index is an entry of the second stage.
    #[inline]
    pub(crate) const fn is_nested(index: usize) -> bool {
        !index.is_multiple_of(COLUMNS)
    }

    /// Every position in the order of a walk.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..COLUMNS as u8).rev().flat_map(|guest| {
            let last = if guest == 0 { 1 } else { 0 };
            (last..COLUMNS as u8).rev().map(move |nested| Self { guest, nested })
        })
    }
}

impl fmt::Display for WalkPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.guest, self.nested) {
            (0, nested) => write!(f, "dn{nested}"),
            (guest, 0) => write!(f, "g{guest}"),
            (guest, nested) => write!(f, "g{guest}n{nested}"),
        }
    }
}

/// What became of one position, over all walks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PositionUse {
    /// References, by where they were served.
    pub read: ByLevel,
    /// Walks that a hit of the guest's paging-structure caches led past it. Where such a hit also saves
    /// the nested walk to a table page, every level of that counts: it is not known how many it would
    /// have read.
    pub pwc: u64,
    /// Nested walks that a hit of the nested paging-structure caches led past it.
    pub nested_pwc: u64,
    /// Nested walks to it or past it that a hit of the nested TLB saved.
    pub ntlb: u64,
}

impl PositionUse {
    /// Walks that came to this position, read or saved.
    pub fn total(&self) -> u64 {
        self.read.total() + self.pwc + self.nested_pwc + self.ntlb
    }
}

counters! {
    /// What walk caches saved: their hits, by the way they led. A hit counts once, since it saves up to
    /// two dozen references.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Skipped {
        /// By levels of the guest's table, those of the second stage (0: none), and the level of the
        /// guest's entry read next.
        pwc: [[[u64; COLUMNS]; COLUMNS]; COLUMNS];
        /// Those of them that also knew the table page: by levels of the second stage and the level of the
        /// guest's entry read next.
        pages: [[u64; COLUMNS]; COLUMNS];
        /// By row of the walk, levels of the second stage, and level of the entry read next.
        nested_pwc: [[[u64; COLUMNS]; COLUMNS]; COLUMNS];
        /// By row of the walk, levels of the second stage, and level of its leaf.
        ntlb: [[[u64; COLUMNS]; COLUMNS]; COLUMNS];
    }
}

impl Skipped {
    /// A walk of tables with these levels goes on at the guest's level `from`; `knows_page` if the table
    /// page was known too.
    #[inline]
    pub(crate) fn by_pwc(&mut self, levels: u8, second_levels: u8, from: u8, knows_page: bool) {
        self.pwc[usize::from(levels)][usize::from(second_levels)][usize::from(from)] += 1;
        self.pages[usize::from(second_levels)][usize::from(from)] += u64::from(knows_page);
    }

    /// The nested walk of row `guest` goes on at level `from` of a second stage of so many levels.
    #[inline]
    pub(crate) fn by_nested_pwc(&mut self, guest: u8, levels: u8, from: u8) {
        self.nested_pwc[usize::from(guest)][usize::from(levels)][usize::from(from)] += 1;
    }

    /// The nested walk of row `guest`, of a second stage of so many levels, is saved: its leaf has this
    /// size.
    #[inline]
    pub(crate) fn by_ntlb(&mut self, guest: u8, levels: u8, leaf: PageSize) {
        self.ntlb[usize::from(guest)][usize::from(levels)][usize::from(leaf.level())] += 1;
    }

    /// The same by position, in the order of [`WalkPosition::index`].
    pub(crate) fn by_position(&self) -> [PositionUse; WalkPosition::COUNT] {
        let mut found = [PositionUse::default(); WalkPosition::COUNT];
        for (levels, second_levels, from, hits) in each(&self.pwc) {
            for guest in from + 1..=levels {
                for nested in 0..=second_levels {
                    found[guest * COLUMNS + nested].pwc += hits;
                }
            }
        }
        for (second_levels, of_stage) in self.pages.iter().enumerate() {
            for (from, hits) in of_stage.iter().enumerate() {
                for nested in 1..=second_levels {
                    found[from * COLUMNS + nested].pwc += hits;
                }
            }
        }
        for (guest, levels, from, hits) in each(&self.nested_pwc) {
            for nested in from + 1..=levels {
                found[guest * COLUMNS + nested].nested_pwc += hits;
            }
        }
        for (guest, levels, leaf, hits) in each(&self.ntlb) {
            for nested in leaf..=levels {
                found[guest * COLUMNS + nested].ntlb += hits;
            }
        }
        found
    }
}

/// Counts that are not 0, each with its three places.
fn each(
    counts: &[[[u64; COLUMNS]; COLUMNS]; COLUMNS],
) -> impl Iterator<Item = (usize, usize, usize, u64)> + '_ {
    let places = (0..COLUMNS)
        .flat_map(|a| (0..COLUMNS).flat_map(move |b| (0..COLUMNS).map(move |c| (a, b, c))));
    places.map(|(a, b, c)| (a, b, c, counts[a][b][c])).filter(|(.., hits)| *hits > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_have_the_names_of_the_papers() {
        let names: Vec<_> = WalkPosition::all().map(|position| position.to_string()).collect();
        assert_eq!(names.len(), 35, "5 levels on 5");
        assert_eq!(&names[..7], ["g5n5", "g5n4", "g5n3", "g5n2", "g5n1", "g5", "g4n5"]);
        assert_eq!(names.last().map(String::as_str), Some("dn1"));
    }
}
