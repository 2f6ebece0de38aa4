//! `/proc/zoneinfo`: free pages that processors have on lists of their own.

/// Free base pages of all zones that are on lists of single processors, from which pages are given out first. The
/// kernel counts them neither as free nor on its lists of blocks.
pub fn on_processors(text: &str) -> u64 {
    let counts = text.lines().filter_map(|line| line.trim_start().strip_prefix("count:"));
    let counts = counts.filter_map(|count| count.trim().parse::<u64>().ok());
    counts.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_all_processors_and_zones_are_added_up() {
        let text = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 0
  pages free     3840
  pagesets
    cpu: 0
              count:    1
              high:     0
              batch: 1
Node 0, zone    DMA32
  pages free     133181
  pagesets
    cpu: 0
              count: 6214
              high:  6281
              batch: 31
    cpu: 1
              count: 100
";
        assert_eq!(on_processors(text), 6315);
        assert_eq!(on_processors("count: x\ncount\n"), 0);
    }
}
