//! Tells the program which version it is, and which commit it was built from.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let package = std::env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    let commit = commit();
    let version = match &commit {
        Some(commit) => format!("{package} ({})", &commit[..commit.len().min(12)]),
        None => package,
    };
    println!("cargo:rustc-env=STRATA_VERSION={version}");
    println!("cargo:rustc-env=STRATA_COMMIT={}", commit.unwrap_or_default());
}

/// The commit that is checked out, if this is a checkout of Strata's repository: sources unpacked
/// inside another one are of none.
fn commit() -> Option<String> {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    let root = here.join("../..").canonicalize().ok()?;
    let checkout = git(&root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&checkout).canonicalize().ok()? != root {
        return None;
    }
    // What changes when another commit is checked out. Cargo takes a file that is not there for
    // one that changed, so only those that are there are named.
    let branch = git(&root, &["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD", "logs/HEAD", "packed-refs"].map(str::to_owned);
    for name in names.into_iter().chain(branch) {
        let path = git(&root, &["rev-parse", "--git-path", &name])?;
        let path = root.join(path);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    git(&root, &["rev-parse", "--verify", "HEAD"])
}

/// What git says, in one line; `None` where there is no git, or no repository.
fn git(directory: &Path, words: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(directory).args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
