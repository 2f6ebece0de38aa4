//! The key that both ends know.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Bytes of a nonce and of a proof.
pub const BYTES: usize = 32;
/// What a key is made of, in bytes: less could be guessed, more is a mistake.
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=4096;

/// What was drawn for one conversation.
pub type Nonce = [u8; BYTES];

/// A secret. It is never shown.
#[derive(Clone)]
pub struct Key(Vec<u8>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Its file cannot be read.
    #[error("cannot read the key {}: {source}; make one with: head -c 32 /dev/urandom > {}", path.display(), path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It could be guessed, or is something else.
    #[error("the key {} has {} bytes: it must have 16 to 4096; make one with: head -c 32 /dev/urandom > {}", path.display(), bytes, path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length, or as much as was read of it.
        bytes: usize,
    },
}

impl Key {
    /// The bytes of a file.
    ///
    /// # Errors
    /// When it cannot be read, or has less than 16 bytes or more than 4096.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let mut bytes = Vec::new();
        let most = *LENGTHS.end() as u64 + 1;
        let read = File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
        read.map_err(|source| KeyError::Read { path: path.to_owned(), source })?;
        if !LENGTHS.contains(&bytes.len()) {
            return Err(KeyError::Length { path: path.to_owned(), bytes: bytes.len() });
        }
        Ok(Self(bytes))
    }

    /// What a conversation with these nonces is proven by; both ends begin alike.
    pub fn proof(&self, answering: &Nonce, asking: &Nonce) -> Proof {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(answering);
        mac.update(asking);
        Proof(mac)
    }
}

/// A proof in the making.
#[derive(Clone)]
pub struct Proof(Hmac<Sha256>);

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof(..)")
    }
}

impl Proof {
    /// Adds what was said.
    pub fn add(&mut self, said: &[u8]) {
        self.0.update(said);
    }

    /// The proof.
    pub fn finish(self) -> [u8; BYTES] {
        self.0.finalize().into_bytes().into()
    }

    /// Whether this is it, in a time that does not depend on where it differs.
    pub fn is(self, said: &[u8; BYTES]) -> bool {
        self.0.verify_slice(said).is_ok()
    }
}

/// A new nonce.
pub fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; BYTES];
    getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_file_that_nobody_guesses() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        assert!(Key::read(&path).unwrap_err().to_string().contains("head -c 32"));
        for (bytes, fits) in [(15, false), (16, true), (4096, true), (4097, false)] {
            std::fs::write(&path, vec![7; bytes]).unwrap();
            assert_eq!(Key::read(&path).is_ok(), fits, "{bytes}");
        }
        assert_eq!(format!("{:?}", Key(vec![1; 16])), "Key(..)");
    }

    #[test]
    fn a_proof_is_of_the_key_both_nonces_and_what_was_said() {
        let of = |key: u8, answering: u8, asking: u8, said: &[u8]| {
            let mut proof = Key(vec![key; 32]).proof(&[answering; 32], &[asking; 32]);
            proof.add(said);
            proof.finish()
        };
        let one = of(1, 2, 3, b"x");
        for other in [of(2, 2, 3, b"x"), of(1, 3, 3, b"x"), of(1, 2, 2, b"x"), of(1, 2, 3, b"y")] {
            assert_ne!(one, other);
        }
        let mut proof = Key(vec![1; 32]).proof(&[2; 32], &[3; 32]);
        proof.add(b"x");
        assert!(proof.clone().is(&one) && !proof.is(&[0; 32]));
    }
}
