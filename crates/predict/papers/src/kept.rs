//! Results of rows, kept from one time to the next.

use sha2::{Digest, Sha256};
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use strata_engine::Report;

use crate::Row;

/// Results cannot be kept; each message is one line with cause and remedy.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// No environment variable says where.
    #[error(
        "neither XDG_CACHE_HOME nor HOME names a directory from / on: there is nowhere to keep results; \
         set one of them"
    )]
    Nowhere,
    /// The directory cannot be used.
    #[error("{}: {error}; name another directory with XDG_CACHE_HOME", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The program that runs the rows cannot be told from others.
    #[error("{}: {error}; install the program anew", .path.display())]
    Program {
        /// The program.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

/// A directory of results, one file for each row, named by what the row depends on: its words and the
/// program that ran it.
#[derive(Clone, Debug)]
pub struct Kept {
    directory: PathBuf,
    program: PathBuf,
    /// What tells this program from one built otherwise.
    built: String,
}

impl Kept {
    /// Results of a paper in the user's cache, `$XDG_CACHE_HOME/strata/papers` or
    /// `~/.cache/strata/papers` (XDG Base Directory Specification), run by `program`.
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn of_user(paper: &str, program: &Path) -> Result<Self, KeptError> {
        let absolute =
            |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = absolute("XDG_CACHE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
            .ok_or(KeptError::Nowhere)?;
        Self::at(cache.join("strata").join("papers").join(paper), program)
    }

    /// Results in a directory, which is made if missing, run by `program`.
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn at(directory: PathBuf, program: &Path) -> Result<Self, KeptError> {
        fs::create_dir_all(&directory)
            .map_err(|error| KeptError::Directory { path: directory.clone(), error })?;
        let wrong = |error| KeptError::Program { path: program.to_owned(), error };
        let about = fs::metadata(program).map_err(wrong)?;
        let changed = about.modified().map_err(wrong)?.duration_since(UNIX_EPOCH);
        let built = format!("{} {}", about.len(), changed.unwrap_or_default().as_nanos());
        Ok(Self { directory, program: program.to_owned(), built })
    }

    /// The program that runs rows.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Where the results are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file of a row's result.
    pub fn file(&self, row: &Row) -> PathBuf {
        let mut hash = Sha256::new();
        hash.update(&self.built);
        for word in &row.words {
            // What no word holds keeps them apart.
            hash.update([0]);
            hash.update(word);
        }
        let name: String = hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        self.directory.join(name + ".json")
    }

    /// The result of a row, if it is there and whole.
    pub fn load(&self, row: &Row) -> Option<Report> {
        let text = fs::read(self.file(row)).ok()?;
        serde_json::from_slice(&text).ok().filter(|report: &Report| !report.partial)
    }

    /// Forgets the result of a row.
    pub fn forget(&self, row: &Row) {
        // One that was never there needs no removal.
        let _ = fs::remove_file(self.file(row));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(words: &[&str]) -> Row {
        Row { name: String::new(), words: words.iter().map(|word| (*word).to_owned()).collect() }
    }

    #[test]
    fn a_result_is_of_its_words_and_its_program() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("strata");
        fs::write(&program, "one").unwrap();
        let kept = Kept::at(directory.path().join("kept"), &program).unwrap();
        let one = row(&["--seed", "1"]);
        assert_eq!(kept.file(&one), kept.file(&one.clone()));
        assert_ne!(kept.file(&one), kept.file(&row(&["--seed", "2"])));
        assert_ne!(kept.file(&row(&["ab", "c"])), kept.file(&row(&["a", "bc"])));
        let before = kept.file(&one);
        fs::write(&program, "another").unwrap();
        assert_ne!(Kept::at(directory.path().join("kept"), &program).unwrap().file(&one), before);
    }

    #[test]
    fn only_whole_results_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept::at(directory.path().to_owned(), directory.path()).unwrap();
        let one = row(&["--seed", "1"]);
        assert_eq!(kept.load(&one), None);
        let report = Report { seed: 7, ..Report::default() };
        let write = |report: &Report| {
            fs::write(kept.file(&one), serde_json::to_vec(report).unwrap()).unwrap();
        };
        write(&report);
        assert_eq!(kept.load(&one), Some(report.clone()));
        write(&Report { partial: true, ..report });
        assert_eq!(kept.load(&one), None);
        fs::write(kept.file(&one), "{").unwrap();
        assert_eq!(kept.load(&one), None);
    }
}
