//! Whole machines and hosts of them.

mod balloon;
mod bound;
mod colours;
mod counters;
mod fetched;
mod happening;
mod hosts;
mod llc;
mod replay;
mod requests;
mod sampling;
mod shadow_paging;
mod streams;
mod sweep;
