//! Every policy on random lives, and what each is for.

mod adding_a_policy;
mod integrity;
mod placement;
mod rows_and_colours;
mod strata;
mod utilization;
mod without;
#[path = "../../../stack/tests/integration/world/mod.rs"]
#[allow(dead_code, reason = "tests of the layers use the rest of it")]
mod world;
