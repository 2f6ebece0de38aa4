//! Initial file systems: what a layer runs, copied from this machine.

use crate::copy_error::CopyError;
use crate::error::{LabError, on};
use cpio::newc::{Builder, ModeFileType, trailer};
use lddtree::DependencyAnalyzer;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

/// Where programs of the lab's own go.
pub(crate) const PROGRAMS: &str = "/bin";

/// Links that are followed one after the other, as many as the kernel follows.
const LINKS: u32 = 40;

/// A file system in the making: files by their place.
#[derive(Debug, Default)]
pub(crate) struct Initramfs {
    entries: BTreeMap<PathBuf, Entry>,
}

#[derive(Debug)]
enum Entry {
    Directory,
    File { from: PathBuf, executable: bool },
    Link(PathBuf),
}

impl Initramfs {
    /// Puts a copy of the file `from` at `place`.
    pub(crate) fn file(&mut self, place: impl AsRef<Path>, from: &Path) {
        let entry = Entry::File { from: from.to_owned(), executable: false };
        self.insert(place.as_ref(), entry);
    }

    /// Puts a symbolic link to `target` at `place`.
    pub(crate) fn link(&mut self, place: impl AsRef<Path>, target: impl AsRef<Path>) {
        self.insert(place.as_ref(), Entry::Link(target.as_ref().to_owned()));
    }

    /// Puts a program at `place`, and the interpreter and the libraries it is linked with where
    /// they are on this machine.
    pub(crate) fn program(&mut self, place: impl AsRef<Path>, from: &Path) -> Result<(), LabError> {
        self.insert(place.as_ref(), Entry::File { from: from.to_owned(), executable: true });
        match beginning(from)? {
            Beginning::Script(interpreter, argument) => {
                self.interpreter(from, &interpreter, argument.as_deref())
            }
            Beginning::Other => Err(CopyError::NotAProgram(from.to_owned()).into()),
            Beginning::Elf => self.libraries(from),
        }
    }

    /// Puts what a script runs in, where the script looks for it.
    fn interpreter(
        &mut self,
        script: &Path,
        interpreter: &Path,
        argument: Option<&str>,
    ) -> Result<(), LabError> {
        let missing = |name: &Path| CopyError::NoInterpreter {
            script: script.to_owned(),
            interpreter: name.to_owned(),
        };
        if !interpreter.is_absolute() || !interpreter.exists() {
            return Err(missing(interpreter).into());
        }
        if beginning(interpreter)? != Beginning::Elf {
            return Err(CopyError::InterpretedByScript {
                script: script.to_owned(),
                interpreter: interpreter.to_owned(),
            }
            .into());
        }
        self.program(interpreter, interpreter)?;
        // env(1) looks for the program that its first argument names.
        if interpreter.file_name() == Some(OsStr::new("env")) {
            let words = argument.unwrap_or_default().split_whitespace();
            let name = Path::new(
                words.into_iter().find(|word| !word.starts_with('-')).unwrap_or_default(),
            );
            let found = find(name.as_os_str()).ok_or_else(|| missing(name))?;
            self.guest(&found)?;
        }
        Ok(())
    }

    /// Puts a user's program where it is on this computer, for programs find their data from there,
    /// and where programs are looked for.
    pub(crate) fn guest(&mut self, program: &Path) -> Result<(), LabError> {
        let place = own_place(program)?;
        let short = Path::new(PROGRAMS).join(program.file_name().unwrap_or_default());
        self.program(&place, program)?;
        if place != short {
            self.link(short, place);
        }
        Ok(())
    }

    /// Puts a file of this computer, or a directory with all that is in it, at its own place, and
    /// the libraries of programs and libraries among the files.
    pub(crate) fn tree(&mut self, path: &Path) -> Result<(), LabError> {
        let place = own_place(path)?;
        let data = on(path, fs::symlink_metadata(path))?;
        if data.is_symlink() {
            let target = on(path, fs::read_link(path))?;
            self.link(&place, &target);
            // Of links in a directory only those out of it would need more, and get it if asked for.
            return Ok(());
        }
        if data.is_dir() {
            self.entries.entry(place).or_insert(Entry::Directory);
            for entry in on(path, fs::read_dir(path))? {
                self.tree(&on(path, entry)?.path())?;
            }
            return Ok(());
        }
        if !data.is_file() {
            return Err(CopyError::Special(path.to_owned()).into());
        }
        let executable = data.permissions().mode() & 0o111 != 0;
        self.insert(&place, Entry::File { from: path.to_owned(), executable });
        if beginning(path)? == Beginning::Elf {
            self.libraries(path)?;
        }
        Ok(())
    }

    /// Puts the interpreter and the libraries that a program or library is linked with.
    fn libraries(&mut self, from: &Path) -> Result<(), LabError> {
        let tree = match DependencyAnalyzer::new(PathBuf::from("/")).analyze(from) {
            Ok(tree) => tree,
            // An object file, say, or of another kind of machine: nothing the lab could add.
            Err(_) => return Ok(()),
        };
        for (name, library) in &tree.libraries {
            let Some(real) = &library.realpath else {
                return Err(CopyError::NoLibrary {
                    program: from.to_owned(),
                    library: name.clone(),
                }
                .into());
            };
            // Some loaders look only in their own directories, so the name found is kept.
            self.insert(&library.path, Entry::File { from: real.clone(), executable: true });
        }
        if let Some(interpreter) = tree.interpreter {
            let real = on(Path::new(&interpreter), fs::canonicalize(&interpreter))?;
            let entry = Entry::File { from: real, executable: true };
            self.insert(Path::new(&interpreter), entry);
        }
        Ok(())
    }

    /// Whether there is a program at `path`, or behind links from there.
    pub(crate) fn runs(&self, path: &Path) -> bool {
        self.follow(path, LINKS)
            .is_some_and(|entry| matches!(entry, Entry::File { executable: true, .. }))
    }

    /// What is at `path`, at the end of at most so many links.
    fn follow(&self, path: &Path, links: u32) -> Option<&Entry> {
        let mut at = PathBuf::from("/");
        let mut parts = path.components();
        while let Some(part) = parts.next() {
            match part {
                Component::Normal(name) => at.push(name),
                Component::ParentDir => drop(at.pop()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => continue,
            }
            if let Some(Entry::Link(target)) = self.entries.get(&at) {
                at.pop();
                return self.follow(&at.join(target).join(parts.as_path()), links.checked_sub(1)?);
            }
        }
        self.entries.get(&at)
    }

    fn insert(&mut self, place: &Path, entry: Entry) {
        for directory in place.ancestors().skip(1) {
            if directory != Path::new("/") {
                self.entries.entry(directory.to_owned()).or_insert(Entry::Directory);
            }
        }
        self.entries.insert(place.to_owned(), entry);
    }

    /// Writes the archive in the format the kernel unpacks
    /// (Documentation/driver-api/early-userspace/buffer-format.rst), uncompressed: under emulation
    /// unpacking costs more than copying.
    pub(crate) fn write(&self, path: &Path) -> Result<(), LabError> {
        let mut out = BufWriter::new(on(path, File::create(path))?);
        for (number, (place, entry)) in (1..).zip(&self.entries) {
            let builder = |mode| header(number, place, mode);
            match entry {
                Entry::Directory => {
                    let builder = builder(0o755).set_mode_file_type(ModeFileType::Directory);
                    on(path, builder.nlink(2).write(&mut out, 0).finish())?;
                }
                Entry::Link(target) => {
                    let builder = builder(0o777).set_mode_file_type(ModeFileType::Symlink);
                    let bytes = target.as_os_str().as_encoded_bytes();
                    on(path, put(builder, &mut out, bytes))?;
                }
                Entry::File { from, executable } => {
                    let mode = if *executable { 0o755 } else { 0o644 };
                    let bytes = on(from, fs::read(from))?;
                    on(path, put(regular(builder(mode)), &mut out, &bytes))?;
                }
            }
        }
        on(path, trailer(&mut out))?;
        on(path, out.flush())
    }
}

fn header(number: u32, place: &Path, mode: u32) -> Builder {
    let name = place.strip_prefix("/").unwrap_or(place);
    Builder::new(&name.to_string_lossy()).ino(number).mode(mode)
}

fn regular(builder: Builder) -> Builder {
    builder.set_mode_file_type(ModeFileType::Regular)
}

fn put(builder: Builder, out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let size = u32::try_from(bytes.len())
        .map_err(|_| io::Error::other("a file of an initial file system is below 4 GiB"))?;
    let mut entry = builder.write(out, size);
    entry.write_all(bytes)?;
    entry.finish().map(drop)
}

/// Where a file of this computer is to be in a layer: where it is here.
fn own_place(path: &Path) -> Result<PathBuf, LabError> {
    let place = on(path, std::path::absolute(path))?;
    match ["/proc", "/sys", "/dev"].into_iter().find(|own| place.starts_with(own)) {
        Some(own) => Err(CopyError::OwnOfLayer { path: path.to_owned(), own }.into()),
        None => Ok(place),
    }
}

/// What a file begins with, as the kernel looks at it (fs/binfmt_script.c, fs/binfmt_elf.c).
#[derive(Debug, PartialEq, Eq)]
enum Beginning {
    Elf,
    /// The interpreter, and what else is in the first line.
    Script(PathBuf, Option<String>),
    Other,
}

fn beginning(path: &Path) -> Result<Beginning, LabError> {
    /// Bytes of a first line that the kernel reads.
    const LINE: u64 = 256;
    let mut bytes = Vec::new();
    on(path, File::open(path).and_then(|file| file.take(LINE).read_to_end(&mut bytes)))?;
    if bytes.starts_with(b"\x7fELF") {
        return Ok(Beginning::Elf);
    }
    let Some(rest) = bytes.strip_prefix(b"#!") else { return Ok(Beginning::Other) };
    let line =
        String::from_utf8_lossy(rest.split(|&byte| byte == b'\n').next().unwrap_or_default());
    let mut words = line.trim().splitn(2, [' ', '\t']);
    Ok(match words.next() {
        Some(name) if !name.is_empty() => {
            Beginning::Script(name.into(), words.next().map(|word| word.trim().to_owned()))
        }
        _ => Beginning::Other,
    })
}

/// Finds a program as a shell does.
pub(crate) fn find(name: &OsStr) -> Option<PathBuf> {
    let runs = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    if Path::new(name).components().count() > 1 {
        return runs(Path::new(name)).then(|| PathBuf::from(name));
    }
    // Where administrators' programs are, for those whose path lacks them.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(usual)
        .map(|directory| directory.join(name))
        .find(|path| runs(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cpio::newc::Reader;

    #[test]
    fn what_is_put_in_is_in_the_archive_with_its_directories() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("initrd");
        let mut files = Initramfs::default();
        let text = directory.path().join("text");
        fs::write(&text, "text").unwrap();
        files.file("/etc/a/b", &text);
        files.link("/init", "bin/agent");
        files.program("/bin/agent", Path::new("/bin/sh")).unwrap();
        files.write(&path).unwrap();
        let mut archive = File::open(&path).unwrap();
        let mut seen = BTreeMap::new();
        loop {
            let mut entry = Reader::new(archive).unwrap();
            if entry.entry().is_trailer() {
                break;
            }
            let (name, mode) = (entry.entry().name().to_owned(), entry.entry().mode());
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            seen.insert(name, (mode, bytes));
            archive = entry.finish().unwrap();
        }
        assert_eq!(seen["etc/a/b"], (0o100_644, b"text".to_vec()));
        assert_eq!(seen["init"], (0o120_777, b"bin/agent".to_vec()));
        assert_eq!(seen["etc/a"].0, 0o040_755);
        assert_eq!(seen["bin/agent"].0, 0o100_755);
        assert!(seen.keys().any(|name| name.contains("libc.so")), "{:?}", seen.keys());
        assert!(seen.keys().any(|name| name.contains("ld-linux")), "{:?}", seen.keys());
        // A directory comes before what is in it.
        assert!(
            seen.keys().position(|name| name == "etc")
                < seen.keys().position(|name| name == "etc/a")
        );
    }

    #[test]
    fn a_script_comes_with_its_interpreter_and_a_directory_with_its_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let script = |name: &str, first: &str| {
            fs::write(path(name), format!("{first}\necho\n")).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        let refused = |name: &str| Initramfs::default().guest(&path(name)).unwrap_err().to_string();
        script("good", "#! /usr/bin/env  sh");
        let mut files = Initramfs::default();
        files.guest(&path("good")).unwrap();
        let has = |files: &Initramfs, place: &Path| files.entries.contains_key(place);
        assert!(has(&files, Path::new("/usr/bin/env")), "{:?}", files.entries.keys());
        assert!(has(&files, Path::new("/bin/sh")) && has(&files, Path::new("/bin/good")));
        assert!(has(&files, &path("good")));
        script("bad", "#!/no/such/python3 -u");
        assert!(refused("bad").contains("is a script for /no/such/python3, which is not on"));
        script("lost", "#!/usr/bin/env no-such-python3");
        assert!(refused("lost").contains("is a script for no-such-python3"));
        script("text", "hello");
        assert!(refused("text").contains("neither a program"));
        fs::create_dir_all(path("data/inner")).unwrap();
        fs::write(path("data/inner/file"), "x").unwrap();
        std::os::unix::fs::symlink("inner/file", path("data/link")).unwrap();
        files.tree(&path("data")).unwrap();
        assert!(has(&files, &path("data/inner/file")));
        assert!(
            matches!(&files.entries[&path("data/link")], Entry::Link(to) if to == Path::new("inner/file"))
        );
        let own = files.tree(Path::new("/proc/version")).unwrap_err().to_string();
        assert!(own.contains("every layer has a /proc of its own"), "{own}");
        let missing = files.tree(&path("none")).unwrap_err().to_string();
        assert!(missing.contains("none: No such file"), "{missing}");
    }

    #[test]
    fn a_program_is_there_by_both_of_its_names_and_behind_links() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("stress");
        fs::copy("/bin/sh", &program).unwrap();
        let mut files = Initramfs::default();
        files.guest(&program).unwrap();
        files.file("/etc/text", Path::new("/etc/passwd"));
        files.link("/usr/local", "../opt/./it");
        files.link("/opt/it", "/bin");
        files.link("/loop", "loop");
        let runs = |path: &str| files.runs(Path::new(path));
        assert!(files.runs(&program) && runs("/bin/stress") && runs("/usr/local/stress"));
        assert!(runs("bin/../bin/stress"), "from the root");
        assert!(!runs("/bin/other") && !runs("/bin") && !runs("/etc/text") && !runs("/loop"));
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(find(OsStr::new("sh")).is_some());
        assert!(find(OsStr::new("/bin/sh")).is_some());
        assert_eq!(find(OsStr::new("no-such-program-anywhere")), None);
        assert_eq!(find(OsStr::new("/etc/passwd")), None);
    }
}
