//! What can be prepared: a list in a file that comes with the program.

use crate::failure::{Failure, unknown};
use serde::Deserialize;
use std::env;
use std::path::{Path, PathBuf};
use strata_files::checksum;

const RECIPES: &str = include_str!("recipes.toml");

/// How a workload is made; the file says what the fields mean.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Its name.
    pub name: String,
    /// What it does.
    pub about: String,
    /// The published program that it takes the place of.
    pub stands_for: String,
    /// What is different in it from that one.
    pub differs: String,
    /// Debian's packages.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Programs of theirs.
    #[serde(default)]
    pub needs: Vec<String>,
    /// A script that makes what the program reads.
    pub setup: Option<String>,
    /// The script that is recorded; none for a generator.
    #[serde(default)]
    pub program: String,
    /// The socket where a server listens.
    pub ready: Option<String>,
    /// A script that puts into a server what it is asked for later.
    pub fill: Option<String>,
    /// A script that asks a server.
    pub load: Option<String>,
    /// Accesses of which first touches are kept, before those recorded.
    #[serde(default)]
    pub skip: u64,
    /// Accesses recorded at most.
    #[serde(default)]
    pub limit: u64,
    /// A generator that does it, with nothing to prepare.
    pub generator: Option<String>,
}

#[derive(Deserialize)]
struct Recipes {
    workload: Vec<Recipe>,
}

/// All that there are.
pub fn all() -> Vec<Recipe> {
    let recipes: Recipes = toml::from_str(RECIPES).expect("a test reads them");
    recipes.workload
}

/// The one of this name.
///
/// # Errors
/// When there is none.
pub fn find(name: &str) -> Result<Recipe, Failure> {
    let mut recipes = all();
    match recipes.iter().position(|recipe| recipe.name == name) {
        Some(at) => Ok(recipes.swap_remove(at)),
        None => {
            let names = recipes.iter().map(|recipe| recipe.name.as_str());
            let all = "'strata workloads prepare --list' shows all";
            Err(Failure::usage(unknown("prepared workload", name, names, all)))
        }
    }
}

impl Recipe {
    /// A text of it with the directory put in.
    pub fn within(text: &str, directory: &Path) -> String {
        text.replace("{dir}", &directory.display().to_string())
    }

    /// Where its recording is. The name changes with what is recorded, so that no old one is taken for a
    /// new one.
    ///
    /// # Errors
    /// When the environment does not say where files are kept.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        let made_by = [
            Some(&self.program),
            self.setup.as_ref(),
            self.ready.as_ref(),
            self.fill.as_ref(),
            self.load.as_ref(),
        ];
        let made_by = format!("{made_by:?} {} {}", self.skip, self.limit);
        let number = checksum(made_by.as_bytes());
        Ok(directory()?.join(format!("{}-{number:08x}.strata", self.name)))
    }

    /// The programs it needs that are not installed.
    pub fn missing(&self) -> Vec<&str> {
        let path = env::var_os("PATH").unwrap_or_default();
        let is_there = |name: &str| env::split_paths(&path).any(|at| at.join(name).is_file());
        self.needs.iter().map(String::as_str).filter(|name| !is_there(name)).collect()
    }
}

/// Where prepared workloads are: `$XDG_CACHE_HOME/strata/workloads`, by default
/// `~/.cache/strata/workloads` (XDG Base Directory Specification).
///
/// # Errors
/// When the environment names neither.
pub fn directory() -> Result<PathBuf, Failure> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let base = base.ok_or_else(|| {
        Failure::failed("no place to keep recordings: set HOME or XDG_CACHE_HOME to a directory")
    })?;
    Ok(base.join("strata").join("workloads"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use strata_workloads::Generator;

    #[test]
    fn every_recipe_is_whole() {
        let recipes = all();
        let names: BTreeSet<_> = recipes.iter().map(|recipe| &recipe.name).collect();
        assert_eq!(names.len(), recipes.len());
        for recipe in &recipes {
            let name = &recipe.name;
            if let Some(generator) = &recipe.generator {
                assert!(Generator::parse(generator).is_ok(), "{name}");
                assert!(recipe.program.is_empty() && recipe.packages.is_empty(), "{name}");
                continue;
            }
            assert!(!recipe.packages.is_empty() && !recipe.needs.is_empty(), "{name}");
            assert!(recipe.program.contains("exec ") && recipe.limit > 0, "{name}");
            // First touches end where what is recorded begins.
            assert_eq!(recipe.ready.is_some(), recipe.skip == 0, "{name}");
            assert_eq!(recipe.ready.is_some(), recipe.load.is_some(), "{name}");
        }
        assert!(find("redsi").unwrap_err().message.contains("did you mean 'redis'?"));
    }
}
