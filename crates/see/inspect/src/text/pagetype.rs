//! `/proc/pagetypeinfo`: free blocks of each zone by what they are for and by order.

use crate::text::buddy::{HUGE_ORDER, Zone};
use serde::{Deserialize, Serialize};

/// Free blocks that a zone has for one kind of memory (Linux's migrate types).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeList {
    /// `Movable`, which memory of programs is taken from, `Unmovable`, `Reclaimable` and others.
    pub kind: String,
    /// The zone, with blocks of this kind only.
    pub zone: Zone,
}

impl FreeList {
    /// Whether memory of programs is taken from it before it is from others.
    pub fn is_movable(&self) -> bool {
        self.kind == "Movable"
    }

    /// Free base pages in blocks that hold no huge page.
    pub fn small_pages(&self) -> u64 {
        self.zone.free_pages() - (self.zone.free_huge() << HUGE_ORDER)
    }
}

/// Parses the file. What the kernel stopped counting at, `>100000`, is that number.
pub fn parse(text: &str) -> Vec<FreeList> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<FreeList> {
    // Node    0, zone    DMA32, type      Movable      1      0 ...
    let mut parts = line.strip_prefix("Node ")?.splitn(3, ',');
    let node = parts.next()?.trim().parse().ok()?;
    let name = parts.next()?.trim_start().strip_prefix("zone")?.trim().to_owned();
    let mut words = parts.next()?.trim_start().strip_prefix("type")?.split_whitespace();
    let kind = words.next()?.to_owned();
    let number = |word: &str| word.trim_start_matches('>').parse().ok();
    // No kernel has more orders; a damaged text may.
    let free = words.map_while(number).take(32).collect();
    Some(FreeList { kind, zone: Zone { node, name, free } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_blocks_are_counted_by_kind() {
        let text = "\
Page block order: 9
Pages per block:  512

Free pages count per migrate type at order       0      1      2      3      4      5      6      7      8      9     10 
Node    0, zone    DMA32, type    Unmovable      1      1      1      0      0      1      2      1      4      4     21 
Node    0, zone    DMA32, type      Movable >100000      0      0      0      0      0      0      0      0      0      2 

Number of blocks type     Unmovable      Movable  Reclaimable   HighAtomic      Isolate 
Node 0, zone    DMA32           96          694            2            0            0 
";
        let lists = parse(text);
        assert_eq!(lists.len(), 2);
        assert_eq!((lists[0].kind.as_str(), lists[0].zone.name.as_str()), ("Unmovable", "DMA32"));
        assert!(!lists[0].is_movable() && lists[1].is_movable());
        assert_eq!(lists[0].zone.free_huge(), 4 + 2 * 21);
        assert_eq!(lists[0].small_pages(), 1 + 2 + 4 + 32 + 2 * 64 + 128 + 4 * 256);
        assert_eq!(lists[1].zone.free_pages(), 100_000 + 2048);
        assert_eq!(lists[1].small_pages(), 100_000);
    }

    #[test]
    fn other_lines_are_left_out() {
        assert!(
            parse("Node 0, zone DMA 1 2\nNode x, zone A, type B 1\n, zone\nnothing").is_empty()
        );
    }
}
