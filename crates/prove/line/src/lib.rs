//! A stream of bytes in both directions over a serial line, which loses none and changes none.
//!
//! A machine without virtio has a serial line to the outside, and a disk. The line is slow, may lose
//! bytes when its reader is late, and has no end-to-end checksum. Here bytes travel in frames
//! ([`frame`]), numbered and with checksums; the receiver says which it has, the sender keeps what it
//! has not heard of and sends it again, and no more than a window of frames is under way
//! ([`window`]): that is the flow control. What is large goes to a disk that both sides see, and only
//! a frame that tells of it over the line ([`disk`]). [`carry`] does all this between a line and a
//! socket.

mod carry;
pub mod disk;
pub mod frame;
pub mod window;

pub use carry::{AGAIN, Carried, Numbers, carry};
