//! A source tree of a variant's own. It shares every file with the pristine tree by hard links except
//! those that differ, which are new files in the place of the links: the pristine tree stays as it is.
//!
//! The tree and the objects made from it stay when our files change, so that only what depends on
//! them is made again. A new tree begins with a copy of another variant's objects, for the same reason:
//! most files are the same to both.

use crate::error::{LabError, on};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Where objects are made: directly in the tree, for then the kernel's build names all its files by
/// relative paths, and the same compilation in another variant's tree is the same to ccache.
pub(super) const OBJECTS: &str = "object";
/// Lists the files of the tree that are not the pristine ones.
const OURS: &str = ".strata-files";

/// Makes `tree` the pristine tree with `files` in it. If it is not there yet, it gets the objects of
/// `like`, another variant's tree of the same source.
pub(super) fn make(
    pristine: &Path,
    tree: &Path,
    like: Option<&Path>,
    files: &BTreeMap<PathBuf, Vec<u8>>,
) -> Result<(), LabError> {
    if !tree.exists() {
        let parent = tree.parent().unwrap_or(tree);
        on(parent, fs::create_dir_all(parent))?;
        let partial = on(parent, tempfile::tempdir_in(parent))?;
        link(pristine, partial.path())?;
        if let Some(like) = like {
            copy(&like.join(OBJECTS), &partial.path().join(OBJECTS))?;
            // Made from these files, which this tree has not: it gets its own, newer than any object.
            list(&partial.path().join(OURS), ours(like).iter())?;
        }
        // A tree that is there is whole.
        on(tree, fs::rename(partial.keep(), tree))?;
    }
    let note = tree.join(OURS);
    let before = ours(tree);
    let after: BTreeSet<PathBuf> = files.keys().cloned().collect();
    // Whatever of this is interrupted, the files concerned are in the list.
    list(&note, before.union(&after))?;
    for (path, bytes) in files {
        let place = tree.join(path);
        // What is as it should be keeps its time, and its objects.
        if fs::read(&place).is_ok_and(|there| there == *bytes) {
            continue;
        }
        replace(&place, bytes)?;
    }
    for path in before.difference(&after) {
        let place = tree.join(path);
        match fs::read(pristine.join(path)) {
            // Not the link: it is older than the objects that were made from our file.
            Ok(bytes) => replace(&place, &bytes)?,
            Err(_) if place.exists() => on(&place, fs::remove_file(&place))?,
            Err(_) => {}
        }
    }
    list(&note, after.iter())
}

/// The files of a tree that are not the pristine ones.
fn ours(tree: &Path) -> BTreeSet<PathBuf> {
    let text = fs::read_to_string(tree.join(OURS)).unwrap_or_default();
    text.lines().map(PathBuf::from).collect()
}

/// Puts a new file in the place of whatever is there.
fn replace(place: &Path, bytes: &[u8]) -> Result<(), LabError> {
    let parent = place.parent().unwrap_or(place);
    on(parent, fs::create_dir_all(parent))?;
    let mut file = on(parent, tempfile::NamedTempFile::new_in(parent))?;
    on(place, file.write_all(bytes))?;
    // Scripts stay programs; others can read it, as they can the rest.
    let mode = fs::metadata(place).map_or_else(|_| readable(), |there| there.permissions());
    on(place, file.as_file().set_permissions(mode))?;
    file.persist(place)
        .map(drop)
        .map_err(|error| LabError::File { path: place.to_owned(), source: error.error })
}

fn readable() -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    fs::Permissions::from_mode(0o644)
}

fn list<'a>(note: &Path, paths: impl Iterator<Item = &'a PathBuf>) -> Result<(), LabError> {
    let lines: String = paths.map(|path| format!("{}\n", path.display())).collect();
    replace(note, lines.as_bytes())
}

/// Makes `to`, an empty directory, a tree of hard links to the files of `from`.
fn link(from: &Path, to: &Path) -> Result<(), LabError> {
    for entry in on(from, fs::read_dir(from))? {
        let entry = on(from, entry)?;
        let (path, place) = (entry.path(), to.join(entry.file_name()));
        let kind = on(&path, entry.file_type())?;
        if kind.is_dir() {
            on(&place, fs::create_dir(&place))?;
            link(&path, &place)?;
        } else {
            // Of a symbolic link too: Linux links the link itself.
            on(&place, fs::hard_link(&path, &place))?;
        }
    }
    Ok(())
}

/// Makes `to` a copy of the directory `from`, to the times of its files: make goes by them. Nothing is
/// shared, for the kernel's build writes into files that are there.
fn copy(from: &Path, to: &Path) -> Result<(), LabError> {
    on(to, fs::create_dir(to))?;
    for entry in on(from, fs::read_dir(from))? {
        let entry = on(from, entry)?;
        let (path, place) = (entry.path(), to.join(entry.file_name()));
        let kind = on(&path, entry.file_type())?;
        if kind.is_dir() {
            copy(&path, &place)?;
        } else if kind.is_symlink() {
            on(&place, symlink(on(&path, fs::read_link(&path))?, &place))?;
        } else {
            on(&place, fs::copy(&path, &place))?;
            let modified = on(&path, entry.metadata().and_then(|data| data.modified()))?;
            on(&place, fs::File::open(&place).and_then(|file| file.set_modified(modified)))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::time::{Duration, SystemTime};

    fn text(path: PathBuf) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_tree_takes_our_files_and_gives_them_back_and_the_pristine_one_never_changes() {
        let directory = tempfile::tempdir().unwrap();
        let (pristine, tree) = (directory.path().join("pristine"), directory.path().join("t/own"));
        fs::create_dir_all(pristine.join("mm")).unwrap();
        let old = SystemTime::now() - Duration::from_secs(1000);
        for name in ["mm/a.c", "mm/b.c", "Makefile"] {
            fs::write(pristine.join(name), name).unwrap();
            fs::File::options()
                .append(true)
                .open(pristine.join(name))
                .unwrap()
                .set_modified(old)
                .unwrap();
        }
        std::os::unix::fs::symlink("a.c", pristine.join("mm/link")).unwrap();
        let files = |list: &[(&str, &str)]| -> BTreeMap<PathBuf, Vec<u8>> {
            list.iter().map(|(path, text)| (path.into(), text.as_bytes().to_vec())).collect()
        };
        let untouched = || {
            assert_eq!(text(pristine.join("mm/a.c")), "mm/a.c");
            assert_eq!(text(pristine.join("mm/b.c")), "mm/b.c");
            assert_eq!(fs::read_dir(pristine.join("mm")).unwrap().count(), 3);
            assert_eq!(fs::metadata(pristine.join("mm/a.c")).unwrap().modified().unwrap(), old);
        };
        let inode = |path: PathBuf| fs::metadata(path).unwrap().ino();
        let modified = |name: &str| fs::metadata(tree.join(name)).unwrap().modified().unwrap();

        make(&pristine, &tree, None, &files(&[("mm/a.c", "ours"), ("virt/own.c", "own")])).unwrap();
        untouched();
        assert_eq!(text(tree.join("mm/a.c")), "ours");
        assert_eq!(text(tree.join("virt/own.c")), "own");
        assert_eq!(inode(tree.join("mm/b.c")), inode(pristine.join("mm/b.c")));
        assert_eq!(fs::read_link(tree.join("mm/link")).unwrap(), Path::new("a.c"));

        // What did not change keeps its time; what did, and what goes, is newer than any object.
        let (kept, before) = (modified("mm/a.c"), SystemTime::now());
        fs::create_dir(tree.join(OBJECTS)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        make(&pristine, &tree, None, &files(&[("mm/a.c", "ours"), ("mm/b.c", "ours too")]))
            .unwrap();
        untouched();
        assert_eq!(modified("mm/a.c"), kept);
        assert!(modified("mm/b.c") > before);
        assert!(!tree.join("virt/own.c").exists());
        let before = SystemTime::now();
        std::thread::sleep(Duration::from_millis(20));
        make(&pristine, &tree, None, &files(&[])).unwrap();
        untouched();
        assert_eq!(text(tree.join("mm/a.c")), "mm/a.c");
        assert!(modified("mm/a.c") > before && modified("mm/b.c") > before);
        assert!(tree.join(OBJECTS).exists());
        // Restored, it is a file of its own.
        assert_ne!(inode(tree.join("mm/a.c")), inode(pristine.join("mm/a.c")));
    }

    #[test]
    fn a_new_tree_begins_with_anothers_objects_and_only_what_differs_is_newer() {
        let directory = tempfile::tempdir().unwrap();
        let [pristine, first, second] =
            ["pristine", "t/first", "t/second"].map(|name| directory.path().join(name));
        fs::create_dir_all(pristine.join("mm")).unwrap();
        for name in ["mm/a.c", "mm/b.c"] {
            fs::write(pristine.join(name), name).unwrap();
        }
        let files = |list: &[(&str, &str)]| -> BTreeMap<PathBuf, Vec<u8>> {
            list.iter().map(|(path, text)| (path.into(), text.as_bytes().to_vec())).collect()
        };
        make(&pristine, &first, None, &files(&[("mm/a.c", "ours"), ("mm/own.c", "own")])).unwrap();
        let object = first.join(OBJECTS).join("mm/a.o");
        fs::create_dir_all(object.parent().unwrap()).unwrap();
        fs::write(&object, "a").unwrap();
        fs::set_permissions(&object, fs::Permissions::from_mode(0o755)).unwrap();
        symlink("..", first.join(OBJECTS).join("source")).unwrap();
        let time = |path: PathBuf| fs::metadata(path).unwrap().modified().unwrap();
        std::thread::sleep(Duration::from_millis(20));

        make(&pristine, &second, Some(&first), &files(&[])).unwrap();
        let copied = second.join(OBJECTS).join("mm/a.o");
        assert_eq!(time(copied.clone()), time(object.clone()));
        assert_eq!(fs::metadata(&copied).unwrap().permissions().mode() & 0o777, 0o755);
        assert_ne!(fs::metadata(&copied).unwrap().ino(), fs::metadata(&object).unwrap().ino());
        assert_eq!(fs::read_link(second.join(OBJECTS).join("source")).unwrap(), Path::new(".."));
        // The other tree's file is the pristine one here, and newer than what was made from theirs.
        assert_eq!(text(second.join("mm/a.c")), "mm/a.c");
        assert!(time(second.join("mm/a.c")) > time(copied.clone()));
        assert!(time(second.join("mm/b.c")) <= time(copied.clone()));
        assert!(!second.join("mm/own.c").exists());

        // Once it is there it goes its own way.
        fs::write(&copied, "b").unwrap();
        make(&pristine, &second, Some(&first), &files(&[])).unwrap();
        assert_eq!((text(copied), text(object)), ("b".to_owned(), "a".to_owned()));
    }
}
