//! Several VMs on one host.

mod apart;
mod cache;
mod memory;
mod time;
mod world;
