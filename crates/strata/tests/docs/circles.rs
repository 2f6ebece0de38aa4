//! No file needs one that needs it.
//!
//! A file needs those whose items it names: in a `use` or in a path that begins with `crate`, `super` or
//! `self`. Names that a module only passes on (`pub use`) are those of the file that has them. Tests in a file
//! do not count.

use crate::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::Visit;
use syn::{Attribute, Item, UseTree};

/// The path of a module from the root of its crate.
type Module = Vec<String>;

/// What is known of the file of a module.
struct File {
    path: PathBuf,
    syntax: syn::File,
    /// What it passes on, by the name it gives it: a path in its own terms.
    passed_on: BTreeMap<String, Vec<String>>,
    /// Modules of which it passes on everything.
    passed_on_whole: Vec<Vec<String>>,
}

/// A crate's files by their modules.
struct Source(BTreeMap<Module, File>);

fn is_test(attributes: &[Attribute]) -> bool {
    let test = |attribute: &Attribute| {
        let list = attribute.meta.require_list();
        list.is_ok_and(|list| list.path.is_ident("cfg") && list.tokens.to_string().contains("test"))
    };
    attributes.iter().any(test)
}

/// The paths that a tree of `use` names, each with the name it has here; of `*` none.
fn paths(tree: &UseTree, before: &[String], into: &mut Vec<(Vec<String>, Option<String>)>) {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => paths(&path.tree, &with(&path.ident), into),
        UseTree::Group(group) => group.items.iter().for_each(|tree| paths(tree, before, into)),
        UseTree::Name(name) if name.ident == "self" => {
            into.push((before.to_vec(), before.last().cloned()));
        }
        UseTree::Name(name) => into.push((with(&name.ident), Some(name.ident.to_string()))),
        UseTree::Rename(name) => into.push((with(&name.ident), Some(name.rename.to_string()))),
        UseTree::Glob(_) => into.push((before.to_vec(), None)),
    }
}

impl Source {
    fn read(directory: &Path) -> Self {
        let mut files = BTreeMap::new();
        read_folder(&directory.join("src"), &[], &mut files);
        Self(files)
    }

    /// The module whose file has what a path in the terms of `from` names, if this crate has it.
    fn home(&self, from: &[String], path: &[String], depth: usize) -> Option<Module> {
        let mut at = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "self" => from.to_vec(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            first => {
                let child = [from, &[first.to_owned()]].concat();
                if !self.0.contains_key(&child) {
                    return None;
                }
                child
            }
        };
        let mut rest = &path[1..];
        while let Some((name, after)) = rest.split_first() {
            if name == "super" {
                at.pop();
            } else {
                let child = [&at[..], std::slice::from_ref(name)].concat();
                if !self.0.contains_key(&child) {
                    break;
                }
                at = child;
            }
            rest = after;
        }
        let file = self.0.get(&at)?;
        let Some(name) = rest.first() else { return Some(at) };
        if depth > 8 {
            return Some(at);
        }
        if let Some(passed_on) = file.passed_on.get(name) {
            return self.home(&at, passed_on, depth + 1).or(Some(at));
        }
        let has =
            |module: &Module| self.0.get(module).is_some_and(|file| defines(&file.syntax, name));
        let wholes =
            file.passed_on_whole.iter().filter_map(|whole| self.home(&at, whole, depth + 1));
        Some(wholes.into_iter().find(has).unwrap_or(at))
    }

    /// The files that each file needs.
    fn needs(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let mut needs = BTreeMap::new();
        for (module, file) in &self.0 {
            let mut named = Named::default();
            named.visit_file(&file.syntax);
            let homes = named.0.iter().filter_map(|path| self.home(module, path, 0));
            needs.insert(module, homes.filter(|home| home != module).collect());
        }
        needs
    }
}

fn read_folder(folder: &Path, module: &[String], into: &mut BTreeMap<Module, File>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.map(Result::unwrap) {
        let path = entry.path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            read_folder(&path, &[module, &[name]].concat(), into);
            continue;
        }
        // Programs beside a library and tests in a file of their own are nobody's need.
        let apart = ["main", "bin", "tests", "benches"].contains(&name.as_str());
        if path.extension().is_none_or(|extension| extension != "rs") || apart {
            continue;
        }
        let own = if ["lib", "mod"].contains(&name.as_str()) { Vec::new() } else { vec![name] };
        let syntax = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
        let mut file =
            File { path, passed_on: BTreeMap::new(), passed_on_whole: Vec::new(), syntax };
        for item in &file.syntax.items {
            let Item::Use(passed_on) = item else { continue };
            if matches!(passed_on.vis, syn::Visibility::Inherited) {
                continue;
            }
            let mut all = Vec::new();
            paths(&passed_on.tree, &[], &mut all);
            for (path, name) in all {
                match name {
                    Some(name) => drop(file.passed_on.insert(name, path)),
                    None => file.passed_on_whole.push(path),
                }
            }
        }
        into.insert([module, &own].concat(), file);
    }
}

/// Whether a file has an item of this name.
fn defines(file: &syn::File, name: &str) -> bool {
    file.items.iter().any(|item| {
        let ident = match item {
            Item::Const(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Fn(item) => &item.sig.ident,
            Item::Static(item) => &item.ident,
            Item::Struct(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            _ => return false,
        };
        ident == name
    })
}

/// Paths of its own crate that a file names.
#[derive(Default)]
struct Named(Vec<Vec<String>>);

impl<'ast> Visit<'ast> for Named {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if is_test(&item.attrs) || !matches!(item.vis, syn::Visibility::Inherited) {
            return;
        }
        let mut all = Vec::new();
        paths(&item.tree, &[], &mut all);
        self.0.extend(all.into_iter().map(|(path, _)| path));
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            syn::visit::visit_item_mod(self, item);
        }
    }

    /// Who may see an item is no need.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if ["crate", "super"].contains(&segments[0].as_str()) {
            self.0.push(segments);
        }
        syn::visit::visit_path(self, path);
    }
}

/// The files that need themselves by way of others, with those that they need in their circle.
fn in_circles(source: &Source) -> Vec<String> {
    let needs = source.needs();
    let reached = |from: &Module| {
        let mut reached = BTreeSet::new();
        let mut waiting = vec![from];
        while let Some(module) = waiting.pop() {
            waiting.extend(needs[module].iter().filter(|needed| reached.insert((*needed).clone())));
        }
        reached
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        needs.keys().map(|module| (*module, reached(module))).collect();
    let show = |module: &Module| source.0[module].path.display().to_string();
    let circles = needs.iter().filter(|(module, _)| reached[**module].contains(**module));
    circles
        .map(|(module, needed)| {
            let back = needed.iter().filter(|needed| reached[needed].contains(*module));
            format!("{} needs {}", show(module), back.map(show).collect::<Vec<_>>().join(", "))
        })
        .collect()
}

#[test]
fn no_file_needs_one_that_needs_it() {
    let mut circles = Vec::new();
    for wing in fs::read_dir(root().join("crates")).unwrap().map(Result::unwrap) {
        let inside = fs::read_dir(wing.path()).unwrap().map(|entry| entry.unwrap().path());
        for directory in inside.chain([wing.path()]).filter(|path| path.join("Cargo.toml").exists())
        {
            circles.extend(in_circles(&Source::read(&directory)));
        }
    }
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}
