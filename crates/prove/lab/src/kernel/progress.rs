//! How far a build is, by the lines it prints: one for every file it makes.

use crate::cache::Cache;
use crate::error::{LabError, on};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What the build says, all builds of these objects one after the other.
pub(super) const BUILD_LOG: &str = "build.log";
/// Says that all objects have been made once.
const WHOLE: &str = "whole";
/// Files that a build of the vanilla kernel from nothing makes, counted on one: what any variant is
/// taken for until it was built on this computer.
const USUAL: usize = 1688;
/// Files made before the rate is worth telling.
const ENOUGH: usize = 20;

/// Whether a build finished in `objects`.
pub(super) fn is_whole(objects: &Path) -> bool {
    objects.join(WHOLE).exists()
}

/// How far a build is.
#[derive(Clone, Copy, Debug)]
pub struct BuildProgress {
    /// Files made.
    pub done: usize,
    /// Files to make, as many as last time.
    pub total: usize,
    /// Seconds left at the rate so far.
    pub seconds_left: Option<f64>,
}

/// Counts the files of a build from nothing, interrupted or not.
#[derive(Debug)]
pub(super) struct Steps {
    /// Made before.
    resumed: usize,
    /// Made now.
    made: usize,
    total: usize,
    /// The objects were whole before: nobody knows how many are to be made again.
    again: bool,
    begin: Instant,
    /// Where the number of files is kept for the next time.
    kept: PathBuf,
    objects: PathBuf,
}

impl Steps {
    /// Begins with what an interrupted build of the kernel `name` left in `objects`.
    pub(super) fn begin(cache: &Cache, name: &str, objects: &Path) -> Result<Self, LabError> {
        let kept = cache.directory("steps")?.join(name);
        let known = fs::read_to_string(&kept).ok().and_then(|text| text.trim().parse().ok());
        let log = fs::read_to_string(objects.join(BUILD_LOG)).unwrap_or_default();
        Ok(Self {
            resumed: log.lines().filter(|line| makes(line)).count(),
            made: 0,
            total: known.unwrap_or(USUAL),
            again: is_whole(objects),
            begin: Instant::now(),
            kept,
            objects: objects.to_owned(),
        })
    }

    /// Takes a line that the build prints.
    pub(super) fn line(&mut self, line: &str) -> Option<BuildProgress> {
        if !makes(line) {
            return None;
        }
        self.made += 1;
        if self.again {
            return None;
        }
        let done = self.resumed + self.made;
        let rate = self.made as f64 / self.begin.elapsed().as_secs_f64();
        Some(BuildProgress {
            done,
            total: self.total.max(done),
            seconds_left: (self.made > ENOUGH)
                .then(|| self.total.saturating_sub(done) as f64 / rate),
        })
    }

    /// Keeps the count of a build from nothing.
    pub(super) fn end(self) -> Result<(), LabError> {
        if self.again {
            return Ok(());
        }
        on(&self.kept, fs::write(&self.kept, (self.resumed + self.made).to_string()))?;
        let whole = self.objects.join(WHOLE);
        on(&whole, fs::write(&whole, ""))
    }
}

/// Whether a line of the kernel's build is about a file it makes.
fn makes(line: &str) -> bool {
    line.starts_with("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_as_long_as_the_last_one_from_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path().join("cache"));
        let objects = directory.path().join("object");
        fs::create_dir(&objects).unwrap();
        let begin = || Steps::begin(&cache, "debug", &objects).unwrap();
        // Interrupted after two files.
        let mut steps = begin();
        assert!(steps.line("make[1]: Entering directory").is_none());
        let first = steps.line("  CC      mm/a.o").unwrap();
        assert_eq!((first.done, first.total), (1, USUAL));
        fs::write(objects.join(BUILD_LOG), "make: x\n  CC      mm/a.o\n  CC      mm/b.o\n")
            .unwrap();
        let mut steps = begin();
        assert_eq!(steps.line("  CC      mm/c.o").unwrap().done, 3);
        steps.end().unwrap();
        // What is made again after a change is no measure.
        let mut steps = begin();
        assert!(steps.line("  CC      mm/c.o").is_none());
        steps.end().unwrap();
        fs::remove_dir_all(&objects).unwrap();
        fs::create_dir(&objects).unwrap();
        let mut steps = begin();
        let mut last = None;
        for _ in 0..30 {
            last = steps.line("  CC      mm/a.o");
        }
        let last = last.unwrap();
        assert_eq!((last.done, last.total), (30, 30));
        assert_eq!(last.seconds_left, Some(0.0));
    }
}
