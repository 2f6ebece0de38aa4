//! Layers of kernels on random lives.

mod balloon;
mod found;
mod hooks;
mod integrity;
mod ksm;
mod linux;
mod placement;
mod shadow_paging;
#[allow(dead_code, reason = "tests of policies use the rest of it")]
mod world;
