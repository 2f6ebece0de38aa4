//! How a file begins.

/// A kind of file: its first bytes tell which it is, and in which version.
///
/// ```
/// use strata_files::{Fault, Format};
///
/// const NOTES: Format = Format { magic: *b"\x89NOTES\n\0", version: 2 };
/// let mut file = NOTES.begin().to_vec();
/// file.extend(b"content");
/// assert_eq!(NOTES.version_of(&file), Ok((2, &b"content"[..])));
/// assert_eq!(NOTES.version_of(b"something else"), Err(Fault::Foreign));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The first bytes.
    pub magic: [u8; 8],
    /// The version that is written, and the newest that is read.
    pub version: u32,
}

/// Why bytes are no sound file of a [`Format`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The first bytes are those of something else.
    Foreign,
    /// The file ends before its content does.
    Short,
    /// It is of this version, which is not known.
    Version(u32),
    /// A checksum does not match, or what is said of lengths.
    Altered,
    /// It cannot be unpacked, though its checksum is right.
    Packing,
}

impl Format {
    /// Length of [`Self::begin`].
    pub const BEGIN: usize = 12;

    /// Magic and version, little-endian.
    pub fn begin(&self) -> [u8; Self::BEGIN] {
        let mut bytes = [0; Self::BEGIN];
        bytes[..8].copy_from_slice(&self.magic);
        bytes[8..].copy_from_slice(&self.version.to_le_bytes());
        bytes
    }

    /// The version of a file, which may be one that is not known, and what follows it.
    ///
    /// # Errors
    /// [`Fault::Foreign`] or [`Fault::Short`].
    pub fn version_of<'a>(&self, bytes: &'a [u8]) -> Result<(u32, &'a [u8]), Fault> {
        let rest = bytes.strip_prefix(&self.magic).ok_or(Fault::Foreign)?;
        let (version, rest) = rest.split_first_chunk().ok_or(Fault::Short)?;
        Ok((u32::from_le_bytes(*version), rest))
    }

    /// Whether files of this version can be read: those of the first on.
    ///
    /// # Errors
    /// [`Fault::Version`] when they cannot.
    pub fn check(&self, version: u32) -> Result<(), Fault> {
        if (1..=self.version).contains(&version) { Ok(()) } else { Err(Fault::Version(version)) }
    }
}
