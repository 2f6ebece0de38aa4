//! The lab's own kernel, built from Debian's source.

use crate::cache::{Cache, checksum, key};
use crate::error::{LabError, on};
use crate::packages::{Package, each_file, save};
use crate::parts::LabKernel;
use crate::stock::SERIES;
use crate::tool::Tool;
use liblzma::read::XzDecoder;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::thread::available_parallelism;
use std::time::Instant;

const MAKE: Tool = Tool { name: "make", package: "make" };
/// Programs that the kernel's build calls, and their packages.
const CALLED: [(&str, &str); 6] = [
    ("gcc", "gcc"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("perl", "perl"),
    ("lz4", "lz4"),
];
/// What the kernel is configured with, on top of the smallest configuration.
const CONFIGURATION: &str = include_str!("../../../linux/config/lab.config");
/// Lines that the build prints, counted on one build of this configuration: how far it is.
const STEPS: usize = 1431;

/// How far a build is.
#[derive(Clone, Copy, Debug)]
pub struct BuildProgress {
    /// Files made.
    pub done: usize,
    /// Files to make, about.
    pub total: usize,
    /// Seconds left at the rate so far.
    pub seconds_left: Option<f64>,
}

/// The kernel in the cache that the configuration of this program describes, of the newest source.
pub(crate) fn cached(cache: &Cache) -> Option<LabKernel> {
    fs::read_dir(cache.root().join("kernels"))
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            fs::read_to_string(path.join("config")).is_ok_and(|text| text == CONFIGURATION)
        })
        .max_by_key(|path| fs::metadata(path.join("source")).and_then(|data| data.modified()).ok())
        .and_then(|path| read(&path).ok())
}

/// Builds the kernel from the newest source, if it is not there.
pub(crate) fn get(
    cache: &Cache,
    interrupt: &AtomicBool,
    tell: &mut dyn FnMut(&str),
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<LabKernel, LabError> {
    let package = Package::newest(&format!("linux-source-{SERIES}"))?;
    let source = format!("{} {}", package.name, package.version);
    let of_build = key([source.as_bytes(), CONFIGURATION.as_bytes()]);
    let finished = cache.root().join("kernels").join(&of_build);
    if finished.join("source").exists() {
        return read(&finished);
    }
    check_tools()?;
    let tree = unpack(cache, &package, tell)?;
    let build = cache.directory(&format!("build/{of_build}"))?;
    let log = build.join("build.log");
    let make = || {
        let mut command = MAKE.command();
        command.current_dir(&tree).arg(format!("O={}", build.display()));
        // The same image every time, so that equal means unchanged.
        command
            .env("KBUILD_BUILD_TIMESTAMP", "1970-01-01")
            .env("KBUILD_BUILD_USER", "strata")
            .env("KBUILD_BUILD_HOST", "lab");
        if crate::initramfs::find(OsStr::new("ccache")).is_some() {
            command.arg("CC=ccache gcc");
        }
        command
    };
    if !build.join("configured").exists() {
        tell("configuring the kernel");
        configure(&build, &log, interrupt, make)?;
    }
    tell(&format!("building {source}"));
    let jobs = available_parallelism().map_or(1, usize::from);
    let (begin, mut done) = (Instant::now(), 0);
    MAKE.follow(
        make().arg(format!("-j{jobs}")).arg("bzImage"),
        "building the kernel",
        &log,
        interrupt,
        |line| {
            if line.starts_with("  ") {
                done += 1;
                let left = STEPS.saturating_sub(done) as f64;
                let rate = done as f64 / begin.elapsed().as_secs_f64();
                progress(BuildProgress {
                    done,
                    total: STEPS.max(done),
                    seconds_left: (done > 20).then(|| left / rate),
                });
            }
        },
    )?;
    let kept = cache.directory(&format!("kernels/{of_build}"))?;
    let image = build.join("arch/x86/boot/bzImage");
    save(&kept.join("bzImage"), &mut on(&image, fs::File::open(&image))?)?;
    save(&kept.join("config"), &mut CONFIGURATION.as_bytes())?;
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

/// The kernel's source tree, unpacked once.
fn unpack(
    cache: &Cache,
    package: &Package,
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
            let mut archive = tar::Archive::new(XzDecoder::new(bytes));
            on(partial.path(), archive.unpack(partial.path()))?;
        }
        Ok(())
    })?;
    let inner = on(partial.path(), fs::read_dir(partial.path()))?.flatten().next();
    let Some(inner) = inner.filter(|_| found) else {
        return Err(LabError::Scenario(format!("{} has no kernel source", file.display())));
    };
    on(&tree, fs::rename(inner.path(), &tree))?;
    on(&file, fs::remove_file(&file))?;
    Ok(tree)
}

/// Configures a build: the smallest configuration, ours on top, the rest by default. An option that
/// the kernel did not take is an error: it would be missed later, in the dark.
fn configure(
    build: &Path,
    log: &Path,
    interrupt: &AtomicBool,
    make: impl Fn() -> std::process::Command,
) -> Result<(), LabError> {
    let follow = |target: &str| {
        let what = "configuring the kernel";
        MAKE.follow(make().arg(target), what, log, interrupt, |_| {})
    };
    follow("tinyconfig")?;
    let path = build.join(".config");
    let smallest = on(&path, fs::read_to_string(&path))?;
    on(&path, fs::write(&path, format!("{smallest}\n{CONFIGURATION}")))?;
    follow("olddefconfig")?;
    let taken = on(&path, fs::read_to_string(&path))?;
    let refused: Vec<&str> = CONFIGURATION
        .lines()
        .filter(|line| line.starts_with("CONFIG_") && !taken.lines().any(|taken| taken == *line))
        .collect();
    if !refused.is_empty() {
        return Err(LabError::Build {
            what: "configuring the kernel".into(),
            reason: format!("this source does not take {}", refused.join(", ")),
            log: log.to_owned(),
        });
    }
    on(&build.join("configured"), fs::write(build.join("configured"), ""))
}
