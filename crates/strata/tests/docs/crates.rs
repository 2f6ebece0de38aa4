//! The tables of folders in DESIGN.md are the tree.

use crate::{page, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Folders below `path` that are a crate, or hold crates: name, and whether it is a crate.
fn folders(path: &Path) -> Vec<(String, bool)> {
    let entries = fs::read_dir(path).unwrap().map(Result::unwrap);
    let folders = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    let named = folders.map(|entry| {
        let name = entry.file_name().into_string().unwrap();
        (name, entry.path().join("Cargo.toml").exists())
    });
    named.collect()
}

#[test]
fn the_design_lists_the_crates_there_are() {
    let mut there: BTreeSet<(String, String)> = BTreeSet::new();
    for (folder, is_crate) in folders(&root().join("crates")) {
        if is_crate {
            there.insert((String::new(), folder));
            continue;
        }
        for (name, is_crate) in folders(&root().join("crates").join(&folder)) {
            if is_crate {
                there.insert((folder.clone(), name));
            }
        }
    }
    let design = page("DESIGN.md");
    let (_, table) = design.split_once("| folder | crate | subject |\n").expect("the table");
    let mut listed = BTreeSet::new();
    let mut folder = String::new();
    for row in table.lines().skip(1).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        if !cells[1].is_empty() {
            cells[1].trim_matches('`').clone_into(&mut folder);
        }
        let inside = if folder == cells[2] { String::new() } else { folder.clone() };
        assert!(!cells[3].is_empty(), "{row} has no subject");
        listed.insert((inside, cells[2].to_owned()));
    }
    let missing: Vec<_> = there.difference(&listed).collect();
    let invented: Vec<_> = listed.difference(&there).collect();
    assert!(missing.is_empty(), "not in the table of DESIGN.md: {missing:?}");
    assert!(invented.is_empty(), "in the table of DESIGN.md, and no crate: {invented:?}");
    assert!(listed.len() > 10, "{listed:?}");
}

#[test]
fn the_design_lists_the_folders_beside_the_crates() {
    let files = Command::new("git").args(["ls-files"]).current_dir(root()).output().unwrap();
    let files = String::from_utf8(files.stdout).unwrap();
    let folders = files.lines().filter_map(|file| Some(file.split_once('/')?.0));
    let there: BTreeSet<&str> =
        folders.filter(|folder| !folder.starts_with('.') && *folder != "crates").collect();
    let design = page("DESIGN.md");
    let (_, table) = design.split_once("| folder | subject |\n").expect("the table");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let listed: BTreeSet<&str> =
        rows.map(|row| row.split('|').nth(1).unwrap().trim().trim_matches('`')).collect();
    // A copy without its history has no list of files.
    if there.is_empty() {
        assert!(listed.iter().all(|folder| root().join(folder).is_dir()), "{listed:?}");
    } else {
        assert_eq!(listed, there);
    }
}
