//! The command line that runs a program under the emulator.

use crate::program::Program;
use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use strata_stream::{Pid, Tid};

/// File name of the plugin.
pub const PLUGIN_FILE: &str = "libstrata_plugin.so";

/// The model of processor the program sees: all that the emulator offers but fast string
/// operations (ERMS). With them the C library would copy by `rep movsb`, which the emulator
/// reports byte by byte, where real processors move whole lines.
const CPU: &str = "max,-erms";

/// How to start programs so that they report to one wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulator {
    /// `qemu-x86_64`.
    pub qemu: PathBuf,
    /// The plugin's shared object.
    pub plugin: PathBuf,
    /// The wire's file.
    pub wire: PathBuf,
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
    /// settings, travel under names it does not know; so do those it would drop, without `=` or
    /// with a name that was there before. The plugin takes the false names away again (see
    /// [`false_name`]). The emulator reverses the order, so it is reversed here.
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
        plugin.extend(b",wire=");
        push_escaped(&mut plugin, &self.wire);
        plugin.extend(b",name=");
        push_escaped(&mut plugin, Path::new(&program.name));
        if let Some((pid, tid, image)) = identity.caller {
            plugin.extend(format!(",pid={},tid={},image={image}", pid.0, tid.0).bytes());
        }
        let mut arguments: Vec<OsString> =
            vec![self.qemu.clone().into(), "-plugin".into(), OsString::from_vec(plugin)];
        arguments.extend(["-cpu", CPU].map(OsString::from));
        let mut names = HashSet::new();
        let mut passed = Vec::with_capacity(environment.len());
        for variable in environment {
            let bytes = variable.as_bytes();
            let name = bytes.iter().position(|&byte| byte == b'=').map(|end| &bytes[..end]);
            let plain = name.is_some_and(|name| {
                !name.is_empty() && !acts_on_emulator(bytes) && names.insert(name.to_vec())
            });
            passed.push(match plain {
                true => variable,
                false => {
                    let mut held = OsString::from(format!("{HELD}{}=", passed.len()));
                    held.push(variable);
                    held
                }
            });
        }
        passed.reverse();
        // The plugin mends a fault of the emulator (its module `glib`), for which it must be there
        // first; the dynamic linker splits at blanks and colons.
        if !self.plugin.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
            let mut preload = OsString::from("LD_PRELOAD=");
            preload.push(&self.plugin);
            passed.push(preload);
            arguments.extend(["-U", "LD_PRELOAD"].map(OsString::from));
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

/// Begins the names under which variables travel that must not meet the emulator.
const HELD: &str = "STRATA_HELD_";

/// The length of the false name, `=` included, that a variable travels under; `None` when it
/// travels under its own.
pub fn false_name(variable: &[u8]) -> Option<usize> {
    let rest = variable.strip_prefix(HELD.as_bytes())?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (digits > 0 && rest.get(digits) == Some(&b'=')).then_some(HELD.len() + digits + 1)
}

fn acts_on_emulator(variable: &[u8]) -> bool {
    [HELD.as_bytes(), b"LD_", b"QEMU_", b"GLIBC_TUNABLES=", b"MALLOC_", b"G_"]
        .iter()
        .any(|prefix| variable.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulator_is_shielded_from_the_programs_environment() {
        let emulator = Emulator { qemu: "/q".into(), plugin: "/a,b.so".into(), wire: "/r".into() };
        let program = Program {
            path: "/bin/x".into(),
            argv: vec!["name".into(), "-1".into()],
            name: "x".into(),
        };
        let environment =
            ["A=1,2", "LD_DEBUG=a,b", "A=3", "none", "B="].map(OsString::from).to_vec();
        let caller = Some((Pid(3), Tid(4), 5));
        let (arguments, environment) = emulator.command(program, environment, Identity { caller });
        let held = ["STRATA_HELD_3=none", "STRATA_HELD_2=A=3", "STRATA_HELD_1=LD_DEBUG=a,b"];
        let preload = "LD_PRELOAD=/a,b.so";
        assert_eq!(environment, ["B=", held[0], held[1], held[2], "A=1,2", preload]);
        let restored = held.map(|text| &text[false_name(text.as_bytes()).unwrap()..]);
        assert_eq!(restored, ["none", "A=3", "LD_DEBUG=a,b"]);
        assert_eq!(false_name(b"A=1"), None);
        assert_eq!(
            arguments,
            [
                "/q",
                "-plugin",
                "file=/a,,b.so,plugin=/a,,b.so,qemu=/q,wire=/r,name=x,pid=3,tid=4,image=5",
                "-cpu",
                "max,-erms",
                "-U",
                "LD_PRELOAD",
                "-0",
                "name",
                "--",
                "/bin/x",
                "-1"
            ]
        );
    }
}
