//! The slices of Skylake-SP and Cascade Lake-SP processors that have 20.
//!
//! Measured, line by line, with the counters of each slice by J. D. McCalpin: *Mapping Addresses to L3/CHA
//! Slices in Intel Processors*, Texas Advanced Computing Center, TR-2021-03, doi:10.26153/tsw/14539; the
//! numbers are those of its data files for "SKX" with 20 slices. 20 is no power of two, so no set of parities can be
//! the number of a slice: a sequence of 256 slices begins at address 0, and in every further 16 KiB its places
//! are exchanged, by an exclusive or with eight parities of the address.
//!
//! Which slice has which number is as the processor counts them, and what the numbers are does not matter
//! here. It was measured up to 256 GiB, and bits above are in no function.

/// Slices.
pub(crate) const SLICES: u32 = 20;

/// Lines of 64 B in the sequence.
const LENGTH: usize = 256;

/// The slices of the first lines.
#[rustfmt::skip]
const SEQUENCE: [u8; LENGTH] = [
    0, 11, 2, 9, 7, 12, 5, 14, 1, 10, 3, 8, 6, 13, 4, 15,
    1, 10, 3, 8, 6, 13, 4, 15, 0, 11, 18, 17, 7, 12, 17, 18,
    8, 3, 10, 1, 15, 4, 13, 6, 9, 2, 19, 16, 14, 5, 16, 19,
    9, 2, 11, 0, 14, 5, 12, 7, 8, 3, 18, 17, 15, 4, 17, 18,
    10, 1, 8, 3, 13, 6, 15, 4, 11, 0, 9, 2, 12, 7, 14, 5,
    11, 0, 9, 2, 12, 7, 14, 5, 18, 17, 8, 3, 17, 18, 15, 4,
    2, 9, 0, 11, 5, 14, 7, 12, 19, 16, 1, 10, 16, 19, 6, 13,
    3, 8, 1, 10, 4, 15, 6, 13, 18, 17, 0, 11, 17, 18, 7, 12,
    4, 15, 6, 13, 3, 8, 1, 10, 5, 14, 7, 12, 2, 9, 0, 11,
    5, 14, 7, 12, 2, 9, 0, 11, 16, 19, 6, 13, 19, 16, 1, 10,
    12, 7, 14, 5, 11, 0, 9, 2, 17, 18, 15, 4, 18, 17, 8, 3,
    13, 6, 15, 4, 10, 1, 8, 3, 16, 19, 14, 5, 19, 16, 9, 2,
    14, 5, 12, 7, 9, 2, 11, 0, 15, 4, 13, 6, 8, 3, 10, 1,
    15, 4, 13, 6, 8, 3, 10, 1, 14, 5, 16, 19, 9, 2, 19, 16,
    6, 13, 4, 15, 1, 10, 3, 8, 7, 12, 17, 18, 0, 11, 18, 17,
    7, 12, 5, 14, 0, 11, 2, 9, 6, 13, 16, 19, 1, 10, 19, 16,
];

/// The address bits whose parity is each bit of what places are exchanged by, lowest first.
const MASKS: [u64; 8] = [
    0x3e_cbad_4000,
    0x03_5cf7_c000,
    0x38_7242_c000,
    0x0e_2f28_c000,
    0x1c_5e51_8000,
    0x38_bca3_0000,
    0x0f_b2eb_4000,
    0x1f_65d6_8000,
];

/// The lowest bit of any mask.
const LOWEST: u32 = 14;

/// The parities of bits 14 to 21, of 22 to 29 and of 30 to 37: a parity is a sum, so that of an address is that of
/// its parts.
const PARITIES: [[u8; 256]; 3] = parities();

const fn parities() -> [[u8; 256]; 3] {
    let mut all = [[0; 256]; 3];
    let mut at = 0;
    while at < 3 * 256 {
        let (part, bits) = (at / 256, at % 256);
        let mut mask = 0;
        while mask < MASKS.len() {
            let taken = (MASKS[mask] >> (LOWEST + 8 * part as u32)) & bits as u64;
            all[part][bits] |= (taken.count_ones() as u8 % 2) << mask;
            mask += 1;
        }
        at += 1;
    }
    all
}

/// The slice of the line that an address is in.
#[inline]
pub(crate) fn slice(addr: u64) -> u64 {
    let bits = addr >> LOWEST;
    let part = |at: usize| PARITIES[at][(bits >> (8 * at)) as usize % 256];
    let exchange = part(0) ^ part(1) ^ part(2);
    u64::from(SEQUENCE[((addr >> 6) as usize % LENGTH) ^ usize::from(exchange)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Where the published masks apply: bits 14 to 37.
    const MEASURED: u64 = 1 << 38;

    /// As published: the parity of each mask, one by one.
    fn published(addr: u64) -> u64 {
        let parity = |mask: u64| (addr & mask).count_ones() as usize % 2;
        let exchange: usize =
            MASKS.iter().enumerate().map(|(bit, mask)| parity(*mask) << bit).sum();
        u64::from(SEQUENCE[((addr / 64) as usize % LENGTH) ^ exchange])
    }

    proptest! {
        #[test]
        fn the_function_is_the_one_published(addr in 0..MEASURED) {
            prop_assert_eq!(slice(addr), published(addr));
            prop_assert_eq!(slice(addr + MEASURED), slice(addr));
        }

        /// What the report calls nearly uniform, and what colouring needs: in every aligned 32 MiB, which are
        /// 256 pieces of one slice's sets, each set of each slice has 12 or 13 lines.
        #[test]
        fn every_set_of_every_slice_gets_nearly_the_same(at in 0..MEASURED >> 25, set in 0u64..2048) {
            let mut lines = [0; SLICES as usize];
            for piece in 0..256 {
                lines[slice(at << 25 | piece << 17 | set << 6) as usize] += 1;
            }
            prop_assert!(lines.iter().all(|lines| matches!(lines, 12 | 13)), "{lines:?}");
        }

        #[test]
        fn a_page_is_in_every_slice(page in 0..MEASURED >> 12) {
            let mut lines = [0; SLICES as usize];
            (0..64).for_each(|line| lines[slice(page << 12 | line << 6) as usize] += 1);
            prop_assert!(lines.iter().all(|lines| (2..=4).contains(lines)), "{lines:?}");
        }
    }

    #[test]
    fn the_sequence_and_the_masks_are_whole() {
        let count = |slice: u8| SEQUENCE.iter().filter(|of| **of == slice).count();
        let counts: Vec<usize> = (0..20).map(count).collect();
        assert_eq!(counts, [&[13; 16][..], &[12; 4]].concat());
        assert_eq!(MASKS.iter().fold(0, |all, mask| all | mask), MEASURED - (1 << LOWEST));
        // 16 KiB from 0 are the sequence itself; the next line is in another place of it.
        assert!((0..256).all(|line| slice(line * 64) == u64::from(SEQUENCE[line as usize])));
        assert_eq!(slice(1 << 14), u64::from(SEQUENCE[0b0100_1111]));
    }
}
