//! Memory of several nodes: a page for which L0 chooses a frame stays on its node.

use crate::common::scene::{Scene, VANILLA, kvm, layer, step, steps};
use crate::common::{machine, rise, tell_alignment};
use std::collections::BTreeMap;
use strata_lab::{Fragmentation, Kernel, KernelVariant, LabReport};

/// Runs a program of L2 on two nodes in L0 and L1, of which L2's VMM takes memory as `vmm` says, L0's memory
/// fragmented to `fmfi`. At the end the memory of L1's VMM is listed.
fn run(fmfi: f64, vmm: &[&str]) -> LabReport {
    let l0 = layer(Kernel::Lab(KernelVariant::Aligned), 3400, "always");
    let layers = vec![l0, layer(Kernel::Debian, 1900, "never"), layer(VANILLA, 600, "always")];
    Scene::new("Two nodes", layers)
        .layer(0, |l0| {
            l0.parameters = "loglevel=5 numa=fake=2U".to_owned();
            l0.fragmentation = Some(Fragmentation { fmfi, movable: 0.0 });
            kvm(l0, "nested_align=1 nested_align_cpu_percent=100 nested_align_period_ms=200");
        })
        .layer(1, |l1| l1.nodes = 2)
        .layer(2, |l2| l2.vmm.arguments = vmm.iter().map(|&word| word.to_owned()).collect())
        .then(
            steps()
                .run("strata-agent touch --size=128M --stay")
                .stay()
                .sleep(5.0)
                .shell(0, "cat /proc/$(/bin/busybox pidof qemu)/numa_maps")
                .id("maps"),
        )
        .run("nodes")
}

/// All of L2 on the node that L0 itself would not take first.
const ON_SECOND: [&str; 4] = [
    "-object",
    "memory-backend-ram,id=second,size=600M,host-nodes=1,policy=bind",
    "-machine",
    "memory-backend=second",
];

/// Pages of L1's memory that are bound to a node: by that node, and by the one they are on.
fn bound(report: &LabReport) -> BTreeMap<(String, String), u64> {
    let mut pages = BTreeMap::new();
    // "ADDRESS bind:1 anon=300 dirty=300 N1=300 kernelpagesize_kB=4".
    for line in &step(report, "maps").output {
        let words = || line.split(' ');
        let Some(to) = words().find_map(|word| word.strip_prefix("bind:")) else { continue };
        for (node, number) in words().filter_map(|word| word.strip_prefix('N')?.split_once('=')) {
            *pages.entry((to.to_owned(), node.to_owned())).or_default() +=
                number.parse::<u64>().unwrap();
        }
    }
    pages
}

/// All of it is on its node, and both nodes have some.
fn in_place(report: &LabReport) {
    let pages = bound(report);
    println!("{pages:?}");
    let all: Vec<(&str, &str)> = pages.keys().map(|(to, on)| (&**to, &**on)).collect();
    assert_eq!(all, [("0", "0"), ("1", "1")], "{pages:?}");
    tell_alignment(report);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn regions_are_aligned_on_the_node_that_their_memory_is_bound_to() {
    let _machine = machine();
    let report = run(0.0, &ON_SECOND);
    in_place(&report);
    assert!(rise(&report, "nested_align_steered") > 10_000);
    assert!(rise(&report, "nested_align_promoted") > 32);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn regions_are_aligned_on_their_node_where_frames_must_be_taken() {
    let _machine = machine();
    // Frames in a row are to be had only from other huge pages.
    let report = run(0.95, &ON_SECOND);
    in_place(&report);
    // As fast as frames can be had: not all of 64 within these seconds.
    assert!(rise(&report, "nested_align_promoted") > 8);
    assert!(rise(&report, "nested_align_taken") > 0);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn regions_of_which_each_page_is_bound_to_another_node_stay_as_they_are() {
    let _machine = machine();
    let report = run(
        0.0,
        &[
            "-object",
            "memory-backend-ram,id=mixed,size=600M,host-nodes=0-1,policy=interleave",
            "-machine",
            "memory-backend=mixed",
        ],
    );
    in_place(&report);
    assert_eq!(report.layers[0].after.kvm("nested_align_steered"), 0);
    assert!(report.layers[0].after.kvm("nested_align_scans") > 0);
}
