//! Links between the pages lead to files and headings that exist, and so do the names of pages in
//! sources and in the program's help.

use crate::{documents, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a page that are neither in a block nor in an HTML comment, with their numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut block = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            block = !block;
            return None;
        }
        (!block && !line.starts_with("<!--")).then_some((index + 1, line))
    })
}

/// Where the links of a line lead, but for those in code.
fn links(line: &str) -> Vec<&str> {
    let code: Vec<_> = line.match_indices('`').map(|(at, _)| at).collect();
    let in_code = |at: usize| code.iter().filter(|&&tick| tick < at).count() % 2 == 1;
    let starts = line.match_indices("](").filter(|(at, _)| !in_code(*at));
    starts.filter_map(|(at, _)| Some(line[at + 2..].split_once(')')?.0)).collect()
}

/// What a heading is called in a link: GitHub's rule.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|it| if it == ' ' { '-' } else { it }).collect()
}

/// The anchors of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).filter_map(|(_, line)| {
        let rest = line.trim_start_matches('#');
        (rest.len() < line.len()).then(|| rest.strip_prefix(' ')).flatten()
    });
    let names = headings.map(|heading| {
        let name = anchor(heading.trim());
        let times = seen.entry(name.clone()).or_default();
        *times += 1;
        if *times == 1 { name } else { format!("{name}-{}", *times - 1) }
    });
    names.collect()
}

#[test]
fn every_link_leads_somewhere() {
    let (mut checked, mut dead) = (0, Vec::new());
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for (number, line) in prose(&text) {
            for link in links(line).into_iter().filter(|link| !link.contains("://")) {
                checked += 1;
                let (path, heading) = link.split_once('#').unwrap_or((link, ""));
                let target = match path {
                    "" => document.clone(),
                    _ => document.parent().unwrap().join(path),
                };
                let page = (!heading.is_empty()).then(|| fs::read_to_string(&target));
                let there = match page {
                    None => target.exists(),
                    Some(page) => page.is_ok_and(|page| anchors(&page).contains(heading)),
                };
                if !there {
                    dead.push(format!("{}:{number}: {link}", document.display()));
                }
            }
        }
    }
    assert!(dead.is_empty(), "links that lead nowhere:\n{}", dead.join("\n"));
    assert!(checked > 40, "only {checked} links found");
}

#[test]
fn the_readme_leads_to_every_page() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    for document in documents() {
        let name = document.file_name().unwrap().to_string_lossy().into_owned();
        assert!(name == "README.md" || readme.contains(&format!("{name})")), "{name}");
    }
}

/// Files of these kinds below a directory, but for what is built.
fn files(below: &Path, kinds: &[&str], into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(below).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            files(&path, kinds, into);
        } else if kind.is_file() && kinds.iter().any(|kind| path.extension() == Some(kind.as_ref()))
        {
            into.push(path);
        }
    }
}

#[test]
fn every_page_that_sources_name_exists() {
    let mut sources = Vec::new();
    for part in ["crates", "linux", "fuzz", "demo"] {
        files(&root().join(part), &["rs", "c", "h", "toml", "patch", "sql"], &mut sources);
    }
    let (mut named, mut missing) = (0, Vec::new());
    for source in sources {
        let text = fs::read_to_string(&source).unwrap();
        for (at, start) in text.match_indices("docs/") {
            let page =
                text[at..].split(|it: char| !it.is_ascii_alphanumeric() && !"-_./".contains(it));
            let page = page.into_iter().next().unwrap_or(start).trim_end_matches('.');
            if page.ends_with(".md") {
                named += 1;
                if !root().join(page).exists() {
                    missing.push(format!("{}: {page}", source.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "pages that do not exist:\n{}", missing.join("\n"));
    assert!(named > 20, "only {named} names of pages found");
}

#[test]
fn anchors_and_links_are_found() {
    let text =
        "# The JSON of `strata walk`\n```sh\n# no heading\n```\n## Is it so?\n## Is it so?\n";
    let expected = ["is-it-so", "is-it-so-1", "the-json-of-strata-walk"];
    assert!(anchors(text).iter().eq(expected));
    assert_eq!(links("see [a](b.md#c), `[x](y)` and [d](#e)"), ["b.md#c", "#e"]);
    assert_eq!(prose(text).map(|(number, _)| number).collect::<Vec<_>>(), [1, 5, 6]);
}
