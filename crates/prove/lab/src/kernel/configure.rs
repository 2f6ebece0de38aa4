//! Configuring a kernel: the smallest configuration, ours on top, the rest by default.

use crate::cache::key;
use crate::error::{LabError, on};
use crate::tool::MAKE;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

/// What a configuration is made of besides the pristine source: itself, and the options of `files`. As
/// long as this stays, so does the configuration.
pub(super) fn mark(configuration: &str, files: &BTreeMap<PathBuf, Vec<u8>>) -> String {
    let options = files.iter().filter(|(path, _)| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"Kconfig"))
    });
    let options = options.flat_map(|(path, bytes)| [path.as_os_str().as_encoded_bytes(), bytes]);
    key([configuration.as_bytes()].into_iter().chain(options))
}

/// Configures the build in `objects`. An option that the kernel did not take is an error: it would be
/// missed later, in the dark.
pub(super) fn configure(
    objects: &Path,
    configuration: &str,
    interrupt: &AtomicBool,
    make: impl Fn() -> Command,
) -> Result<(), LabError> {
    let what = "configuring the kernel";
    let log = objects.join("configure.log");
    let follow = |target: &str| MAKE.follow(make().arg(target), what, &log, interrupt, |_| {});
    follow("tinyconfig")?;
    let path = objects.join(".config");
    let smallest = on(&path, fs::read_to_string(&path))?;
    on(&path, fs::write(&path, format!("{smallest}\n{configuration}")))?;
    follow("olddefconfig")?;
    let taken = on(&path, fs::read_to_string(&path))?;
    let refused = refused(configuration, &taken);
    if refused.is_empty() {
        return Ok(());
    }
    Err(LabError::Build {
        what: what.into(),
        reason: format!("this source does not take {}", refused.join(", ")),
        log,
    })
}

/// What a configuration asks for, each option as it says last, and the one taken does not have.
fn refused(asked: &str, taken: &str) -> Vec<String> {
    let taken: BTreeMap<&str, &str> = taken.lines().filter_map(option).collect();
    let asked: BTreeMap<&str, &str> = asked.lines().filter_map(option).collect();
    // What a source does not know at all is not set.
    let other = |(name, value): &(&str, &str)| taken.get(name).unwrap_or(&"n") != value;
    asked.into_iter().filter(other).map(|(name, value)| format!("{name}={value}")).collect()
}

/// Name and value of an option in a line of a configuration.
fn option(line: &str) -> Option<(&str, &str)> {
    if let Some(name) = line.strip_prefix("# ").and_then(|rest| rest.strip_suffix(" is not set")) {
        return name.starts_with("CONFIG_").then_some((name, "n"));
    }
    line.starts_with("CONFIG_").then(|| line.split_once('=')).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_stays_until_it_or_an_option_changes() {
        let of = |text: &str, files: &[(&str, &str)]| {
            let files = files.iter().map(|(path, text)| (path.into(), text.as_bytes().to_vec()));
            mark(text, &files.collect())
        };
        let first = of("A", &[("mm/Kconfig", "x"), ("mm/a.c", "x")]);
        assert_eq!(of("A", &[("mm/Kconfig", "x"), ("mm/a.c", "y"), ("mm/b.c", "z")]), first);
        assert_ne!(of("A", &[("mm/Kconfig", "y"), ("mm/a.c", "x")]), first);
        assert_ne!(of("A", &[("mm/Kconfig.debug", "x"), ("mm/Kconfig", "x")]), first);
        assert_ne!(of("B", &[("mm/Kconfig", "x")]), first);
    }

    #[test]
    fn the_last_word_on_an_option_counts() {
        let taken = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=8\n# a comment is not set\n";
        assert!(refused("CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=8\n", taken).is_empty());
        // What depends on something missing is not even mentioned.
        assert!(refused("# CONFIG_D is not set\n", taken).is_empty());
        assert!(refused("# CONFIG_A is not set\nCONFIG_A=y\n", taken).is_empty());
        assert_eq!(refused("CONFIG_A=y\n# CONFIG_A is not set\n", taken), ["CONFIG_A=n"]);
        assert_eq!(
            refused("CONFIG_B=y\nCONFIG_C=9\nCONFIG_D=y\n", taken),
            ["CONFIG_B=y", "CONFIG_C=9", "CONFIG_D=y"]
        );
    }
}
