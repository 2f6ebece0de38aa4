//! The command as the lab starts it in a layer, on this computer's own kernel.

use serde_json::Value;
use std::process::{Command, Output};

fn agent(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_strata-agent")).args(words).output().unwrap()
}

#[test]
fn memory_that_is_touched_is_where_it_was_asked_for_and_keeps_its_contents() {
    let output = agent(&["touch", "--size=4M", "--accesses=1000"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["touched_bytes"], 4 << 20, "{told}");
    assert_eq!(told["wrong"], 0, "{told}");
}

#[test]
fn what_cannot_be_done_is_told_and_the_status_says_so() {
    let output = agent(&["touch", "--size=much"]);
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("much"), "{told}");
}
