//! Real machines.

mod aligned;
mod booking;
mod causes;
mod common;
mod exits;
mod instrument;
mod integrity;
mod intel;
mod kept;
mod levels;
#[path = "../../../tables/tests/machine/mod.rs"]
#[allow(dead_code, reason = "tests of tables use the rest of it")]
mod machine;
mod moments;
mod nodes;
mod own;
mod predicted;
mod recording;
mod remote;
mod smoke;
mod suites;
mod truth;
