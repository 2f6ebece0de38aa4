//! The work of one side of a line.

use crate::disk::{Disk, SLOT};
use crate::frame::{Decoder, Frame, PAYLOAD};
use crate::window::{Receiver, Sender};
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// After how long without a word frames are sent again, as a rule.
pub const AGAIN: Duration = Duration::from_secs(1);
/// What is longer than this goes by the disk: a write and a read of it cost as much as some hundred
/// bytes on the line.
const LARGE: usize = 2 * PAYLOAD;

/// Where the numbers of frames stand in both directions: a line between two sides of which one was stopped
/// and goes on later, has to go on with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbers {
    /// Of the next frame that this side sends.
    pub sends: u32,
    /// Of the next that it expects.
    pub expects: u32,
}

/// A line that is carried.
#[derive(Clone, Debug)]
pub struct Carried(Arc<Counts>);

impl Carried {
    /// Where the numbers stand, if the other side has all that was sent.
    pub fn numbers(&self) -> Option<Numbers> {
        let sender = lock(&self.0.sender);
        let quiet = sender.unheard().next().is_none();
        quiet.then(|| Numbers { sends: sender.next(), expects: self.0.expects.load(Acquire) })
    }
}

/// What is counted of a line.
#[derive(Debug)]
struct Counts {
    sender: Mutex<Sender>,
    expects: AtomicU32,
}

/// What both directions know.
#[derive(Debug)]
struct Shared<W> {
    line: Mutex<W>,
    counts: Arc<Counts>,
    /// Somebody heard of something.
    news: Condvar,
    answers: Answers,
    /// After how long without a word frames are sent again.
    again: Duration,
}

/// What the other side is to be told. Who receives leaves it here and goes on: if it waited for the line while the other side's
/// receiver did the same, and both lines were full, nobody would empty either.
#[derive(Debug, Default)]
struct Answers {
    due: Mutex<Due>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Due {
    /// The next frame that is expected, if the other side has not been told.
    next: Option<u32>,
    /// There will be no more, or no line to tell them on.
    over: bool,
}

impl Answers {
    /// The other side is to hear of this. Gives whether it can.
    fn tell(&self, next: u32) -> bool {
        let mut due = lock(&self.due);
        due.next = Some(next);
        self.changed.notify_all();
        !due.over
    }

    fn end(&self) {
        lock(&self.due).over = true;
        self.changed.notify_all();
    }

    /// Waits for the next answer, of which later ones make earlier ones needless; none when there are no more.
    fn next(&self) -> Option<u32> {
        let mut due = lock(&self.due);
        while due.next.is_none() && !due.over {
            due = self.changed.wait(due).unwrap_or_else(PoisonError::into_inner);
        }
        due.next.take()
    }
}

/// Carries bytes between `socket` and the line that `from` and `to` lead to, from now on and in
/// threads of its own: what is read from the socket's other end is what the other side of the line
/// wrote to its, and the other way round. The socket is at its end when the line is. With a disk to
/// put to, large pieces go there; one to get from is where the other side puts them. What is not
/// heard of within `again` is sent again. Frames are numbered from `numbers` on, zero for a line that
/// begins.
///
/// # Errors
///
/// The socket's, which then is of no use.
pub fn carry<R, W>(
    socket: UnixStream,
    (from, to): (R, W),
    put: Option<Disk>,
    get: Option<Disk>,
    again: Duration,
    numbers: Numbers,
) -> io::Result<Carried>
where
    R: Read + Send + 'static,
    W: Write + Send + 'static,
{
    let counts = Arc::new(Counts {
        sender: Mutex::new(Sender::from(numbers.sends)),
        expects: AtomicU32::new(numbers.expects),
    });
    let carried = Carried(Arc::clone(&counts));
    let (line, news, answers) = (Mutex::new(to), Condvar::new(), Answers::default());
    let shared = Arc::new(Shared { line, counts, news, answers, again });
    let inward = socket.try_clone()?;
    socket.set_read_timeout(Some(again))?;
    let other = Arc::clone(&shared);
    thread::spawn(move || {
        let end = inward.try_clone();
        receive(from, inward, &other, get.as_ref());
        other.answers.end();
        // Nobody is to wait for more.
        if let Ok(end) = end {
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
    });
    let other = Arc::clone(&shared);
    thread::spawn(move || answer(&other));
    thread::spawn(move || send(socket, &shared, put.as_ref()));
    Ok(carried)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W: Write> Shared<W> {
    fn write(&self, frame: &Frame) -> io::Result<()> {
        let mut line = lock(&self.line);
        line.write_all(&frame.encode())?;
        line.flush()
    }
}

fn receive<W: Write>(
    mut from: impl Read,
    mut socket: UnixStream,
    shared: &Shared<W>,
    disk: Option<&Disk>,
) {
    let (mut decoder, mut receiver) =
        (Decoder::default(), Receiver::from(shared.counts.expects.load(Acquire)));
    let mut bytes = vec![0; 4096];
    loop {
        let read = match from.read(&mut bytes) {
            Ok(0) => return,
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        for frame in decoder.take(&bytes[..read]) {
            let number = match &frame {
                Frame::Heard { next } => {
                    if lock(&shared.counts.sender).heard(*next) {
                        shared.news.notify_all();
                    }
                    continue;
                }
                Frame::Bytes { number, .. } | Frame::Stored { number, .. } => *number,
            };
            if number == receiver.next() {
                let piece = match frame {
                    Frame::Stored { length, sum, .. } => {
                        match disk.map(|disk| disk.get(number, length, sum)) {
                            Some(Ok(piece)) => piece,
                            // As if it had not come: it comes again.
                            _ => continue,
                        }
                    }
                    Frame::Bytes { bytes, .. } => bytes,
                    Frame::Heard { .. } => continue,
                };
                // Told only when it is through: a reader that is late holds up the sender.
                if socket.write_all(&piece).is_err() {
                    return;
                }
                receiver.accept(number);
                shared.counts.expects.store(receiver.next(), Release);
            }
            if !shared.answers.tell(receiver.next()) {
                return;
            }
        }
    }
}

/// Tells the other side what has come.
fn answer<W: Write>(shared: &Shared<W>) {
    while let Some(next) = shared.answers.next() {
        if shared.write(&Frame::Heard { next }).is_err() {
            shared.answers.end();
        }
    }
}

fn send<W: Write>(mut socket: UnixStream, shared: &Shared<W>, disk: Option<&Disk>) {
    let mut bytes = vec![0; if disk.is_some() { SLOT } else { PAYLOAD }];
    let mut last = Instant::now();
    loop {
        let read = match socket.read(&mut bytes) {
            Ok(0) => return,
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                match send_again(shared, &mut last) {
                    Ok(()) => continue,
                    Err(_) => return,
                }
            }
            Err(_) => return,
        };
        let mut rest = &bytes[..read];
        while !rest.is_empty() {
            let Ok(number) = wait_for_room(shared, &mut last) else { return };
            let (piece, frame) = match disk {
                Some(disk) if rest.len() > LARGE && disk.put(number, rest).is_ok() => {
                    let (length, sum) = (rest.len() as u32, crc32c::crc32c(rest));
                    (rest.len(), Frame::Stored { number, length, sum })
                }
                _ => {
                    let piece = &rest[..rest.len().min(PAYLOAD)];
                    (piece.len(), Frame::Bytes { number, bytes: piece.to_vec() })
                }
            };
            rest = &rest[piece..];
            lock(&shared.counts.sender).sent(frame.clone());
            last = Instant::now();
            if shared.write(&frame).is_err() {
                return;
            }
        }
    }
}

/// Waits until a frame may be sent. Returns its number.
fn wait_for_room<W: Write>(shared: &Shared<W>, last: &mut Instant) -> io::Result<u32> {
    let mut sender = lock(&shared.counts.sender);
    while !sender.has_room() {
        let waited = shared.news.wait_timeout(sender, shared.again);
        let (guard, wait) = waited.unwrap_or_else(PoisonError::into_inner);
        if wait.timed_out() {
            drop(guard);
            send_again(shared, last)?;
            sender = lock(&shared.counts.sender);
        } else {
            sender = guard;
        }
    }
    Ok(sender.next())
}

/// Sends again what nobody has heard of for a while.
fn send_again<W: Write>(shared: &Shared<W>, last: &mut Instant) -> io::Result<()> {
    if last.elapsed() < shared.again {
        return Ok(());
    }
    *last = Instant::now();
    // Not held while the line may keep the writer waiting: who receives needs it.
    let unheard: Vec<Frame> = lock(&shared.counts.sender).unheard().cloned().collect();
    unheard.iter().try_for_each(|frame| shared.write(frame))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A line of which every so many bytes one gets lost.
    struct Lossy {
        line: UnixStream,
        every: usize,
        written: usize,
    }

    impl Write for Lossy {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            for byte in bytes {
                self.written += 1;
                if !self.written.is_multiple_of(self.every) {
                    self.line.write_all(&[*byte])?;
                }
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Two ends of a lossy line, as sockets; the first has a disk to put to.
    fn ends(every: usize) -> (UnixStream, UnixStream) {
        let (line, other_line) = UnixStream::pair().unwrap();
        let (end, own) = UnixStream::pair().unwrap();
        let (other_end, other_own) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(crate::disk::BYTES).unwrap();
        let disk = || Some(Disk::new(file.try_clone().unwrap()));
        let lossy =
            |line: &UnixStream| Lossy { line: line.try_clone().unwrap(), every, written: 0 };
        let (again, numbers) = (Duration::from_millis(50), Numbers::default());
        let out = lossy(&line);
        carry(own, (line, out), disk(), None, again, numbers).unwrap();
        let out = lossy(&other_line);
        carry(other_own, (other_line, out), None, disk(), again, numbers).unwrap();
        (end, other_end)
    }

    fn pattern(length: usize, seed: usize) -> Vec<u8> {
        (0..length).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed) as u8).collect()
    }

    #[test]
    fn bytes_arrive_whole_in_both_directions_over_a_line_that_loses_some() {
        let (mut one, mut two) = ends(3001);
        let (there, back) = (pattern(40_000, 1), pattern(9_000, 2));
        let (mut one_writes, there_sent) = (one.try_clone().unwrap(), there.clone());
        // In pieces that go over the line itself.
        let writer = thread::spawn(move || {
            there_sent.chunks(700).for_each(|piece| one_writes.write_all(piece).unwrap());
        });
        two.write_all(&back).unwrap();
        let (mut got_there, mut got_back) = (vec![0; there.len()], vec![0; back.len()]);
        two.read_exact(&mut got_there).unwrap();
        one.read_exact(&mut got_back).unwrap();
        writer.join().unwrap();
        assert!(got_there == there && got_back == back);
    }

    /// A line that takes nothing until it is let go.
    struct Full(mpsc::Receiver<()>);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// If it waited, and the other side did so too, nobody would empty either line.
    #[test]
    fn who_receives_does_not_wait_for_a_full_line() {
        let (mut far, from) = UnixStream::pair().unwrap();
        let (mut end, own) = UnixStream::pair().unwrap();
        let (let_go, full) = mpsc::channel();
        carry(own, (from, Full(full)), None, None, AGAIN, Numbers::default()).unwrap();
        end.write_all(b"out").unwrap();
        end.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        for number in 0..10 {
            far.write_all(&Frame::Bytes { number, bytes: vec![number as u8] }.encode()).unwrap();
            let mut got = [0];
            end.read_exact(&mut got).unwrap();
            assert_eq!(got, [number as u8]);
        }
        drop(let_go);
    }

    #[test]
    fn large_pieces_go_by_the_disk() {
        // The line alone would lose something of every frame of bytes.
        let (mut one, mut two) = ends(900);
        let bytes = pattern(3 << 20, 3);
        let sent = bytes.clone();
        let writer = thread::spawn(move || one.write_all(&sent).map(|()| one));
        let mut got = vec![0; bytes.len()];
        two.read_exact(&mut got).unwrap();
        let one = writer.join().unwrap().unwrap();
        assert!(got == bytes);
        drop(one);
    }

    #[test]
    fn a_line_goes_on_with_the_numbers_at_which_it_stood() {
        let (line, mut far) = UnixStream::pair().unwrap();
        let (mut end, own) = UnixStream::pair().unwrap();
        let begin = Numbers { sends: 5, expects: 3 };
        let ways = (line.try_clone().unwrap(), line);
        let carried = carry(own, ways, None, None, AGAIN, begin).unwrap();
        assert_eq!(carried.numbers(), Some(begin));
        let mut decoder = Decoder::default();
        let mut next = |far: &mut UnixStream| {
            let mut bytes = [0; 100];
            let read = far.read(&mut bytes).unwrap();
            decoder.take(&bytes[..read]).remove(0)
        };
        far.write_all(&Frame::Bytes { number: 3, bytes: b"in".to_vec() }.encode()).unwrap();
        let mut got = [0; 2];
        end.read_exact(&mut got).unwrap();
        assert_eq!((&got, next(&mut far)), (b"in", Frame::Heard { next: 4 }));
        end.write_all(b"out").unwrap();
        assert_eq!(next(&mut far), Frame::Bytes { number: 5, bytes: b"out".to_vec() });
        assert_eq!(carried.numbers(), None, "nobody has heard of it");
        far.write_all(&Frame::Heard { next: 6 }.encode()).unwrap();
        while carried.numbers() != Some(Numbers { sends: 6, expects: 4 }) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_line_that_ends_is_heard_of() {
        let (line, other) = UnixStream::pair().unwrap();
        let (mut end, own) = UnixStream::pair().unwrap();
        let ways = (line.try_clone().unwrap(), line);
        carry(own, ways, None, None, AGAIN, Numbers::default()).unwrap();
        drop(other);
        assert_eq!(end.read(&mut [0]).unwrap(), 0);
    }
}
