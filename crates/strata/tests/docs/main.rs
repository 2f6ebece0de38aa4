//! The documentation is true: its commands run, what they print is what it shows, its links lead
//! somewhere, and its words and tables are those of the program and of the tree.

#[path = "../integration/common/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest of it")]
mod common;

mod blocks;
mod circles;
mod commands;
mod concepts;
mod crates;
mod links;
mod shown;

use std::fs;
use std::path::{Path, PathBuf};

/// Where the project is.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages a reader comes to: the README, the design, and all of `docs`.
fn documents() -> Vec<PathBuf> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut documents: Vec<_> =
        docs.filter(|path| path.extension() == Some("md".as_ref())).collect();
    documents.extend(["README.md", "DESIGN.md"].map(|name| root().join(name)));
    documents.sort();
    documents
}

/// The text of a page, such as `docs/cli.md`.
fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Whether documents are to be written anew where what they show is another thing by now.
fn update() -> bool {
    std::env::var_os("UPDATE_DOCS").is_some()
}
