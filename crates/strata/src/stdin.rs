//! The standard input of a program that is run twice.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;

/// What is said of an input that is gone after the first run.
const ONCE: &str = "--sample phases runs the program twice, and its standard input is a pipe, which can be read \
                    once: give it a file or /dev/null (< FILE), or record the program (strata record -o FILE -- \
                    PROGRAM) and run the recording (strata run --sample phases FILE)";

/// Where the standard input was before the first run, if it is a file.
#[derive(Debug)]
pub struct Stdin(Option<(File, u64)>);

impl Stdin {
    /// The standard input, to be read twice.
    ///
    /// # Errors
    /// When it cannot be, with what to do.
    pub fn read_twice() -> Result<Self, String> {
        // One that is closed is read by nobody.
        let Ok(input) = io::stdin().as_fd().try_clone_to_owned() else { return Ok(Self(None)) };
        Self::of(input.into())
    }

    fn of(mut input: File) -> Result<Self, String> {
        let Ok(kind) = input.metadata().map(|metadata| metadata.file_type()) else {
            return Ok(Self(None));
        };
        if (kind.is_fifo() || kind.is_socket()) && !is_over(&input) {
            return Err(ONCE.to_owned());
        }
        let place = kind.is_file().then(|| input.stream_position().ok()).flatten();
        Ok(Self(place.map(|place| (input, place))))
    }

    /// Goes back to where the input was.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn rewind(self) -> io::Result<()> {
        // The program's descriptor is a copy of this one: they are at one place.
        self.0.map_or(Ok(()), |(mut input, place)| input.seek(SeekFrom::Start(place)).map(drop))
    }
}

/// Whether nothing comes from a pipe, now or later.
fn is_over(input: &File) -> bool {
    let mut waited = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
    let found = poll(&mut waited, PollTimeout::ZERO).map(|_| waited[0].revents());
    matches!(found, Ok(Some(events)) if events == PollFlags::POLLHUP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;

    #[test]
    fn a_file_is_read_from_where_it_was() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"first and second").unwrap();
        file.seek(SeekFrom::Start(6)).unwrap();
        let stdin = Stdin::of(file.try_clone().unwrap()).unwrap();
        let read = |file: &mut File| {
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            text
        };
        assert_eq!(read(&mut file), "and second");
        stdin.rewind().unwrap();
        assert_eq!(read(&mut file), "and second");
    }

    #[test]
    fn a_pipe_is_refused_unless_nothing_comes_from_it() {
        let (reader, mut writer) = io::pipe().unwrap();
        let of = || Stdin::of(OwnedFd::from(reader.try_clone().unwrap()).into());
        assert!(of().unwrap_err().contains("strata record"), "somebody may write");
        writer.write_all(b"x").unwrap();
        drop(writer);
        assert!(of().is_err(), "something was written");
        (&reader).read_exact(&mut [0]).unwrap();
        assert!(of().unwrap().0.is_none());
        let nothing = Stdin::of(File::open("/dev/null").unwrap()).unwrap();
        assert!(nothing.rewind().is_ok());
    }
}
