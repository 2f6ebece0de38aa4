//! What one thread fills at a time. One of the crate's rooms for `unsafe`.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use strata_stream::{Pid, Tid};

/// Words a slot holds: accesses, then the words of messages.
pub const CAPACITY: usize = 4096 - HEADER_WORDS;
const HEADER_WORDS: usize = 8;

/// Looks at a slot after which its owner's pace is given in to.
const LOOKS: usize = 1000;

/// In no one's hands.
pub(crate) const FREE: u32 = 0;
/// A thread's own.
pub(crate) const FILLING: u32 = 1;
/// Handed over.
pub(crate) const COMMITTED: u32 = 2;

/// Position of a slot in the wire.
pub type SlotIndex = u32;

/// Who fills a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// How many `execve` the process has behind it.
    pub image: u32,
    /// Its accesses are not to be seen: it fills the slot in a gap of a sampled stream.
    pub in_gap: bool,
}

/// How far a thread had come in the slot it was filling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The slot.
    pub slot: SlotIndex,
    /// Which use of it.
    pub taking: u64,
    /// Accesses in it.
    pub accesses: u32,
    /// Instructions retired while it was filled.
    pub instructions: u64,
}

/// A piece of a thread's stream: up to [`CAPACITY`] words.
///
/// While a thread owns it, only that thread writes to it; others may read the words before the
/// length they see. Plain stores of the words followed by a store of the length are enough for
/// that on x86-64, the one architecture of both emulator and target; the release ordering keeps
/// the compiler honest and costs nothing there.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    pub(crate) link: AtomicU32,
    pub(crate) state: AtomicU32,
    pub(crate) pid: AtomicU32,
    pub(crate) tid: AtomicU32,
    pub(crate) image: AtomicU32,
    pub(crate) accesses: AtomicU32,
    pub(crate) message_words: AtomicU32,
    pub(crate) in_gap: AtomicU32,
    pub(crate) taking: AtomicU64,
    pub(crate) instructions: AtomicU64,
    /// Instructions since the thread last told of them.
    untold: AtomicU64,
    spare: [AtomicU64; HEADER_WORDS - 7],
    words: [UnsafeCell<u64>; CAPACITY],
}

const _: () = assert!(size_of::<Slot>() == 4096 * 8);

// SAFETY: `words` is written by the owner only, at positions no one else reads before the length
// that covers them was published.
unsafe impl Sync for Slot {}

impl Slot {
    /// A slot outside any wire: what is written to it is lost.
    pub fn detached() -> Box<Self> {
        // SAFETY: every field is an integer or an array of integers; zero is a value of each.
        unsafe { Box::<MaybeUninit<Self>>::new(MaybeUninit::zeroed()).assume_init() }
    }

    /// Writes one access, in packed form, and tells whether that filled the slot.
    ///
    /// # Safety
    /// The caller owns the slot and it is not full.
    #[inline(always)]
    pub unsafe fn push(&self, access: u64) -> bool {
        let at = self.accesses.load(Relaxed);
        debug_assert!((at as usize) < CAPACITY);
        // SAFETY: in range as the slot is not full; the owner alone writes.
        unsafe { self.words.get_unchecked(at as usize).get().write(access) };
        self.accesses.store(at + 1, Release);
        at as usize + 1 == CAPACITY
    }

    /// Adds to the count of instructions retired. For the owner.
    #[inline(always)]
    pub fn retire(&self, instructions: u64) {
        // Not a read-modify-write: only the owner writes.
        self.instructions.store(self.instructions.load(Relaxed) + instructions, Release);
    }

    /// Adds to the instructions that the clock of a sampled stream lacks; gives them once they are as many
    /// as `most`. For the owner.
    #[inline(always)]
    pub fn tell(&self, instructions: u64, most: u64) -> Option<u64> {
        let untold = self.untold.load(Relaxed) + instructions;
        let due = untold >= most;
        self.untold.store(if due { 0 } else { untold }, Relaxed);
        due.then_some(untold)
    }

    /// Whether it is filled in a gap of a sampled stream.
    #[inline(always)]
    pub fn is_in_gap(&self) -> bool {
        self.in_gap.load(Relaxed) != 0
    }

    /// An empty slot is filled in a gap from now on, or no more. For the owner.
    pub fn relabel(&self, in_gap: bool) {
        self.in_gap.store(in_gap.into(), Relaxed);
    }

    /// Appends the words of messages after the accesses, if there is room. For the owner.
    pub fn append(&self, message: &[u64]) -> bool {
        let accesses = self.accesses.load(Relaxed) as usize;
        let used = accesses + self.message_words.load(Relaxed) as usize;
        if used + message.len() > CAPACITY {
            return false;
        }
        for (cell, word) in self.words[used..].iter().zip(message) {
            // SAFETY: the owner alone writes, past everything published.
            unsafe { cell.get().write(*word) };
        }
        self.message_words.store((used - accesses + message.len()) as u32, Release);
        true
    }

    /// Whether there is anything in it.
    pub fn is_empty(&self) -> bool {
        self.accesses.load(Relaxed) == 0
            && self.message_words.load(Relaxed) == 0
            && self.instructions.load(Relaxed) == 0
    }

    /// Forgets the accesses in it and says how many there were; for a detached slot.
    pub fn reset(&self) -> u32 {
        self.message_words.store(0, Relaxed);
        self.instructions.store(0, Relaxed);
        self.accesses.swap(0, Relaxed)
    }

    /// Who fills or filled it.
    pub fn owner(&self) -> Owner {
        Owner {
            pid: Pid(self.pid.load(Relaxed)),
            tid: Tid(self.tid.load(Relaxed)),
            image: self.image.load(Relaxed),
            in_gap: self.in_gap.load(Relaxed) != 0,
        }
    }

    /// Which use of the slot this is; unique in a wire.
    pub fn taking(&self) -> u64 {
        self.taking.load(Relaxed)
    }

    /// Instructions retired while it was filled.
    pub fn instructions(&self) -> u64 {
        self.instructions.load(Relaxed)
    }

    /// Accesses written so far, and instructions retired by then. For others than the owner, which goes on meanwhile.
    pub fn progress(&self) -> (u32, u64) {
        let accesses = || self.accesses.load(Acquire).min(CAPACITY as u32);
        at_once(accesses, || self.instructions.load(Acquire))
    }

    /// The accesses written so far, in packed form.
    pub fn accesses(&self) -> &[u64] {
        let length = (self.accesses.load(Acquire) as usize).min(CAPACITY);
        self.read(0, length)
    }

    /// The words of messages written so far.
    pub fn messages(&self) -> &[u64] {
        let length = self.message_words.load(Acquire) as usize;
        let accesses = self.accesses.load(Relaxed) as usize;
        self.read(accesses.min(CAPACITY), length)
    }

    fn read(&self, from: usize, length: usize) -> &[u64] {
        let words = &self.words[from..(from + length).min(CAPACITY)];
        // SAFETY: `UnsafeCell<u64>` has the layout of `u64`; published words do not change until
        // the consumer releases the slot.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
    }
}

/// Accesses, and the instructions that made them. One that is held up between its looks would take for these what was
/// retired meanwhile, so looks go on until nothing was; where there is no end to that, more instructions than made the
/// accesses are taken, and never fewer.
fn at_once(accesses: impl Fn() -> u32, instructions: impl Fn() -> u64) -> (u32, u64) {
    let mut before = instructions();
    for _ in 1..LOOKS {
        let (made, retired) = (accesses(), instructions());
        if retired == before {
            return (made, retired);
        }
        before = retired;
    }
    (accesses(), instructions())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Looks at a slot whose owner goes on in the first `held_up` looks at its accesses.
    fn look(held_up: usize) -> (u32, u64) {
        let (slot, looks) = (Slot::detached(), Cell::new(0));
        let goes_on = |instructions| {
            slot.retire(instructions);
            // SAFETY: this thread alone fills it, and few times.
            unsafe { slot.push(0) };
        };
        goes_on(10);
        let accesses = || {
            let accesses = slot.accesses.load(Relaxed);
            looks.set(looks.get() + 1);
            if looks.get() <= held_up {
                goes_on(500);
            }
            accesses
        };
        at_once(accesses, || slot.instructions())
    }

    #[test]
    fn others_see_accesses_with_the_instructions_that_made_them() {
        assert_eq!(look(0), (1, 10));
        assert_eq!(look(1), (2, 510));
        assert_eq!(look(3), (4, 1510));
    }

    #[test]
    fn an_owner_that_is_never_still_is_not_waited_for() {
        let (accesses, instructions) = look(CAPACITY);
        assert!(instructions >= 10 + 500 * u64::from(accesses - 1));
    }
}
