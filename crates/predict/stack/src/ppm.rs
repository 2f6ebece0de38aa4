//! Page placement: which cache colour a kernel takes a base page of.
//!
//! The mechanisms are those of Kessler and Hill ("Page placement algorithms for large real-indexed
//! caches", TOCS 10(4), 1992), who call a colour a bin. Where there is no free page of the colour wanted,
//! the next colour that has one is taken. Colours are those of the kernel's own physical addresses: real
//! ones on the host, those of the virtual last-level cache in a VM.

use crate::owner::{Owner, SpaceId};
use rustc_hash::FxHashMap;
use std::fmt;
use std::str::FromStr;
use strata_addr::{Frame, space::Lower, space::Upper};
use strata_colours::{Colour, Colours};
use strata_frames::Memory;

/// How a kernel places pages. Where colours are those of huge pages, these are what it places, and base pages are
/// where Linux has them. Else it is base pages: all that it takes without a policy naming frame or colour, so those of
/// programs, of page tables, copies on write, and where compaction moves pages to.
///
/// ```
/// use strata_stack::PagePlacement;
/// assert_eq!("bin-hopping".parse(), Ok(PagePlacement::BinHopping));
/// assert_eq!(PagePlacement::default().to_string(), "linux");
/// assert!("rainbow".parse::<PagePlacement>().unwrap_err().to_string().contains("best-bin"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PagePlacement {
    /// As Linux does, without regard to colours: the lowest free frame.
    #[default]
    Linux,
    /// A colour at random.
    Random,
    /// Each page of a process has the colour after that of the page before.
    BinHopping,
    /// The colour is the number of the virtual page plus a hash of the process, modulo the colours: pages
    /// that follow one another never meet (FreeBSD; with the hash, processes do not begin alike).
    Colouring,
    /// The colour of which the process has the fewest pages; of these the one with the most free pages.
    BestBin,
    /// The same, decided half by half from the lowest bit of the colour on, so that pages are spread well
    /// over every smaller cache, too.
    Hierarchical,
}

impl PagePlacement {
    /// Every one, the plainest first.
    pub const ALL: [Self; 6] = [
        Self::Linux,
        Self::Random,
        Self::BinHopping,
        Self::Colouring,
        Self::BestBin,
        Self::Hierarchical,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Random => "random",
            Self::BinHopping => "bin-hopping",
            Self::Colouring => "colouring",
            Self::BestBin => "best-bin",
            Self::Hierarchical => "hierarchical",
        }
    }
}

impl fmt::Display for PagePlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no page placement has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no page placement is called '{0}': choose linux, random, bin-hopping, colouring, best-bin or \
     hierarchical"
)]
pub struct UnknownPlacement(pub String);

impl FromStr for PagePlacement {
    type Err = UnknownPlacement;

    fn from_str(name: &str) -> Result<Self, UnknownPlacement> {
        let found = Self::ALL.into_iter().find(|placement| placement.name() == name);
        found.ok_or_else(|| UnknownPlacement(name.to_owned()))
    }
}

/// What a base page is taken for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// This page of a space.
    Page(SpaceId, Frame<Upper>),
    /// The kernel itself: a page table.
    Kernel,
    /// The content of another frame, which keeps its colour.
    Moved(Frame<Lower>),
}

/// Whose pages are counted: a space's, or the kernel's own.
type Holder = Option<SpaceId>;

/// What a kernel remembers to place pages.
#[derive(Debug)]
pub(crate) struct Placer {
    how: PagePlacement,
    colours: Colours,
    seed: u64,
    /// Numbers drawn.
    drawn: u64,
    /// The colour that comes next.
    next: FxHashMap<Holder, u32>,
    /// Pages of each colour that only this holder has.
    used: FxHashMap<Holder, Vec<u32>>,
}

impl Placer {
    pub fn new(how: PagePlacement, colours: Colours, seed: u64) -> Self {
        let (next, used) = (FxHashMap::default(), FxHashMap::default());
        Self { how, colours, seed, drawn: 0, next, used }
    }

    /// The colours it places by.
    pub fn colours(&self) -> Colours {
        self.colours
    }

    /// The colour wanted.
    pub fn wish(&mut self, memory: &Memory, purpose: Purpose) -> Colour<Lower> {
        let (holder, page) = match purpose {
            Purpose::Page(space, page) => (Some(space), Some(page)),
            Purpose::Kernel => (None, None),
            Purpose::Moved(from) => return self.colours.of(from),
        };
        let count = u64::from(self.colours.count());
        let colour = match (self.how, page) {
            (PagePlacement::Random, _) => {
                self.drawn += 1;
                below(mix(self.seed.wrapping_add(mix(self.drawn))), count)
            }
            (PagePlacement::Colouring, Some(page)) => {
                ((page.get() >> self.colours.unit().order()) + below(self.hash(holder), count))
                    % count
            }
            (PagePlacement::BestBin, _) => self.best_bin(memory, holder),
            (PagePlacement::Hierarchical, _) => self.descend(memory, holder),
            // Page tables have no virtual page.
            (PagePlacement::Linux | PagePlacement::BinHopping | PagePlacement::Colouring, _) => {
                let first = below(self.hash(holder), count) as u32;
                u64::from(*self.next.entry(holder).or_insert(first))
            }
        };
        Colour::new(colour as u32)
    }

    /// This colour was to be had.
    pub fn took(&mut self, purpose: Purpose, colour: Colour<Lower>) {
        let holder = match purpose {
            Purpose::Page(space, _) => Some(space),
            Purpose::Kernel => None,
            Purpose::Moved(_) => return,
        };
        if let Some(next) = self.next.get_mut(&holder) {
            *next = (colour.index() + 1) % self.colours.count();
        }
    }

    /// A frame has or loses an owner.
    pub fn owned(&mut self, frame: Frame<Lower>, owner: Owner, more: bool) {
        let holder = match owner {
            Owner::Page(space, _) => Some(space),
            Owner::Table => None,
            _ => return,
        };
        if !matches!(self.how, PagePlacement::BestBin | PagePlacement::Hierarchical) {
            return;
        }
        let colours = self.colours.count() as usize;
        let used = self.used.entry(holder).or_insert_with(|| vec![0; colours]);
        let of_colour = &mut used[self.colours.of(frame).index() as usize];
        *of_colour = if more { *of_colour + 1 } else { *of_colour - 1 };
    }

    /// A space is gone; its number will be another's.
    pub fn forget(&mut self, space: SpaceId) {
        self.next.remove(&Some(space));
        self.used.remove(&Some(space));
    }

    /// What tells processes apart; the same for the same seed.
    fn hash(&self, holder: Holder) -> u64 {
        mix(self.seed.wrapping_add(holder.map_or(0, |space| u64::from(space.0) + 1)))
    }

    /// Pages that a holder has of a colour, and those that are free.
    fn bin(&self, memory: &Memory, holder: Holder, colour: u32) -> Bin {
        let used = self.used.get(&holder).map_or(0, |used| used[colour as usize]);
        let colour = Colour::new(colour);
        let free = match self.colours.are_of_huge_pages() {
            true => memory.free_regions_of(self.colours, colour),
            false => memory.free_of(colour),
        };
        Bin { used: u64::from(used), free }
    }

    fn best_bin(&self, memory: &Memory, holder: Holder) -> u64 {
        let bins = (0..self.colours.count()).map(|colour| self.bin(memory, holder, colour));
        best(bins)
    }

    /// Down the tree of bins: its root is all, its leaves single colours, and the children of a node
    /// are told apart by the next bit of the colour (by the next factor, where their number is no power of
    /// two).
    fn descend(&self, memory: &Memory, holder: Holder) -> u64 {
        let count = u64::from(self.colours.count());
        let (mut residue, mut modulus) = (0, 1);
        while modulus < count {
            let rest = count / modulus;
            let factor = (2..=rest).find(|factor| rest.is_multiple_of(*factor)).unwrap_or(rest);
            let children = (0..factor).map(|child| {
                let first = residue + child * modulus;
                let leaves = (first..count).step_by((modulus * factor) as usize);
                leaves.map(|colour| self.bin(memory, holder, colour as u32)).fold(
                    Bin::default(),
                    |sum, bin| Bin { used: sum.used + bin.used, free: sum.free + bin.free },
                )
            });
            residue += best(children) * modulus;
            modulus *= factor;
        }
        residue
    }
}

/// Pages of a colour, or of several.
#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    used: u64,
    free: u64,
}

/// The number of the best bin: has a free page, has the fewest used, then the most free ones; of equals the
/// first.
fn best(bins: impl Iterator<Item = Bin>) -> u64 {
    let key = |bin: &Bin| (bin.free == 0, bin.used, std::cmp::Reverse(bin.free));
    let best = (0..).zip(bins).min_by_key(|(_, bin)| key(bin));
    best.map_or(0, |(number, _)| number)
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub(crate) fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// A number below `end` for a random one.
fn below(random: u64, end: u64) -> u64 {
    ((u128::from(random) * u128::from(end)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outputs of SplitMix64's reference implementation for seed 1234567: a seed means the same colours for good.
    #[test]
    fn numbers_are_those_of_the_reference() {
        let step = 0x9e37_79b9_7f4a_7c15;
        let found = [0, 1, 2].map(|n: u64| mix(n.wrapping_mul(step).wrapping_add(1_234_567)));
        assert_eq!(found, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
        // Below a bound they are as even: the share of all numbers that is before them.
        assert_eq!([0, 1 << 62, u64::MAX].map(|random| below(random, 16)), [0, 4, 15]);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for placement in PagePlacement::ALL {
            assert_eq!(placement.to_string().parse(), Ok(placement));
        }
        let error = "coloring".parse::<PagePlacement>().unwrap_err().to_string();
        assert!(error.contains("'coloring'") && error.contains("colouring"), "{error}");
        let named = PagePlacement::ALL.iter().all(|placement| error.contains(placement.name()));
        assert!(named, "{error}");
    }
}
