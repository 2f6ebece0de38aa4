//! Sizes of memory, as a scenario writes them.

use serde::Deserialize;
use std::fmt;

/// Memory of a layer or of a guest: whole MiB, written as `1600M` or `2G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Memory {
    mib: u64,
}

impl Memory {
    /// So many MiB.
    pub const fn mib(mib: u64) -> Self {
        Self { mib }
    }

    /// In MiB.
    pub const fn in_mib(self) -> u64 {
        self.mib
    }

    /// In bytes.
    pub const fn bytes(self) -> u64 {
        self.mib << 20
    }

    /// What this computer has, if it can be asked.
    pub(super) fn of_computer() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(Self::mib(kib >> 10))
    }
}

impl TryFrom<String> for Memory {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let whole = |bytes: &u64| *bytes > 0 && bytes.is_multiple_of(1 << 20);
        let bytes = strata_text::parse_size(&text).ok().filter(whole);
        bytes
            .map(|bytes| Self::mib(bytes >> 20))
            .ok_or_else(|| format!("{text} is no memory in whole MiB; write it as 1600M or 2G"))
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mib {
            mib if mib.is_multiple_of(1024) => write!(out, "{}G", mib / 1024),
            mib => write!(out, "{mib}M"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        let read = |text: &str| Memory::try_from(text.to_owned());
        for (text, mib) in [("1600M", 1600), ("2G", 2048)] {
            assert_eq!(read(text), Ok(Memory::mib(mib)));
            assert_eq!(Memory::mib(mib).to_string(), text);
        }
        assert_eq!(read("1024M").unwrap().to_string(), "1G");
        assert_eq!(read("3G").unwrap().bytes(), 3 << 30);
        for wrong in ["", "M", "much", "12", "-1M", "0M", "1536K", "1\u{fc}", "17179869184G"] {
            assert!(read(wrong).unwrap_err().contains("1600M or 2G"), "{wrong}");
        }
        assert_eq!(read("17179869183G").unwrap().bytes(), 17_179_869_183 << 30);
    }
}
