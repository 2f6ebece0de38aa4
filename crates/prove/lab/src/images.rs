//! What each layer boots: a kernel and an initial file system, one inside the other.

use crate::error::{LabError, on};
use crate::initramfs::{Initramfs, find};
use crate::parts::Parts;
use crate::programs;
use crate::scenario::{Kernel, Scenario};
use crate::tool::Tool;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use strata_protocol::INPUT_FILE;

/// Where a layer has what it boots the next one from.
pub(crate) const NEXT_KERNEL: &str = "/vm/kernel";
/// See [`NEXT_KERNEL`].
pub(crate) const NEXT_INITRD: &str = "/vm/initrd";
/// Where a layer has the files its VMM needs.
pub(crate) const FIRMWARE: &str = "/usr/share/qemu";
/// What the user's program gets on its standard input, in the directory of the run.
pub(crate) const INPUT: &str = "stdin";
/// Where a layer has its kernel's modules.
pub(crate) const MODULES: &str = "/modules";

const STRIP: Tool = Tool { name: "strip", package: "binutils" };

/// Firmware that QEMU loads for the machines of the lab, and the directories where Debian's
/// packages have it.
const BLOBS: [&str; 6] = [
    "bios-256k.bin",
    "bios-microvm.bin",
    "kvmvapic.bin",
    "linuxboot_dma.bin",
    "linuxboot.bin",
    "pvh.bin",
];
const BLOB_DIRECTORIES: [&str; 3] = ["/usr/share/qemu", "/usr/share/seabios", "/usr/lib/ipxe/qemu"];

/// Makes the initial file systems of all layers, innermost first. Returns L0's.
pub(crate) fn make(
    scenario: &Scenario,
    parts: &Parts,
    guests: &[PathBuf],
    directory: &Path,
) -> Result<PathBuf, LabError> {
    let made = layers(scenario, parts, guests, directory);
    if made.is_err() {
        for number in 0..scenario.layers.len() {
            // Most were never written.
            let _ = fs::remove_file(initrd(directory, number));
        }
    }
    made
}

fn initrd(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("l{number}.initrd"))
}

fn layers(
    scenario: &Scenario,
    parts: &Parts,
    guests: &[PathBuf],
    directory: &Path,
) -> Result<PathBuf, LabError> {
    // Until all is packed.
    let stage = on(directory, tempfile::tempdir_in(directory))?;
    let agent = stripped(&parts.agent, &stage.path().join("agent"))?;
    let strata = stripped(&parts.strata, &stage.path().join("strata"))?;
    let mut next: Option<(PathBuf, PathBuf)> = None;
    for (number, layer) in scenario.layers.iter().enumerate().rev() {
        let mut files = Initramfs::default();
        files.program("/bin/strata-agent", &agent)?;
        files.link("/init", "/bin/strata-agent");
        files.program("/bin/strata", &strata)?;
        if let Some(busybox) = find(OsStr::new("busybox")) {
            files.program("/bin/busybox", &busybox)?;
            files.link("/bin/sh", "busybox");
        }
        if layer.kernel == Kernel::Debian {
            for module in &parts.stock()?.modules {
                files.file(Path::new(MODULES).join(module.file_name().unwrap_or_default()), module);
            }
        }
        if let Some((kernel, initrd)) = &next {
            files.file(NEXT_KERNEL, kernel);
            files.file(NEXT_INITRD, initrd);
            add_vmm(&mut files, scenario.layers[number + 1].vmm.program.as_deref())?;
        }
        let innermost = number + 1 == scenario.layers.len();
        for program in layer.programs.iter().chain(guests.iter().filter(|_| innermost)) {
            let found = find(program.as_os_str()).ok_or_else(|| no_program(program))?;
            files.guest(&found)?;
        }
        let input = directory.join(INPUT);
        if innermost && input.exists() {
            files.file(INPUT_FILE, &input);
        }
        for path in &layer.files {
            files.tree(path)?;
        }
        programs::check(scenario, number, &files, guests.is_empty())?;
        let initrd = initrd(directory, number);
        files.write(&initrd)?;
        if let Some((_, inner)) = next.take() {
            // It is inside now.
            on(&inner, fs::remove_file(&inner))?;
        }
        next = Some((parts.kernel(&layer.kernel)?.to_owned(), initrd));
    }
    Ok(next.expect("a scenario has a layer").1)
}

/// Puts a copy of a program of ours at `place`, without what debuggers want of it: every layer's memory
/// holds its initial file system, and those of the layers above it.
fn stripped(program: &Path, place: &Path) -> Result<PathBuf, LabError> {
    let what = format!("stripping {}", program.display());
    STRIP.output(STRIP.command().arg("-o").args([place, program]), &what)?;
    Ok(place.to_owned())
}

/// What to say of a program that this computer does not have.
pub(crate) fn no_program(name: &Path) -> LabError {
    LabError::NoProgram(name.to_owned())
}

/// Adds the VMM: this machine's own QEMU, or this program.
fn add_vmm(files: &mut Initramfs, program: Option<&Path>) -> Result<(), LabError> {
    let missing = |program| LabError::Tool {
        program,
        source: std::io::ErrorKind::NotFound.into(),
        package: "qemu-system-x86",
    };
    let vmm = match program {
        Some(program) => find(program.as_os_str()).ok_or_else(|| no_program(program))?,
        None => find(OsStr::new(crate::machine::EMULATOR))
            .ok_or_else(|| missing(crate::machine::EMULATOR))?,
    };
    files.program("/bin/qemu", &vmm)?;
    for blob in BLOBS {
        let found = BLOB_DIRECTORIES
            .iter()
            .map(|directory| Path::new(directory).join(blob))
            .find(|path| path.exists());
        match found {
            Some(path) => {
                let real = on(&path, fs::canonicalize(&path))?;
                files.file(Path::new(FIRMWARE).join(blob), &real);
            }
            None => return Err(missing(blob)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{KernelVariant, LabKernel};
    use crate::make::Make;
    use std::collections::BTreeMap;

    /// Makes what a machine of one layer boots, with these programs and this step.
    fn image(programs: &str, step: &str) -> Result<Vec<u8>, String> {
        image_with("/bin/sh".into(), programs, step)
    }

    /// The same with this program as ours.
    fn image_with(strata: PathBuf, programs: &str, step: &str) -> Result<Vec<u8>, String> {
        let directory = tempfile::tempdir().unwrap();
        let kernel = directory.path().join("kernel");
        fs::write(&kernel, "kernel").unwrap();
        let lab = LabKernel { image: kernel, source: String::new(), sha256: String::new() };
        let parts = Parts {
            agent: "/bin/sh".into(),
            strata,
            make: Make::Amd,
            lab: BTreeMap::from([(KernelVariant::Vanilla, lab)]),
            stock: None,
            bochs: None,
        };
        let text = format!(
            "about = 'x'\n[[layer]]\nkernel = 'lab'\nmemory = '200M'\nprograms = {programs}\n{step}"
        );
        let made = make(&Scenario::parse(&text, "x").unwrap(), &parts, &[], directory.path());
        if made.is_err() {
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "the kernel alone");
        }
        made.map(|path| fs::read(path).unwrap()).map_err(|error| error.to_string())
    }

    fn run(program: &str) -> String {
        format!("[[step]]\ndo = 'run'\nprogram = ['{program}', 'x']\n")
    }

    #[test]
    fn programs_of_ours_are_packed_without_what_debuggers_want() {
        let own = std::env::current_exe().unwrap();
        let image = |program: PathBuf| image_with(program, "[]", "").unwrap().len() as u64;
        // Beside what any image has.
        let packed = image(own.clone()) - image("/bin/true".into());
        assert!(packed * 2 < fs::metadata(&own).unwrap().len(), "{packed}");
        let wrong = image_with("/etc/passwd".into(), "[]", "").unwrap_err();
        assert!(wrong.starts_with("stripping /etc/passwd failed: "), "{wrong}");
    }

    #[test]
    fn a_program_starts_by_its_name_and_by_its_path() {
        for given in ["['/usr/bin/env']", "['env']"] {
            for step in ["env", "/usr/bin/env"] {
                let image = image(given, &run(step)).unwrap();
                for place in ["bin/env", "usr/bin/env"] {
                    let name = format!("{place}\0");
                    let there = image.windows(name.len()).any(|bytes| bytes == name.as_bytes());
                    assert!(there, "{given} {place}");
                }
            }
        }
    }

    #[test]
    fn a_program_that_a_layer_lacks_is_refused_before_anything_boots() {
        let remedy = |program: &str| format!("give that layer programs = [\"{program}\"]");
        let message = image("[]", &run("/usr/bin/env")).unwrap_err();
        assert!(message.contains(&remedy("/usr/bin/env")), "{message}");
        assert!(message.contains("L0") && !message.contains("install"), "{message}");
        let message = image("['/usr/bin/env']", &run("no-such-program")).unwrap_err();
        assert!(message.contains(&remedy("no-such-program")), "{message}");
        assert!(message.contains("and install it on this computer"), "{message}");
        let stress = "[[stress]]\nname = 'y'\nevery = 1\n\
                      step = [{ do = 'run', layer = 0, program = ['env'] }]\n";
        assert!(image("[]", stress).unwrap_err().contains(&remedy("env")));
        assert!(image("['env']", stress).is_ok());
        // Who knows what is there by then.
        assert!(image("[]", &run("/tmp/made")).is_ok());
    }
}
