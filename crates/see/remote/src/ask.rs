//! The one that wants a snapshot.

use crate::frames::{self, Kind};
use crate::key::{BYTES, Key, Proof, nonce};
use crate::place::Route;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// What the answering end says first.
pub const HELLO: [u8; 16] = *b"strata remote 1\n";
/// Bytes that say what is wanted.
pub const WANTED: usize = 9;
/// How long a layer may take to say the next thing: to look at all of a large VM takes a while.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of a snapshot at most, so that nobody fills this computer's memory.
const MOST: u64 = 1 << 32;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum Asked {
    /// Nobody answers there.
    #[error("nobody answers at {route}: {source}; run 'strata scan --serve' there")]
    Unreachable {
        /// Where.
        route: String,
        /// What the system says.
        source: io::Error,
    },
    /// What answers is none of ours, or has another key.
    #[error("{route}: {source}; both ends need the same --key")]
    Broken {
        /// Where.
        route: String,
        /// What is wrong.
        source: io::Error,
    },
    /// The layer has none.
    #[error("{route}: {why}")]
    Refused {
        /// Where.
        route: String,
        /// Why.
        why: String,
    },
}

/// Asks a layer for its snapshot, and hands it on piece by piece. Whoever takes it must throw it away if this fails.
///
/// # Errors
/// When nobody answers, somebody without the key does, or the layer has no snapshot.
pub fn ask(
    route: &Route,
    key: &Key,
    take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), Asked> {
    let connected = route.first.connect(PATIENCE);
    let mut stream =
        connected.map_err(|source| Asked::Unreachable { route: route.to_string(), source })?;
    let broken = |source| Asked::Broken { route: route.to_string(), source };
    let refused = |why| Asked::Refused { route: route.to_string(), why };
    for (cid, port) in &route.onward {
        let mut wanted = [1; WANTED];
        wanted[1..5].copy_from_slice(&cid.to_le_bytes());
        wanted[5..].copy_from_slice(&port.to_le_bytes());
        let proof = want(&mut stream, key, &wanted).map_err(broken)?;
        let nothing = &mut |_: &[u8]| Err(io::Error::other("it was not asked for a snapshot"));
        match frames::read(&mut stream, proof, 0, nothing).map_err(broken)? {
            (Kind::Onward, _) => {}
            (_, why) => return Err(refused(why)),
        }
    }
    let proof = want(&mut stream, key, &[0; WANTED]).map_err(broken)?;
    match frames::read(&mut stream, proof, MOST, take).map_err(broken)? {
        (Kind::End, _) => Ok(()),
        (_, why) => Err(refused(why)),
    }
}

/// Says what is wanted and proves to know the key. Gives what the answer is proven by.
fn want(stream: &mut UnixStream, key: &Key, wanted: &[u8; WANTED]) -> io::Result<Proof> {
    let mut hello = [0; HELLO.len()];
    stream.read_exact(&mut hello)?;
    if hello != HELLO {
        let why = "what answers there is no 'strata scan --serve' of this version";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut theirs = [0; BYTES];
    stream.read_exact(&mut theirs)?;
    let own = nonce()?;
    let mut proof = key.proof(&theirs, &own);
    proof.add(wanted);
    let said = [&own[..], wanted, &proof.finish()].concat();
    stream.write_all(&said)?;
    Ok(key.proof(&theirs, &own))
}
