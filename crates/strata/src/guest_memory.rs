//! `--memory`: a size, or a multiple of what the workload touches.

use crate::failure::Failure;
use std::fmt;
use strata_stream::WorkloadInfo;
use strata_text::number::{bytes, exact_size};

/// The least memory a guest can do anything with.
const LEAST: u64 = 64 << 20;

/// Memory of the guest as the user gave it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GuestMemory {
    /// Bytes.
    Size(u64),
    /// So many times what the workload touches.
    Times(f64),
}

/// As [`GuestMemory::parse`] reads it.
impl fmt::Display for GuestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => f.write_str(&exact_size(*size)),
            Self::Times(times) => write!(f, "{times}x"),
        }
    }
}

impl GuestMemory {
    /// Reads `8GiB`, or `3x` for a multiple.
    ///
    /// # Errors
    /// One line that names the text and shows what is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(number) = text.trim().strip_suffix(['x', 'X']) else {
            return strata_text::parse_size(text).map(Self::Size).map_err(|error| {
                format!("{error}, or 3x for three times what the workload touches")
            });
        };
        let times = number.trim_end().parse().ok().filter(|times: &f64| times.is_finite());
        let times =
            times.ok_or_else(|| format!("'{text}' is no multiple; write it like 3x or 1.5x"))?;
        if times < 1.0 {
            return Err(format!(
                "the workload does not fit into {text} of what it touches; give at least 1x"
            ));
        }
        Ok(Self::Times(times))
    }

    /// Checks what can be checked before the workload is known. `option` is what comes before the value
    /// where the user gave it, such as `--memory `.
    ///
    /// # Errors
    /// When no guest can do anything with so little.
    pub fn check(self, option: &str) -> Result<(), Failure> {
        match self {
            Self::Size(size) if size < LEAST => Err(Failure::usage(format!(
                "{option}{} is too small for a kernel; give it at least 64MiB",
                bytes(size)
            ))),
            _ => Ok(()),
        }
    }

    /// In bytes. `option` is as for [`GuestMemory::check`].
    ///
    /// # Errors
    /// When what a multiple is of is not known, or too little.
    pub fn in_bytes(self, option: &str, workload: &WorkloadInfo) -> Result<u64, Failure> {
        let times = match self {
            Self::Size(size) => return Ok(size),
            Self::Times(times) => times,
        };
        let Some(touched) = workload.footprint_bytes else {
            return Err(Failure::usage(format!(
                "{option}{self} needs to know beforehand what the workload touches, which is not \
                 known of {}; give a size, or record it first ('strata record') and run the recording",
                if workload.kind == "live" { "a live program" } else { "this stream" }
            )));
        };
        let size = (touched as f64 * times) as u64;
        if size < LEAST {
            return Err(Failure::usage(format!(
                "{option}{self} is {}, too small for a kernel; give it at least 64MiB",
                bytes(size)
            )));
        }
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_multiples_are_told_apart() {
        assert_eq!(GuestMemory::parse("8GiB"), Ok(GuestMemory::Size(8 << 30)));
        assert_eq!(GuestMemory::parse("3x"), Ok(GuestMemory::Times(3.0)));
        assert_eq!(GuestMemory::parse(" 1.5 X "), Ok(GuestMemory::Times(1.5)));
        for text in ["8GiB", "1.5x"] {
            assert_eq!(GuestMemory::parse(text).unwrap().to_string(), text);
        }
        for wrong in ["x", "NaNx", "infx", "-2x", "0.5x", "3xx", "three", ""] {
            assert!(GuestMemory::parse(wrong).is_err(), "{wrong}");
        }
        assert!(GuestMemory::parse("8GiBB").unwrap_err().contains("3x"));
    }

    #[test]
    fn a_multiple_is_of_what_the_workload_touches() {
        let workload = |footprint_bytes, kind| WorkloadInfo {
            footprint_bytes,
            kind,
            ..WorkloadInfo::default()
        };
        let times = GuestMemory::Times(2.5);
        let known = workload(Some(100 << 20), "generator");
        assert_eq!(times.in_bytes("--memory ", &known).unwrap(), 250 << 20);
        assert_eq!(GuestMemory::Size(7).in_bytes("--memory ", &known).unwrap(), 7);
        for (workload, why) in [
            (workload(None, "live"), "not known of a live program; give a size"),
            (workload(None, "champsim"), "not known of this stream"),
            (workload(Some(1 << 20), "generator"), "at least 64MiB"),
        ] {
            let message = times.in_bytes("--memory ", &workload).unwrap_err().message;
            assert!(message.contains(why), "{message}");
        }
    }
}
