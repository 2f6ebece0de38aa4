//! Which guest virtual addresses belong to the program.

/// Windows there can be.
pub const MAX: usize = 8;

/// A few ranges of addresses; cheap to ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// Start and length of each; unused ones are empty.
    ranges: [(u64, u64); MAX],
}

impl Windows {
    /// The ranges in these texts, each `START-END` in hexadecimal with or without `0x`.
    ///
    /// # Errors
    /// Which text is none, or that there are none or too many.
    pub fn parse<'t>(texts: impl Iterator<Item = &'t str>) -> Result<Self, String> {
        let mut windows = Self::default();
        let mut count = 0;
        for text in texts {
            let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
            let ends = text.split_once('-').and_then(|(a, b)| Some((number(a)?, number(b)?)));
            let Some((start, end)) = ends.filter(|(start, end)| start < end) else {
                return Err(format!("window={text} is no range; write START-END in hexadecimal"));
            };
            let slot = windows.ranges.get_mut(count);
            *slot.ok_or_else(|| format!("more than {MAX} windows; join some"))? =
                (start, end - start);
            count += 1;
        }
        if count == 0 {
            return Err("the plugin needs its argument window".to_owned());
        }
        Ok(windows)
    }

    /// Whether an address lies in one of them.
    #[inline(always)]
    pub fn contains(&self, at: u64) -> bool {
        // No branch per window: an empty one contains nothing.
        self.ranges.iter().fold(false, |any, (start, len)| any | (at.wrapping_sub(*start) < *len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_contain_their_addresses_and_no_others() {
        let windows = Windows::parse(["0x6000-0x7000", "10-11"].into_iter()).unwrap();
        for (at, inside) in [(0x6000, true), (0x6fff, true), (0x7000, false), (0x10, true)] {
            assert_eq!(windows.contains(at), inside, "{at:#x}");
        }
        assert!(!windows.contains(0) && !windows.contains(0xf) && !windows.contains(u64::MAX));
    }

    #[test]
    fn nonsense_is_refused() {
        for texts in [&["5"][..], &["7-6"], &["x-y"], &[], &["0-1"; MAX + 1]] {
            assert!(Windows::parse(texts.iter().copied()).is_err(), "{texts:?}");
        }
    }
}
