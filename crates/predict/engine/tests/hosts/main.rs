//! Several VMs on one host.

mod apart;
mod memory;
mod time;
mod world;
