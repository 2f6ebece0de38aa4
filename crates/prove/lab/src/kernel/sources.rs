//! What the lab's kernels are made of, besides Debian's source: configurations, our own files and
//! the hooks that call them.

use crate::cache::key;
use crate::error::{LabError, on};
use include_dir::{Dir, include_dir};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

static SHIPPED: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../../linux");
/// Names another directory of this shape instead, for who works on the kernel.
const DIRECTORY: &str = "STRATA_LINUX";

/// One of the lab's own kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KernelVariant {
    /// Debian's source as it is.
    Vanilla,
    /// With our files and hooks.
    Aligned,
    /// The same, with everything checked that the kernel can check: slow.
    Debug,
}

impl KernelVariant {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Vanilla, Self::Aligned, Self::Debug];

    /// The kernel checks itself and is several times slower for it.
    pub fn is_checked(self) -> bool {
        self == Self::Debug
    }

    /// Debian's source is changed.
    pub fn is_patched(self) -> bool {
        self != Self::Vanilla
    }

    /// The kernel most of whose objects are the same. Of those of a kernel that checks itself none are.
    pub(super) fn like(self) -> Option<Self> {
        match self {
            Self::Vanilla => Some(Self::Aligned),
            Self::Aligned => Some(Self::Vanilla),
            Self::Debug => None,
        }
    }

    /// Its configurations below `config`, each on top of those before it.
    fn fragments(self) -> &'static [&'static str] {
        match self {
            Self::Vanilla => &["lab"],
            Self::Aligned => &["lab", "align"],
            Self::Debug => &["lab", "align", "debug"],
        }
    }
}

impl fmt::Display for KernelVariant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Vanilla => "vanilla",
            Self::Aligned => "aligned",
            Self::Debug => "debug",
        })
    }
}

/// What one variant is made of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// Configurations, in order.
    fragments: Vec<String>,
    /// Our own files, by their place in the kernel's tree.
    pub(super) overlay: BTreeMap<PathBuf, Vec<u8>>,
    /// Patches of files of the kernel's, by name.
    pub(super) hooks: BTreeMap<PathBuf, Vec<u8>>,
}

impl Sources {
    /// Those that came with this program, or in the directory that the environment names.
    pub(crate) fn of(variant: KernelVariant) -> Result<Self, LabError> {
        match std::env::var_os(DIRECTORY) {
            Some(directory) => Self::choose(variant, &read(Path::new(&directory))?),
            None => Self::choose(variant, &shipped(&SHIPPED)),
        }
    }

    /// What `variant` takes of these files.
    pub(super) fn choose(
        variant: KernelVariant,
        files: &BTreeMap<PathBuf, Vec<u8>>,
    ) -> Result<Self, LabError> {
        let below = |directory: &str| -> BTreeMap<PathBuf, Vec<u8>> {
            let inside = files.iter().filter_map(|(path, bytes)| {
                Some((path.strip_prefix(directory).ok()?.to_owned(), bytes.clone()))
            });
            inside.collect()
        };
        let configurations = below("config");
        let fragment = |name: &str| {
            let path = PathBuf::from(format!("{name}.config"));
            let bytes =
                configurations.get(&path).ok_or_else(|| LabError::NoConfiguration(path.clone()))?;
            Ok(String::from_utf8_lossy(bytes).into_owned())
        };
        let fragments = variant.fragments().iter().copied().map(fragment);
        let fragments = fragments.collect::<Result<_, LabError>>()?;
        if !variant.is_patched() {
            return Ok(Self { fragments, ..Self::default() });
        }
        let mut hooks = below("hooks");
        hooks.retain(|path, _| path.extension() == Some(OsStr::new("patch")));
        Ok(Self { fragments, overlay: below("overlay"), hooks })
    }

    /// The configuration, on top of the smallest one.
    pub(super) fn configuration(&self) -> String {
        self.fragments.concat()
    }

    /// The name of the kernel made of this and of `source`, a package and its version.
    pub(super) fn key(&self, source: &str) -> String {
        let mut texts = vec![source.as_bytes()];
        texts.extend(self.fragments.iter().map(String::as_bytes));
        for (kind, files) in [("overlay", &self.overlay), ("hook", &self.hooks)] {
            for (path, bytes) in files {
                texts.extend([kind.as_bytes(), path.as_os_str().as_encoded_bytes(), bytes]);
            }
        }
        key(texts)
    }
}

/// Files by path of what was compiled in.
fn shipped(directory: &'static Dir<'static>) -> BTreeMap<PathBuf, Vec<u8>> {
    let own = directory.files().map(|file| (file.path().to_owned(), file.contents().to_owned()));
    own.chain(directory.dirs().flat_map(shipped)).collect()
}

/// Files by path in a directory.
pub(super) fn read(root: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>, LabError> {
    let mut files = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in on(&directory, fs::read_dir(&directory))? {
            let path = on(&directory, entry)?.path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let bytes = on(&path, fs::read(&path))?;
                files.insert(path.strip_prefix(root).unwrap_or(&path).to_owned(), bytes);
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(texts: &[(&str, &str)]) -> BTreeMap<PathBuf, Vec<u8>> {
        texts.iter().map(|(path, text)| (path.into(), text.as_bytes().to_vec())).collect()
    }

    /// Some kernel's files; each may be changed.
    const SOME: [(&str, &str); 5] = [
        ("config/lab.config", "CONFIG_KVM=y\n"),
        ("config/align.config", "CONFIG_ALIGN=y\n"),
        ("config/debug.config", "CONFIG_KASAN=y\n"),
        ("overlay/virt/kvm/own.c", "int own;\n"),
        ("hooks/call.patch", "--- a/x\n+++ b/x\n"),
    ];

    fn key_of(variant: KernelVariant, texts: &[(&str, &str)]) -> String {
        Sources::choose(variant, &files(texts)).unwrap().key("linux-source-6.12 6.12.1-1")
    }

    #[test]
    fn a_vanilla_kernel_depends_on_its_configuration_alone() {
        let first = key_of(KernelVariant::Vanilla, &SOME);
        // As kernels have been named before there were others.
        assert_eq!(first, key([b"linux-source-6.12 6.12.1-1".as_slice(), b"CONFIG_KVM=y\n"]));
        for index in 1..SOME.len() {
            let mut other = SOME;
            other[index].1 = "other\n";
            assert_eq!(key_of(KernelVariant::Vanilla, &other), first);
        }
        let mut other = SOME;
        other[0].1 = "other\n";
        assert_ne!(key_of(KernelVariant::Vanilla, &other), first);
    }

    #[test]
    fn a_patched_kernel_depends_on_all_that_it_is_made_of() {
        for (variant, counts) in
            [(KernelVariant::Aligned, [0, 1, 3, 4]), (KernelVariant::Debug, [0, 2, 3, 4])]
        {
            let first = key_of(variant, &SOME);
            assert_eq!(key_of(variant, &SOME), first);
            for index in counts {
                let mut other = SOME;
                other[index].1 = "other\n";
                assert_ne!(key_of(variant, &other), first, "{index}");
            }
            // So does a file of another name, or one more.
            let mut other = SOME;
            other[3].0 = "overlay/virt/kvm/other.c";
            assert_ne!(key_of(variant, &other), first);
            let more = [&SOME[..], &[("overlay/more.h", "")]].concat();
            assert_ne!(key_of(variant, &more), first);
            // What is no patch is a note to the reader.
            let note = [&SOME[..], &[("hooks/README", "words")]].concat();
            assert_eq!(key_of(variant, &note), first);
        }
        let keys = KernelVariant::ALL.map(|variant| key_of(variant, &SOME[..3]));
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
    }

    #[test]
    fn every_variant_is_shipped_whole() {
        let shipped = shipped(&SHIPPED);
        let there = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../linux");
        assert_eq!(shipped, read(&there).unwrap());
        for variant in KernelVariant::ALL {
            let text = Sources::of(variant).unwrap().configuration();
            // One kernel is for machines of either make.
            for option in ["CONFIG_KVM=y", "CONFIG_KVM_AMD=y", "CONFIG_KVM_INTEL=y"] {
                assert!(text.contains(option), "{variant} has no {option}");
            }
        }
        let missing =
            Sources::choose(KernelVariant::Debug, &files(&SOME[..2])).unwrap_err().to_string();
        assert!(missing.contains("debug.config"), "{missing}");
    }
}
