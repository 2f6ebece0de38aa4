//! Whole machines and hosts of them.

mod balloon;
mod bound;
mod colours;
mod common;
mod counters;
mod fetched;
mod happening;
mod hosts;
mod llc;
mod phases;
mod replay;
mod requests;
mod sampling;
mod sampling_threads;
mod shadow_paging;
mod streams;
mod sweep;
