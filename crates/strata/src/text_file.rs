//! Small text files that a user names: configurations, CPU models.

use crate::failure::Failure;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use strata_workloads::Interruptible;

/// Longest text read, in bytes: a thousand times what any such file needs.
const LONGEST: u64 = 1 << 20;

/// How long a pipe may keep silent.
const SILENCE: Duration = Duration::from_secs(10);

/// Reads such a file, `-` being the standard input; `what` says what it is to be. A pipe is read too,
/// as a shell's `<(...)` gives.
///
/// # Errors
/// When it cannot be read, is longer than any such file, or is no text.
pub fn read(path: &Path, what: &str) -> Result<String, Failure> {
    read_up_to(path, what, LONGEST)
}

/// The same for what may be of another length, in bytes.
///
/// # Errors
/// As [`read`].
pub fn read_up_to(path: &Path, what: &str, longest: u64) -> Result<String, Failure> {
    let failed =
        |why: &str| Failure::failed(format!("cannot read the {what} {}: {why}", path.display()));
    let bytes = bytes(path, SILENCE, longest).map_err(|error| {
        failed(&match error.kind() {
            ErrorKind::IsADirectory => "it is a directory; name a file in it".to_owned(),
            ErrorKind::TimedOut => "nobody writes to the pipe; name a file".to_owned(),
            ErrorKind::FileTooLarge => {
                format!("it is longer than {} MiB; name another file", longest >> 20)
            }
            _ => format!("{error}; check its name"),
        })
    })?;
    String::from_utf8(bytes).map_err(|_| failed("it is no text (UTF-8); name another file"))
}

fn bytes(path: &Path, silence: Duration, longest: u64) -> io::Result<Vec<u8>> {
    let file = Interruptible::open(path, Arc::default())?.patience(silence);
    let mut bytes = Vec::new();
    match file.take(longest + 1).read_to_end(&mut bytes)? as u64 > longest {
        true => Err(ErrorKind::FileTooLarge.into()),
        false => Ok(bytes),
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
    fn nobody_is_waited_for_without_end() {
        let room = tempfile::tempdir().unwrap();
        let pipe = room.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let silence = Duration::from_millis(10);
        assert_eq!(bytes(&pipe, silence, LONGEST).unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
