//! The owner words of all frames, packed.

use crate::pattern::RegionBits;
use rustc_hash::FxHashMap;

/// Bits of an owner word that are kept as they are.
const KEPT: u32 = 20;

/// Prefixes that have a number, that of [`SPILLED`] not counted.
const PREFIXES: usize = (1 << (32 - KEPT)) - 1;

/// The number that says that the word is in `spilled`.
const SPILLED: u32 = PREFIXES as u32;

/// A word of 64 bits a frame in 32: words are alike in their upper bits, so those are numbered.
///
/// ```text
/// bit  31..20                     19..0
///      number of the word's       the word's lowest bits
///      upper 44 bits
/// ```
///
/// Number 0 is that of the prefix 0, so that 0 stands for 0. Words whose prefix came when all
/// numbers were given are kept aside, whole.
pub(crate) struct Owners {
    codes: Vec<u32>,
    prefixes: Vec<u64>,
    numbers: FxHashMap<u64, u32>,
    spilled: FxHashMap<u64, u64>,
}

impl Owners {
    /// `frames` frames without owners, committed on touch.
    pub fn new(frames: u64) -> Self {
        Self {
            codes: vec![0; frames as usize],
            prefixes: vec![0],
            numbers: FxHashMap::from_iter([(0, 0)]),
            spilled: FxHashMap::default(),
        }
    }

    #[inline]
    fn decode(&self, frame: u64, code: u32) -> u64 {
        match self.prefixes.get((code >> KEPT) as usize) {
            Some(prefix) => prefix << KEPT | u64::from(code) & ((1 << KEPT) - 1),
            None => self.spilled[&frame],
        }
    }

    #[inline]
    pub fn get(&self, frame: u64) -> u64 {
        self.decode(frame, self.codes[frame as usize])
    }

    #[inline]
    pub fn set(&mut self, frame: u64, word: u64) {
        self.take(frame);
        let number = self.number(word >> KEPT);
        let kept = word as u32 & ((1 << KEPT) - 1);
        self.codes[frame as usize] = number << KEPT | kept;
        if number == SPILLED {
            self.spilled.insert(frame, word);
        }
    }

    /// Gives frames that nobody owns to `word`, 0 for nobody: those whose bits are set in `mask`,
    /// counted from `first`.
    pub fn set_all(&mut self, first: u64, mask: &RegionBits, word: u64) {
        if word == 0 {
            return;
        }
        let number = self.number(word >> KEPT);
        let code = number << KEPT | word as u32 & ((1 << KEPT) - 1);
        for (at, &bits) in (first..).step_by(64).zip(mask) {
            let mut rest = bits;
            while rest != 0 {
                let frame = at + u64::from(rest.trailing_zeros());
                rest &= rest - 1;
                self.codes[frame as usize] = code;
                if number == SPILLED {
                    self.spilled.insert(frame, word);
                }
            }
        }
    }

    #[inline]
    pub fn take(&mut self, frame: u64) -> u64 {
        let code = std::mem::take(&mut self.codes[frame as usize]);
        let word = self.decode(frame, code);
        if code >> KEPT == SPILLED {
            self.spilled.remove(&frame);
        }
        word
    }

    /// The number of a prefix, given now if it has none.
    #[inline]
    fn number(&mut self, prefix: u64) -> u32 {
        if let Some(number) = self.numbers.get(&prefix) {
            return *number;
        }
        if self.prefixes.len() == PREFIXES {
            return SPILLED;
        }
        let number = self.prefixes.len() as u32;
        self.prefixes.push(prefix);
        self.numbers.insert(prefix, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn owners_are_those_of_plain_words(
            changes in prop::collection::vec((0..40u64, any::<Option<u64>>(), 0u32..64), 1..200),
            full in any::<bool>(),
        ) {
            let mut owners = Owners::new(40);
            if full {
                // Numbers for all but a few prefixes are given already.
                (1..PREFIXES as u64 - 3).for_each(|prefix| {
                    owners.set(0, prefix << 30);
                });
                owners.take(0);
            }
            let mut plain = [0; 40];
            for (frame, word, shift) in changes {
                match word.map(|word| word >> shift) {
                    Some(word) => {
                        owners.set(frame, word);
                        plain[frame as usize] = word;
                    }
                    None => {
                        let taken = std::mem::take(&mut plain[frame as usize]);
                        prop_assert_eq!(owners.take(frame), taken);
                    }
                }
                for (frame, word) in (0..).zip(plain) {
                    prop_assert_eq!(owners.get(frame), word);
                }
            }
            if full {
                let spilled = owners.codes.iter().filter(|code| *code >> KEPT == SPILLED).count();
                prop_assert_eq!(owners.spilled.len(), spilled);
            }
        }
    }

    #[test]
    fn prefixes_without_a_number_are_kept_aside_and_go_with_their_frame() {
        let mut owners = Owners::new(2);
        let words = (1..2 * PREFIXES as u64).map(|prefix| prefix << KEPT | 7);
        for word in words {
            owners.set(1, word);
            assert_eq!(owners.get(1), word);
        }
        assert_eq!((owners.prefixes.len(), owners.spilled.len()), (PREFIXES, 1));
        assert_eq!(owners.take(1), (2 * PREFIXES as u64 - 1) << KEPT | 7);
        assert_eq!((owners.get(1), owners.spilled.len()), (0, 0));
    }
}
