//! Directories of runs: each has one for its logs, and the last ones are kept.

use crate::cache::Cache;
use crate::error::{LabError, on};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Directories of runs that are kept.
const KEPT_RUNS: usize = 20;
/// File in such a directory that is locked as long as the run goes on.
const LOCK: &str = "lock";

/// A directory for this run's logs, and the lock that says that it is in use; old ones go.
pub(crate) fn new_run(cache: &Cache) -> Result<(PathBuf, File), LabError> {
    let parent = cache.directory("runs")?;
    let mut old: Vec<PathBuf> =
        on(&parent, fs::read_dir(&parent))?.flatten().map(|entry| entry.path()).collect();
    old.sort();
    for path in old.iter().rev().skip(KEPT_RUNS - 1).filter(|path| !in_use(path)) {
        // Another run may be removing it too.
        let _ = fs::remove_dir_all(path);
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    // One that ended at once may have been begun within the same second.
    let path = (0..)
        .map(|number| parent.join(format!("{seconds}-{}-{number}", std::process::id())))
        .find_map(|path| match fs::create_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
            made => Some(on(&path, made).map(|()| path)),
        })
        .expect("numbers do not end")?;
    let lock = occupy(&path)?;
    Ok((path, lock))
}

/// Says that a directory is in use, as long as what is returned lives.
pub(crate) fn occupy(path: &Path) -> Result<File, LabError> {
    let file = path.join(LOCK);
    let lock = on(&file, File::create(&file))?;
    on(&file, lock.lock())?;
    Ok(lock)
}

/// Whether the run of this directory still goes on. The system takes the lock from one that ended,
/// however it did.
pub(crate) fn in_use(path: &Path) -> bool {
    File::open(path.join(LOCK))
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn old_runs_go_and_those_that_go_on_stay() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path().to_owned());
        let runs = cache.directory("runs").unwrap();
        for number in 0..KEPT_RUNS + 3 {
            fs::create_dir(runs.join(format!("{number:03}-1"))).unwrap();
        }
        let busy = File::create(runs.join("000-1").join(LOCK)).unwrap();
        busy.lock().unwrap();
        File::create(runs.join("001-1").join(LOCK)).unwrap();
        let (own, _lock) = new_run(&cache).unwrap();
        assert!(in_use(&own));
        assert!(runs.join("000-1").exists());
        assert!(!runs.join("001-1").exists());
        assert_eq!(fs::read_dir(&runs).unwrap().count(), KEPT_RUNS + 1);
    }

    #[test]
    fn runs_of_one_second_have_their_own_directories() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path().to_owned());
        // Each ends at once, as far as its lock says.
        let paths: BTreeSet<PathBuf> = (0..5).map(|_| new_run(&cache).unwrap().0).collect();
        assert_eq!(paths.len(), 5);
    }
}
