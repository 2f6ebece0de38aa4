//! Where streams of accesses come from.

mod common;
mod foreign;
mod fuzz_bodies;
mod generators;
mod kernels;
mod recordings;
mod sampled;
