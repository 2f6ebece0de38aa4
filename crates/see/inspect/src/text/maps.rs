//! `/proc/PID/maps` and `/proc/PID/smaps`: the areas of an address space.

use serde::{Deserialize, Serialize};

/// What stands behind an area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Anonymous memory.
    #[default]
    Anonymous,
    /// memfd, shared anonymous or System V memory: shmem of the kernel's own mount.
    Shmem,
    /// A file on a tmpfs mount.
    Tmpfs,
    /// A hugetlb mapping.
    Hugetlb,
    /// Any other file.
    File,
}

/// An area as the text has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// First byte.
    pub start: u64,
    /// First byte behind it.
    pub end: u64,
    /// `rwxp` or `rwxs`.
    pub permissions: String,
    /// Device and inode, `fe:00 247026`; inode 0 is no file.
    pub inode: u64,
    /// Path or name; empty for unnamed memory.
    pub name: String,
    /// Fields of smaps, all 0 or empty when read from maps.
    pub detail: Detail,
}

/// What smaps adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Bytes of anonymous memory in huge mappings.
    pub anon_huge: u64,
    /// Bytes of shmem in huge mappings.
    pub shmem_huge: u64,
    /// Bytes of files in huge mappings.
    pub file_huge: u64,
    /// Bytes in KSM pages, where the kernel tells (6.8 and later).
    pub ksm: Option<u64>,
    /// Size of a page of the area, in bytes; above 4 KiB for hugetlb.
    pub kernel_page: u64,
    /// Two-letter flags, such as `hg` and `nh`.
    pub flags: Vec<String>,
}

impl Area {
    /// What stands behind it, as far as the text tells: files of tmpfs look like any file.
    pub fn kind(&self) -> Kind {
        let name = self.name.as_str();
        if self.has("ht") || self.detail.kernel_page > 4096 || name.starts_with("/anon_hugepage") {
            Kind::Hugetlb
        } else if name.starts_with("/memfd:")
            || name.starts_with("/dev/zero")
            || name.starts_with("/SYSV")
            || name.starts_with("[anon_shmem:")
        {
            Kind::Shmem
        } else if self.inode == 0 {
            Kind::Anonymous
        } else {
            Kind::File
        }
    }

    /// Whether smaps shows this flag.
    pub fn has(&self, flag: &str) -> bool {
        self.detail.flags.iter().any(|own| own == flag)
    }
}

/// Feeds on lines of maps or smaps and gives areas as they are complete, so that an address space
/// of many areas is never held whole.
#[derive(Debug, Default)]
pub struct Parser {
    current: Option<Area>,
}

impl Parser {
    /// Takes a line; gives the area before it when the line begins another.
    pub fn line(&mut self, line: &str) -> Option<Area> {
        if let Some(area) = header(line) {
            return self.current.replace(area);
        }
        if let (Some(area), Some((name, value))) = (&mut self.current, line.split_once(':')) {
            let detail = &mut area.detail;
            let kib = || {
                let number = value.split_whitespace().next().and_then(|word| word.parse().ok());
                number.unwrap_or(0u64).saturating_mul(1024)
            };
            match name {
                "AnonHugePages" => detail.anon_huge = kib(),
                "ShmemPmdMapped" => detail.shmem_huge = kib(),
                "FilePmdMapped" => detail.file_huge = kib(),
                "KSM" => detail.ksm = Some(kib()),
                "KernelPageSize" => detail.kernel_page = kib(),
                "VmFlags" => detail.flags = value.split_whitespace().map(str::to_owned).collect(),
                _ => {}
            }
        }
        None
    }

    /// The last area.
    pub fn finish(self) -> Option<Area> {
        self.current
    }
}

/// All areas of a text.
pub fn parse(text: &str) -> Vec<Area> {
    let mut parser = Parser::default();
    let mut areas: Vec<Area> = text.lines().filter_map(|line| parser.line(line)).collect();
    areas.extend(parser.finish());
    areas
}

/// `560b1c340000-560b1c342000 r--p 00000000 fe:00 247026     /usr/bin/cat`
fn header(line: &str) -> Option<Area> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let mut words = rest.splitn(5, ' ');
    let permissions = words.next()?.to_owned();
    let (_offset, _device) = (words.next()?, words.next()?);
    let inode = words.next()?.parse().ok()?;
    let name = words.next().unwrap_or("").trim().to_owned();
    (start < end && permissions.len() == 4).then(|| Area {
        start,
        end,
        permissions,
        inode,
        name,
        detail: Detail::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0040000000 rw-p 00000000 00:00 0 
Size:            1048576 kB
KernelPageSize:        4 kB
AnonHugePages:    204800 kB
KSM:                  12 kB
VmFlags: rd wr mr mw me ac hg mg 
7f0040000000-7f0080000000 rw-s 00000000 00:01 2051    /memfd:memory-backend-memfd (deleted)
KernelPageSize:     2048 kB
7f0080000000-7f0080001000 r--p 00000000 fe:00 247026                     /usr/bin/my cat
";

    #[test]
    fn areas_of_smaps() {
        let areas = parse(SMAPS);
        assert_eq!(areas.len(), 3);
        assert_eq!((areas[0].start, areas[0].end), (0x7f00_0000_0000, 0x7f00_4000_0000));
        assert_eq!(areas[0].detail.anon_huge, 200 << 20);
        assert_eq!(areas[0].detail.ksm, Some(12 << 10));
        assert!(areas[0].has("hg") && !areas[0].has("nh"));
        assert_eq!(areas[0].kind(), Kind::Anonymous);
        assert_eq!(areas[1].kind(), Kind::Hugetlb);
        assert_eq!(areas[1].name, "/memfd:memory-backend-memfd (deleted)");
        assert_eq!((areas[2].name.as_str(), areas[2].kind()), ("/usr/bin/my cat", Kind::File));
    }

    #[test]
    fn nonsense_is_left_out() {
        assert!(
            parse("zz-1 rw-p 0 0 0\n2-1 rw-p 0 00:00 0 \nSize: 1 kB\n1-2 rw 0 0 0\n").is_empty()
        );
    }
}
