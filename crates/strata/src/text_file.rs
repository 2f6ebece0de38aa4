//! Small text files that a user names: configurations, CPU models.

use crate::failure::Failure;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Longest text read, in bytes: a thousand times what any such file needs.
const LONGEST: usize = 1 << 20;

/// How long a pipe may keep silent, in milliseconds.
const SILENCE: u16 = 10_000;

/// Reads such a file; `what` says what it is to be. A pipe is read too, as a shell's `<(...)` gives.
///
/// # Errors
/// When it cannot be read, is longer than any such file, or is no text.
pub fn read(path: &Path, what: &str) -> Result<String, Failure> {
    let failed =
        |why: &str| Failure::failed(format!("cannot read the {what} {}: {why}", path.display()));
    let bytes = bytes(path, SILENCE).map_err(|error| {
        failed(&match error.kind() {
            ErrorKind::IsADirectory => "it is a directory; name a file in it".to_owned(),
            ErrorKind::TimedOut => "nobody writes to the pipe; name a file".to_owned(),
            ErrorKind::FileTooLarge => "it is longer than 1 MiB; name another file".to_owned(),
            _ => format!("{error}; check its name"),
        })
    })?;
    String::from_utf8(bytes).map_err(|_| failed("it is no text (UTF-8); name another file"))
}

fn bytes(path: &Path, silence: u16) -> io::Result<Vec<u8>> {
    // Without waiting for somebody to open the other end of a pipe.
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let regular = file.metadata()?.is_file();
    let mut bytes = Vec::new();
    loop {
        if !regular {
            let mut waited_for = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
            if poll(&mut waited_for, PollTimeout::from(silence))? == 0 {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        let mut piece = [0; 4096];
        match file.read(&mut piece) {
            Ok(0) => return Ok(bytes),
            Ok(read) => bytes.extend_from_slice(&piece[..read]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if bytes.len() > LONGEST {
            return Err(ErrorKind::FileTooLarge.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    #[test]
    fn what_is_no_such_file_is_told_apart() {
        let room = tempfile::tempdir().unwrap();
        let told = |path: &Path| read(path, "configuration").unwrap_err().message;
        assert!(told(room.path()).contains("directory"));
        assert!(told(Path::new("/dev/zero")).contains("longer than 1 MiB"));
        assert!(told(&room.path().join("none")).contains("check its name"));
        let binary = room.path().join("binary");
        fs::write(&binary, [0xff, 0xfe]).unwrap();
        assert!(told(&binary).contains("no text"));
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let room = tempfile::tempdir().unwrap();
        let pipe = room.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(bytes(&pipe, 10).unwrap_err().kind(), ErrorKind::TimedOut);
        // Open for both, so that the reader finds a writer, as it does in a shell's pipe.
        let mut writer = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        io::Write::write_all(&mut writer, b"seed = 1\n").unwrap();
        let reader = std::thread::spawn(move || read(&pipe, "configuration"));
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(writer);
        assert_eq!(reader.join().unwrap().unwrap(), "seed = 1\n");
    }
}
