//! Free runs of base pages by size: the contiguity list that xPlace keeps over the buddy allocator
//! (section 5.3, Fig. 5).
//!
//! A *run* is a maximal row of free, unreserved frames inside one HPAS region. A region that is wholly
//! free has none: it is the last to be broken, and the bitmap of free regions knows it. So a fresh
//! memory of any size has an empty list.
//!
//! What is kept is in which regions there is a run of a length that begins with a colour; where it is
//! in its region the bits of the region say. Lengths up to [`SHORT`] are in a bitmap, longer ones, of
//! which a region has few, in a balanced tree.

use crate::REGION_FRAMES;
use crate::bitmap::Bitmap;
use crate::occupancy::REGION_WORDS;
use std::collections::BTreeSet;

/// Runs up to this length are in the bitmap.
const SHORT: u64 = 8;

/// A row of frames of an HPAS region, counted in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub start: u64,
    pub end: u64,
}

impl Row {
    pub fn len(self) -> u64 {
        self.end - self.start
    }
}

/// Consecutive frames that are wanted: so many from one of this colour on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub first: u64,
    pub frames: u64,
}

/// The runs of a memory.
pub(crate) struct FreeRuns {
    colours: u64,
    regions: u64,
    short: Bitmap,
    /// Length, colour of the first frame, region.
    long: BTreeSet<(u16, u16, u32)>,
}

impl FreeRuns {
    /// None, in a memory of so many regions, the last of which need not be whole.
    pub fn new(colours: u64, regions: u64) -> Self {
        let short = Bitmap::new(SHORT * colours * regions);
        Self { colours, regions, short, long: BTreeSet::new() }
    }

    fn colour(&self, region: u64, at: u64) -> u64 {
        (region * REGION_FRAMES + at) % self.colours
    }

    fn bit(&self, length: u64, colour: u64, region: u64) -> u64 {
        ((length - 1) * self.colours + colour) * self.regions + region
    }

    /// A run is there now.
    pub fn insert(&mut self, region: u64, run: Row) {
        let (length, colour) = (run.len(), self.colour(region, run.start));
        match length {
            0 | REGION_FRAMES => {}
            1..=SHORT => self.short.set(self.bit(length, colour, region)),
            _ => {
                self.long.insert((length as u16, colour as u16, region as u32));
            }
        }
    }

    /// A run is there no more; `used` is how its region is without it.
    pub fn remove(&mut self, region: u64, run: Row, used: &[u64; REGION_WORDS]) {
        let (length, colour) = (run.len(), self.colour(region, run.start));
        if length == 0 || length == REGION_FRAMES {
            return;
        }
        let is_alike =
            |other: &Row| other.len() == length && self.colour(region, other.start) == colour;
        if rows(used).any(|other| is_alike(&other)) {
            return;
        }
        if length <= SHORT {
            self.short.clear(self.bit(length, colour, region));
        } else {
            self.long.remove(&(length as u16, colour as u16, region as u32));
        }
    }

    /// All runs of a region.
    pub fn insert_all(&mut self, region: u64, used: &[u64; REGION_WORDS]) {
        rows(used).for_each(|run| self.insert(region, run));
    }

    /// Region and length of the shortest run that has the frames wanted, of equals one in the lowest
    /// region.
    pub fn shortest(&self, wanted: Wanted) -> Option<(u64, u64)> {
        let Wanted { first, frames } = wanted;
        let short = (frames..=SHORT).find_map(|length| {
            let region = self.beginnings(first, length - frames).filter_map(|colour| {
                let row = self.bit(length, colour, 0);
                let found = self.short.next_set(row)? - row;
                (found < self.regions).then_some(found)
            });
            Some((region.min()?, length))
        });
        short.or_else(|| self.shortest_long(wanted))
    }

    fn shortest_long(&self, Wanted { first, frames }: Wanted) -> Option<(u64, u64)> {
        let mut least = frames.max(SHORT + 1) as u16;
        loop {
            // The next length there is.
            let (length, ..) = *self.long.range((least, 0, 0)..).next()?;
            let slack = u64::from(length) - frames;
            let region = self.beginnings(first, slack).filter_map(|colour| {
                let colour = colour as u16;
                let of_class = (length, colour, 0)..=(length, colour, u32::MAX);
                self.long.range(of_class).next().map(|(_, _, region)| u64::from(*region))
            });
            if let Some(region) = region.min() {
                return Some((region, u64::from(length)));
            }
            least = length + 1;
        }
    }

    /// The colours a run may begin with to have one of colour `first` after at most `slack` frames.
    fn beginnings(&self, first: u64, slack: u64) -> impl Iterator<Item = u64> {
        let colours = self.colours;
        (0..=slack.min(colours - 1)).map(move |before| (first + colours - before) % colours)
    }

    /// Whether these are the runs of another memory.
    pub fn is_same(&self, other: &Self) -> bool {
        self.long == other.long && self.short.iter().eq(other.short.iter())
    }
}

/// The maximal rows of free frames of a region, ascending.
pub(crate) fn rows(used: &[u64; REGION_WORDS]) -> impl Iterator<Item = Row> + '_ {
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = next(used, from, false);
        if start == REGION_FRAMES {
            return None;
        }
        from = next(used, start, true);
        Some(Row { start, end: from })
    })
}

/// The maximal row of free frames around `within`, whose frames count as free.
pub(crate) fn row_around(used: &[u64; REGION_WORDS], within: Row) -> Row {
    Row { start: begin(used, within.start), end: next(used, within.end, true) }
}

/// The first frame at or after `from` that is used or not; the end of the region if there is none.
fn next(used: &[u64; REGION_WORDS], from: u64, is_used: bool) -> u64 {
    let flip = if is_used { 0 } else { u64::MAX };
    let mut cut = u64::MAX << (from % 64);
    for (at, word) in used.iter().enumerate().skip(from as usize / 64) {
        let word = (word ^ flip) & cut;
        if word != 0 {
            return at as u64 * 64 + u64::from(word.trailing_zeros());
        }
        cut = u64::MAX;
    }
    REGION_FRAMES
}

/// The frame after the last used one below `to`.
fn begin(used: &[u64; REGION_WORDS], to: u64) -> u64 {
    let mut cut = !(u64::MAX << (to % 64));
    for at in (0..=(to as usize / 64).min(REGION_WORDS - 1)).rev() {
        let word = used[at] & cut;
        if word != 0 {
            return (at as u64 + 1) * 64 - u64::from(word.leading_zeros());
        }
        cut = u64::MAX;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_are_those_of_single_bits(
            words in prop::array::uniform8(prop_oneof![
                Just(0u64), Just(u64::MAX), any::<u64>(), (any::<u64>(), any::<u64>()).prop_map(|(a, b)| a & b)
            ]),
            at in 0..REGION_FRAMES,
        ) {
            let is_used = |frame: u64| words[frame as usize / 64] >> (frame % 64) & 1 != 0;
            let mut expected: Vec<Row> = Vec::new();
            for frame in (0..REGION_FRAMES).filter(|frame| !is_used(*frame)) {
                match expected.last_mut() {
                    Some(row) if row.end == frame => row.end += 1,
                    _ => expected.push(Row { start: frame, end: frame + 1 }),
                }
            }
            prop_assert!(rows(&words).eq(expected.iter().copied()));
            if let Some(row) = expected.iter().find(|row| (row.start..row.end).contains(&at)) {
                prop_assert_eq!(row_around(&words, Row { start: at, end: at + 1 }), *row);
            }
        }
    }
}
