//! What Strata's plugins for QEMU share: the emulator's descriptions of accesses in packed form,
//! its instructions, the plugin's arguments.
//!
//! Written for plugin interface version 1, that of QEMU 7.2. Callers are plugins: the emulator
//! defines the functions called here.

mod arguments;
mod instruction;
mod shape;

pub use arguments::Arguments;
pub use instruction::{instructions_counted, is_repeated_string, may_jump_back};
pub use shape::{Shape, shape};
