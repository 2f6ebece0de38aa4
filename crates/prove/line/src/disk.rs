//! A disk that both sides see: large pieces of the stream, each in the slot of its frame's number.

use crate::window::WINDOW;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a slot: the most that one frame stands for.
pub const SLOT: usize = 512 << 10;
/// Where slots begin. What is before is for whoever boots from the disk.
const FIRST: u64 = 1 << 20;
/// Bytes that a disk has at least.
pub const BYTES: u64 = FIRST + (SLOT as u64) * (WINDOW as u64);

/// The disk, as a file or a block device.
#[derive(Debug)]
pub struct Disk(File);

impl Disk {
    /// A disk of [`BYTES`] or more.
    pub fn new(file: File) -> Self {
        Self(file)
    }

    /// Puts bytes, [`SLOT`] at most, where the other side finds them as soon as this returns. A slot
    /// is free again once the frame of its number was heard of.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn put(&self, number: u32, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(bytes.len() <= SLOT);
        self.0.write_all_at(bytes, place(number))?;
        self.0.sync_data()
    }

    /// Reads what [`Self::put`] put there.
    ///
    /// # Errors
    ///
    /// The disk's, and bytes of another checksum.
    pub fn get(&self, number: u32, length: u32, sum: u32) -> io::Result<Vec<u8>> {
        let wrong = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        if length as usize > SLOT {
            return wrong("longer than a slot");
        }
        let mut bytes = vec![0; length as usize];
        self.0.read_exact_at(&mut bytes, place(number))?;
        match crc32c::crc32c(&bytes) == sum {
            true => Ok(bytes),
            false => wrong("another checksum than was told"),
        }
    }
}

fn place(number: u32) -> u64 {
    FIRST + u64::from(number % WINDOW) * SLOT as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_got_and_nothing_else() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(BYTES).unwrap();
        let disk = Disk::new(file);
        let piece = |number: u32| vec![number as u8; SLOT - number as usize];
        for number in 40..40 + WINDOW {
            disk.put(number, &piece(number)).unwrap();
        }
        for number in 40..40 + WINDOW {
            let bytes = piece(number);
            let (length, sum) = (bytes.len() as u32, crc32c::crc32c(&bytes));
            assert_eq!(disk.get(number, length, sum).unwrap(), bytes);
            assert!(disk.get(number, length, sum ^ 1).is_err());
        }
        assert!(disk.get(0, SLOT as u32 + 1, 0).is_err());
    }
}
