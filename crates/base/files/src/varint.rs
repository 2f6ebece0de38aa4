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

/// Appends a signed number: small magnitudes are short.
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Takes a signed number off the front.
pub fn take_signed(input: &mut &[u8]) -> Option<i64> {
    let value = take(input)?;
    Some((value >> 1) as i64 ^ -((value & 1) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back_and_cut_ones_do_not(value: u64, signed: i64, shift in 0u32..64) {
            let (value, signed) = (value >> shift, signed >> shift);
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            prop_assert!(bytes.len() <= 10);
            for cut in 0..bytes.len() {
                prop_assert_eq!(take(&mut &bytes[..cut]), None);
            }
            put_signed(&mut bytes, signed);
            let mut rest = bytes.as_slice();
            prop_assert_eq!(take(&mut rest), Some(value));
            prop_assert_eq!(take_signed(&mut rest), Some(signed));
            prop_assert!(rest.is_empty());
        }
    }

    #[test]
    fn more_than_64_bits_are_refused() {
        let mut long = [0xff; 10];
        long[9] = 2;
        assert_eq!(take(&mut long.as_slice()), None);
        assert_eq!(take(&mut [0x80; 11].as_slice()), None);
    }
}
