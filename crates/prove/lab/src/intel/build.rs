//! Bochs built from Debian's source with our changes.

use super::source::{self, Source};
use crate::cache::{Cache, checksum, key};
use crate::error::{LabError, on};
use crate::initramfs::find;
use crate::kernel::{BuildProgress, patched};
use crate::make::{MachineReport, Make};
use crate::packages::{Package, each_file, save};
use crate::tool::{MAKE, Tool};
use include_dir::{Dir, include_dir};
use liblzma::read::XzDecoder;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::thread::available_parallelism;
use std::time::Instant;
use strata_wire::machine::c_header;

/// Patches of Bochs' files.
static HOOKS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../../emulator/hooks");
/// Our instrumentation, which tells of accesses.
static INSTRUMENT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../../emulator/instrument");
/// Where it is in the source, and which of Bochs' own its makefile is taken from.
const INSTRUMENT_AT: &str = "instrument/strata";
const INSTRUMENT_LIKE: &str = "instrument/stubs/Makefile.in";

const SHELL: Tool = Tool { name: "sh", package: "dash" };
/// Programs that the build calls, and their packages.
const CALLED: [(&str, &str); 3] = [("make", "make"), ("g++", "g++"), ("patch", "patch")];
/// The model of the processors: VMX with EPT, VPID, PML and unrestricted guests, and the MSR that tells
/// of errata, without which KVM expects ITLB_MULTIHIT and maps nothing executable huge.
pub(super) const PROCESSOR: &str = "corei7_icelake_u";
/// How Bochs is configured: one processor with what KVM needs, and nothing that shows a screen.
const OPTIONS: [&str; 10] = [
    "--enable-x86-64",
    "--enable-cpu-level=6",
    "--enable-vmx=2",
    "--enable-avx",
    "--enable-evex",
    "--enable-all-optimizations",
    "--enable-pci",
    "--with-nogui",
    "--disable-docbook",
    "--enable-instrumentation=instrument/strata",
];
/// What it is compiled with.
const FLAGS: &str = "-O3 -fomit-frame-pointer";
/// Files that a build compiles, counted on one.
const FILES: usize = 472;
/// Firmware: package, file in it, name in the cache.
const FIRMWARE: [(&str, &str, &str); 2] =
    [("bochsbios", "BIOS-bochs-latest", "bios"), ("vgabios", "vgabios.bin", "vga-bios")];
/// The program, in the source and in the cache.
const PROGRAM: &str = "bochs";

/// The emulator of Intel processors.
#[derive(Clone, Debug)]
pub struct Bochs {
    /// The program.
    pub program: PathBuf,
    /// The firmware.
    pub bios: PathBuf,
    /// That of the screen nobody sees, without which the other does not start.
    pub vga_bios: PathBuf,
    /// Name and version of the package with the source, as Debian names it.
    pub source: String,
    /// SHA-256 of the program, in hexadecimal.
    pub sha256: String,
}

impl Bochs {
    /// What a report says of the machine.
    pub(crate) fn report(&self) -> MachineReport {
        let sum = &self.sha256[..16];
        MachineReport {
            make: Make::Intel,
            emulator: format!("{} with the lab's changes, SHA-256 {sum}", self.source),
            processor: PROCESSOR.into(),
        }
    }
}

/// The name of what is built of this source.
fn key_of(source: &str) -> String {
    let mut texts = vec![source.as_bytes(), FLAGS.as_bytes()];
    texts.extend(OPTIONS.map(str::as_bytes));
    let mut files: Vec<_> = HOOKS.files().chain(INSTRUMENT.files()).collect();
    files.sort_by_key(|file| file.path());
    for file in files {
        texts.extend([file.path().as_os_str().as_encoded_bytes(), file.contents()]);
    }
    let header = c_header();
    texts.push(header.as_bytes());
    key(texts)
}

/// The emulator in the cache, as this program describes it.
pub(crate) fn cached(cache: &Cache) -> Option<Bochs> {
    let all = fs::read_dir(cache.root().join("emulators")).ok()?.flatten();
    let mut fitting = all.map(|entry| entry.path()).filter(|path| {
        fs::read_to_string(path.join("source"))
            .is_ok_and(|source| path.file_name() == Some(OsStr::new(&key_of(&source))))
    });
    fitting.find_map(|path| read(&path).ok())
}

/// Builds the emulator, if it is not there.
pub(crate) fn get(
    cache: &Cache,
    interrupt: &AtomicBool,
    tell: &mut dyn FnMut(&str),
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<Bochs, LabError> {
    if let Some(bochs) = cached(cache) {
        return Ok(bochs);
    }
    for (program, package) in CALLED {
        if find(OsStr::new(program)).is_none() {
            let source = std::io::ErrorKind::NotFound.into();
            return Err(LabError::Tool { program, source, package });
        }
    }
    let source = source::get(cache, tell)?;
    let parent = cache.directory("emulators/tree")?;
    // A tree of an interrupted build is of no use: a whole one takes minutes.
    let tree = on(&parent, tempfile::tempdir_in(&parent))?;
    let inner = unpack(&source, tree.path())?;
    let log = cache.directory("emulators")?.join("build.log");
    change(&source, &inner, &log)?;
    instrument(&inner)?;
    tell(&format!("configuring {}", source.name));
    let mut configure = SHELL.command();
    configure.arg("./configure").args(OPTIONS).env("CXXFLAGS", FLAGS).env("CFLAGS", FLAGS);
    let what = format!("building {}", source.name);
    SHELL.follow(configure.current_dir(&inner), &what, &log, interrupt, |_| {})?;
    tell(&what);
    let (begin, mut done) = (Instant::now(), 0);
    let mut make: Command = MAKE.command();
    let jobs = available_parallelism().map_or(1, usize::from);
    make.arg(format!("-j{jobs}")).current_dir(&inner);
    MAKE.follow(&mut make, &what, &log, interrupt, |line| {
        if !line.starts_with("g++ -c") && !line.starts_with("gcc -c") {
            return;
        }
        done += 1;
        let rate = done as f64 / begin.elapsed().as_secs_f64();
        let left = FILES.saturating_sub(done) as f64 / rate;
        progress(BuildProgress { done, total: FILES.max(done), seconds_left: Some(left) });
    })?;
    let kept = cache.directory(&format!("emulators/{}", key_of(&source.name)))?;
    for (package, file, name) in FIRMWARE {
        firmware(cache, package, file, &kept.join(name))?;
    }
    let program = inner.join(PROGRAM);
    let copy = kept.join(PROGRAM);
    on(&copy, fs::copy(&program, &copy))?;
    // Written last: it says that everything else is there.
    save(&kept.join("source"), &mut source.name.as_bytes())?;
    read(&kept)
}

fn read(directory: &Path) -> Result<Bochs, LabError> {
    let path = |name: &str| directory.join(name);
    let (program, source) = (path(PROGRAM), path("source"));
    Ok(Bochs {
        sha256: checksum(&program)?,
        program,
        bios: path(FIRMWARE[0].2),
        vga_bios: path(FIRMWARE[1].2),
        source: on(&source, fs::read_to_string(&source))?,
    })
}

/// Unpacks a source. Returns the directory that all of it is in.
fn unpack(source: &Source, into: &Path) -> Result<PathBuf, LabError> {
    let file = on(&source.archive, File::open(&source.archive))?;
    on(into, tar::Archive::new(XzDecoder::new(file)).unpack(into))?;
    let inner = on(into, fs::read_dir(into))?.flatten().map(|entry| entry.path()).next();
    inner.ok_or_else(|| LabError::Contents {
        package: source.archive.clone(),
        missing: "source".into(),
    })
}

/// Applies our changes, all or none.
fn change(source: &Source, tree: &Path, log: &Path) -> Result<(), LabError> {
    let hooks: BTreeMap<PathBuf, Vec<u8>> =
        HOOKS.files().map(|file| (file.path().to_owned(), file.contents().to_owned())).collect();
    let files = patched::apply(&BTreeMap::new(), &hooks, tree, &source.name, log);
    let files = files.map_err(|error| match error {
        LabError::Hook { hook, file, reason, log, .. } => LabError::Build {
            what: format!("applying emulator/hooks/{hook} to {file} of {}", source.name),
            reason,
            log,
        },
        other => other,
    })?;
    for (path, bytes) in files {
        let place = tree.join(path);
        on(&place, fs::write(&place, bytes))?;
    }
    Ok(())
}

/// Puts our instrumentation beside those of Bochs.
fn instrument(tree: &Path) -> Result<(), LabError> {
    let place = tree.join(INSTRUMENT_AT);
    on(&place, fs::create_dir_all(&place))?;
    for file in INSTRUMENT.files() {
        let path = place.join(file.path());
        on(&path, fs::write(&path, file.contents()))?;
    }
    let header = place.join("protocol.h");
    on(&header, fs::write(&header, c_header()))?;
    let makefile = tree.join(INSTRUMENT_LIKE);
    on(&makefile, fs::copy(&makefile, place.join("Makefile.in")))?;
    Ok(())
}

/// Gets a file out of a package of Debian's.
fn firmware(cache: &Cache, package: &str, name: &str, to: &Path) -> Result<(), LabError> {
    let file = Package::newest(package)?.file(cache)?;
    let mut found = false;
    each_file(&file, |path, bytes| {
        if path.file_name() == Some(OsStr::new(name)) {
            found = true;
            save(to, bytes)?;
        }
        Ok(())
    })?;
    match found {
        true => Ok(()),
        false => Err(LabError::Contents { package: file, missing: name.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulator_depends_on_its_source_and_our_changes() {
        assert_eq!(key_of("bochs 3.0"), key_of("bochs 3.0"));
        assert_ne!(key_of("bochs 3.0"), key_of("bochs 3.1"));
        assert!(HOOKS.files().count() >= 3);
    }

    #[test]
    fn what_is_not_whole_is_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path().to_owned());
        assert!(cached(&cache).is_none());
        let kept = cache.directory(&format!("emulators/{}", key_of("bochs 3.0"))).unwrap();
        fs::write(kept.join(PROGRAM), "program").unwrap();
        assert!(cached(&cache).is_none());
        fs::write(kept.join("source"), "bochs 3.0").unwrap();
        assert_eq!(cached(&cache).unwrap().source, "bochs 3.0");
        // Of other changes, or another source, than its name says.
        fs::write(kept.join("source"), "bochs 3.1").unwrap();
        assert!(cached(&cache).is_none());
    }
}
