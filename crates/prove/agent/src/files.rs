//! Reading counters and files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use strata_protocol::CHUNK;

/// Texts of files; a directory stands for the files directly in it. Counters come and go with what
/// they count, so what cannot be read is left out.
pub(crate) fn texts(paths: &[String]) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    let mut add = |path: &Path| {
        if let Ok(bytes) = fs::read(path) {
            texts.insert(path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned());
        }
    };
    for path in paths {
        let path = Path::new(path);
        if path.is_dir() {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                    add(&entry.path());
                }
            }
        } else {
            add(path);
        }
    }
    texts
}

/// Writes `text` to a file, or, where a part of the path is `*`, to the file in each directory there:
/// what a kernel has for each machine has a name that nobody knows before.
pub(crate) fn write(path: &str, text: &str) -> Result<(), String> {
    let files = expand(path);
    if files.is_empty() {
        return Err(format!("{path}: there is none"));
    }
    files.iter().try_for_each(|file| {
        fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
    })
}

/// The paths that a path with `*` for any name in a directory stands for, in alphabetical order.
fn expand(path: &str) -> Vec<PathBuf> {
    if !path.split('/').any(|part| part == "*") {
        return vec![path.into()];
    }
    let mut found = vec![PathBuf::new()];
    for part in Path::new(path) {
        if part == "*" {
            let inside = found.iter().filter_map(|directory| fs::read_dir(directory).ok());
            found = inside.flatten().flatten().map(|entry| entry.path()).collect();
        } else {
            found.iter_mut().for_each(|place| place.push(part));
        }
    }
    found.retain(|path| path.exists());
    found.sort();
    found
}

/// Bytes of a file from `offset` on, encoded, and whether they are the last.
pub(crate) fn chunk(path: &str, offset: u64) -> Result<(String, bool), String> {
    let read = || -> std::io::Result<(Vec<u8>, bool)> {
        let file = File::open(path)?;
        let mut bytes = vec![0; CHUNK];
        let mut filled = 0;
        while filled < CHUNK {
            match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        bytes.truncate(filled);
        Ok((bytes, filled < CHUNK))
    };
    read()
        .map(|(bytes, last)| (STANDARD.encode(bytes), last))
        .map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_a_file_make_the_file() {
        let path = std::env::temp_dir().join(format!("strata-agent-chunks-{}", std::process::id()));
        let bytes: Vec<u8> = (0..CHUNK * 2 + 17).map(|index| (index % 251) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let mut read = Vec::new();
        loop {
            let (text, last) = chunk(path.to_str().unwrap(), read.len() as u64).unwrap();
            read.extend(STANDARD.decode(text).unwrap());
            if last {
                break;
            }
        }
        fs::remove_file(&path).unwrap();
        assert!(read == bytes);
    }

    #[test]
    fn a_star_is_any_name() {
        let root = std::env::temp_dir().join(format!("strata-agent-star-{}", std::process::id()));
        for name in ["1-a", "2-b", "3-c"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in ["1-a/setting", "3-c/setting"] {
            fs::write(root.join(name), "before").unwrap();
        }
        let path = format!("{}/*/setting", root.display());
        write(&path, "after").unwrap();
        for name in ["1-a/setting", "3-c/setting"] {
            assert_eq!(fs::read_to_string(root.join(name)).unwrap(), "after");
        }
        // Only what is there: no file is made.
        assert_eq!(fs::read_dir(root.join("2-b")).unwrap().count(), 0);
        let none = write(&format!("{}/*/other", root.display()), "x").unwrap_err();
        assert!(none.contains("/*/other: there is none"), "{none}");
        // Without a star the file need not be there.
        write(&format!("{}/1-a/new", root.display()), "x").unwrap();
        assert!(root.join("1-a/new").exists());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn what_is_missing_is_left_out() {
        let texts = texts(&["/proc/version".into(), "/nonexistent".into()]);
        assert_eq!(texts.keys().collect::<Vec<_>>(), ["/proc/version"]);
    }
}
