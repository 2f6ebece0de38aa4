//! One layer asks another for a snapshot: over vsock, the socket between a VM and its host, or over a
//! Unix socket. Whoever asks has to know a key; what is answered is one snapshot and nothing else.
//!
//! | file | subject |
//! | --- | --- |
//! | `place` | where a layer listens, and how to get there |
//! | `key` | the key that both ends know, and what is proven by it |
//! | `frames` | an answer in pieces, with its proof at the end |
//! | `ask` | the one that wants a snapshot |
//! | `answer` | the one that gives it, or leads on to a layer above |
//!
//! # What is said
//! Numbers are little-endian. Both ends draw a nonce, so that nothing said before can be said again.
//!
//! | from | bytes | what |
//! | --- | ---: | --- |
//! | answering | 16 | `strata remote 1` and a line feed |
//! | | 32 | its nonce |
//! | asking | 32 | its nonce |
//! | | 9 | what is wanted: 0 and eight zeros, a snapshot; 1, a CID and a port, the way on |
//! | | 32 | HMAC-SHA256 of both nonces and what is wanted, by the key |
//! | answering | | frames: a kind, a length of four bytes, as many bytes |
//!
//! Frames of kind 0 are data, of 64 KiB at most. The last is of kind 1, with nothing, or 2, with why there is no more,
//! or 3: what follows is said by the layer that the way leads on to. Behind the last there are 32 bytes, HMAC-SHA256
//! of both nonces and all frames. Whoever has not the key gets no answer at all. Nothing is encrypted: the socket
//! leads from a VM to its host, which sees the VM's memory anyway, and through no network.

mod answer;
mod ask;
mod frames;
mod key;
mod place;

pub use answer::{Server, Way};
pub use ask::{Asked, ask};
pub use key::{Key, KeyError};
pub use place::{DEFAULT_PORT, Place, PlaceError, Route};
