//! Results of points, kept from one time to the next.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};
use strata_engine::Report;
use strata_files::{OutFile, PUBLIC};

/// A directory of results, one file for each point, named by all that the result depends on.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: PathBuf,
}

impl Cache {
    /// The user's, `$XDG_CACHE_HOME/strata/sweeps` or `~/.cache/strata/sweeps` (XDG Base Directory
    /// Specification); none where no directory can be told.
    pub fn of_user() -> Option<Self> {
        let absolute =
            |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = absolute("XDG_CACHE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
        Some(Self::at(cache.join("strata").join("sweeps")))
    }

    /// In this directory, which is made when something is kept.
    pub fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn file(&self, key: &str) -> PathBuf {
        self.directory.join(format!("{key}.json"))
    }

    /// The result of a point, if it is there and whole.
    pub fn load(&self, key: &str) -> Option<String> {
        let json = fs::read_to_string(self.file(key)).ok()?;
        let report: Report = serde_json::from_str(&json).ok()?;
        (!report.partial).then_some(json)
    }

    /// Keeps the result of a point; whole or not at all, whoever else keeps it at the same time.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn store(&self, key: &str, json: &str) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let mut file = OutFile::create(&self.file(key), PUBLIC)?;
        file.write_all(json.as_bytes())?;
        file.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_results_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path().join("sweeps"));
        assert_eq!(cache.load("a"), None);
        let report = Report { seed: 7, ..Report::default() };
        let json = |report: &Report| serde_json::to_string(report).unwrap();
        cache.store("a", &json(&report)).unwrap();
        assert_eq!(cache.load("a"), Some(json(&report)));
        cache.store("a", &json(&Report { partial: true, ..report })).unwrap();
        assert_eq!(cache.load("a"), None);
        cache.store("a", "{").unwrap();
        assert_eq!(cache.load("a"), None);
    }
}
