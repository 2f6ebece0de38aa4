//! Which programs the emulator can run, found out as the kernel's `execve` does (binfmt_script,
//! binfmt_elf), so that a refusal comes before anything has started.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a program the kernel looks at (`BINPRM_BUF_SIZE`).
const LOOK: usize = 256;
/// Scripts that may be interpreted by scripts before the kernel gives up.
const NESTING: usize = 5;

/// Why a program cannot be run under the emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such file.
    Missing,
    /// A directory or other thing that is no regular file.
    NotAFile,
    /// Execute permission is missing, for the file or on the way to it, or the file system is
    /// mounted `noexec`.
    NotPermitted,
    /// The file cannot be read, which the emulator needs.
    Unreadable,
    /// Neither an ELF file nor a script.
    NoProgram,
    /// An ELF file, but no x86-64 executable.
    NotX86,
    /// It would gain rights by its set-user-ID or set-group-ID bit, which an emulator cannot give.
    Privileged,
}

/// A program with its arguments, scripts resolved to their interpreters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The ELF file to run.
    pub path: PathBuf,
    /// All arguments, `argv[0]` first.
    pub argv: Vec<OsString>,
    /// What the kernel calls the process: the file's own name, for a script the script's.
    pub name: OsString,
}

/// Resolves a path and its arguments.
///
/// # Errors
/// When the emulator cannot run it.
pub fn resolve(path: &Path, argv: Vec<OsString>) -> Result<Program, Refusal> {
    resolve_or_tell(path, argv).map_err(|(_, reason)| reason)
}

/// The same, naming the file that cannot be run: the path itself or an interpreter.
///
/// # Errors
/// When the emulator cannot run it.
pub fn resolve_or_tell(path: &Path, argv: Vec<OsString>) -> Result<Program, (PathBuf, Refusal)> {
    let name = path.file_name().unwrap_or_default().to_owned();
    let (mut path, mut argv) = (path.to_owned(), argv);
    for _ in 0..NESTING {
        let start = look(&path).map_err(|reason| (path.clone(), reason))?;
        if is_x86_elf(&start) {
            return Ok(Program { path, argv, name });
        }
        if start.starts_with(b"\x7fELF") {
            return Err((path, Refusal::NotX86));
        }
        let Some((interpreter, argument)) = shebang(&start) else {
            return Err((path, Refusal::NoProgram));
        };
        let mut longer = vec![interpreter.to_owned()];
        longer.extend(argument.map(OsStr::to_owned));
        longer.push(path.into_os_string());
        longer.extend(argv.into_iter().skip(1));
        (path, argv) = (PathBuf::from(interpreter), longer);
    }
    Err((path, Refusal::NoProgram))
}

/// Checks permissions as `execve` does and reads the first bytes.
fn look(path: &Path) -> Result<Vec<u8>, Refusal> {
    let meta = fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Refusal::NotPermitted,
        _ => Refusal::Missing,
    })?;
    if !meta.is_file() {
        return Err(Refusal::NotAFile);
    }
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| Refusal::Missing)?;
    // SAFETY: `name` is a C string; the call reads nothing else.
    let allowed =
        unsafe { libc::faccessat(libc::AT_FDCWD, name.as_ptr(), libc::X_OK, libc::AT_EACCESS) };
    if allowed != 0 {
        return Err(Refusal::NotPermitted);
    }
    // SAFETY: these calls cannot fail and touch no memory.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let other_user = meta.mode() & libc::S_ISUID != 0 && meta.uid() != user;
    let other_group = meta.mode() & (libc::S_ISGID | libc::S_IXGRP)
        == libc::S_ISGID | libc::S_IXGRP
        && meta.gid() != group;
    if other_user || other_group {
        return Err(Refusal::Privileged);
    }
    let mut start = Vec::with_capacity(LOOK);
    File::open(path)
        .and_then(|file| file.take(LOOK as u64).read_to_end(&mut start))
        .map_err(|_| Refusal::Unreadable)?;
    Ok(start)
}

/// ELF64, little-endian, x86-64, executable or position-independent.
fn is_x86_elf(start: &[u8]) -> bool {
    start.len() >= 64
        && start.starts_with(b"\x7fELF\x02\x01")
        && matches!(start[16..18], [2 | 3, 0])
        && start[18..20] == [62, 0]
}

/// The interpreter and its one optional argument from a `#!` line, as binfmt_script reads it.
fn shebang(start: &[u8]) -> Option<(&OsStr, Option<&OsStr>)> {
    let line = start.strip_prefix(b"#!")?;
    let blank = |&byte: &u8| byte == b' ' || byte == b'\t';
    let end = line.iter().position(|&byte| byte == b'\n' || byte == 0);
    let line = line[..end.unwrap_or(line.len())].trim_ascii_start();
    let name_end = line.iter().position(blank);
    // A line longer than what the kernel looks at must at least hold the whole name.
    if line.is_empty() || end.is_none() && name_end.is_none() && start.len() >= LOOK {
        return None;
    }
    let (name, rest) = line.split_at(name_end.unwrap_or(line.len()));
    let argument = rest.trim_ascii();
    Some((OsStr::from_bytes(name), (!argument.is_empty()).then(|| OsStr::from_bytes(argument))))
}

/// The file a shell would run for this name: the name itself when it holds a slash, else the first
/// executable file in `PATH`. When there is none, the first that is there but cannot be executed.
pub fn search(name: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let default = OsStr::new("/usr/local/bin:/usr/bin:/bin");
    let candidates: Vec<PathBuf> = std::env::split_paths(path.unwrap_or(default))
        .map(|directory| if directory.as_os_str().is_empty() { ".".into() } else { directory })
        .map(|directory| directory.join(name))
        .filter(|file| !name.is_empty() && file.is_file())
        .collect();
    let runs = |file: &&PathBuf| !matches!(look(file), Err(Refusal::NotPermitted));
    candidates.iter().find(runs).or_else(|| candidates.first()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn file(directory: &Path, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn strings(list: &[&str]) -> Vec<OsString> {
        list.iter().map(OsString::from).collect()
    }

    #[test]
    fn scripts_resolve_as_the_kernel_resolves_them() {
        let room = tempfile::tempdir().unwrap();
        let inner = file(room.path(), "inner", b"#! /bin/sh  -e -u \necho\n", 0o755);
        let outer = format!("#!{}\n", inner.display());
        let outer = file(room.path(), "outer", outer.as_bytes(), 0o755);
        let program = resolve(&outer, strings(&["ignored", "a", "b"])).unwrap();
        let (inner, outer) = (inner.to_str().unwrap(), outer.to_str().unwrap());
        assert_eq!((program.path, program.name), ("/bin/sh".into(), "outer".into()));
        assert_eq!(program.argv, strings(&["/bin/sh", "-e -u", inner, outer, "a", "b"]));
    }

    #[test]
    fn each_refusal_has_its_reason() {
        let room = tempfile::tempdir().unwrap();
        let at = |name: &str, content: &[u8], mode| {
            resolve(&file(room.path(), name, content, mode), vec![]).unwrap_err()
        };
        assert_eq!(resolve(Path::new("/nowhere/x"), vec![]), Err(Refusal::Missing));
        assert_eq!(resolve(room.path(), vec![]), Err(Refusal::NotAFile));
        assert_eq!(at("plain", b"#!/bin/sh\n", 0o644), Refusal::NotPermitted);
        assert_eq!(at("text", b"hello", 0o755), Refusal::NoProgram);
        assert_eq!(at("empty", b"", 0o755), Refusal::NoProgram);
        assert_eq!(at("lost", b"#!/nowhere/x\n", 0o755), Refusal::Missing);
        assert_eq!(at("noname", b"#!\n", 0o755), Refusal::NoProgram);
        let mut i386 = *b"\x7fELF\x01\x01\x01";
        assert_eq!(at("i386", &[&i386[..], &[0; 60]].concat(), 0o755), Refusal::NotX86);
        i386[4] = 2;
        let arm = [&i386[..], &[0; 9], &[3, 0, 183, 0], &[0; 60]].concat();
        assert_eq!(at("arm", &arm, 0o755), Refusal::NotX86);
        let loops = room.path().join("loop");
        let line = format!("#!{}\n", loops.display());
        assert_eq!(at("loop", line.as_bytes(), 0o755), Refusal::NoProgram);
    }

    #[test]
    fn names_are_searched_as_a_shell_does() {
        let room = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            fs::create_dir(room.path().join(name)).unwrap();
        }
        file(room.path(), "one/tool", b"#!/bin/sh\n", 0o644);
        let good = file(room.path(), "two/tool", b"#!/bin/sh\n", 0o755);
        let only = file(room.path(), "one/data", b"", 0o644);
        let path = std::env::join_paths(["one", "two"].map(|name| room.path().join(name))).unwrap();
        let found = |name: &str| search(OsStr::new(name), Some(&path));
        assert_eq!(found("tool"), Some(good));
        assert_eq!(found("data"), Some(only));
        assert_eq!(found("none"), None);
        assert_eq!(found("./none"), Some("./none".into()));
    }
}
