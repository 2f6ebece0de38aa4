//! Files that may keep their reader waiting: pipes, terminals, devices.

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a wait goes on before it looks whether somebody wants the end.
const GLANCE: Duration = Duration::from_millis(100);

/// A file that ends, as if there were no more, soon after somebody asks for the end, whether or not
/// anybody writes to it.
#[derive(Debug)]
pub struct Interruptible {
    file: File,
    /// Whether a read may wait for somebody who writes.
    waits: bool,
    stop: Arc<AtomicBool>,
    patience: Option<Duration>,
}

impl Interruptible {
    /// Opens a file, `-` being the standard input, to be read until `stop` is set. A pipe is opened
    /// whether or not anybody has opened it for writing.
    ///
    /// # Errors
    /// When it cannot be opened, or is a directory.
    pub fn open(path: &Path, stop: Arc<AtomicBool>) -> io::Result<Self> {
        let file = match path == Path::new("-") {
            true => File::from(io::stdin().as_fd().try_clone_to_owned()?),
            false => OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?,
        };
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(ErrorKind::IsADirectory.into());
        }
        Ok(Self { file, waits: !metadata.is_file(), stop, patience: None })
    }

    /// Fails with [`ErrorKind::TimedOut`] when a read has waited this long.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// Waits until there is something to read, or the end; gives whether somebody wants the end.
    fn wait(&self) -> io::Result<bool> {
        let since = Instant::now();
        let glance = PollTimeout::try_from(GLANCE).expect("it is short");
        while !self.stop.load(Relaxed) {
            let mut waited_for = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
            match poll(&mut waited_for, glance) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            if self.patience.is_some_and(|patience| since.elapsed() >= patience) {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        Ok(true)
    }
}

impl Read for Interruptible {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.stop.load(Relaxed) || self.waits && self.wait()? {
                return Ok(0);
            }
            match self.file.read(bytes) {
                // Another reader of the pipe was faster.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use std::io::Write;
    use std::thread;

    #[test]
    fn a_pipe_without_a_writer_ends_when_asked() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let stop = Arc::<AtomicBool>::default();
        let mut silent = Interruptible::open(&path, stop.clone()).unwrap();
        let reader = thread::spawn(move || silent.read(&mut [0; 8]));
        thread::sleep(Duration::from_millis(50));
        assert!(!reader.is_finished(), "it waits for a writer");
        stop.store(true, Relaxed);
        assert_eq!(reader.join().unwrap().unwrap(), 0);
    }

    #[test]
    fn a_pipe_is_read_to_its_end_and_patience_has_one() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("pipe");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let open = || Interruptible::open(&path, Arc::default()).unwrap();
        let mut impatient = open().patience(Duration::from_millis(10));
        assert_eq!(impatient.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::TimedOut);
        // Open for both, so that there is a reader to open it for writing.
        let mut writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        writer.write_all(b"written").unwrap();
        let mut pipe = open();
        let reader = thread::spawn(move || {
            let mut text = String::new();
            pipe.read_to_string(&mut text).map(|_| text)
        });
        thread::sleep(Duration::from_millis(50));
        drop(writer);
        assert_eq!(reader.join().unwrap().unwrap(), "written");
    }
}
