//! What a word holds: a function of the seed, of its own address and of its page's generation, that
//! can be read backwards. So a page that is stale, at the wrong place, or torn tells where it comes
//! from, to whoever finds it, even in another layer.

use super::super::region::PAGE;
use std::fmt;

/// Words of a page.
pub(in crate::work) const WORDS: usize = PAGE / 8;
/// Bits of a page's generation, which goes round.
const GENERATION_BITS: u32 = 18;
/// Bits of a word's place in its page.
const WORD_BITS: u32 = 9;
/// Bits of a page's number in the region.
const PAGE_BITS: u32 = 20;
/// Where the bit is that says that the contents are not the page's own.
const SAME_AT: u32 = GENERATION_BITS + WORD_BITS + PAGE_BITS;
/// Where the check begins, which takes the rest.
const CHECK_AT: u32 = SAME_AT + 1;

/// Pages a region can have.
pub(in crate::work) const PAGES_MAX: usize = 1 << PAGE_BITS;

/// Odd numbers, so that multiplication by them can be undone (those of Moremur, by Pelle Evensen).
const FACTORS: [u64; 2] = [0x3C79_AC49_2BA7_B653, 0x1C69_B3F7_4AC4_AE35];

/// What a page is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::work) enum Contents {
    /// Nothing but zeros: it was given back to the kernel.
    Zero,
    /// Its own contents, of this generation.
    Own(u32),
    /// The same as every other page with this number: a page for KSM to merge.
    Same(u32),
}

/// The generation that follows.
pub(in crate::work) fn following(generation: u32) -> u32 {
    (generation + 1) & ((1 << GENERATION_BITS) - 1)
}

/// Where a word belongs, by its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::work) enum Owner {
    /// To this address, in this generation of its page.
    Address {
        /// Of the word.
        address: usize,
        /// Of its page.
        generation: u32,
    },
    /// To this place in any page of those made the same.
    Same {
        /// Bytes from the page's start.
        offset: usize,
        /// Which of the few contents.
        value: u32,
    },
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { address, generation } => {
                write!(f, "{address:#x} in generation {generation}")
            }
            Self::Same { offset, value } => {
                write!(f, "byte {offset} of a page made the same as others, number {value}")
            }
        }
    }
}

/// What is wrong with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::work) enum Wrong {
    /// It is zero: the page was lost.
    Lost,
    /// It is of another generation of the same page.
    Stale(u32),
    /// It belongs elsewhere.
    Foreign(Owner),
    /// Its halves are of two generations.
    Torn {
        /// Of the lower four bytes.
        low: u32,
        /// Of the upper four bytes.
        high: u32,
    },
    /// No pattern of this seed.
    Alien,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => write!(f, "zero: the page was lost"),
            Self::Stale(generation) => write!(f, "stale: generation {generation} of the page"),
            Self::Foreign(owner) => write!(f, "foreign: it belongs to {owner}"),
            Self::Torn { low, high } => {
                write!(f, "torn: generation {low} below, {high} above")
            }
            Self::Alien => write!(f, "no word of this program"),
        }
    }
}

/// The pattern of one seed over one region.
#[derive(Clone, Copy, Debug)]
pub(in crate::work) struct Pattern {
    key: u64,
    check: u64,
    /// First address of the region.
    start: usize,
}

impl Pattern {
    /// Of a region of at most [`PAGES_MAX`] pages.
    pub(in crate::work) fn new(seed: u64, start: usize) -> Self {
        let key = mix(seed ^ FACTORS[0]);
        Self { key, check: mix(key) >> CHECK_AT << CHECK_AT, start }
    }

    /// The word that belongs to an address, if its page holds this.
    pub(in crate::work) fn word(&self, contents: Contents, address: usize) -> u64 {
        let at = address - self.start;
        let word = ((at % PAGE / 8) as u64) << GENERATION_BITS;
        let page = ((at / PAGE) as u64) << (GENERATION_BITS + WORD_BITS);
        let plain = match contents {
            Contents::Zero => return 0,
            Contents::Own(generation) => u64::from(generation) | word | page,
            Contents::Same(value) => u64::from(value) | word | 1 << SAME_AT,
        };
        mix((plain | self.check) ^ self.key)
    }

    /// Whose word it is, if it is one of this pattern; of other words one in 65,536 seems to be.
    pub(in crate::work) fn owner(&self, word: u64) -> Option<Owner> {
        let plain = unmix(word) ^ self.key;
        if plain >> CHECK_AT != self.check >> CHECK_AT {
            return None;
        }
        let field = |at: u32, bits: u32| (plain >> at & ((1 << bits) - 1)) as usize;
        let number = field(0, GENERATION_BITS) as u32;
        let offset = field(GENERATION_BITS, WORD_BITS) * 8;
        let page = field(GENERATION_BITS + WORD_BITS, PAGE_BITS);
        Some(if plain >> SAME_AT & 1 == 1 {
            Owner::Same { offset, value: number }
        } else {
            Owner::Address { address: self.start + page * PAGE + offset, generation: number }
        })
    }

    /// What is wrong with a word that was found at an address. `last` is the page's last generation.
    pub(in crate::work) fn wrong(&self, found: u64, address: usize, last: u32) -> Wrong {
        if found == 0 {
            return Wrong::Lost;
        }
        match self.owner(found) {
            Some(Owner::Address { address: of, generation }) if of == address => {
                return Wrong::Stale(generation);
            }
            Some(owner) => return Wrong::Foreign(owner),
            None => {}
        }
        // Older generations of the page that have this half.
        let of = |half: fn(u64) -> u32| {
            (0..=last)
                .rev()
                .find(|&old| half(self.word(Contents::Own(old), address)) == half(found))
        };
        match (of(|word| word as u32), of(|word| (word >> 32) as u32)) {
            (Some(low), Some(high)) => Wrong::Torn { low, high },
            _ => Wrong::Alien,
        }
    }
}

/// Spreads every bit over the whole word.
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 32).wrapping_mul(FACTORS[0]);
    let word = (word ^ word >> 29).wrapping_mul(FACTORS[1]);
    word ^ word >> 32
}

/// Undoes [`mix`].
fn unmix(word: u64) -> u64 {
    const INVERSES: [u64; 2] = [inverse(FACTORS[0]), inverse(FACTORS[1])];
    let word = (word ^ word >> 32).wrapping_mul(INVERSES[1]);
    let word = (word ^ word >> 29 ^ word >> 58).wrapping_mul(INVERSES[0]);
    word ^ word >> 32
}

/// The number whose product with an odd number is 1, by Newton's method.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut bits = 3;
    while bits < 64 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        bits *= 2;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: usize = 0x6000_0000_0000;
    const LAST: u32 = (1 << GENERATION_BITS) - 1;

    fn address() -> impl Strategy<Value = usize> {
        (0..PAGES_MAX, 0..WORDS).prop_map(|(page, word)| START + page * PAGE + word * 8)
    }

    proptest! {
        #[test]
        fn every_word_tells_where_it_belongs(seed: u64, at in address(), generation in 0..=LAST) {
            let pattern = Pattern::new(seed, START);
            let own = pattern.word(Contents::Own(generation), at);
            prop_assert_eq!(pattern.owner(own), Some(Owner::Address { address: at, generation }));
            let same = pattern.word(Contents::Same(generation), at);
            let owner = Owner::Same { offset: at % PAGE, value: generation };
            prop_assert_eq!(pattern.owner(same), Some(owner));
            prop_assert_eq!(pattern.wrong(0, at, generation), Wrong::Lost);
        }

        #[test]
        fn a_swapped_page_and_a_stale_one_are_recognised(
            seed: u64, at in address(), other in address(), new in 1..=LAST, age in 1..100_u32,
        ) {
            let pattern = Pattern::new(seed, START);
            let expected = pattern.word(Contents::Own(new), at);
            let old = new.saturating_sub(age);
            let stale = pattern.word(Contents::Own(old), at);
            prop_assert_ne!(stale, expected);
            prop_assert_eq!(pattern.wrong(stale, at, new), Wrong::Stale(old));
            prop_assume!(other != at);
            let foreign = pattern.word(Contents::Own(old), other);
            prop_assert_ne!(foreign, expected);
            let owner = Owner::Address { address: other, generation: old };
            prop_assert_eq!(pattern.wrong(foreign, at, new), Wrong::Foreign(owner));
            // A page that was merged with others by mistake, or one that should have been.
            let same = pattern.word(Contents::Same(old), at);
            let owner = Owner::Same { offset: at % PAGE, value: old };
            prop_assert_eq!(pattern.wrong(same, at, new), Wrong::Foreign(owner));
        }

        #[test]
        fn words_of_another_seed_are_aliens(seed: u64, at in address(), generation in 0..=LAST) {
            let pattern = Pattern::new(seed, START);
            let other = Pattern::new(seed ^ 1, START).word(Contents::Own(generation), at);
            // The check has 16 bits; the halves of few generations are never met by chance.
            prop_assume!(pattern.owner(other).is_none());
            prop_assert_eq!(pattern.wrong(other, at, 10), Wrong::Alien);
        }

        #[test]
        fn mixing_can_be_undone(word: u64) {
            prop_assert_eq!(unmix(mix(word)), word);
            prop_assert_eq!(mix(unmix(word)), word);
        }
    }

    /// A fixed stream, for a torn word whose check is right by chance is taken for a foreign one.
    #[test]
    fn a_torn_word_is_recognised() {
        let pattern = Pattern::new(7, START);
        let mut recognised = 0;
        for word in 0..500 {
            let at = START + 3 * PAGE + word * 8;
            let new = 100 + word as u32;
            let [before, after] = [new - 1, new].map(|of| pattern.word(Contents::Own(of), at));
            let torn = after & 0xffff_ffff | before >> 32 << 32;
            assert_ne!(torn, after);
            recognised +=
                u32::from(pattern.wrong(torn, at, new) == Wrong::Torn { low: new, high: new - 1 });
        }
        assert!(recognised >= 499, "{recognised} of 500");
    }
}
