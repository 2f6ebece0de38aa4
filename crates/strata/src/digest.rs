//! SHA-256 of what a run reads, so that results can be told apart by it.

use crate::args::RunArgs;
use crate::cpu::names_a_file;
use crate::failure::Failure;
use crate::workload::Input;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

/// Of what is run, in hexadecimal: a recording's bytes, a generator's description. `None` for what is
/// not the same twice.
///
/// # Errors
/// When a file cannot be read.
pub fn of_input(args: &RunArgs) -> Result<Option<String>, Failure> {
    let named = args.input.workload.as_deref().map(Input::named).transpose()?;
    let trace = args.input.trace.clone().map(|path| Input::Trace(path, None));
    let live = !args.input.program.is_empty();
    let own = named.or(trace);
    let inputs: Vec<&Input> =
        own.iter().chain(args.vm.iter().filter_map(|vm| vm.input.as_ref())).collect();
    if live || inputs.is_empty() || inputs.iter().any(|input| !input.is_repeatable()) {
        return Ok(None);
    }
    let mut all = inputs.into_iter().map(|input| match input {
        Input::Generator(spec) => Ok(text(&[spec])),
        Input::Trace(path, _) | Input::Prepared(_, path) => of_file(path),
        Input::Live(_) => unreachable!("it is not repeatable"),
    });
    let first = all.next().expect("there is one")?;
    let rest = all.collect::<Result<Vec<_>, _>>()?;
    if rest.is_empty() {
        return Ok(Some(first));
    }
    let words: Vec<&str> = [&first].into_iter().chain(&rest).map(String::as_str).collect();
    Ok(Some(text(&words)))
}

/// Of the other files that are read: a CPU's, captured tables, a configuration.
///
/// # Errors
/// When one cannot be read.
pub fn of_files(args: &RunArgs) -> Result<String, Failure> {
    let cpu = args.cpu.as_deref().filter(|cpu| names_a_file(cpu)).map(Path::new);
    let files = [cpu, args.tables.as_deref(), args.config.as_deref()];
    let digests = files.into_iter().map(|file| file.map_or(Ok(String::new()), of_file));
    let digests = digests.collect::<Result<Vec<_>, _>>()?;
    Ok(text(&digests.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// Of words, none of which can be taken for a part of another.
pub fn text(words: &[&str]) -> String {
    let mut hash = Sha256::new();
    for (index, word) in words.iter().enumerate() {
        if index > 0 {
            hash.update([0]);
        }
        hash.update(word);
    }
    hexadecimal(hash)
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What tells whether a file was written since.
type Written = (u64, Option<SystemTime>);

/// Of files that were read before: the points of a sweep read the same one.
static KNOWN: Mutex<Option<HashMap<PathBuf, (Written, String)>>> = Mutex::new(None);

fn of_file(path: &Path) -> Result<String, Failure> {
    let failed = |error: io::Error| {
        Failure::failed(format!("cannot read {}: {error}; name another file", path.display()))
    };
    let about = fs::metadata(path).map_err(failed)?;
    let written = (about.len(), about.modified().ok());
    let mut known = KNOWN.lock().expect("nothing panics with it");
    let known = known.get_or_insert_default();
    if let Some((_, digest)) = known.get(path).filter(|(then, _)| *then == written) {
        return Ok(digest.clone());
    }
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path).map_err(failed)?, &mut Hashed(&mut hash)).map_err(failed)?;
    let digest = hexadecimal(hash);
    known.insert(path.to_owned(), (written, digest.clone()));
    Ok(digest)
}

struct Hashed<'a>(&'a mut Sha256);

impl io::Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn digest(options: &str) -> Option<String> {
        of_input(&config::options(config::table(options).unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn an_input_is_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &str| {
            let path = directory.path().join(name);
            fs::write(&path, content).unwrap();
            digest(&format!("trace = '{}'", path.display()))
        };
        assert_eq!(file("a", "one"), file("b", "one"));
        assert_ne!(file("a", "two"), file("b", "one"));
        let spec = |spec: &str| digest(&format!("workload = '{spec}'\nseed = 2"));
        assert!(spec("random:size=1MiB").is_some());
        assert_ne!(spec("random:size=1MiB"), spec("random:size=2MiB"));
        assert_eq!(digest("program = ['true']"), None);
    }
}
