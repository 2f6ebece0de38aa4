//! CRC-32C, by which damage is noticed.

use std::io::{self, Write};

/// CRC-32C of these bytes.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Appends the checksum of all that is in `bytes`, little-endian.
///
/// ```
/// let mut bytes = b"content".to_vec();
/// strata_files::seal(&mut bytes);
/// assert_eq!(strata_files::unseal(&bytes), Some(&b"content"[..]));
/// bytes[0] ^= 1;
/// assert_eq!(strata_files::unseal(&bytes), None);
/// ```
pub fn seal(bytes: &mut Vec<u8>) {
    let sum = checksum(bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
}

/// What stands before the checksum at the end of `bytes`, `None` when it does not match.
pub fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let (content, sum) = bytes.split_last_chunk()?;
    (checksum(content) == u32::from_le_bytes(*sum)).then_some(content)
}

/// Passes bytes on and sums them up.
pub(crate) struct Summed<W> {
    pub(crate) inner: W,
    pub(crate) sum: u32,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.sum = crc32c::crc32c_append(self.sum, &bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
