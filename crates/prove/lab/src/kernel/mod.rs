//! The lab's own kernels, built from Debian's source.

mod configure;
pub(crate) mod patched;
mod progress;
mod sources;
mod tree;

pub use progress::BuildProgress;
pub use sources::KernelVariant;

use crate::cache::{Cache, checksum};
use crate::error::{LabError, on};
use crate::packages::{Package, each_file, save};
use crate::stock::SERIES;
use crate::tool::MAKE;
use liblzma::read::XzDecoder;
use progress::{BUILD_LOG, Steps};
use sources::Sources;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::available_parallelism;

/// Programs that the kernel's build calls, and their packages.
const CALLED: [(&str, &str); 6] = [
    ("gcc", "gcc"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("perl", "perl"),
    ("lz4", "lz4"),
];
/// Says what the objects are configured with.
const CONFIGURED: &str = "configured";

/// The kernel built from Debian's source.
#[derive(Clone, Debug)]
pub struct LabKernel {
    /// The image.
    pub image: PathBuf,
    /// Name and version of the package with the source, as Debian names it.
    pub source: String,
    /// SHA-256 of the image, in hexadecimal.
    pub sha256: String,
}

/// The kernel of a variant in the cache, as this program describes it, of the newest source.
pub(crate) fn cached(cache: &Cache, variant: KernelVariant) -> Option<LabKernel> {
    let sources = Sources::of(variant).ok()?;
    fs::read_dir(cache.root().join("kernels"))
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            fs::read_to_string(path.join("source"))
                .is_ok_and(|source| path.file_name() == Some(OsStr::new(&sources.key(&source))))
        })
        .max_by_key(|path| fs::metadata(path.join("source")).and_then(|data| data.modified()).ok())
        .and_then(|path| read(&path).ok())
}

/// Builds the kernel of a variant from the newest source, if it is not there.
pub(crate) fn get(
    cache: &Cache,
    variant: KernelVariant,
    interrupt: &AtomicBool,
    tell: &mut dyn FnMut(&str),
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<LabKernel, LabError> {
    let package = Package::newest(&format!("linux-source-{SERIES}"))?;
    let source = format!("{} {}", package.name, package.version);
    let sources = Sources::of(variant)?;
    let name = variant.to_string();
    let of_build = sources.key(&source);
    let finished = cache.root().join("kernels").join(&of_build);
    if finished.join("source").exists() {
        return read(&finished);
    }
    check_tools()?;
    // Ctrl-C also ends the programs that unpack, or makes their reader give up: that is the cause
    // then, whatever they say.
    let unpacked = unpack(cache, &package, interrupt, tell);
    let pristine = unpacked.map_err(|error| match interrupt.load(Relaxed) {
        true => LabError::Interrupted,
        false => error,
    })?;
    let trees = cache.directory(&format!("trees/{}", package.version))?;
    let tree = trees.join(&name);
    let files =
        patched::files(&sources, &pristine, &source, &trees.join(format!("{name}-hooks.log")))?;
    // What no build finished is no help.
    let other = variant.like().map(|other| trees.join(other.to_string()));
    let like = other.filter(|other| progress::is_whole(&other.join(tree::OBJECTS)));
    if let Some(other) = like.as_ref().filter(|_| !tree.exists()) {
        tell(&format!("taking over what was built in {}", other.display()));
    }
    tree::make(&pristine, &tree, like.as_deref(), &files)?;
    let objects = tree.join(tree::OBJECTS);
    on(&objects, fs::create_dir_all(&objects))?;
    let make = || {
        let mut command = MAKE.command();
        command.current_dir(&tree).arg(format!("O={}", tree::OBJECTS));
        // The same image every time, so that equal means unchanged.
        command
            .env("KBUILD_BUILD_TIMESTAMP", "1970-01-01")
            .env("KBUILD_BUILD_VERSION", "1")
            .env("KBUILD_BUILD_USER", "strata")
            .env("KBUILD_BUILD_HOST", "lab");
        if crate::initramfs::find(OsStr::new("ccache")).is_some() {
            command.args(["CC=ccache gcc", "HOSTCC=ccache gcc"]);
        }
        command
    };
    let text = sources.configuration();
    let mark = configure::mark(&text, &files);
    if fs::read_to_string(objects.join(CONFIGURED)).ok().as_ref() != Some(&mark) {
        tell(&format!("configuring the kernel '{name}'"));
        configure::configure(&objects, &text, interrupt, make)?;
        on(&objects, fs::write(objects.join(CONFIGURED), &mark))?;
    }
    tell(&format!("building the kernel '{name}' of {source}"));
    let jobs = available_parallelism().map_or(1, usize::from);
    let mut steps = Steps::begin(cache, &name, &objects)?;
    MAKE.follow(
        make().arg(format!("-j{jobs}")).arg("bzImage"),
        &format!("building the kernel '{name}'"),
        &objects.join(BUILD_LOG),
        interrupt,
        |line| {
            if let Some(now) = steps.line(line) {
                progress(now);
            }
        },
    )?;
    steps.end()?;
    let kept = cache.directory(&format!("kernels/{of_build}"))?;
    let image = objects.join("arch/x86/boot/bzImage");
    save(&kept.join("bzImage"), &mut on(&image, fs::File::open(&image))?)?;
    save(&kept.join("config"), &mut text.as_bytes())?;
    // Written last: it says that everything else is there.
    save(&kept.join("source"), &mut source.as_bytes())?;
    read(&kept)
}

fn read(directory: &Path) -> Result<LabKernel, LabError> {
    let source = directory.join("source");
    let image = directory.join("bzImage");
    Ok(LabKernel {
        sha256: checksum(&image)?,
        image,
        source: on(&source, fs::read_to_string(&source))?,
    })
}

fn check_tools() -> Result<(), LabError> {
    for (program, package) in CALLED {
        if crate::initramfs::find(OsStr::new(program)).is_none() {
            let source = std::io::ErrorKind::NotFound.into();
            return Err(LabError::Tool { program, source, package });
        }
    }
    // objtool is linked with it.
    let header = Path::new("/usr/include/libelf.h");
    if !header.exists() {
        let source = std::io::ErrorKind::NotFound.into();
        return Err(LabError::Tool { program: "objtool", source, package: "libelf-dev" });
    }
    Ok(())
}

/// Bytes that end with an error once the user wants no more of them.
struct Watched<'a, R> {
    bytes: R,
    interrupt: &'a AtomicBool,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.interrupt.load(Relaxed) {
            true => Err(io::Error::other("interrupted")),
            false => self.bytes.read(into),
        }
    }
}

/// The kernel's source tree, unpacked once.
fn unpack(
    cache: &Cache,
    package: &Package,
    interrupt: &AtomicBool,
    tell: &mut dyn FnMut(&str),
) -> Result<PathBuf, LabError> {
    let tree = cache.root().join("source").join(&package.version);
    if tree.exists() {
        return Ok(tree);
    }
    tell(&format!("getting {} {}", package.name, package.version));
    let file = package.file(cache)?;
    tell("unpacking it");
    // Unpacked beside its place: a tree that is there is whole.
    let parent = cache.directory("source")?;
    let partial = on(&parent, tempfile::tempdir_in(&parent))?;
    let mut found = false;
    each_file(&file, |path, bytes| {
        if path.extension() == Some(OsStr::new("xz")) {
            found = true;
            let mut archive = tar::Archive::new(XzDecoder::new(Watched { bytes, interrupt }));
            on(partial.path(), archive.unpack(partial.path()))?;
        }
        Ok(())
    })?;
    let inner = on(partial.path(), fs::read_dir(partial.path()))?.flatten().next();
    let Some(inner) = inner.filter(|_| found) else {
        return Err(LabError::Contents { package: file, missing: "kernel source".into() });
    };
    on(&tree, fs::rename(inner.path(), &tree))?;
    on(&file, fs::remove_file(&file))?;
    Ok(tree)
}
