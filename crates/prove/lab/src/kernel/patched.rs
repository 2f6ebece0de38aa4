//! Our files and the hooked files of the kernel, made beside the tree: all of them or none.

use super::sources::Sources;
use crate::error::{LabError, on};
use crate::tool::Tool;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Stdio;

const PATCH: Tool = Tool { name: "patch", package: "patch" };

/// Files that differ from those of the pristine source, by their place in its tree. `source` names
/// it in errors; what the tools say goes to `log`.
pub(super) fn files(
    sources: &Sources,
    pristine: &Path,
    source: &str,
    log: &Path,
) -> Result<BTreeMap<PathBuf, Vec<u8>>, LabError> {
    apply(&sources.overlay, &sources.hooks, pristine, source, log)
}

/// The same of any source: files of our own, and patches by name.
pub(crate) fn apply(
    overlay: &BTreeMap<PathBuf, Vec<u8>>,
    hooks: &BTreeMap<PathBuf, Vec<u8>>,
    pristine: &Path,
    source: &str,
    log: &Path,
) -> Result<BTreeMap<PathBuf, Vec<u8>>, LabError> {
    let mut files = overlay.clone();
    if hooks.is_empty() {
        return Ok(files);
    }
    let stage = tempfile::tempdir()
        .map_err(|error| LabError::File { path: std::env::temp_dir(), source: error })?;
    let mut said = String::new();
    on(log, fs::write(log, &said))?;
    let mut hooked = BTreeSet::new();
    for (hook, patch) in hooks {
        let failed = |file: &str, reason: &str| LabError::Hook {
            hook: hook.display().to_string(),
            file: file.into(),
            version: source.into(),
            reason: reason.into(),
            log: log.to_owned(),
        };
        for file in targets(&String::from_utf8_lossy(patch)) {
            let name = file.display().to_string();
            if overlay.contains_key(&file) {
                return Err(failed(&name, "that file is our own"));
            }
            if file.components().any(|part| !matches!(part, Component::Normal(_))) {
                return Err(failed(&name, "that is no place in the kernel's tree"));
            }
            let place = stage.path().join(&file);
            if hooked.contains(&file) {
                continue;
            }
            let Ok(bytes) = fs::read(pristine.join(&file)) else {
                return Err(failed(&name, "there is no such file"));
            };
            on(&place, fs::create_dir_all(place.parent().unwrap_or(stage.path())))?;
            on(&place, fs::write(&place, bytes))?;
            hooked.insert(file);
        }
        let text = stage.path().join("strata-hook");
        on(&text, fs::write(&text, patch))?;
        // What surrounds a hook has to be what it was written for, or it may land elsewhere.
        let output = PATCH
            .command()
            .args(["-p1", "--batch", "--forward", "--fuzz=0", "--no-backup-if-mismatch"])
            .args(["--reject-file=-", "--input=strata-hook"])
            .current_dir(stage.path())
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| PATCH.missing(error))?;
        let words = String::from_utf8_lossy(&output.stdout);
        said += &format!("{}:\n{words}{}", hook.display(), String::from_utf8_lossy(&output.stderr));
        on(log, fs::write(log, &said))?;
        if !output.status.success() {
            let (file, reason) = refused(&words);
            return Err(failed(file, reason));
        }
    }
    for file in hooked {
        let place = stage.path().join(&file);
        files.insert(file, on(&place, fs::read(&place))?);
    }
    Ok(files)
}

/// Files that a patch changes, without the first part of their path.
fn targets(patch: &str) -> Vec<PathBuf> {
    let lines: Vec<&str> = patch.lines().collect();
    let pairs = lines.windows(2).filter(|pair| pair[0].starts_with("--- "));
    pairs
        .filter_map(|pair| {
            let name = pair[1].strip_prefix("+++ ")?.split('\t').next()?.trim();
            Some(name.split_once('/')?.1.into())
        })
        .collect()
}

/// The first file that `patch` could not change, and what it says of it.
fn refused(said: &str) -> (&str, &str) {
    let mut file = "its file";
    for line in said.lines() {
        if let Some(name) = line.strip_prefix("patching file ") {
            file = name;
        } else if line.contains("FAILED") || line.contains("Reversed") {
            return (file, line.trim());
        }
    }
    (file, said.lines().last().unwrap_or("patch says nothing"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::sources::KernelVariant;

    /// A hook in `mm/a.c` where the pristine line is as given.
    fn hook(file: &str, before: &str) -> String {
        format!("--- a/{file}\n+++ b/{file}\n@@ -1,3 +1,4 @@\n one\n {before}\n+ours\n three\n")
    }

    fn of(hooks: &[(&str, String)]) -> Sources {
        let mut files: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
        for name in ["lab", "align"] {
            files.insert(format!("config/{name}.config").into(), Vec::new());
        }
        files.insert("overlay/mm/own.c".into(), b"own\n".to_vec());
        for (name, text) in hooks {
            files.insert(format!("hooks/{name}.patch").into(), text.as_bytes().to_vec());
        }
        Sources::choose(KernelVariant::Aligned, &files).unwrap()
    }

    fn apply(hooks: &[(&str, String)]) -> Result<BTreeMap<PathBuf, Vec<u8>>, String> {
        let directory = tempfile::tempdir().unwrap();
        let pristine = directory.path().join("source");
        fs::create_dir_all(pristine.join("mm")).unwrap();
        fs::write(pristine.join("mm/a.c"), "one\ntwo\nthree\n").unwrap();
        fs::write(pristine.join("mm/b.c"), "one\ntwo\nthree\n").unwrap();
        let log = directory.path().join("log");
        let made = files(&of(hooks), &pristine, "linux-source 1.2", &log);
        for name in ["a", "b"] {
            let text = fs::read_to_string(pristine.join(format!("mm/{name}.c"))).unwrap();
            assert_eq!(text, "one\ntwo\nthree\n");
        }
        assert_eq!(fs::read_dir(pristine.join("mm")).unwrap().count(), 2);
        made.map_err(|error| {
            assert!(error.to_string().contains(&log.display().to_string()), "{error}");
            error.to_string()
        })
    }

    #[test]
    fn hooks_apply_one_after_the_other_and_our_files_join_them() {
        let again = "--- a/mm/a.c\n+++ b/mm/a.c\n@@ -2,3 +2,4 @@\n two\n ours\n+more\n three\n";
        let hooks = [("1", hook("mm/a.c", "two")), ("2", again.to_owned())];
        let made = apply(&hooks).unwrap();
        let text = |path: &str| String::from_utf8(made[Path::new(path)].clone()).unwrap();
        assert_eq!(text("mm/a.c"), "one\ntwo\nours\nmore\nthree\n");
        assert_eq!(text("mm/own.c"), "own\n");
        assert_eq!(made.len(), 2);
        assert_eq!(apply(&[]).unwrap().len(), 1);
    }

    #[test]
    fn a_hook_that_does_not_apply_is_named_with_its_file_and_the_source() {
        let good = hook("mm/b.c", "two");
        let message = apply(&[("1", good.clone()), ("2", hook("mm/a.c", "2"))]).unwrap_err();
        for words in ["2.patch", "mm/a.c", "linux-source 1.2", "Hunk #1 FAILED"] {
            assert!(message.contains(words), "{message}");
        }
        assert!(!message.contains('\n'), "{message}");
        let both = format!("{good}{}", hook("mm/a.c", "2"));
        assert!(apply(&[("both", both)]).unwrap_err().contains("mm/a.c"));
        let message = apply(&[("1", good.clone()), ("2", good)]).unwrap_err();
        assert!(message.contains("2.patch") && message.contains("mm/b.c"), "{message}");
        let message = apply(&[("1", hook("mm/gone.c", "two"))]).unwrap_err();
        assert!(message.contains("mm/gone.c") && message.contains("no such file"), "{message}");
        let message = apply(&[("1", hook("mm/own.c", "two"))]).unwrap_err();
        assert!(message.contains("our own"), "{message}");
        let message = apply(&[("1", hook("../a.c", "two"))]).unwrap_err();
        assert!(message.contains("no place"), "{message}");
    }
}
