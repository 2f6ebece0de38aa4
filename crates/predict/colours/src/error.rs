//! What can be wrong with a cache's index function.

/// A cache whose lines or colours cannot be told; each message is one line with cause and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColourError {
    /// A geometry no cache has.
    #[error("a cache with {line_bytes} B a line, {sets} sets a slice and {slices} slices: {cause}")]
    Geometry {
        /// Bytes in a line.
        line_bytes: u32,
        /// Sets in a slice.
        sets: u64,
        /// Slices.
        slices: u32,
        /// What is wrong, and what would be right.
        cause: &'static str,
    },
    /// Pages and sets do not come out even.
    #[error(
        "{sets} sets of {line_bytes} B are {} B, not a whole number of pages of 4096 B: no colours; \
         give the cache a number of sets that is a multiple of {}",
        sets * u64::from(*line_bytes), 4096 / line_bytes
    )]
    NotWhole {
        /// Sets that a colour is part of.
        sets: u64,
        /// Bytes in a line.
        line_bytes: u32,
    },
    /// The hash is known for other numbers of slices.
    #[error(
        "hash {hash} is published for {} slices, not {slices}; take hash even, a stand-in for any \
         number, or none",
        listed(published)
    )]
    Slices {
        /// The hash.
        hash: &'static str,
        /// Numbers of slices that it is published for.
        published: &'static [u32],
        /// Slices asked for.
        slices: u32,
    },
    /// No hash has this name.
    #[error(
        "no slice hash is known as {name}; take intel (Sandy Bridge to Broadwell with 2, 4 or 8 \
         slices), skylake (Skylake-SP with 20 slices), even, a stand-in for processors whose hash is not published, or none"
    )]
    UnknownHash {
        /// As asked for.
        name: String,
    },
}

/// Numbers in words: `1, 2 and 4`.
fn listed(numbers: &[u32]) -> String {
    let texts: Vec<String> = numbers.iter().map(u32::to_string).collect();
    match texts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}
