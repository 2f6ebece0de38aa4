//! Machines whose layers all run, kept to begin with: booting takes most of a run's time.
//!
//! Kept are the machine's memory and the state of its devices, under a key of everything that a boot
//! depends on. A run that finds its own key begins there. Any number of runs may, at the same time:
//! none changes the file of the memory, which each has copied as it writes.

use crate::boot::Booted;
use crate::cache::{Cache, key};
use crate::directory::{in_use, occupy};
use crate::error::{LabError, on};
use crate::journal::{Journal, console_log};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// Changes with the form of what is kept.
const FORM: &[u8] = b"1";
/// The directory of all.
const MACHINES: &str = "machines";
/// What the name of one in the making begins with.
const UNFINISHED: &str = ".new-";
/// Age from which one in the making goes if no run holds its lock: one that has just begun has none yet.
const ABANDONED: Duration = Duration::from_secs(60);
/// Bytes on disk that all may have; those used longest ago go first.
const MOST_BYTES: u64 = 16 << 30;
/// Bytes that stay free on the disk.
const SPARE_BYTES: u64 = 2 << 30;
/// What is known of the layers.
const LAYERS: &str = "layers.json";

/// A machine that is kept, or one in the making.
#[derive(Debug)]
pub(crate) struct Kept {
    directory: PathBuf,
    /// How its layers came up, in the run that kept it.
    pub(crate) booted: Vec<Booted>,
}

/// What is known of the layers of a machine, in a file beside it.
#[derive(Debug, Serialize, Deserialize)]
struct Layers {
    booted: Vec<Booted>,
}

impl Kept {
    /// The file of the machine's memory.
    pub(crate) fn memory(&self) -> PathBuf {
        memory(&self.directory)
    }

    /// The file, or the directory, of the state of its devices.
    pub(crate) fn devices(&self) -> PathBuf {
        devices(&self.directory)
    }

    /// Tells a journal what the one of the first run knew at this point.
    pub(crate) fn tell(&self, journal: &mut Journal) -> Result<(), LabError> {
        for (layer, booted) in journal.layers.iter_mut().zip(&self.booted) {
            let path = console_log(&self.directory, booted.layer);
            for line in on(&path, fs::read_to_string(&path))?.lines() {
                layer.console(line)?;
            }
            layer.ready = Some((booted.kernel.clone(), booted.own));
        }
        Ok(())
    }

    /// Forgets it.
    pub(crate) fn remove(self) {
        // What is left of one that cannot be removed is a key that is looked up in vain.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A machine that is to be kept once its layers run.
#[derive(Debug)]
pub(crate) struct Unfinished {
    directory: TempDir,
    /// Says that a run is still at it.
    _lock: File,
}

impl Unfinished {
    /// The file of the machine's memory, empty at first.
    pub(crate) fn memory(&self) -> PathBuf {
        memory(self.directory.path())
    }

    /// The file, or the directory, of the state of its devices.
    pub(crate) fn devices(&self) -> PathBuf {
        devices(self.directory.path())
    }
}

fn memory(directory: &Path) -> PathBuf {
    directory.join("memory")
}

fn devices(directory: &Path) -> PathBuf {
    directory.join("devices")
}

/// All machines that are kept.
#[derive(Debug)]
pub(crate) struct Machines {
    root: PathBuf,
}

impl Machines {
    pub(crate) fn of(cache: &Cache) -> Result<Self, LabError> {
        Ok(Self { root: cache.directory(MACHINES)? })
    }

    /// The key of a machine that boots from what these texts and files say.
    pub(crate) fn key<'a>(of: impl IntoIterator<Item = &'a [u8]>) -> String {
        key([FORM].into_iter().chain(of))
    }

    /// The machine of that key, if it is there.
    pub(crate) fn find(&self, key: &str) -> Option<Kept> {
        let directory = self.root.join(key);
        let path = directory.join(LAYERS);
        let layers: Layers = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        // A date that cannot be set makes it go a little sooner.
        let used = FileTimes::new().set_modified(SystemTime::now());
        let _ = File::options().append(true).open(&path).and_then(|file| file.set_times(used));
        Some(Kept { directory, booted: layers.booted })
    }

    /// Room for a machine with so many bytes of memory. Nothing if the disk has none.
    pub(crate) fn begin(&self, memory: u64) -> Result<Option<Unfinished>, LabError> {
        let room = |spare| crate::trace::free(&self.root) >= memory + spare;
        self.trim(MOST_BYTES.saturating_sub(memory))?;
        if !room(SPARE_BYTES) {
            self.trim(0)?;
        }
        if !room(SPARE_BYTES) {
            return Ok(None);
        }
        let directory = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(&self.root);
        let directory = on(&self.root, directory)?;
        let lock = occupy(directory.path())?;
        let unfinished = Unfinished { directory, _lock: lock };
        let memory = unfinished.memory();
        on(&memory, File::create(&memory))?;
        Ok(Some(unfinished))
    }

    /// Keeps a machine whose layers all run, with the consoles in this directory.
    pub(crate) fn finish(
        &self,
        unfinished: Unfinished,
        key: &str,
        booted: Vec<Booted>,
        consoles: &Path,
    ) -> Result<Kept, LabError> {
        let at = unfinished.directory.path();
        for layer in &booted {
            let (from, to) = (console_log(consoles, layer.layer), console_log(at, layer.layer));
            on(&from, fs::copy(&from, to))?;
        }
        let layers = Layers { booted };
        let path = at.join(LAYERS);
        on(&path, fs::write(&path, serde_json::to_vec(&layers).expect("they are plain data")))?;
        let directory = self.root.join(key);
        match fs::rename(at, &directory) {
            Ok(()) => drop(unfinished.directory.keep()),
            // Another run was faster, and its machine is as good.
            Err(_) if directory.join(LAYERS).exists() => {}
            Err(source) => return Err(LabError::File { path: directory, source }),
        }
        Ok(Kept { directory, booted: layers.booted })
    }

    /// Removes machines, those used longest ago first, until the others take no more than so many bytes.
    fn trim(&self, most: u64) -> Result<(), LabError> {
        let now = SystemTime::now();
        let mut kept = Vec::new();
        for entry in on(&self.root, fs::read_dir(&self.root))?.flatten() {
            let path = entry.path();
            let age = |path: &Path| {
                let at = fs::metadata(path).and_then(|data| data.modified()).ok();
                at.and_then(|at| now.duration_since(at).ok()).unwrap_or_default()
            };
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                if age(&path) > ABANDONED && !in_use(&path) {
                    let _ = fs::remove_dir_all(&path);
                }
                continue;
            }
            kept.push((age(&path.join(LAYERS)), path));
        }
        kept.sort();
        let mut total = 0;
        for (_, path) in kept {
            total += on_disk(&path);
            if total > most {
                // A run that goes on has its files open.
                let _ = fs::remove_dir_all(&path);
            }
        }
        Ok(())
    }
}

/// Bytes that a directory's files take on disk: a machine's memory is full of holes.
fn on_disk(directory: &Path) -> u64 {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.blocks() * 512)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Kernel;

    fn booted(kernel: &str) -> Vec<Booted> {
        vec![Booted { layer: 0, kernel: kernel.into(), since_start: 2.0, own: 1.0 }]
    }

    /// Keeps a machine of this key whose memory has so many bytes.
    fn keep(machines: &Machines, key: &str, bytes: usize) -> Kept {
        let consoles = tempfile::tempdir().unwrap();
        fs::write(console_log(consoles.path(), 0), "first\nlast\n").unwrap();
        let new = machines.begin(0).unwrap().unwrap();
        fs::write(new.memory(), vec![1; bytes]).unwrap();
        fs::write(new.devices(), key).unwrap();
        machines.finish(new, key, booted(key), consoles.path()).unwrap()
    }

    fn machines() -> (TempDir, Machines) {
        let directory = tempfile::tempdir().unwrap();
        let machines = Machines::of(&Cache::at(directory.path().to_owned())).unwrap();
        (directory, machines)
    }

    #[test]
    fn a_machine_is_found_by_its_key_with_what_was_known_of_it() {
        let (_directory, machines) = machines();
        assert!(machines.find("a").is_none());
        keep(&machines, "a", 10);
        let found = machines.find("a").unwrap();
        assert_eq!(fs::read(found.memory()).unwrap(), [1; 10]);
        assert_eq!(fs::read(found.devices()).unwrap(), b"a");
        let logs = tempfile::tempdir().unwrap();
        let mut journal = Journal::start(logs.path(), [Kernel::Debian]).unwrap();
        found.tell(&mut journal).unwrap();
        assert_eq!(journal.layers[0].ready, Some(("a".into(), 1.0)));
        assert_eq!(fs::read_to_string(console_log(logs.path(), 0)).unwrap(), "first\nlast\n");
        assert!(machines.find("b").is_none());
        found.remove();
        assert!(machines.find("a").is_none());
    }

    #[test]
    fn of_two_that_were_made_at_once_one_is_kept() {
        let (_directory, machines) = machines();
        keep(&machines, "a", 10);
        let second = keep(&machines, "a", 20);
        assert_eq!(fs::read(second.memory()).unwrap().len(), 10);
        assert_eq!(fs::read_dir(&machines.root).unwrap().count(), 1);
    }

    #[test]
    fn those_used_longest_ago_go() {
        let (_directory, machines) = machines();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (key, seconds) in [("a", 10), ("b", 20), ("c", 30)] {
            let kept = keep(&machines, key, 1 << 20);
            let file = File::options().append(true).open(kept.directory.join(LAYERS)).unwrap();
            file.set_times(FileTimes::new().set_modified(at(seconds))).unwrap();
        }
        machines.find("a").unwrap();
        machines.trim((2 << 20) + (512 << 10)).unwrap();
        let there = |key: &str| machines.root.join(key).exists();
        assert!(there("a") && !there("b") && there("c"));
        machines.trim(0).unwrap();
        assert!(!there("a") && !there("c"));
    }

    /// Makes a directory look as if nothing in it had changed for so long.
    fn age(directory: &Path, by: Duration) {
        let times = FileTimes::new().set_modified(SystemTime::now() - by);
        File::open(directory).unwrap().set_times(times).unwrap();
    }

    #[test]
    fn one_that_is_not_finished_leaves_nothing() {
        let (_directory, machines) = machines();
        let new = machines.begin(0).unwrap().unwrap();
        fs::write(new.memory(), "x").unwrap();
        // A run that boots for hours is still at it.
        age(new.directory.path(), ABANDONED * 200);
        machines.trim(0).unwrap();
        assert!(new.memory().exists());
        drop(new);
        assert_eq!(fs::read_dir(&machines.root).unwrap().count(), 0);
        assert!(machines.begin(u64::MAX / 2).unwrap().is_none());
    }

    #[test]
    fn what_a_killed_run_left_goes_with_the_next_one() {
        let (_directory, machines) = machines();
        let Unfinished { directory, _lock: lock } = machines.begin(0).unwrap().unwrap();
        let left = directory.keep();
        // The system closes the files of a process that is killed.
        drop(lock);
        machines.trim(0).unwrap();
        assert!(left.exists(), "one that began a moment ago may not have its lock yet");
        age(&left, ABANDONED * 2);
        let new = machines.begin(0).unwrap().unwrap();
        assert!(!left.exists() && new.memory().exists());
    }
}
