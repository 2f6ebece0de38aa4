//! Captures of small programs whose every access is known.

mod accesses;
mod code;
mod copies;
mod dying;
mod ends;
mod mappings;
mod phases;
mod processes;
mod refusals;
mod requests;
mod sampling;
mod support;
mod unusual;
mod waits;
