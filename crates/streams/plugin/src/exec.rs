//! `execve` into a new emulator instead of out of this one: what is asked, and what becomes of it.

use crate::calls::Call;
use crate::guest;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use strata_wire::program::{self, Program, Refusal};

/// What becomes of an `execve`.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// The emulator can run it.
    Follow {
        /// What to run.
        program: Program,
        /// Its environment.
        environment: Vec<OsString>,
    },
    /// The kernel will run it, outside the emulator and unseen.
    Lose(String),
    /// It will fail; the emulator's own call finds the right error.
    Fail,
}

/// What `execve` or `execveat` asks for. `myself` is the program that runs now.
pub fn plan(call: &Call, myself: Option<&Path>) -> Plan {
    asked(call).map_or(Plan::Fail, |(path, argv, environment)| {
        let path = match myself {
            Some(myself) if is_own_image(&path) => myself.to_owned(),
            _ => path,
        };
        match program::resolve(&path, argv) {
            Ok(program) => Plan::Follow { program, environment },
            Err(reason) => refused(&path, reason),
        }
    })
}

fn refused(path: &Path, reason: Refusal) -> Plan {
    let why = match reason {
        Refusal::Missing | Refusal::NotAFile | Refusal::NotPermitted | Refusal::NoProgram => {
            return Plan::Fail;
        }
        Refusal::Unreadable => "it cannot be read",
        Refusal::NotX86 => "it is no x86-64 program",
        Refusal::Privileged => "it gains rights by a set-ID bit",
    };
    Plan::Lose(format!("{}: ran unseen, as {why}", path.display()))
}

fn asked(call: &Call) -> Option<(PathBuf, Vec<OsString>, Vec<OsString>)> {
    let [a, b, c, d, e, _] = call.args;
    if call.number == libc::SYS_execve {
        return Some((guest::string(a)?.into(), guest::strings(b)?, guest::strings(c)?));
    }
    let (directory, path) = (a as i32, PathBuf::from(guest::string(b)?));
    let path = match () {
        () if path.is_absolute() || directory == libc::AT_FDCWD => path,
        () if !path.as_os_str().is_empty() => opened(directory).join(path),
        () if e as i32 & libc::AT_EMPTY_PATH != 0 => opened(directory),
        () => return None,
    };
    Some((path, guest::strings(c)?, guest::strings(d)?))
}

fn opened(file: i32) -> PathBuf {
    Path::new("/proc/self/fd").join(file.to_string())
}

/// Whether the path names the running program by way of `/proc`, where the kernel would show the
/// emulator.
fn is_own_image(path: &Path) -> bool {
    path == Path::new("/proc/self/exe")
        || path == Path::new("/proc").join(std::process::id().to_string()).join("exe")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(path: &std::ffi::CStr, argv: &[u64]) -> Call {
        let args = [path.as_ptr() as u64, argv.as_ptr() as u64, 0, 0, 0, 0];
        Call { number: libc::SYS_execve, args }
    }

    #[test]
    fn each_execve_has_its_plan() {
        let argv = [c"name".as_ptr() as u64, c"arg".as_ptr() as u64, 0];
        let Plan::Follow { program, environment } = plan(&call(c"/bin/sh", &argv), None) else {
            panic!("a shell can be followed")
        };
        assert_eq!(
            program,
            Program {
                path: "/bin/sh".into(),
                argv: vec!["name".into(), "arg".into()],
                name: "sh".into()
            }
        );
        assert!(environment.is_empty());
        assert_eq!(plan(&call(c"/nowhere/x", &argv), None), Plan::Fail);
        assert_eq!(plan(&call(c"/etc/passwd", &argv), None), Plan::Fail);
        let bad = Call { number: libc::SYS_execve, args: [8, 0, 0, 0, 0, 0] };
        assert_eq!(plan(&bad, None), Plan::Fail);
        let Plan::Follow { program, .. } =
            plan(&call(c"/proc/self/exe", &argv), Some(Path::new("/bin/true")))
        else {
            panic!("a program can run itself")
        };
        assert_eq!(program.path, Path::new("/bin/true"));
    }

    #[test]
    fn execveat_resolves_against_its_directory() {
        use std::os::fd::AsRawFd;
        let directory = std::fs::File::open("/bin").unwrap();
        let at = |name: &std::ffi::CStr, flags: i32| {
            let directory = directory.as_raw_fd() as u64;
            let args = [directory, name.as_ptr() as u64, 0, 0, flags as u64, 0];
            plan(&Call { number: libc::SYS_execveat, args }, None)
        };
        assert!(matches!(at(c"sh", 0), Plan::Follow { .. }));
        assert!(matches!(at(c"/bin/sh", 0), Plan::Follow { .. }));
        assert_eq!(at(c"", 0), Plan::Fail);
    }
}
