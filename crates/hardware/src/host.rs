//! The one room for instructions of the computer that runs the model.

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
