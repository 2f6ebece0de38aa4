//! The caches of a layer's processors, by sysfs and by the processors themselves, and how resctrl shares them out
//! (`Documentation/ABI/testing/sysfs-devices-system-cpu`, `Documentation/arch/x86/resctrl.rst`).

use crate::scan::cpuid;
use crate::scan::tree::Tree;
use crate::snapshot::model::CpuCache;
use std::collections::BTreeMap;

const CPUS: &str = "sys/devices/system/cpu";
const RESCTRL: &str = "sys/fs/resctrl";
/// The class of service that everything is in to begin with.
const ROOT_CLASS: &str = "/";
/// Directories of resctrl that are no class.
const NO_CLASSES: [&str; 3] = ["info", "mon_groups", "mon_data"];

/// The caches of all processors, each once, by level. Where the kernel tells of none, those of the processor
/// that this runs on; empty where that says nothing either, and of a tree that is not the running system.
pub fn caches(tree: &Tree) -> Vec<CpuCache> {
    let told = if tree.is_running() { cpuid::caches() } else { Vec::new() };
    both(in_sysfs(tree), told)
}

/// What sysfs says, with what the processor says besides; the latter alone without the former.
fn both(mut found: Vec<CpuCache>, told: Vec<CpuCache>) -> Vec<CpuCache> {
    if found.is_empty() {
        return told;
    }
    for cache in &mut found {
        let same = told.iter().find(|told| told.level == cache.level && told.kind == cache.kind);
        cache.complex_index = same.and_then(|told| told.complex_index);
    }
    found
}

fn in_sysfs(tree: &Tree) -> Vec<CpuCache> {
    let mut found: Vec<CpuCache> = Vec::new();
    for cpu in tree.names(CPUS) {
        let number = cpu.strip_prefix("cpu").filter(|rest| rest.parse::<u32>().is_ok());
        let Some(number) = number else { continue };
        for index in tree.names(&format!("{CPUS}/{cpu}/cache")) {
            let at = format!("{CPUS}/{cpu}/cache/{index}");
            // One of the processors that share it is enough: the first, as the list begins with it.
            let cpus = tree.maybe(&format!("{at}/shared_cpu_list")).unwrap_or_default();
            if cpus.split([',', '-']).next() == Some(number) {
                found.extend(cache(tree, &at, cpus));
            }
        }
    }
    found.sort_by(|a, b| (a.level, &a.kind, &a.cpus).cmp(&(b.level, &b.kind, &b.cpus)));
    found
}

fn cache(tree: &Tree, at: &str, cpus: String) -> Option<CpuCache> {
    let number = |name: &str| tree.number(&format!("{at}/{name}"));
    Some(CpuCache {
        level: number("level")?.try_into().ok()?,
        kind: tree.maybe(&format!("{at}/type"))?,
        sets: number("number_of_sets")?,
        ways: number("ways_of_associativity")?.try_into().ok()?,
        line_bytes: number("coherency_line_size")?.try_into().ok()?,
        cpus,
        complex_index: None,
    })
}

/// The directory of a class.
fn directory(class: &str) -> String {
    match class {
        ROOT_CLASS => RESCTRL.to_owned(),
        name => format!("{RESCTRL}/{name}"),
    }
}

/// The classes of service with what they may fill of the L3; empty where resctrl is not mounted.
pub fn classes(tree: &Tree) -> BTreeMap<String, String> {
    let names = tree.names(RESCTRL).into_iter();
    let named = names.filter(|name| !NO_CLASSES.contains(&name.as_str()));
    let all = std::iter::once(ROOT_CLASS.to_owned()).chain(named);
    all.filter_map(|class| {
        let schemata = tree.maybe(&format!("{}/schemata", directory(&class)))?;
        let l3 = schemata.lines().map(str::trim).find(|line| line.starts_with("L3:"));
        Some((class, l3.unwrap_or_default().to_owned()))
    })
    .collect()
}

/// The class that a process is in. Threads that were put elsewhere by themselves, and classes that
/// belong to processors, are not looked at.
pub fn class_of<'a>(
    tree: &Tree,
    pid: u32,
    classes: impl IntoIterator<Item = &'a String>,
) -> Option<String> {
    let pid = pid.to_string();
    let has = |class: &&String| {
        let tasks = tree.maybe(&format!("{}/tasks", directory(class))).unwrap_or_default();
        tasks.lines().any(|line| line.trim() == pid)
    };
    classes.into_iter().find(has).cloned()
}

/// Whether the processors can share out their L3 (`cat_l3` in `/proc/cpuinfo`) and nobody mounted what
/// would tell how.
pub fn is_sharing_hidden(tree: &Tree, classes: &BTreeMap<String, String>) -> bool {
    let flags = tree.maybe("proc/cpuinfo").unwrap_or_default();
    let flags = flags.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    classes.is_empty() && flags.split_whitespace().any(|flag| flag == "cat_l3")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A tree with two processors that share an L3, and two classes of service.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let put = |path: String, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for cpu in [0, 1] {
            let own = format!("{cpu}\n");
            for (index, level, kind, sets, ways, cpus) in
                [(0, "1", "Data", "64", "8", &*own), (3, "3", "Unified", "40960", "11", "0-1\n")]
            {
                let at = format!("{CPUS}/cpu{cpu}/cache/index{index}");
                for (name, text) in [
                    ("level", level),
                    ("type", kind),
                    ("number_of_sets", sets),
                    ("ways_of_associativity", ways),
                    ("coherency_line_size", "64\n"),
                    ("shared_cpu_list", cpus),
                ] {
                    put(format!("{at}/{name}"), text);
                }
            }
        }
        put(format!("{CPUS}/cpufreq/boost"), "1");
        put("proc/cpuinfo".into(), "processor\t: 0\nflags\t\t: fpu cat_l3 cdp_l3\n");
        put(format!("{RESCTRL}/schemata"), "    MB:0=100\n    L3:0=7ff\n");
        put(format!("{RESCTRL}/tasks"), "1\n2\n");
        put(format!("{RESCTRL}/info/L3/cbm_mask"), "7ff\n");
        put(format!("{RESCTRL}/gold/schemata"), "L3:0=600\n");
        put(format!("{RESCTRL}/gold/tasks"), "12\n77\n");
        root
    }

    #[test]
    fn each_cache_is_there_once() {
        let root = tree();
        let caches = caches(&Tree::new(root.path()));
        let told: Vec<_> =
            caches.iter().map(|it| (it.level, &*it.cpus, it.sets, it.ways)).collect();
        assert_eq!(told, [(1, "0", 64, 8), (1, "1", 64, 8), (3, "0-1", 40960, 11)]);
        assert_eq!(caches[2].kind, "Unified");
    }

    #[test]
    fn the_processor_is_asked_for_what_sysfs_does_not_say() {
        let cache = |level, sets, complex_index| CpuCache {
            level,
            kind: "Unified".into(),
            sets,
            complex_index,
            ..CpuCache::default()
        };
        let told = || vec![cache(2, 512, Some(false)), cache(3, 16384, Some(true))];
        assert_eq!(both(Vec::new(), told()), told());
        // What sysfs says is of all processors.
        let found = both(vec![cache(3, 40960, None), cache(4, 9, None)], told());
        assert_eq!(found, [cache(3, 40960, Some(true)), cache(4, 9, None)]);
        // The caches of this computer are not those of another's tree.
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(caches(&Tree::new(empty.path())), []);
    }

    #[test]
    fn classes_of_service_and_who_is_in_them() {
        let root = tree();
        let tree = Tree::new(root.path());
        let classes = classes(&tree);
        let expected = [("/", "L3:0=7ff"), ("gold", "L3:0=600")];
        assert!(classes.iter().map(|(name, l3)| (&**name, &**l3)).eq(expected), "{classes:?}");
        assert_eq!(class_of(&tree, 77, classes.keys()).as_deref(), Some("gold"));
        assert_eq!(class_of(&tree, 2, classes.keys()).as_deref(), Some("/"));
        assert_eq!(class_of(&tree, 7, classes.keys()), None);
        assert!(!is_sharing_hidden(&tree, &classes));
        assert!(is_sharing_hidden(&tree, &BTreeMap::new()));
        assert!(super::classes(&Tree::new(root.path().join("proc"))).is_empty());
    }
}
