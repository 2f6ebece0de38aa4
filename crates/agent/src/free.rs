//! Free memory and how much of it huge pages can be made of.

use std::fs;

/// Order of a huge page.
const HUGE_ORDER: usize = 9;

/// Free blocks by order, all zones together.
#[derive(Clone, Debug, Default)]
pub struct Free {
    blocks: Vec<u64>,
}

impl Free {
    /// What is free now.
    pub(crate) fn read() -> Result<Self, String> {
        let text = fs::read_to_string("/proc/buddyinfo")
            .map_err(|error| format!("/proc/buddyinfo: {error}"))?;
        Ok(Self::parse(&text))
    }

    /// Reads `/proc/buddyinfo`, whose lines are `Node 0, zone    DMA32   1   2 ...`, blocks of order 0 first.
    pub fn parse(text: &str) -> Self {
        let mut blocks = Vec::new();
        for line in text.lines() {
            let numbers = line.split_whitespace().skip(4).filter_map(|word| word.parse().ok());
            for (order, count) in numbers.enumerate() {
                let count: u64 = count;
                if order == blocks.len() {
                    blocks.push(0);
                }
                blocks[order] += count;
            }
        }
        Self { blocks }
    }

    /// Free base pages.
    pub fn pages(&self) -> u64 {
        self.blocks.iter().enumerate().map(|(order, count)| count << order).sum()
    }

    /// Pages in blocks that hold a huge page.
    pub(crate) fn usable(&self) -> u64 {
        let huge = self.blocks.iter().enumerate().skip(HUGE_ORDER);
        huge.map(|(order, count)| count << order).sum()
    }

    /// Linux's unusable free space index for huge pages (mm/vmstat.c, `unusable_free_index`).
    pub fn unusable(&self) -> f64 {
        match self.pages() {
            0 => 1.0,
            pages => (pages - self.usable()) as f64 / pages as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDDYINFO: &str = "\
Node 0, zone      DMA      1      0      0      0      0      0      0      0      0      1      3
Node 0, zone    DMA32     10      4      0      0      0      0      0      0      2      1      0
";

    #[test]
    fn the_index_is_the_share_outside_huge_blocks() {
        let free = Free::parse(BUDDYINFO);
        assert_eq!(free.pages(), 11 + 8 + 512 + 1024 + 3072);
        assert_eq!(free.usable(), 1024 + 3072);
        assert_eq!(free.unusable(), 531.0 / 4627.0);
    }
}
