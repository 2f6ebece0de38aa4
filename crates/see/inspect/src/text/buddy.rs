//! `/proc/buddyinfo`: free blocks of each zone by order.

use serde::{Deserialize, Serialize};

/// Order of a huge page: 2^9 base pages.
pub const HUGE_ORDER: usize = 9;

/// Free memory of one zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zone {
    /// NUMA node.
    pub node: u32,
    /// Name, such as `Normal`.
    pub name: String,
    /// Free blocks of 2^index base pages.
    pub free: Vec<u64>,
}

impl Zone {
    /// Free base pages.
    pub fn free_pages(&self) -> u64 {
        self.pages_from(0)
    }

    /// Free huge pages: what order 9 and above hold, in 2 MiB.
    pub fn free_huge(&self) -> u64 {
        self.pages_from(HUGE_ORDER) >> HUGE_ORDER
    }

    fn pages_from(&self, order: usize) -> u64 {
        let blocks = self.free.iter().enumerate().skip(order);
        blocks.fold(0, |sum, (order, &blocks)| {
            let pages = blocks.checked_shl(order as u32).unwrap_or(u64::MAX);
            sum.saturating_add(pages)
        })
    }
}

/// Free base pages of all these zones.
pub fn free_pages(zones: &[Zone]) -> u64 {
    zones.iter().map(Zone::free_pages).fold(0, u64::saturating_add)
}

/// Free base pages in blocks that hold a huge page.
pub fn usable_pages(zones: &[Zone]) -> u64 {
    zones.iter().map(|zone| zone.pages_from(HUGE_ORDER)).fold(0, u64::saturating_add)
}

/// FMFI: Linux's unusable free space index for order 9, 0 to 1, over all zones together: the share
/// of free memory that is in blocks too small for a huge page. As in the kernel, 1 when nothing is
/// free at all (`mm/vmstat.c`, `unusable_free_index`); 0 when no zone is known.
pub fn unusable_index(zones: &[Zone]) -> f64 {
    match (zones.is_empty(), free_pages(zones)) {
        (true, _) => 0.0,
        (false, 0) => 1.0,
        (false, free) => (free - usable_pages(zones).min(free)) as f64 / free as f64,
    }
}

/// Parses the file.
pub fn parse(text: &str) -> Vec<Zone> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Zone> {
    // Node 0, zone   Normal   3192   5138 ...
    let (node, rest) = line.strip_prefix("Node ")?.split_once(',')?;
    let mut words = rest.trim_start().strip_prefix("zone")?.split_whitespace();
    let name = words.next()?.to_owned();
    // No kernel has more orders; a damaged text may.
    let free = words.map_while(|word| word.parse().ok()).take(32).collect();
    Some(Zone { node: node.trim().parse().ok()?, name, free })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_by_order_and_the_index_is_the_kernels() {
        let text = "Node 0, zone    DMA32      4      0      1      0      0      0      0      0      0      2      1 \n\
                    Node 1, zone   Normal      8      0      0      0      0      0      0      0      0      0      0 \n";
        let zones = parse(text);
        assert_eq!(zones.len(), 2);
        assert_eq!((zones[0].node, zones[0].name.as_str()), (0, "DMA32"));
        assert_eq!(zones[0].free_huge(), 2 + 2);
        assert_eq!(zones[0].free_pages(), 4 + 4 + 2 * 512 + 1024);
        assert_eq!(unusable_index(&zones[1..]), 1.0);
        let all = 8.0 + 8.0 + 2048.0;
        assert!((unusable_index(&zones) - 16.0 / all).abs() < 1e-12);
        assert_eq!((free_pages(&zones), usable_pages(&zones)), (2064, 2048));
        assert_eq!(unusable_index(&parse("Node 0, zone Normal 0 0 0\n")), 1.0, "nothing is free");
        assert_eq!(unusable_index(&[]), 0.0, "nothing is known");
    }

    #[test]
    fn other_lines_are_left_out() {
        assert!(parse("Node x, zone Normal 1\nnothing\nNode 0 zone\n").is_empty());
    }
}
