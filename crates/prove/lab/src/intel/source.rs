//! Debian's source of Bochs: downloaded without being root, by an apt that has a configuration and
//! lists of its own, for this computer's apt may have no sources, or those of another release.

use crate::cache::Cache;
use crate::error::{LabError, on};
use crate::tool::Tool;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const APT_GET: Tool = Tool { name: "apt-get", package: "apt" };
/// What signs Debian's releases.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Debian's release whose Bochs it is, 3.0. The one before, 2.7, is two to four times slower.
const RELEASE: &str = "trixie";
/// The source package.
const PACKAGE: &str = "bochs";

/// A source as Debian has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Package and version.
    pub(super) name: String,
    /// The archive with the source.
    pub(super) archive: PathBuf,
}

/// Gets the source. apt compares the archive's checksum with the one in the release's signed index.
pub(super) fn get(cache: &Cache, tell: &mut dyn FnMut(&str)) -> Result<Source, LabError> {
    if !Path::new(KEYRING).exists() {
        return Err(LabError::NoKeyring(KEYRING.into()));
    }
    let apt = Apt::new(cache)?;
    tell("looking for the source of Bochs");
    apt.run(&["update"], "reading Debian's list of sources")?;
    let show = ["source", "--print-uris", "--download-only", "--tar-only", PACKAGE];
    let uris = apt.run(&show, "looking for the source of Bochs")?;
    let Some((file, version)) = uris.lines().find_map(archive) else {
        return Err(LabError::NoSource { package: PACKAGE, release: RELEASE });
    };
    let archive = apt.directory.join(&file);
    // What is there was verified when it came, or is a part: apt looks at it again.
    tell(&format!("getting {PACKAGE} {version}"));
    let get = ["source", "--download-only", "--tar-only", PACKAGE];
    apt.run(&get, "downloading the source of Bochs")?;
    match archive.exists() {
        true => Ok(Source { name: format!("{PACKAGE} {version}"), archive }),
        false => Err(LabError::Contents { package: apt.directory, missing: file }),
    }
}

/// An apt of the lab's own.
struct Apt {
    directory: PathBuf,
    options: Vec<String>,
}

impl Apt {
    fn new(cache: &Cache) -> Result<Self, LabError> {
        let directory = cache.directory("sources")?;
        cache.directory("sources/lists/partial")?;
        cache.directory("sources/archives/partial")?;
        let list = directory.join("sources.list");
        let text: String = mirrors()?
            .iter()
            .map(|mirror| format!("deb-src [signed-by={KEYRING}] {mirror} {RELEASE} main\n"))
            .collect();
        on(&list, fs::write(&list, text))?;
        let at = |name: &str| directory.join(name).display().to_string();
        let options = [
            format!("Dir::Etc::SourceList={}", at("sources.list")),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={}", at("lists")),
            format!("Dir::Cache={}", at("")),
            format!("Dir::Cache::Archives={}", at("archives")),
            // As root it would become another user, who may not write here.
            "APT::Sandbox::User=root".to_owned(),
        ];
        let options = options.into_iter().flat_map(|option| ["-o".into(), option]).collect();
        Ok(Self { directory, options })
    }

    fn run(&self, words: &[&str], what: &str) -> Result<String, LabError> {
        let mut command = APT_GET.command();
        command.current_dir(&self.directory).env("LC_ALL", "C");
        APT_GET.output(command.args(&self.options).arg("--quiet").args(words), what)
    }
}

/// Where this computer gets Debian's packages from.
fn mirrors() -> Result<Vec<String>, LabError> {
    let mut command: Command = APT_GET.command();
    command.args(["indextargets", "--format", "$(ORIGIN)|$(COMPONENT)|$(CODENAME)|$(REPO_URI)"]);
    let text = APT_GET.output(&mut command, "apt-get indextargets")?;
    let mirrors = of_debian(&text);
    if mirrors.is_empty() {
        return Err(LabError::NoSource { package: PACKAGE, release: RELEASE });
    }
    Ok(mirrors)
}

/// The repositories of Debian's releases among lines of origin, component, codename and address.
fn of_debian(text: &str) -> Vec<String> {
    let mut mirrors: Vec<String> = text
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.splitn(4, '|').collect();
            let [origin, component, codename, address] = words[..] else { return None };
            // Updates and security have repositories of their own, without most sources.
            let release = origin == "Debian" && component == "main" && !codename.contains('-');
            release.then(|| address.to_owned())
        })
        .collect();
    mirrors.sort();
    mirrors.dedup();
    mirrors
}

/// The file of a source archive and its version, in a line such as
/// `'ADDRESS' bochs_3.0+dfsg.orig.tar.xz 3896488 SHA256:...`, or, where it is there and has that checksum,
/// `Skipping already downloaded file 'bochs_3.0+dfsg.orig.tar.xz'`.
fn archive(line: &str) -> Option<(String, String)> {
    let file = match line.strip_prefix("Skipping already downloaded file '") {
        Some(there) => there.strip_suffix('\'')?,
        None => line.strip_prefix('\'')?.split_once("' ")?.1.split_whitespace().next()?,
    };
    let rest = file.strip_prefix(PACKAGE)?.strip_prefix('_')?;
    let version = rest.split_once(".orig.tar.")?.0;
    Some((file.to_owned(), version.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_found_among_what_apt_would_download() {
        let line = "'mirror:/pool/main/b/bochs/bochs_3.0%2bdfsg.orig.tar.xz' \
                    bochs_3.0+dfsg.orig.tar.xz 3896488 SHA256:78f6";
        let found = archive(line).unwrap();
        assert_eq!(found, ("bochs_3.0+dfsg.orig.tar.xz".into(), "3.0+dfsg".into()));
        let there = "Skipping already downloaded file 'bochs_3.0+dfsg.orig.tar.xz'";
        assert_eq!(archive(there).as_ref(), Some(&found));
        assert_eq!(archive("Skipping already downloaded file 'bochs_3.0-1.dsc'"), None);
        assert_eq!(archive("Need to get 3896 kB of source archives."), None);
        assert_eq!(archive("'mirror:/bochs_3.0-1.dsc' bochs_3.0-1.dsc 2554 SHA256:6a"), None);
    }

    #[test]
    fn sources_come_from_where_packages_come_from() {
        let text = "Debian|main|bookworm|mirror:/debian/\nDebian|main|bookworm|mirror:/debian/\n\
                    Debian|main|bookworm-security|mirror:/security/\nOther|main|bookworm|other:/\n";
        assert_eq!(of_debian(text), ["mirror:/debian/"]);
        assert!(of_debian("").is_empty());
    }
}
