//! An answer in pieces, with its proof at the end.

use crate::key::{BYTES, Proof};
use std::io::{self, Read, Write};

/// What a frame may hold.
const MOST: usize = 1 << 16;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A piece.
    Data = 0,
    /// There is no more.
    End = 1,
    /// There is no more, and why.
    Failed = 2,
    /// Somebody else goes on.
    Onward = 3,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Data, Self::End, Self::Failed, Self::Onward]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// Writes an answer.
pub struct Answer<'a, W: Write> {
    to: &'a mut W,
    proof: Proof,
    piece: Vec<u8>,
}

impl<'a, W: Write> Answer<'a, W> {
    pub fn new(to: &'a mut W, proof: Proof) -> Self {
        Self { to, proof, piece: Vec::with_capacity(MOST) }
    }

    fn frame(&mut self, kind: Kind, bytes: &[u8]) -> io::Result<()> {
        let mut head = [kind as u8; 5];
        head[1..].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        for part in [&head[..], bytes] {
            self.proof.add(part);
            self.to.write_all(part)?;
        }
        Ok(())
    }

    fn piece(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.piece);
        if !piece.is_empty() {
            self.frame(Kind::Data, &piece)?;
        }
        self.piece = piece;
        self.piece.clear();
        Ok(())
    }

    /// The last frame, and the proof.
    pub fn finish(mut self, kind: Kind, why: &str) -> io::Result<()> {
        self.piece()?;
        let why = why.as_bytes();
        self.frame(kind, &why[..why.len().min(MOST)])?;
        let proof = self.proof.finish();
        self.to.write_all(&proof)?;
        self.to.flush()
    }
}

impl<W: Write> Write for Answer<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(MOST - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        if self.piece.len() == MOST {
            self.piece()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.piece()
    }
}

/// Reads an answer of at most so many bytes, and hands on what is in it. Gives the last frame, and what it says, once it
/// is proven. What was handed on before is not: whoever takes it must throw it away if this fails.
pub fn read(
    from: &mut impl Read,
    mut proof: Proof,
    most: u64,
    take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<(Kind, String)> {
    let broken = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    let mut left = most;
    let mut piece = Vec::new();
    loop {
        let mut head = [0; 5];
        from.read_exact(&mut head)?;
        let length = u32::from_le_bytes(head[1..].try_into().expect("four bytes")) as usize;
        let kind = Kind::of(head[0]).filter(|_| length <= MOST);
        let kind = kind.ok_or_else(|| broken("what it answers is no answer"))?;
        piece.resize(length, 0);
        from.read_exact(&mut piece)?;
        proof.add(&head);
        proof.add(&piece);
        if kind == Kind::Data {
            left = left
                .checked_sub(length as u64)
                .ok_or_else(|| broken("its answer is larger than any snapshot"))?;
            take(&piece)?;
            continue;
        }
        let mut said = [0; BYTES];
        from.read_exact(&mut said)?;
        if !proof.is(&said) {
            return Err(broken("its answer is not proven by the key"));
        }
        return Ok((kind, String::from_utf8_lossy(&piece).into_owned()));
    }
}
