//! Blocks as buckets: what is counted of an interval.
//!
//! A program has tens of thousands of blocks, and vectors are projected to few dimensions anyway. So blocks
//! share buckets, by a hash: that is a projection as well, and one that costs an addition for each block run.

use strata_stream::mixed;

/// Dimensions that vectors are projected to, as in SimPoint 3.0.
pub(crate) const DIMENSIONS: usize = 15;

/// Where an interval lies: its share of instructions in each bucket, projected.
pub(crate) type Vector = [f64; DIMENSIONS];

/// Buckets that blocks are counted in.
pub const BUCKETS: usize = 1 << 10;

/// The bucket of a block, known by a number.
pub fn bucket(key: u64) -> usize {
    (mixed(0, key) >> (64 - BUCKETS.ilog2())) as usize
}

/// Where one instruction in a bucket lies: each coordinate from -1 to 1, as in SimPoint 3.0.
pub(crate) fn direction(bucket: usize) -> Vector {
    let coordinate = |at: usize| {
        let bits = mixed(1, (bucket * DIMENSIONS + at) as u64) >> 11;
        bits as f64 / (1_u64 << 52) as f64 - 1.0
    };
    std::array::from_fn(coordinate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_spread_over_buckets_and_directions_over_space() {
        let mut used = vec![0; BUCKETS];
        (0..100 * BUCKETS as u64).for_each(|block| used[bucket(0x40_0000 + block * 16)] += 1);
        assert!(used.iter().all(|count| (50..160).contains(count)));
        let middle =
            |at: usize| (0..BUCKETS).map(|b| direction(b)[at]).sum::<f64>() / BUCKETS as f64;
        assert!((0..DIMENSIONS).all(|at| middle(at).abs() < 0.1));
        assert!((0..BUCKETS).flat_map(direction).all(|x| (-1.0..1.0).contains(&x)));
    }
}
