//! Copying files that are full of holes.

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Copies what `from` holds into the file `to`, which is there and empty, and leaves its holes holes.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut input = File::open(from)?;
    let mut output = OpenOptions::new().write(true).open(to)?;
    output.set_len(input.metadata()?.len())?;
    let mut at = 0;
    loop {
        let begin = match lseek(&input, at, Whence::SeekData) {
            // Nothing but a hole follows.
            Err(Errno::ENXIO) => return Ok(()),
            begin => begin?,
        };
        let end = lseek(&input, begin, Whence::SeekHole)?;
        input.seek(SeekFrom::Start(begin as u64))?;
        output.seek(SeekFrom::Start(begin as u64))?;
        io::copy(&mut (&input).take((end - begin) as u64), &mut output)?;
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    #[test]
    fn holes_stay_holes() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("a"), directory.path().join("b"));
        let file = File::create(&from).unwrap();
        file.set_len(64 << 20).unwrap();
        for at in [0, 5 << 20, (32 << 20) + 17] {
            file.write_all_at(&[7; 10_000], at).unwrap();
        }
        File::create(&to).unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(fs::read(&from).unwrap(), fs::read(&to).unwrap());
        assert!(fs::metadata(&to).unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn an_empty_file_is_copied() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("a"), directory.path().join("b"));
        File::create(&from).unwrap();
        File::create(&to).unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(fs::metadata(&to).unwrap().len(), 0);
    }
}
