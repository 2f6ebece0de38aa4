//! Numbers of 1 to 10 bytes, seven bits each, least significant first (LEB128).

/// Appends a number.
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a number off the front, `None` when there is no whole number that fits 64 bits.
pub fn take(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = input.split_first()?;
        *input = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        value |= bits << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            prop_assert!(bytes.len() <= 10);
            prop_assert_eq!(take(&mut bytes.as_slice()), Some(value));
            for cut in 0..bytes.len() {
                prop_assert_eq!(take(&mut &bytes[..cut]), None);
            }
        }
    }

    #[test]
    fn more_than_64_bits_are_refused() {
        assert_eq!(
            take(&mut [0xff; 9].iter().copied().chain([2]).collect::<Vec<_>>().as_slice()),
            None
        );
        assert_eq!(take(&mut [0x80; 11].as_slice()), None);
    }
}
