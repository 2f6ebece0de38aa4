//! Snapshots that the host asks its VM for, and through it the VM in that.

use crate::common::machine;
use crate::common::scene::{step, steps, three_layers};
use serde_json::Value;
use std::fs;
use strata_lab::KernelVariant;

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_host_joins_all_layers_without_a_file_copied() {
    let _machine = machine();
    let directory = tempfile::tempdir().unwrap();
    let [key, wrong] = ["key", "wrong"].map(|name| directory.path().join(name));
    fs::write(&key, [1; 32]).unwrap();
    fs::write(&wrong, [2; 32]).unwrap();
    let [known, unknown] = [&key, &wrong].map(|path| path.display().to_string());
    let mut scene = three_layers(KernelVariant::Vanilla, "", ["always", "always"]);
    for number in 0..3 {
        scene = scene.layer(number, |layer| layer.files.extend([key.clone(), wrong.clone()]));
    }
    for number in 1..3 {
        // A VM cannot have the number that its host has in the one below.
        let cid = format!("vhost-vsock-pci,guest-cid={}", 2 + number);
        let socket = ["-device".to_owned(), cid];
        scene = scene.layer(number, |layer| layer.vmm.arguments.extend(socket));
    }
    let serve = format!("strata scan --serve --key {known}");
    let join = |from: &str, key: &str| format!("strata join --from {from} --key {key} --json -");
    let report = scene
        .then(
            steps()
                .run("strata-agent touch --size=96M --stay")
                .stay()
                .run(&serve)
                .stay()
                .run(&serve)
                .layer(1)
                .stay()
                .run(&join("vsock:3", &unknown))
                .layer(0)
                .id("wrong key in L1")
                .run(&join("vsock:3/4", &unknown))
                .layer(0)
                .id("wrong key in L2")
                .run(&join("vsock:3/9", &known))
                .layer(0)
                .id("nobody there")
                .run(&join("vsock:3/4,vsock:3", &known))
                .layer(0)
                .id("joined")
                .scan(),
        )
        .run("remote");
    for (id, why) in [
        ("wrong key in L1", "both ends need the same --key"),
        ("wrong key in L2", "both ends need the same --key"),
        ("nobody there", "nobody answers at its vsock:9:7273"),
    ] {
        let refused = step(&report, id);
        let said = refused.errors.join("\n");
        assert!(refused.status == Some(1) && said.contains(why), "{id}: {said}");
        assert!(refused.output.is_empty(), "{id}: {:?}", refused.output);
    }
    let joined = step(&report, "joined");
    assert_eq!(joined.status, Some(0), "{:?}", joined.errors);
    let joined: Value = serde_json::from_str(&joined.output.join("\n")).unwrap();
    let copied = report.alignment.as_ref().unwrap();
    assert_eq!(joined["layers"].as_array().unwrap().len(), 3);
    // The same as of snapshots that were copied.
    let count = |name: &str| joined["totals"][name].as_u64().unwrap();
    assert!(count("huge") >= 48, "{joined}");
    let copied = [copied.totals.huge, copied.totals.well_aligned, copied.totals.misaligned];
    for (name, copied) in ["huge", "well_aligned", "misaligned"].into_iter().zip(copied) {
        // A huge page more of the programs that looked.
        assert!(count(name).abs_diff(copied) <= 2, "{name}: {} and {copied}", count(name));
    }
}
