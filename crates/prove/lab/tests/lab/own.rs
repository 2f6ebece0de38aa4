//! A kernel and a VMM of one's own.

use crate::common::scene::{Scene, VANILLA, steps};
use crate::common::{failure, machine, parts};
use std::path::PathBuf;
use strata_lab::{Kernel, Layer, Make, Memory};

/// A VM of this kernel on the lab's.
fn with(kernel: PathBuf) -> Scene {
    let l0 = Layer::new(VANILLA, Memory::mib(1500));
    let l1 = Layer::new(Kernel::File(kernel), Memory::mib(600));
    Scene::new("A kernel of one's own", vec![l0, l1]).then(steps().run("/bin/busybox true"))
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn smoke_own_kernel_and_vmm() {
    let _machine = machine();
    let directory = tempfile::tempdir().unwrap();
    let [kernel, vmm] = ["mine", "my-vmm"].map(|name| directory.path().join(name));
    let lab = &parts(Make::Amd).lab[&strata_lab::KernelVariant::Vanilla];
    std::fs::copy(&lab.image, &kernel).unwrap();
    std::fs::copy("/usr/bin/qemu-system-x86_64", &vmm).unwrap();
    let report = with(kernel.clone()).layer(1, |l1| l1.vmm.program = Some(vmm)).run("own");
    let own = &report.layers[1];
    assert_eq!((own.variant.as_str(), own.package.as_str()), (kernel.to_str().unwrap(), "a file"));
    assert_eq!(own.sha256, report.layers[0].sha256);
    assert_eq!(report.steps[0].status, Some(0));
}

#[test]
#[ignore = "needs the lab's kernels: make lab-test"]
fn what_is_no_kernel_and_what_is_no_vmm_are_named_before_anything_boots() {
    // Machines that run when it is looked for what is left are others'.
    let _machine = machine();
    let kernel = failure(with("/usr/bin/env".into())).to_string();
    assert!(kernel.contains("/usr/bin/env is no bzImage"), "{kernel}");
    let scene = Scene::new(
        "x",
        vec![Layer::new(VANILLA, Memory::mib(1500)), Layer::new(VANILLA, Memory::mib(600))],
    );
    let vmm =
        failure(scene.layer(1, |l1| l1.vmm.program = Some("/nowhere/vmm".into()))).to_string();
    assert!(vmm.contains("there is no program /nowhere/vmm"), "{vmm}");
}
