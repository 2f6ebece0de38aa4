//! Whoever knows the key gets the snapshot, whole and proven; nobody else gets or spoils anything.

use proptest::prelude::*;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use strata_remote::{Asked, Key, Place, Route, Server, Way, ask};
use tempfile::TempDir;

struct World {
    directory: TempDir,
}

impl World {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn key(&self, byte: u8) -> Key {
        let path = self.path(&format!("key{byte}"));
        fs::write(&path, vec![byte; 32]).unwrap();
        Key::read(&path).unwrap()
    }

    /// Serves this while `then` runs; gives what was told of those who asked.
    fn serving<T>(
        &self,
        answer: Result<&[u8], &str>,
        then: impl FnOnce(&Path) -> T,
    ) -> (T, Vec<Way>) {
        let path = self.path("socket");
        let server = Server::new(&Place::Unix(path.clone()), self.key(1)).unwrap();
        let (stop, told) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        let result = thread::scope(|scope| {
            scope.spawn(|| {
                let mut snapshot = |to: &mut dyn Write| match answer {
                    Ok(bytes) => to.write_all(bytes).map_err(|error| error.to_string()),
                    Err(why) => Err(why.to_owned()),
                };
                let mut tell = |way| told.lock().unwrap().push(way);
                server.run(&stop, &mut snapshot, &mut tell).unwrap();
            });
            let result = then(&path);
            stop.store(true, Relaxed);
            result
        });
        (result, told.into_inner().unwrap())
    }
}

fn route(path: &Path) -> Route {
    Route { first: Place::Unix(path.to_owned()), onward: Vec::new() }
}

fn fetched(path: &Path, key: &Key) -> Result<Vec<u8>, Asked> {
    let mut bytes = Vec::new();
    ask(&route(path), key, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(bytes)
}

#[test]
fn a_snapshot_arrives_as_it_was_sent_again_and_again() {
    let world = World::new();
    for length in [0, 1, 65_535, 65_536, 65_537, 1_000_000] {
        let sent: Vec<u8> = (0..length).map(|at: u32| (at * 7 % 251) as u8).collect();
        let (got, told) = world
            .serving(Ok(&sent), |path| [1, 1].map(|key| fetched(path, &world.key(key)).unwrap()));
        assert!(got.iter().all(|bytes| *bytes == sent), "{length}");
        assert_eq!(told, [Way::Answered, Way::Answered]);
        assert!(!world.path("socket").exists(), "the socket's file goes with the server");
    }
}

#[test]
fn without_the_key_nothing_is_said_and_the_next_is_served() {
    let world = World::new();
    let (first, told) = world.serving(Ok(b"secret"), |path| {
        let first = fetched(path, &world.key(2)).unwrap_err().to_string();
        assert_eq!(fetched(path, &world.key(1)).unwrap(), b"secret");
        first
    });
    assert!(first.contains("both ends need the same --key"), "{first}");
    assert_eq!(told, [Way::Unknown, Way::Answered]);
}

#[test]
fn a_layer_that_has_none_says_why() {
    let world = World::new();
    let (error, told) =
        world.serving(Err("there is no /proc"), |path| fetched(path, &world.key(1)).unwrap_err());
    assert!(error.to_string().ends_with(": there is no /proc"), "{error}");
    assert_eq!(told, [Way::Refused("there is no /proc".into())]);
    let nobody = fetched(&world.path("nowhere"), &world.key(1)).unwrap_err().to_string();
    assert!(nobody.contains("run 'strata scan --serve' there"), "{nobody}");
}

#[test]
fn the_way_on_to_a_vm_that_is_not_there_is_refused_with_its_number() {
    let world = World::new();
    let (error, _) = world.serving(Ok(b""), |path| {
        // No VM has the number of this computer's own loopback device, if that is there at all.
        let onward = vec![(1_000_000, 9)];
        let route = Route { onward, ..route(path) };
        ask(&route, &world.key(1), &mut |_| Ok(())).unwrap_err().to_string()
    });
    assert!(error.contains("nobody answers at its vsock:1000000:9"), "{error}");
}

/// What was said once is not taken a second time.
#[test]
fn a_request_cannot_be_said_again() {
    let world = World::new();
    let ((), told) = world.serving(Ok(b"secret"), |path| {
        // Between the two, who writes down what is said.
        let between = world.path("between");
        let listener = UnixListener::bind(&between).unwrap();
        let said = thread::scope(|scope| {
            scope.spawn(|| fetched(&between, &world.key(1)));
            let (mut asking, _) = listener.accept().unwrap();
            let mut answering = UnixStream::connect(path).unwrap();
            let mut hello = [0; 48];
            answering.read_exact(&mut hello).unwrap();
            asking.write_all(&hello).unwrap();
            let mut said = [0; 73];
            asking.read_exact(&mut said).unwrap();
            said
        });
        let mut again = UnixStream::connect(path).unwrap();
        again.read_exact(&mut [0; 48]).unwrap();
        again.write_all(&said).unwrap();
        let mut answer = Vec::new();
        let _ = again.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    });
    assert!(told.contains(&Way::Unknown) && !told.contains(&Way::Answered), "{told:?}");
}

/// Somebody between the two who changes one byte of what the answering end says.
fn spoilt(path: &Path, between: &UnixListener, at: usize) -> io::Result<()> {
    let (mut asking, _) = between.accept()?;
    let mut answering = UnixStream::connect(path)?;
    let (mut from, mut to) = (asking.try_clone()?, answering.try_clone()?);
    thread::scope(|scope| {
        scope.spawn(move || io::copy(&mut from, &mut to));
        let mut all = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let length = answering.read(&mut piece)?;
            if length == 0 {
                break;
            }
            let place = at.wrapping_sub(all.len());
            all.extend_from_slice(&piece[..length]);
            if place < length {
                piece[place] ^= 1;
            }
            if asking.write_all(&piece[..length]).is_err() {
                break;
            }
        }
        asking.shutdown(std::net::Shutdown::Both)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whichever byte of an answer is changed, it is noticed.
    #[test]
    fn a_changed_answer_is_refused(at in 0usize..48 + 5 + 300 + 5 + 32) {
        let world = World::new();
        let between = world.path("between");
        // From now on it can be asked.
        let listener = UnixListener::bind(&between).unwrap();
        let (got, _) = world.serving(Ok(&[9; 300]), |path| {
            thread::scope(|scope| {
                scope.spawn(|| spoilt(path, &listener, at));
                fetched(&between, &world.key(1))
            })
        });
        prop_assert!(got.is_err(), "{}", at);
    }

    /// Whatever somebody says who has no key, the next one is served.
    #[test]
    fn noise_is_no_request(noise in prop::collection::vec(any::<u8>(), 0..200)) {
        let world = World::new();
        let (got, told) = world.serving(Ok(b"whole"), |path| {
            let mut stream = UnixStream::connect(path).unwrap();
            let _ = stream.write_all(&noise);
            drop(stream);
            fetched(path, &world.key(1)).unwrap()
        });
        prop_assert_eq!(got, b"whole");
        prop_assert!(told[0] != Way::Answered && told[1] == Way::Answered, "{:?}", told);
    }

    /// Whatever somebody answers who has no key, who asks has an error and no more.
    #[test]
    fn noise_is_no_answer(noise in prop::collection::vec(any::<u8>(), 0..400), polite: bool) {
        let world = World::new();
        let path = world.path("impostor");
        let listener = UnixListener::bind(&path).unwrap();
        let result = thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let hello: &[u8] = if polite { b"strata remote 1\n" } else { b"" };
                let _ = stream.write_all(&[hello, &noise].concat());
            });
            fetched(&path, &world.key(1))
        });
        prop_assert!(result.is_err());
    }
}
