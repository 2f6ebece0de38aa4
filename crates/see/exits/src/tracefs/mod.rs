//! A trace buffer of one's own in tracefs (Linux, Documentation/trace/ftrace.rst, "Instances"), and what
//! is in its pages.

mod event;
mod format;
mod instance;
mod page;

pub use event::{Decoder, Event, What};
pub use format::{Field, Format};
pub use instance::{Instance, TraceError};
pub use page::{Page, Record};
