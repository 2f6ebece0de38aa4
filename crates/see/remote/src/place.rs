//! Where a layer listens, and how to get there.

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, VsockAddr, accept4, bind, connect, listen, socket,
};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The port that is listened on unless another is given.
pub const DEFAULT_PORT: u32 = 7273;
/// Any CID of this computer's own (`VMADDR_CID_ANY`, vsock(7)).
const ANY: u32 = u32::MAX;

/// A socket's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// vsock(7).
    Vsock {
        /// Who: the number that the host gave the VM. To listen it does not matter.
        cid: u32,
        /// The port.
        port: u32,
    },
    /// unix(7).
    Unix(PathBuf),
}

/// The way to a layer: to the first place, from there to the next, and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Reached from here.
    pub first: Place,
    /// CID and port of each that is reached from the one before.
    pub onward: Vec<(u32, u32)>,
}

/// Why a text is no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no place to ask: give vsock:CID, vsock:CID:PORT or unix:PATH, and /CID or /CID:PORT behind it for a VM of that VM"
)]
pub struct PlaceError(String);

fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number| *number < ANY)
}

/// `CID` or `CID:PORT`.
fn cid_and_port(text: &str) -> Option<(u32, u32)> {
    match text.split_once(':') {
        Some((cid, port)) => Some((number(cid)?, number(port)?)),
        None => Some((number(text)?, DEFAULT_PORT)),
    }
}

impl FromStr for Route {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let wrong = || PlaceError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self { first: Place::Unix(path.into()), onward: Vec::new() });
        }
        let mut hops = text.strip_prefix("vsock:").ok_or_else(wrong)?.split('/').map(cid_and_port);
        let (cid, port) = hops.next().flatten().ok_or_else(wrong)?;
        let onward = hops.collect::<Option<_>>().ok_or_else(wrong)?;
        Ok(Self { first: Place::Vsock { cid, port }, onward })
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        self.onward.iter().try_for_each(|(cid, port)| write!(f, "/{cid}:{port}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vsock { cid: ANY, port } => write!(f, "vsock port {port}"),
            Self::Vsock { cid, port } => write!(f, "vsock:{cid}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

fn vsock() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Vsock, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?)
}

impl Place {
    /// Where to listen: `vsock`, `vsock:PORT` or `unix:PATH`.
    ///
    /// # Errors
    /// When the text is none of these.
    pub fn to_listen(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("'{text}' is no place to listen: give vsock, vsock:PORT or unix:PATH");
        match text.split_once(':') {
            None if text == "vsock" => Ok(Self::Vsock { cid: ANY, port: DEFAULT_PORT }),
            Some(("vsock", port)) => {
                Ok(Self::Vsock { cid: ANY, port: number(port).ok_or_else(wrong)? })
            }
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            _ => Err(wrong()),
        }
    }

    /// A connection, on which reading and writing wait no longer than this.
    ///
    /// # Errors
    /// As connect(2).
    pub fn connect(&self, patience: Duration) -> io::Result<UnixStream> {
        let stream = match self {
            Self::Unix(path) => UnixStream::connect(path)?,
            Self::Vsock { cid, port } => {
                let socket = vsock()?;
                connect(socket.as_raw_fd(), &VsockAddr::new(*cid, *port))?;
                // A stream is a stream; what is special of Unix sockets is not used.
                socket.into()
            }
        };
        patient(&stream, patience)?;
        Ok(stream)
    }

    /// Listens.
    ///
    /// # Errors
    /// As bind(2) and listen(2); a Unix socket's file must not be there.
    pub fn listen(&self) -> io::Result<Listener> {
        Ok(match self {
            Self::Unix(path) => {
                let socket = UnixListener::bind(path)?;
                socket.set_nonblocking(true)?;
                Listener::Unix(socket, path.clone())
            }
            Self::Vsock { cid, port } => {
                let socket = vsock()?;
                bind(socket.as_raw_fd(), &VsockAddr::new(*cid, *port))?;
                listen(&socket, Backlog::new(8)?)?;
                // So that whoever waits can be asked to stop.
                UnixStream::from(socket.try_clone()?).set_nonblocking(true)?;
                Listener::Vsock(socket)
            }
        })
    }
}

/// Reading and writing wait no longer than this.
pub fn patient(stream: &UnixStream, patience: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))
}

/// A socket that is listened on. A Unix socket's file goes with it.
#[derive(Debug)]
pub enum Listener {
    /// unix(7).
    Unix(UnixListener, PathBuf),
    /// vsock(7).
    Vsock(OwnedFd),
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Listener {
    /// The next connection; `None` if there is none now.
    pub fn accept(&self) -> io::Result<Option<UnixStream>> {
        let accepted = match self {
            Self::Unix(socket, _) => socket.accept().map(|(stream, _)| stream),
            Self::Vsock(socket) => accept4(socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC)
                .map(|fd| {
                    // SAFETY: the descriptor is new and nobody else's.
                    UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) })
                })
                .map_err(io::Error::from),
        };
        match accepted {
            Ok(stream) => {
                stream.set_nonblocking(false)?;
                Ok(Some(stream))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // Whoever came has gone again.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_read_and_written() {
        let route = |text: &str| text.parse::<Route>();
        let vsock = |cid, port| Place::Vsock { cid, port };
        let of = |first, onward: &[(u32, u32)]| Ok(Route { first, onward: onward.to_vec() });
        assert_eq!(route("vsock:3"), of(vsock(3, DEFAULT_PORT), &[]));
        assert_eq!(route("vsock:3:9/4/5:6"), of(vsock(3, 9), &[(4, DEFAULT_PORT), (5, 6)]));
        assert_eq!(route("unix:/tmp/x"), of(Place::Unix("/tmp/x".into()), &[]));
        assert_eq!(route("vsock:3/4").unwrap().to_string(), "vsock:3:7273/4:7273");
        for wrong in [
            "",
            "vsock",
            "vsock:",
            "vsock:x",
            "vsock:3:",
            "vsock:3/",
            "unix:",
            "tcp:1",
            "vsock:4294967295",
        ] {
            assert!(route(wrong).unwrap_err().to_string().contains("vsock:CID"), "{wrong}");
        }
        assert_eq!(Place::to_listen("vsock"), Ok(vsock(ANY, DEFAULT_PORT)));
        assert_eq!(Place::to_listen("vsock:8"), Ok(vsock(ANY, 8)));
        for wrong in ["", "vsock:", "tcp", "unix:", "vsock:3:4"] {
            assert!(Place::to_listen(wrong).is_err(), "{wrong}");
        }
    }
}
