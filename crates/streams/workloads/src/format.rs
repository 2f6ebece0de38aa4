//! Which format a file has.

use crate::{champsim::Layout, lackey, record};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// A format that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Strata's own; see [`record`].
    Recording,
    /// ChampSim's `input_instr`, 64 bytes an instruction.
    ChampSim,
    /// ChampSim's `cloudsuite_instr`, 96 bytes an instruction.
    CloudSuite,
    /// Text of `valgrind --tool=lackey --trace-mem=yes`.
    Lackey,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 4] = [Self::Recording, Self::ChampSim, Self::CloudSuite, Self::Lackey];

    /// Bytes of a file's beginning that [`Format::detect`] makes use of.
    pub const HEAD: usize = 16 * 1024;

    /// The name that chooses it, and [`strata_stream::WorkloadInfo::kind`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recording => "recording",
            Self::ChampSim => "champsim",
            Self::CloudSuite => "cloudsuite",
            Self::Lackey => "lackey",
        }
    }

    /// The format of a file that begins with `head` (decompressed) and has this name; `None` when
    /// it looks like none.
    ///
    /// Recordings and lackey's text are certain. ChampSim's records have no mark; what counts is
    /// in how many of them the flags are 0 or 1 and the addresses canonical, for either length.
    /// The name decides only where the content leaves it open.
    pub fn detect(head: &[u8], path: &Path) -> Option<Self> {
        if head.starts_with(&record::FORMAT.magic) {
            return Some(Self::Recording);
        }
        if lackey::looks_like(head) {
            return Some(Self::Lackey);
        }
        let by_name = Self::by_name(path);
        // Four of five plausible records convince; one half, when the name says the same.
        let score = |format: Self, layout: Layout| {
            let (good, all) = layout.plausible(head);
            let needed = if by_name == Some(format) { 2 } else { 4 };
            (all > 0 && good * 5 >= all * needed).then(|| (good * 1000 / all, format))
        };
        let champsim = score(Self::ChampSim, Layout::ChampSim);
        let cloudsuite = score(Self::CloudSuite, Layout::CloudSuite);
        match (champsim, cloudsuite) {
            (Some((a, _)), Some((b, _))) if a == b => by_name.or(Some(Self::ChampSim)),
            (a, b) => a.max_by_score(b),
        }
    }

    /// What the name says: `600.perlbench_s-210B.champsimtrace.xz`, `cassandra.cloudsuite.gz`.
    fn by_name(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let has = |part: &str| name.contains(part);
        match () {
            () if has("cloudsuite") => Some(Self::CloudSuite),
            () if has("champsim") => Some(Self::ChampSim),
            () if has("lackey") => Some(Self::Lackey),
            () => None,
        }
    }
}

/// The better of two scored candidates.
trait MaxByScore {
    fn max_by_score(self, other: Self) -> Option<Format>;
}

impl MaxByScore for Option<(usize, Format)> {
    fn max_by_score(self, other: Self) -> Option<Format> {
        match (self, other) {
            (Some(a), Some(b)) => Some(if b.0 > a.0 { b.1 } else { a.1 }),
            (a, b) => a.or(b).map(|(_, format)| format),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            format!("unknown trace format '{text}'{}", crate::suggest::suggest(text, &names))
        })
    }
}
