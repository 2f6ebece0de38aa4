//! `/proc/iomem`: where System RAM is.

/// Ranges of System RAM as `(start, end)` in bytes, end exclusive. Readers without privileges see
/// zeros only: then there are none.
pub fn system_ram(text: &str) -> Vec<(u64, u64)> {
    let ram = text.lines().filter_map(|line| {
        let (range, name) = line.split_once(" : ")?;
        // Parts of a range are indented below it.
        if name.trim() != "System RAM" || range.starts_with(' ') {
            return None;
        }
        let (start, last) = range.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(last, 16).ok()?.checked_add(1)?;
        (start < end && end > 1).then_some((start, end))
    });
    ram.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_level_ram_is_found() {
        let text = "00001000-0009fbff : System RAM\n00100000-bfffffff : System RAM\n  \
                    01000000-02209987 : Kernel code\n  00200000-002fffff : System RAM\n";
        assert_eq!(system_ram(text), [(0x1000, 0x9fc00), (0x10_0000, 0xc000_0000)]);
    }

    #[test]
    fn what_hides_the_addresses_gives_nothing() {
        assert!(system_ram("00000000-00000000 : System RAM\nx-y : System RAM\n").is_empty());
        assert!(system_ram("0-ffffffffffffffff : System RAM").is_empty());
    }
}
