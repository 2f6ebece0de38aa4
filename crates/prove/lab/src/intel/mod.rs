//! A machine with Intel's processors: VMX and EPT, emulated by Bochs.
//!
//! QEMU emulates AMD's virtualisation only. Bochs emulates Intel's, is slower, and has other devices:
//! a serial line and a disk where QEMU has virtio. L0 has them, the layers above have what QEMU in
//! the layer below gives them, as on any machine.
//!
//! | file | subject |
//! | --- | --- |
//! | `source` | Debian's source of Bochs, by apt with a configuration of its own |
//! | `build` | Bochs built from it, with our changes |
//! | `image` | L0's kernel and initial file system as the machine finds them in its memory |
//! | `start` | the running emulator |
//! | `state` | its state, kept and gone on from |

mod build;
mod image;
mod source;
mod start;
mod state;

pub use build::Bochs;
pub(crate) use build::{cached, get};
pub(crate) use image::with_hole;
pub use start::INSTRUCTIONS_PER_SECOND;
pub(crate) use start::{parameters, put_aside, settle, start};
pub(crate) use state::save;
