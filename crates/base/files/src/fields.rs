//! Numbers of fixed length.

/// Takes numbers off the front, little-endian.
///
/// ```
/// let mut fields = strata_files::Fields(&[1, 0, 2, 0, 0, 0, 9]);
/// assert_eq!((fields.u16(), fields.u32()), (Some(1), Some(2)));
/// assert_eq!(fields.u64(), None);
/// assert_eq!(fields.0, [9]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(
    /// What is left.
    pub &'a [u8],
);

impl Fields<'_> {
    /// The next bytes; `None`, and nothing is taken, when there are not so many.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    /// A number of two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// A number of four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number of eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}
