//! A set of frames.

/// log2 of the frames in a piece of the set: 64 MiB of memory, 2 KiB of bits.
const PIECE_SHIFT: u32 = 14;
/// Words of a piece.
pub const WORDS: usize = 1 << (PIECE_SHIFT - u64::BITS.trailing_zeros());
/// Frames of a piece.
pub const PIECE: u64 = 1 << PIECE_SHIFT;
/// Frames from here on are in no set: 64 TiB of memory, and as much as a made-up page table can make
/// the set cost.
const END: u64 = 1 << 34;

/// The bits of a piece.
pub type Piece = [u64; WORDS];

/// A set of frames: a bit for each, in pieces where there are some.
#[derive(Debug, Default)]
pub struct FrameSet {
    pieces: Vec<Option<Box<Piece>>>,
}

impl FrameSet {
    /// Adds a frame; one beyond 64 TiB stays outside.
    pub fn set(&mut self, frame: u64) {
        if frame >= END {
            return;
        }
        let number = (frame >> PIECE_SHIFT) as usize;
        if self.pieces.len() <= number {
            self.pieces.resize_with(number + 1, || None);
        }
        let piece = self.pieces[number].get_or_insert_with(|| Box::new([0; WORDS]));
        piece[(frame % PIECE / 64) as usize] |= 1 << (frame % 64);
    }

    /// Whether a frame is in it.
    pub fn has(&self, frame: u64) -> bool {
        let piece = self.pieces.get((frame >> PIECE_SHIFT) as usize);
        piece
            .and_then(Option::as_ref)
            .is_some_and(|piece| piece[(frame % PIECE / 64) as usize] >> (frame % 64) & 1 == 1)
    }

    /// Its pieces with their first frames, in order.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, &Piece)> {
        let some = (0..).zip(&self.pieces);
        some.filter_map(|(number, piece)| Some((number << PIECE_SHIFT, &**piece.as_ref()?)))
    }

    /// Its frames in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.pieces().flat_map(|(first, piece)| frames_of(first, piece))
    }
}

/// The frames of a piece that begins with the frame `first`.
pub fn frames_of(first: u64, piece: &Piece) -> impl Iterator<Item = u64> {
    let words = (first..).step_by(64).zip(piece);
    words.flat_map(|(start, &word)| {
        (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| start + bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(frames in prop::collection::vec(0..3 * PIECE, 0..200)) {
            let (mut own, mut plain) = (FrameSet::default(), BTreeSet::new());
            for frame in frames {
                own.set(frame);
                plain.insert(frame);
            }
            prop_assert!(own.iter().eq(plain.iter().copied()));
            prop_assert!((0..3 * PIECE + 1).step_by(7).all(|at| own.has(at) == plain.contains(&at)));
        }
    }

    #[test]
    fn frames_that_no_memory_has_cost_nothing() {
        let mut set = FrameSet::default();
        set.set(u64::MAX);
        set.set(END);
        assert!(!set.has(END) && !set.has(u64::MAX) && set.pieces.is_empty());
    }
}
