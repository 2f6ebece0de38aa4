//! The way to the layer below where there is no virtio: a serial line, and a disk for what is large
//! (`strata_line`).

use nix::libc;
use nix::sys::termios::{BaudRate, SetArg, cfmakeraw, cfsetspeed, tcgetattr, tcsetattr};
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;
use strata_line::Numbers;
use strata_line::disk::Disk;
use strata_protocol::{LINE_PARAMETER, Line};

/// The line that the kernel's parameters name, if they do.
pub(crate) fn named(parameters: &str) -> Option<Line> {
    let words = parameters.split_whitespace();
    words.filter_map(|word| word.strip_prefix(LINE_PARAMETER)).find_map(Line::parse)
}

/// Opens the line. What is written to the file returned is read at the line's other end, and the
/// other way round.
pub(crate) fn open(line: &Line) -> Result<File, String> {
    let failed = |what: &str, error: &dyn Display| format!("{what}: {error}");
    let tty = device(&line.serial)?;
    let settings = || -> nix::Result<()> {
        let mut settings = tcgetattr(&tty)?;
        cfmakeraw(&mut settings);
        cfsetspeed(&mut settings, BaudRate::B115200)?;
        tcsetattr(&tty, SetArg::TCSANOW, &settings)
    };
    settings().map_err(|error| failed(&line.serial, &error))?;
    let disk = device(&line.disk)?;
    let connect = || -> std::io::Result<File> {
        let (end, own) = UnixStream::pair()?;
        let ways = (tty.try_clone()?, tty);
        let (put, begin) = (Some(Disk::new(disk)), Numbers::default());
        strata_line::carry(own, ways, put, None, strata_line::AGAIN, begin)?;
        Ok(OwnedFd::from(end).into())
    };
    connect().map_err(|error| failed("the line", &error))
}

/// Opens a device for reading and writing. Drivers may still be at work, so it is waited for.
fn device(name: &str) -> Result<File, String> {
    const TRIES: u32 = 500;
    let path = format!("/dev/{name}");
    let mut last = String::new();
    for _ in 0..TRIES {
        match OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(&path) {
            Ok(file) => return Ok(file),
            Err(error) => last = error.to_string(),
        }
        sleep(Duration::from_millis(20));
    }
    Err(format!("cannot open {path}: {last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_named_by_the_kernels_parameters() {
        let line = Line { serial: "ttyS1".into(), disk: "sda".into() };
        let parameters = format!("quiet {} panic=-1", line.parameter());
        assert_eq!(named(&parameters), Some(line));
        assert_eq!(named("quiet strata.layer=0"), None);
        assert_eq!(named("strata.line=ttyS1"), None);
    }
}
