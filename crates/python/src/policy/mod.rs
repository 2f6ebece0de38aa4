//! Policies written in Python.
//!
//! ```text
//!  engine --hook--> PythonPolicy --attach, lend--> object of Python
//!                                                    | stack.collapse(...)
//!  engine <-------- Stack, with the policy anew <----+
//! ```
//!
//! What a hook gets of the engine is lent for as long as the hook runs: kept longer, it says so and is of no
//! use.

mod hooks;
mod lent;
mod python;
mod stack;
mod values;

pub use python::{Given, Policies};
pub use stack::{KernelView, StackView};
pub use values::{Fault, Feedback, MoveAsked, Position};
