//! A policy that is in no registry: the one of `docs/adding-a-policy.md`. What it makes of some machines is
//! in `golden/own-policy.json`, which `crates/python/tests/test_policy.py` holds the same policy in Python to.
//! `UPDATE_GOLDEN=1` writes the file anew.

use crate::utilization::{Utilization, UtilizationParameters};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use strata::inside::{Asked, Found};
use strata_engine::{Catalogue, OwnPolicy, catalogue};
use strata_params::Parameters;

const OPTIONS: &str = "
    workload = 'zipf:size=48MiB,accesses=200k'
    stack = ['native', 'vm', 'nested']
    policy = ['base', 'utilization']
    fragmentation = 0.5
    memory = '128MiB'
";

fn with(name: &str) -> Result<Catalogue, String> {
    let own = OwnPolicy {
        name: name.to_owned(),
        about: "promotes a region once most of it is in use".to_owned(),
        make: Arc::new(|| Box::new(Utilization::new(UtilizationParameters::default()))),
    };
    catalogue().with(own)
}

fn run(options: &str) -> Result<Found, String> {
    let asked = Asked::of(options.parse().unwrap(), None).map_err(|failure| failure.message)?;
    asked.run(&with("utilization").unwrap(), Arc::default()).map_err(|failure| failure.message)
}

#[test]
fn its_results_stay_the_same() {
    assert_eq!(UtilizationParameters::default().parameters()[0].value, "0.9");
    let mut found: Value = serde_json::from_str(&run(OPTIONS).unwrap().json).unwrap();
    found.as_object_mut().unwrap().remove("version");
    let runs = found["runs"].as_array().unwrap();
    assert!(runs.iter().any(|run| run["policy"] == "utilization" && run["promotions"] != 0));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/own-policy.json");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, serde_json::to_string_pretty(&found).unwrap() + "\n").unwrap();
    }
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(found, golden);
}

#[test]
fn it_takes_no_name_that_there_is() {
    assert_eq!(with("thp").unwrap_err(), "thp");
    let unknown = OPTIONS.replace("'utilization'", "'utilisation'");
    assert!(run(&unknown).unwrap_err().contains("did you mean 'utilization'?"));
}
