//! Keeping the state of the emulator: it saves one into a directory when a signal asks it to, and ends
//! (`emulator/hooks/state.patch`). Memory is a file already, and no part of it.

use crate::error::{LabError, on};
use crate::link::Link;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use strata_line::Numbers;

/// Which variable of its environment names the directory.
pub(super) const SAVE_TO: &str = "BOCHS_SAVE_TO";
/// The file of the configuration in it.
pub(super) const CONFIGURATION: &str = "config";
/// Ours in it: where the numbers of the line to L0's agent stood.
const NUMBERS: &str = "line.json";
/// Time that all may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Time between looks.
const LOOK: Duration = Duration::from_millis(10);

/// Saves the state of a machine into the directory that it was started with, and ends it.
///
/// # Errors
/// Why it is not saved, in words; everything else that a run ends with.
pub(crate) fn save(link: &mut Link<'_>, to: &Path) -> Result<Result<(), String>, LabError> {
    let begin = Instant::now();
    let numbers = loop {
        match link.machine.line.as_ref().and_then(strata_line::Carried::numbers) {
            Some(numbers) => break numbers,
            None if begin.elapsed() > LIMIT => return Ok(Err("its line is never quiet".into())),
            None => link.pause(LOOK)?,
        }
    };
    let emulator = Pid::from_raw(link.machine.child.id() as i32);
    if let Err(error) = kill(emulator, Signal::SIGUSR1) {
        return Ok(Err(format!("the emulator cannot be asked: {error}")));
    }
    match link.machine.end(LIMIT) {
        Some(status) if status.success() => {}
        Some(status) => return Ok(Err(format!("the emulator ended with {status}"))),
        None => return Ok(Err(format!("the emulator takes more than {} s", LIMIT.as_secs()))),
    }
    let path = to.join(NUMBERS);
    let text = serde_json::to_vec(&numbers).expect("numbers are plain data");
    on(&path, fs::write(&path, text))?;
    Ok(Ok(()))
}

/// Where the numbers of the line stood.
pub(super) fn numbers(kept: &Path) -> Result<Numbers, LabError> {
    let path = kept.join(NUMBERS);
    let text = on(&path, fs::read(&path))?;
    on(&path, serde_json::from_slice(&text).map_err(Into::into))
}

/// The line of a kept configuration that names the devices' code to load.
pub(super) fn plugins(kept: &Path) -> Result<String, LabError> {
    let path = kept.join(CONFIGURATION);
    let text = on(&path, fs::read_to_string(&path))?;
    let line = text.lines().find(|line| line.starts_with("plugin_ctrl:")).unwrap_or_default();
    Ok(format!("{line}\n"))
}

/// A directory `at` with the files of a state that is kept, except for the configuration, which names files
/// of the run.
pub(super) fn link(kept: &Path, at: &Path) -> Result<PathBuf, LabError> {
    on(at, fs::create_dir(at))?;
    for entry in on(kept, fs::read_dir(kept))?.flatten() {
        let name = entry.file_name();
        if name != CONFIGURATION {
            on(at, symlink(entry.path(), at.join(name)))?;
        }
    }
    Ok(at.to_owned())
}
