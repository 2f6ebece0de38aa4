//! The command line that runs a program under the emulator.

use crate::program::Program;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use strata_stream::{Pid, Tid};

/// File name of the plugin.
pub const PLUGIN_FILE: &str = "libstrata_plugin.so";

/// The model of processor the program sees: all that the emulator offers but fast string
/// operations (ERMS). With them the C library would copy by `rep movsb`, which the emulator
/// reports byte by byte, where real processors move whole lines.
const CPU: &str = "max,-erms";

/// How to start programs so that they report to one ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulator {
    /// `qemu-x86_64`.
    pub qemu: PathBuf,
    /// The plugin's shared object.
    pub plugin: PathBuf,
    /// The ring's file.
    pub ring: PathBuf,
}

/// Who a process is when it begins to run a program: new, or the caller of `execve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Identity {
    /// Its process and thread, and how many `execve` it has behind it; `None` for a new one.
    pub caller: Option<(Pid, Tid, u32)>,
}

impl Emulator {
    /// Arguments (the emulator's own `argv[0]` first) and environment that make the emulator run
    /// `program` with `environment`.
    ///
    /// Variables that would act on the emulator itself, by its dynamic linker or its own
    /// settings, reach the program alone.
    pub fn command(
        &self,
        program: Program,
        environment: Vec<OsString>,
        identity: Identity,
    ) -> (Vec<OsString>, Vec<OsString>) {
        let mut plugin = b"file=".to_vec();
        push_escaped(&mut plugin, &self.plugin);
        plugin.extend(b",plugin=");
        push_escaped(&mut plugin, &self.plugin);
        plugin.extend(b",qemu=");
        push_escaped(&mut plugin, &self.qemu);
        plugin.extend(b",ring=");
        push_escaped(&mut plugin, &self.ring);
        if let Some((pid, tid, image)) = identity.caller {
            plugin.extend(format!(",pid={},tid={},image={image}", pid.0, tid.0).bytes());
        }
        let mut arguments: Vec<OsString> =
            vec![self.qemu.clone().into(), "-plugin".into(), OsString::from_vec(plugin)];
        arguments.extend(["-cpu".into(), CPU.into()]);
        let (passed, held): (Vec<_>, Vec<_>) =
            environment.into_iter().partition(|variable| !acts_on_emulator(variable));
        for variable in held {
            // The emulator splits at commas and knows no escape.
            if !variable.as_bytes().contains(&b',') {
                arguments.extend(["-E".into(), variable]);
            }
        }
        let mut argv = program.argv.into_iter();
        arguments.extend(["-0".into(), argv.next().unwrap_or_default()]);
        arguments.push("--".into());
        arguments.push(program.path.into());
        arguments.extend(argv);
        (arguments, passed)
    }
}

/// Emulator options separate fields by commas; a doubled comma stands for one.
fn push_escaped(out: &mut Vec<u8>, path: &Path) {
    for &byte in path.as_os_str().as_bytes() {
        out.push(byte);
        if byte == b',' {
            out.push(byte);
        }
    }
}

fn acts_on_emulator(variable: &OsStr) -> bool {
    let variable = variable.as_bytes();
    [&b"LD_"[..], b"QEMU_", b"GLIBC_TUNABLES=", b"MALLOC_", b"G_"]
        .iter()
        .any(|prefix| variable.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulator_is_shielded_from_the_programs_environment() {
        let emulator = Emulator { qemu: "/q".into(), plugin: "/a,b.so".into(), ring: "/r".into() };
        let program = Program { path: "/bin/x".into(), argv: vec!["name".into(), "-1".into()] };
        let environment = ["A=1,2", "LD_PRELOAD=y.so", "QEMU_STRACE=1"].map(OsString::from);
        let caller = Some((Pid(3), Tid(4), 5));
        let (arguments, environment) =
            emulator.command(program, environment.into(), Identity { caller });
        assert_eq!(environment, ["A=1,2"]);
        assert_eq!(
            arguments,
            [
                "/q",
                "-plugin",
                "file=/a,,b.so,plugin=/a,,b.so,qemu=/q,ring=/r,pid=3,tid=4,image=5",
                "-cpu",
                "max,-erms",
                "-E",
                "LD_PRELOAD=y.so",
                "-E",
                "QEMU_STRACE=1",
                "-0",
                "name",
                "--",
                "/bin/x",
                "-1"
            ]
        );
    }
}
