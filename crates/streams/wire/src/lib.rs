//! What the emulator plugin and the launcher of live captures share.
//!
//! - [`Wire`]: shared memory in which every thread of the traced program fills its own [`Slot`]
//!   and hands it over whole to the one consumer;
//! - [`Message`]: what a slot holds besides accesses;
//! - [`Emulator`]: the command line that runs a program under the emulator with the plugin, and
//!   [`program`]: which programs that can be done with;
//! - [`machine`]: what the other plugin, that of whole machines, says over a socket.
//!
//! # How a slot travels
//! ```text
//!             take                fill             commit               drain
//!  free list ------> one thread  ------>  full or  ------> committed   ------> consumer
//!      ^              owns it             an event          stack               |
//!      +------------------------------------------------------------------------+ release
//! ```
//! Per access, the owner writes one word and one length, both plain. Handing over is one
//! compare-and-swap on the head of the committed stack, which is at once the publication and the
//! global order: no producer can stop between taking a place and filling it, so one that is killed
//! at any instruction leaves the wire usable. What it had written is found by [`Wire::orphans`].
//!
//! # Order
//! Accesses and messages of one thread keep program order exactly. Between threads the order is
//! that of the hand-overs, so accesses interleave at the grain of a slot, except where it would
//! show: before a message that takes memory away, the sender writes [`Message::Cut`]s that say
//! how far each sibling thread had come, and the consumer delivers that part first.

mod command;
mod execution;
mod futex;
mod liveness;
pub mod machine;
mod memory;
mod message;
pub mod program;
mod slot;

pub use command::{Emulator, Identity, PLUGIN_FILE, false_name};
pub use execution::Execution;
pub use futex::Lock;
pub use liveness::ProcessId;
pub use memory::{Drain, Wire};
pub use message::{Message, decode, encode};
pub use slot::{CAPACITY, Cut, Owner, Slot, SlotIndex};
