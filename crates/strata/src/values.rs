//! Values of options that are read the same way wherever they stand.

use crate::failure::unknown;
use std::fmt;
use std::num::NonZeroUsize;
use strata_engine::{ColouredCache, Colours, Paging, StackKind};
use strata_text::number::exact_size;

/// Reads whole numbers from `least` to `most`. What it says of anything else is what would have
/// been right.
pub fn whole<T: TryFrom<u64>>(
    least: u64,
    most: u64,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match most {
            u64::MAX => format!("give a whole number from {least} up"),
            _ => format!("give a whole number from {least} to {most}"),
        })
    }
}

/// Reads a whole number above 0.
pub fn positive(text: &str) -> Result<NonZeroUsize, String> {
    let number: usize = whole(1, u64::MAX)(text)?;
    Ok(NonZeroUsize::new(number).expect("above 0"))
}

/// How often something happens: a number of times a second, `program` or `none`.
///
/// # Errors
/// When it is none of them.
pub fn rate(text: &str) -> Result<String, String> {
    let is_number = text.parse().is_ok_and(|hertz: f64| hertz.is_finite() && hertz >= 0.0);
    match text {
        "program" | "none" => Ok(text.to_owned()),
        _ if is_number => Ok(text.to_owned()),
        _ => Err("give a number of times a second, program or none".to_owned()),
    }
}

/// The way of this name in which a hypervisor has memory for its VM.
///
/// # Errors
/// When there is none.
pub fn paging(text: &str) -> Result<Paging, String> {
    let names = Paging::ALL.map(Paging::name);
    let known = Paging::ALL.into_iter().find(|paging| paging.name() == text);
    let all = "there are nested, shadow and shadow-on-shadow";
    known.ok_or_else(|| unknown("way of paging", text, names, all))
}

/// The cache of this name whose colours pages are placed by.
///
/// # Errors
/// When there is none.
pub fn coloured_cache(text: &str) -> Result<ColouredCache, String> {
    let named = |cache: &ColouredCache| cache.name() == text;
    ColouredCache::ALL.into_iter().find(named).ok_or_else(|| {
        let names = ColouredCache::ALL.map(ColouredCache::name);
        unknown("cache", text, names, &format!("there are {}", names.join(", ")))
    })
}

/// The size and the ways of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeAndWays {
    /// Bytes.
    pub bytes: u64,
    /// Associativity.
    pub ways: u32,
}

/// As [`l4`] reads it.
impl fmt::Display for SizeAndWays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, ways } = *self;
        f.write_str(&exact_size(bytes))?;
        if ways == 1 { Ok(()) } else { write!(f, "/{ways}") }
    }
}

/// A cache by its size, and its ways where it is not direct-mapped.
///
/// # Errors
/// When it is neither.
pub fn l4(text: &str) -> Result<SizeAndWays, String> {
    let (size, ways) = text.split_once('/').unwrap_or((text, "1"));
    let bytes = strata_text::parse_size(size)?;
    let ways = ways.parse().ok().filter(|ways| *ways > 0);
    let ways = ways.ok_or_else(|| format!("'{text}': give a size and ways, such as 1GiB/2"))?;
    Ok(SizeAndWays { bytes, ways })
}

/// The last-level cache that a VM is told of: its colours, or its size and ways, as `512KiB/4`.
///
/// # Errors
/// When there can be no such cache.
pub fn vllc(text: &str) -> Result<Colours, String> {
    let takes = || {
        format!(
            "'{text}' is no cache that a VM could be told of: give its colours, such as 8, or its size \
             and ways, such as 512KiB/4"
        )
    };
    let Some((size, ways)) = text.split_once('/') else {
        return text.parse().ok().and_then(Colours::counted).ok_or_else(takes);
    };
    let bytes = strata_text::parse_size(size).map_err(|_| takes())?;
    let ways: u32 = ways.parse().ok().filter(|ways| *ways > 0).ok_or_else(takes)?;
    if !bytes.is_multiple_of(64 * u64::from(ways)) {
        return Err(format!("{size} in {ways} ways: the size must be a multiple of ways x 64"));
    }
    Colours::of_size(bytes, ways).map_err(|error| error.to_string())
}

/// The stack of this name.
///
/// # Errors
/// When there is none.
pub fn stack(text: &str) -> Result<StackKind, String> {
    StackKind::named(text).ok_or_else(|| {
        let names = StackKind::EVERY.map(StackKind::name);
        unknown(
            "stack",
            text,
            names,
            "there are native, vm, nested, and nested-4 to nested-8 of so many layers",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_answered_with_what_is() {
        let levels = whole::<u8>(4, 5);
        assert_eq!(levels("5"), Ok(5));
        for wrong in ["", "x", "3", "6", "-1", "4.5", "99999999999999999999999"] {
            assert_eq!(levels(wrong).unwrap_err(), "give a whole number from 4 to 5");
        }
        assert_eq!(whole::<u64>(0, u64::MAX)("x").unwrap_err(), "give a whole number from 0 up");
        assert_eq!(positive("3").unwrap().get(), 3);
        assert_eq!(positive("0").unwrap_err(), "give a whole number from 1 up");
    }
}
