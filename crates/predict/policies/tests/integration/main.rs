//! Every policy on random lives, and what each is for.

mod adding_a_policy;
mod integrity;
mod per_vm;
mod placement;
mod rows_and_colours;
mod strata;
mod utilization;
mod without;
#[path = "../../../stack/tests/integration/world/mod.rs"]
#[allow(dead_code, reason = "tests of the layers use the rest of it")]
mod world;

use strata_params::Parameters;
use strata_policies::{PolicyParameters, find};
use strata_stack::Policy;

/// A policy by its name, with parameters set.
fn made(name: &str, set: &[(&str, &str)]) -> Box<dyn Policy> {
    let mut parameters = PolicyParameters::default();
    set.iter().for_each(|(name, value)| parameters.set(name, value).unwrap());
    (find(name).unwrap().make)(&parameters)
}
