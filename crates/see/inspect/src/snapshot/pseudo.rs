//! Pseudo huge pages: regions of nested guests that a hypervisor maps huge although the guest
//! hypervisor in its VM has them in base pages. Its kernel has to tell, for no page table that can be
//! read shows them: `nested_align_regions` of `docs/kernel.md`, a line of three hexadecimal numbers
//! for each.

use std::io::{self, BufRead, BufReader, Read};

/// Most of them that are taken from one VM: 16 TiB of nested guests.
const MOST: usize = 1 << 23;
/// Bytes of the longest line: three numbers of 16 digits are shorter.
const LINE: u64 = 64;
/// log2 of the bytes in a base page.
const PAGE: u32 = 12;

/// A region of a nested guest that the hypervisor below its own maps huge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PseudoHuge {
    /// First frame in the nested guest: GPA divided by 4 KiB, a multiple of 512.
    pub guest_frame: u64,
    /// First frame in the hypervisor's own memory, a multiple of 512.
    pub frame: u64,
    /// Frame in the VM of the root of the nested guest's tables, which tells nested guests apart.
    pub root: u64,
}

impl PseudoHuge {
    /// A line of the kernel's list.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        // No physical address has more than 52 bits.
        let mut address = |unit: u32| {
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            (address >> 52 == 0 && address.trailing_zeros() >= unit).then_some(address >> PAGE)
        };
        let root = address(PAGE)?;
        let guest_frame = address(crate::snapshot::region::SHIFT)?;
        let frame = address(crate::snapshot::region::SHIFT)?;
        words.next().is_none().then_some(Self { guest_frame, frame, root })
    }
}

/// The kernel's list, in order and each once: what moves while the list is read may be in it twice.
///
/// # Errors
/// When it cannot be read, is no such list, or longer than any computer's.
pub fn list(from: impl Read) -> io::Result<Vec<PseudoHuge>> {
    let mut from = BufReader::new(from);
    let mut line = String::new();
    let mut all = Vec::new();
    while from.by_ref().take(LINE).read_line(&mut line)? > 0 {
        let one = PseudoHuge::parse(&line).filter(|_| all.len() < MOST);
        all.push(one.ok_or_else(|| io::Error::other("it is no list of regions"))?);
        line.clear();
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Whether one of `all`, in order, leads from a frame of a nested guest to one of the hypervisor's.
pub fn has(all: &[PseudoHuge], guest_frame: u64, frame: u64) -> bool {
    let at = all.partition_point(|one| (one.guest_frame, one.frame) < (guest_frame, frame));
    all.get(at).is_some_and(|one| (one.guest_frame, one.frame) == (guest_frame, frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_list_comes_in_order_and_each_region_once() {
        let text = "3f000 40200000 1c00000\n5000 200000 7fe00000\n3f000 40200000 1c00000\n";
        let one = |root, guest_frame, frame| PseudoHuge { root, guest_frame, frame };
        let all = list(text.as_bytes()).unwrap();
        assert_eq!(all, [one(5, 0x200, 0x7fe00), one(0x3f, 0x40200, 0x1c00)]);
        assert!(has(&all, 0x200, 0x7fe00) && has(&all, 0x40200, 0x1c00));
        assert!(!has(&all, 0x200, 0x1c00) && !has(&all, 0x400, 0x7fe00));
        assert_eq!(list(io::empty()).unwrap(), []);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in [
            "1000 200000\n",
            "1000 200000 200000 1\n",
            "1000 1000 200000\n",
            "1000 200000 1000\n",
            "800 200000 200000\n",
            "1000 10000000000000 200000\n",
            "x y z\n",
            "\n",
        ] {
            assert!(list(text.as_bytes()).is_err(), "{text}");
        }
        // It has no end, and no line.
        assert!(list(io::repeat(b'1')).is_err());
        assert!(list(&[0xff, b'\n'][..]).is_err());
    }
}
