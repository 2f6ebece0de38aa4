//! Which slice of a cache holds a line.

use crate::{ColourError, skylake};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How the lines are spread over the slices of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SliceHash {
    /// No hash: one piece, indexed by line number modulo sets of all slices. On a processor with a
    /// hash it makes colouring look better than it is.
    #[default]
    None,
    /// Each bit of the slice's number is the parity of some address bits: Sandy Bridge to Broadwell
    /// with 2, 4 and 8 slices (found by Maurice et al., RAID 2015; the masks are those of KTH's public
    /// code for the Xeon E5-2667 v3). Bits above 37 are in no function that is published.
    Intel,
    /// Skylake-SP and Cascade Lake-SP with 20 slices, by measurement; see `skylake.rs`.
    Skylake,
    /// For any number of slices, and no processor's: a stand-in where the function is not published.
    /// Like those of a power of two of slices that are, it is even: successive lines are in successive slices, and in every
    /// aligned piece of memory of one way's size each set of each slice gets one line. Where such a
    /// piece begins is scattered by a mixing function.
    Even,
}

/// The address bits of each bit of the slice's number, lowest first.
const INTEL: [u64; 3] = [0x1b_5f57_5440, 0x2e_b5fa_a880, 0x3c_ccc9_3100];

impl SliceHash {
    /// Every function.
    pub const ALL: [Self; 4] = [Self::None, Self::Intel, Self::Skylake, Self::Even];

    /// Name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Intel => "intel",
            Self::Skylake => "skylake",
            Self::Even => "even",
        }
    }

    /// The numbers of slices that the function is known for; `None` when any will do.
    pub const fn slices(self) -> Option<&'static [u32]> {
        match self {
            Self::None | Self::Even => None,
            Self::Intel => Some(&[1, 2, 4, 8]),
            Self::Skylake => Some(&[skylake::SLICES]),
        }
    }

    /// Whether the function is known for so many slices.
    ///
    /// # Errors
    /// [`ColourError::Slices`] when not.
    pub fn check(self, slices: u32) -> Result<(), ColourError> {
        match self.slices() {
            Some(known) if !known.contains(&slices) => {
                Err(ColourError::Slices { hash: self.name(), published: known, slices })
            }
            _ => Ok(()),
        }
    }

    /// The slice of a line, given the sets in a slice.
    #[inline]
    pub(crate) fn slice(self, line: u64, line_shift: u32, sets: u64, slices: u32) -> u64 {
        let slices = u64::from(slices);
        match self {
            Self::None => line % slices,
            Self::Intel => {
                let addr = line << line_shift;
                let bit = |at: usize| u64::from((addr & INTEL[at]).count_ones() % 2) << at;
                (bit(0) | bit(1) | bit(2)) & (slices - 1)
            }
            Self::Skylake => skylake::slice(line << line_shift),
            Self::Even => {
                let (way, set) = (line / sets, line % sets);
                (way + set + mix(way / slices) % slices) % slices
            }
        }
    }
}

/// Scatters numbers: the finisher of SplitMix64 (Steele et al., OOPSLA 2014).
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

impl fmt::Display for SliceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SliceHash {
    type Err = ColourError;

    fn from_str(name: &str) -> Result<Self, ColourError> {
        let found = Self::ALL.into_iter().find(|hash| hash.name() == name);
        found.ok_or_else(|| ColourError::UnknownHash { name: name.to_owned() })
    }
}

impl TryFrom<String> for SliceHash {
    type Error = ColourError;

    fn try_from(name: String) -> Result<Self, ColourError> {
        name.parse()
    }
}

impl From<SliceHash> for String {
    fn from(hash: SliceHash) -> Self {
        hash.name().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same, bit by bit.
    const PUBLISHED: [&[u32]; 3] = [
        &[6, 10, 12, 14, 16, 17, 18, 20, 22, 24, 25, 26, 27, 28, 30, 32, 33, 35, 36],
        &[7, 11, 13, 15, 17, 19, 20, 21, 22, 23, 24, 26, 28, 29, 31, 33, 34, 35, 37],
        &[8, 12, 13, 16, 19, 22, 23, 26, 27, 30, 31, 34, 35, 36, 37],
    ];

    #[test]
    fn the_functions_are_those_published() {
        for (mask, bits) in INTEL.into_iter().zip(PUBLISHED) {
            assert_eq!(mask, bits.iter().map(|bit| 1u64 << bit).sum());
        }
        for addr in [0u64, 0x40, 0x1_2345_6780, 0x3f_ffff_ffc0] {
            let parity = |bits: &[u32]| bits.iter().map(|bit| addr >> bit & 1).sum::<u64>() % 2;
            let slice = PUBLISHED.map(parity);
            for log in 0..=3 {
                let expected: u64 = (0..log).map(|bit| slice[bit] << bit).sum();
                assert_eq!(SliceHash::Intel.slice(addr >> 6, 6, 2048, 1 << log), expected);
            }
        }
    }

    #[test]
    fn mistakes_name_cause_and_remedy() {
        let unknown = "unknown".parse::<SliceHash>().unwrap_err().to_string();
        assert!(unknown.starts_with("no slice hash is known as unknown; take intel"), "{unknown}");
        let slices = SliceHash::Intel.check(20).unwrap_err().to_string();
        assert!(slices.contains("1, 2, 4 and 8 slices, not 20; take hash even"), "{slices}");
        let slices = SliceHash::Skylake.check(18).unwrap_err().to_string();
        assert!(slices.contains("hash skylake is published for 20 slices, not 18"), "{slices}");
        assert_eq!(SliceHash::Skylake.check(20), Ok(()));
        assert_eq!(SliceHash::Even.check(20), Ok(()));
    }
}
