//! The one room for instructions of the computer that runs the model.

use wide::i32x8;

/// Asks for the cache line of `items[at]`, without waiting for it. Changes nothing but time; does
/// nothing on computers other than x86-64, or when there is no such item.
#[inline]
pub(crate) fn prefetch<T>(items: &[T], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(item) = items.get(at) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the pointer is that of a live reference, and a prefetch neither reads nor writes
        // memory as far as the program can see; the instruction is part of every x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (items, at);
}

/// Numbers compared together: as many as fill the vectors of most computers.
pub(crate) const LANES: usize = 8;

/// How the computer compares numbers.
pub(crate) trait Vectors: Copy {
    /// A bit for each of `numbers` that equals `wanted`, the first one's lowest.
    fn equal(self, numbers: &[i32; LANES], wanted: i32) -> u32;

    /// Those of `before` up to place `last`, those of `after` from there on; none of `before` when
    /// `last` is negative.
    fn join(self, before: &[i32; LANES], after: &[i32; LANES], last: i32) -> [i32; LANES];

    /// `first`, and all but the last of `numbers`.
    fn shift(self, first: i32, numbers: &[i32; LANES]) -> [i32; LANES];
}

/// The number of each place.
const PLACES: [i32; LANES] = [0, 1, 2, 3, 4, 5, 6, 7];

/// Work to be done with the best vectors that the computer has. The method must be inlined, so that
/// all of it is compiled for them.
pub(crate) trait Work {
    /// What comes of it.
    type Result;

    /// Does the work.
    fn work(self, vectors: impl Vectors) -> Self::Result;
}

/// Does work with the best vectors that the computer has. They differ in speed only.
#[inline]
pub(crate) fn with_vectors<W: Work>(work: W) -> W::Result {
    #[cfg(target_arch = "x86_64")]
    if avx2::is_here() {
        // SAFETY: the computer has the instructions, as asked just now.
        return unsafe { avx2::work(work) };
    }
    work.work(Portable)
}

/// What every computer can do.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Vectors for Portable {
    #[inline(always)]
    fn equal(self, numbers: &[i32; LANES], wanted: i32) -> u32 {
        i32x8::new(*numbers).simd_eq(i32x8::splat(wanted)).to_bitmask()
    }

    #[inline(always)]
    fn join(self, before: &[i32; LANES], after: &[i32; LANES], last: i32) -> [i32; LANES] {
        let stays = i32x8::new(PLACES).simd_gt(i32x8::splat(last));
        (stays & i32x8::new(*after) | !stays & i32x8::new(*before)).to_array()
    }

    #[inline(always)]
    fn shift(self, first: i32, numbers: &[i32; LANES]) -> [i32; LANES] {
        let [a, b, c, d, e, f, g, _] = *numbers;
        [first, a, b, c, d, e, f, g]
    }
}

/// x86-64 of 2013 and later.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{LANES, PLACES, Vectors, Work};
    use std::arch::x86_64::{
        __m256i, _mm256_blend_epi32, _mm256_blendv_epi8, _mm256_castsi256_ps, _mm256_cmpeq_epi32,
        _mm256_cmpgt_epi32, _mm256_loadu_si256, _mm256_movemask_ps, _mm256_permutevar8x32_epi32,
        _mm256_set1_epi32, _mm256_storeu_si256,
    };

    /// Made only where the instructions are there.
    #[derive(Clone, Copy)]
    struct Avx2(());

    impl Vectors for Avx2 {
        #[inline(always)]
        fn equal(self, numbers: &[i32; LANES], wanted: i32) -> u32 {
            // SAFETY: there is an `Avx2` only where the computer has the instructions.
            unsafe { equal(numbers, wanted) }
        }

        #[inline(always)]
        fn join(self, before: &[i32; LANES], after: &[i32; LANES], last: i32) -> [i32; LANES] {
            // SAFETY: there is an `Avx2` only where the computer has the instructions.
            unsafe { join(before, after, last) }
        }

        #[inline(always)]
        fn shift(self, first: i32, numbers: &[i32; LANES]) -> [i32; LANES] {
            // SAFETY: there is an `Avx2` only where the computer has the instructions.
            unsafe { shift(first, numbers) }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(numbers: &[i32; LANES]) -> __m256i {
        // SAFETY: the pointer is that of a live reference to as many bytes as are read, and need
        // not be aligned.
        unsafe { _mm256_loadu_si256(std::ptr::from_ref(numbers).cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store(vector: __m256i) -> [i32; LANES] {
        let mut numbers = [0; LANES];
        // SAFETY: the pointer is that of a live variable of as many bytes as are written, and need
        // not be aligned.
        unsafe { _mm256_storeu_si256(std::ptr::from_mut(&mut numbers).cast(), vector) };
        numbers
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn equal(numbers: &[i32; LANES], wanted: i32) -> u32 {
        let equal = _mm256_cmpeq_epi32(load(numbers), _mm256_set1_epi32(wanted));
        _mm256_movemask_ps(_mm256_castsi256_ps(equal)) as u32
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn join(before: &[i32; LANES], after: &[i32; LANES], last: i32) -> [i32; LANES] {
        let stays = _mm256_cmpgt_epi32(load(&PLACES), _mm256_set1_epi32(last));
        store(_mm256_blendv_epi8(load(before), load(after), stays))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn shift(first: i32, numbers: &[i32; LANES]) -> [i32; LANES] {
        const FROM: [i32; LANES] = [0, 0, 1, 2, 3, 4, 5, 6];
        let shifted = _mm256_permutevar8x32_epi32(load(numbers), load(&FROM));
        store(_mm256_blend_epi32::<1>(shifted, _mm256_set1_epi32(first)))
    }

    #[inline]
    pub(super) fn is_here() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1")
    }

    #[target_feature(enable = "avx2,bmi1")]
    pub(super) fn work<W: Work>(work: W) -> W::Result {
        work.work(Avx2(()))
    }
}
