//! Several VMs on one host.

mod apart;
mod cache;
mod equal_pages;
mod memory;
mod policies;
mod time;
mod world;
