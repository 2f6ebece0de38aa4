//! The one that gives a snapshot, or leads on to a layer above.

use crate::ask::{HELLO, WANTED};
use crate::frames::{Answer, Kind};
use crate::key::{BYTES, Key, nonce};
use crate::place::{Listener, Place, patient};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// How long whoever asks may take to say the next thing: nothing that is done here waits for a person.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a layer above may take: it looks at all of its memory.
const PATIENCE_ABOVE: Duration = Duration::from_secs(120);
/// Between two looks whether somebody wants the end.
const STEP: Duration = Duration::from_millis(50);

/// What was done for one who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// It got the snapshot.
    Answered,
    /// It was led on to a VM of this layer.
    Onward {
        /// The VM's number.
        cid: u32,
        /// The port there.
        port: u32,
    },
    /// It did not prove to know the key, or said nothing that makes sense.
    Unknown,
    /// There is no snapshot, or no way on, and it was told why.
    Refused(String),
    /// The connection broke.
    Broken(String),
}

/// Gives snapshots of this layer to whoever knows the key, one at a time.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    key: Key,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// As bind(2).
    pub fn new(place: &Place, key: Key) -> io::Result<Self> {
        Ok(Self { listener: place.listen()?, key })
    }

    /// Answers one after the other until somebody wants the end. `snapshot` writes one; its error is told to who asked.
    ///
    /// # Errors
    /// When nobody can be listened to any more.
    pub fn run(
        &self,
        stop: &AtomicBool,
        snapshot: &mut dyn FnMut(&mut dyn Write) -> Result<(), String>,
        told: &mut dyn FnMut(Way),
    ) -> io::Result<()> {
        while !stop.load(Relaxed) {
            match self.listener.accept()? {
                Some(stream) => told(self.answer(stream, snapshot)),
                None => thread::sleep(STEP),
            }
        }
        Ok(())
    }

    fn answer(
        &self,
        mut stream: UnixStream,
        snapshot: &mut dyn FnMut(&mut dyn Write) -> Result<(), String>,
    ) -> Way {
        self.conversation(&mut stream, snapshot)
            .unwrap_or_else(|error| Way::Broken(error.to_string()))
    }

    fn conversation(
        &self,
        stream: &mut UnixStream,
        snapshot: &mut dyn FnMut(&mut dyn Write) -> Result<(), String>,
    ) -> io::Result<Way> {
        patient(stream, PATIENCE)?;
        let own = nonce()?;
        stream.write_all(&[&HELLO[..], &own].concat())?;
        let mut theirs = [0; BYTES];
        let mut wanted = [0; WANTED];
        let mut said = [0; BYTES];
        for part in [&mut theirs[..], &mut wanted, &mut said] {
            stream.read_exact(part)?;
        }
        let mut proof = self.key.proof(&own, &theirs);
        proof.add(&wanted);
        if !proof.is(&said) {
            return Ok(Way::Unknown);
        }
        let proof = self.key.proof(&own, &theirs);
        let number =
            |at: usize| u32::from_le_bytes(wanted[at..at + 4].try_into().expect("four bytes"));
        match wanted[0] {
            0 => {
                let mut answer = Answer::new(stream, proof);
                match snapshot(&mut answer) {
                    Ok(()) => answer.finish(Kind::End, "").map(|()| Way::Answered),
                    Err(why) => answer.finish(Kind::Failed, &why).map(|()| Way::Refused(why)),
                }
            }
            1 => {
                let (cid, port) = (number(1), number(5));
                match (Place::Vsock { cid, port }).connect(PATIENCE_ABOVE) {
                    Ok(above) => {
                        Answer::new(stream, proof).finish(Kind::Onward, "")?;
                        carry(stream, &above)?;
                        Ok(Way::Onward { cid, port })
                    }
                    Err(error) => {
                        let why = format!(
                            "nobody answers at its vsock:{cid}:{port}: {error}; run 'strata scan --serve' there"
                        );
                        Answer::new(stream, proof).finish(Kind::Failed, &why)?;
                        Ok(Way::Refused(why))
                    }
                }
            }
            _ => Ok(Way::Unknown),
        }
    }
}

/// Carries what the two say to each other, until one has no more to say.
fn carry(below: &UnixStream, above: &UnixStream) -> io::Result<()> {
    patient(below, PATIENCE_ABOVE)?;
    let copy = |from: &UnixStream, to: &UnixStream| {
        let copied = io::copy(&mut &*from, &mut &*to);
        // Whoever still waits for the other waits no longer.
        let _ = from.shutdown(Shutdown::Read);
        let _ = to.shutdown(Shutdown::Write);
        copied
    };
    thread::scope(|scope| {
        scope.spawn(|| copy(below, above));
        copy(above, below).map(drop)
    })
}
