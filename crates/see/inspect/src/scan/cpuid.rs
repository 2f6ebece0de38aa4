//! Caches as the processor itself tells of them: CPUID leaf 4 (Intel 64 and IA-32 Architectures Software
//! Developer's Manual, volume 2A), on AMD's and Hygon's 0x8000001d (AMD64 Architecture Programmer's Manual,
//! volume 3, E.4.15), which has the same fields but for the last bit.

use crate::scan::sys;
use crate::snapshot::model::CpuCache;

/// Caches that a processor is asked for at most; none has as many.
const MOST: u32 = 16;

/// What one call of the instruction answers: EAX, EBX, ECX, EDX.
pub type Registers = [u32; 4];

/// The caches of the processor that this runs on, by level. Others of the machine may have others; empty
/// where it does not tell, as processors of other makers do not.
pub fn caches() -> Vec<CpuCache> {
    told_by(sys::cpuid)
}

/// The caches that a processor tells of when it is asked for a leaf and a subleaf.
fn told_by(ask: impl Fn(u32, u32) -> Option<Registers>) -> Vec<CpuCache> {
    let Some([standard, ebx, ecx, edx]) = ask(0, 0) else { return Vec::new() };
    let name: Vec<u8> = [ebx, edx, ecx].into_iter().flat_map(u32::to_le_bytes).collect();
    let extended = ask(0x8000_0000, 0).map_or(0, |[highest, ..]| highest);
    let (leaf, says_index) = match name.as_slice() {
        b"GenuineIntel" if standard >= 4 => (4, true),
        b"AuthenticAMD" | b"HygonGenuine" if extended >= 0x8000_001d => (0x8000_001d, false),
        _ => return Vec::new(),
    };
    let answers = (0..MOST).map_while(|index| ask(leaf, index));
    let mut caches: Vec<_> = answers.map_while(|registers| cache(registers, says_index)).collect();
    caches.sort_by(|a, b| (a.level, &a.kind).cmp(&(b.level, &b.kind)));
    caches
}

/// A cache; `None` behind the last.
fn cache([eax, ebx, ecx, edx]: Registers, says_index: bool) -> Option<CpuCache> {
    let kind = match eax & 0x1f {
        1 => "Data",
        2 => "Instruction",
        3 => "Unified",
        _ => return None,
    };
    Some(CpuCache {
        level: (eax >> 5 & 7) as u8,
        kind: kind.to_owned(),
        sets: u64::from(ecx) + 1,
        ways: (ebx >> 22) + 1,
        line_bytes: (ebx & 0xfff) + 1,
        cpus: String::new(),
        complex_index: says_index.then_some(edx & 4 != 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vendor(name: &[u8; 12], standard: u32) -> Registers {
        let word = |at: usize| u32::from_le_bytes(name[at..at + 4].try_into().unwrap());
        [standard, word(0), word(8), word(4)]
    }

    /// A Xeon with an L3 of 20 ways and 16384 sets, eight slices, as such a processor answers.
    fn intel(leaf: u32, index: u32) -> Option<Registers> {
        Some(match (leaf, index) {
            (0, _) => vendor(b"GenuineIntel", 0x14),
            (4, 0) => [0x1c00_4121, 0x01c0_003f, 63, 0],
            (4, 1) => [0x1c00_4122, 0x01c0_003f, 63, 0],
            (4, 2) => [0x1c00_4143, 0x01c0_003f, 511, 0],
            (4, 3) => [0x1c03_c163, 0x04c0_003f, 16383, 6],
            _ => [0; 4],
        })
    }

    #[test]
    fn intel_tells_what_its_manual_says() {
        let caches = told_by(intel);
        let of = |cache: &CpuCache| {
            let CpuCache { level, sets, ways, line_bytes, complex_index, .. } = *cache;
            (level, cache.kind.clone(), sets, ways, line_bytes, complex_index)
        };
        let one = |level, kind: &str, sets, ways, complex| {
            (level, kind.to_owned(), sets, ways, 64, Some(complex))
        };
        assert_eq!(
            caches.iter().map(of).collect::<Vec<_>>(),
            [
                one(1, "Data", 64, 8, false),
                one(1, "Instruction", 64, 8, false),
                one(2, "Unified", 512, 8, false),
                one(3, "Unified", 16384, 20, true),
            ]
        );
    }

    #[test]
    fn amd_tells_elsewhere_and_nothing_of_its_index() {
        let amd = |leaf, index| match (leaf, index) {
            (0, _) => Some(vendor(b"AuthenticAMD", 0x10)),
            (0x8000_0000, _) => Some([0x8000_0020, 0, 0, 0]),
            (0x8000_001d, 0) => Some([0x163, 0x03c0_003f, 32767, 6]),
            _ => Some([0; 4]),
        };
        let caches = told_by(amd);
        assert_eq!(caches.len(), 1);
        assert_eq!((caches[0].sets, caches[0].ways, caches[0].complex_index), (32768, 16, None));
        // Before the leaf was there.
        let old = |leaf, index| match leaf {
            0x8000_0000 => Some([0x8000_001c, 0, 0, 0]),
            _ => amd(leaf, index),
        };
        assert_eq!(told_by(old), []);
    }

    #[test]
    fn who_says_nothing_has_no_caches() {
        assert_eq!(told_by(|_, _| None), []);
        assert_eq!(
            told_by(|leaf, _| Some(if leaf == 0 { vendor(b"Other maker!", 9) } else { [9; 4] })),
            []
        );
        // One that answers the same for ever has no more than any could have.
        let endless = |leaf, _| if leaf == 4 { intel(4, 2) } else { intel(leaf, 0) };
        assert_eq!(told_by(endless).len(), MOST as usize);
    }

    #[test]
    fn this_processor_is_no_surprise() {
        for cache in caches() {
            assert!((1..=4).contains(&cache.level) && cache.ways > 0, "{cache:?}");
        }
    }
}
