//! Which ways of the last-level cache a VM may fill.

use std::fmt;
use std::str::FromStr;

/// A class of service's ways, as Intel's Cache Allocation Technology has them: a bit for each way, those
/// set next to each other (SDM volume 3B, section 17.19). It restricts what is *filled*; a line is
/// found in whatever way it is.
///
/// ```
/// use strata_hardware::WayMask;
///
/// assert_eq!("6".parse::<WayMask>()?, WayMask::new(0x3f)?);
/// assert_eq!("0x7c0".parse::<WayMask>()?.count(), 5);
/// assert!("0x5".parse::<WayMask>().is_err());
/// # Ok::<(), strata_hardware::MaskError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WayMask(u64);

/// Ways no cache can give; each message is one line with cause and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    /// Not a single way.
    #[error("no way at all: give at least 1 way, or a mask with a bit set")]
    Empty,
    /// Ways that are not next to each other.
    #[error(
        "the ways of {0:#x} are not next to each other, as those of a class of service must be: give \
         a mask whose bits are contiguous, such as {nearest:#x}",
        nearest = contiguous(*.0)
    )]
    Gaps(u64),
    /// More ways than the cache has.
    #[error("{mask} reaches beyond the {ways} ways of the last-level cache: {remedy}",
        remedy = if *ways == 0 {
            "there is none; choose a CPU that has one".to_owned()
        } else {
            format!("give at most {ways} ways, or a mask up to {}", WayMask::first(*ways))
        })]
    TooWide {
        /// As asked for.
        mask: WayMask,
        /// What there is.
        ways: u32,
    },
    /// Neither a number nor a mask.
    #[error(
        "'{0}' is neither a number of ways nor a mask: give a number, such as 6, or a hexadecimal mask \
         that begins with 0x, such as 0x3f"
    )]
    Unreadable(String),
}

/// The narrowest contiguous mask that has these bits.
fn contiguous(bits: u64) -> u64 {
    let highest = u64::MAX >> bits.leading_zeros().min(63);
    highest & (u64::MAX << bits.trailing_zeros().min(63))
}

impl WayMask {
    /// The ways whose bits are set.
    ///
    /// # Errors
    /// [`MaskError`] when none is, or they are not next to each other.
    pub const fn new(bits: u64) -> Result<Self, MaskError> {
        if bits == 0 {
            return Err(MaskError::Empty);
        }
        let from_the_lowest = bits >> bits.trailing_zeros();
        if from_the_lowest & from_the_lowest.wrapping_add(1) != 0 {
            return Err(MaskError::Gaps(bits));
        }
        Ok(Self(bits))
    }

    /// The lowest ways, so many; 1 to 64.
    pub(crate) const fn first(ways: u32) -> Self {
        Self(u64::MAX >> (64 - ways))
    }

    /// A bit for each way, the lowest way's lowest.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Number of ways.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether a cache with so many ways has all of them.
    ///
    /// # Errors
    /// [`MaskError::TooWide`] if not.
    pub const fn check(self, ways: u32) -> Result<(), MaskError> {
        if u64::BITS - self.0.leading_zeros() > ways {
            return Err(MaskError::TooWide { mask: self, ways });
        }
        Ok(())
    }
}

/// A number of ways, the lowest ones, or a mask that begins with `0x`.
impl FromStr for WayMask {
    type Err = MaskError;

    fn from_str(text: &str) -> Result<Self, MaskError> {
        let unreadable = || MaskError::Unreadable(text.to_owned());
        if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            // What the standard library takes besides digits is a sign.
            let digits = Some(digits).filter(|digits| !digits.starts_with('+'));
            let bits = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            return Self::new(bits.ok_or_else(unreadable)?);
        }
        match text.parse().ok().filter(|_| !text.starts_with('+')) {
            Some(0) => Err(MaskError::Empty),
            Some(ways @ 1..=64) => Ok(Self::first(ways)),
            _ => Err(unreadable()),
        }
    }
}

impl fmt::Display for WayMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for WayMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WayMask({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn masks_are_runs_of_bits(first in 0u32..64, count in 1u32..=64) {
            let count = count.min(64 - first);
            let bits = (first..first + count).map(|bit| 1u64 << bit).sum();
            let mask = WayMask::new(bits).unwrap();
            prop_assert_eq!(mask.count(), count);
            prop_assert_eq!(mask.to_string().parse(), Ok(mask));
            for ways in 1..=64 {
                prop_assert_eq!(mask.check(ways).is_ok(), first + count <= ways);
            }
        }

        #[test]
        fn gaps_are_found(bits in any::<u64>()) {
            let text = format!("{bits:b}");
            let has_gap = text.trim_matches('0').contains('0');
            match WayMask::new(bits) {
                Ok(_) => prop_assert!(bits != 0 && !has_gap),
                Err(MaskError::Empty) => prop_assert_eq!(bits, 0),
                Err(error) => {
                    prop_assert_eq!(&error, &MaskError::Gaps(bits));
                    prop_assert!(has_gap);
                    prop_assert!(WayMask::new(contiguous(bits)).is_ok());
                }
            }
        }
    }

    #[test]
    fn mistakes_name_cause_and_remedy() {
        let message = |text: &str| text.parse::<WayMask>().unwrap_err().to_string();
        assert!(message("0").contains("at least 1 way"));
        assert!(message("0x0").contains("at least 1 way"));
        assert!(message("0x15").ends_with("such as 0x1f"), "{}", message("0x15"));
        for text in ["", "7f", "0x", "0x+1", "+1", "-1", "65", "1.5", "0x1ffffffffffffffff"] {
            assert!(message(text).contains("begins with 0x"), "{text}");
        }
        let wide = "12".parse::<WayMask>().unwrap().check(11).unwrap_err().to_string();
        assert!(wide.starts_with("0xfff reaches beyond the 11 ways"), "{wide}");
        assert!(wide.ends_with("at most 11 ways, or a mask up to 0x7ff"), "{wide}");
        let none = WayMask::first(1).check(0).unwrap_err().to_string();
        assert!(none.contains("there is none"), "{none}");
    }
}
