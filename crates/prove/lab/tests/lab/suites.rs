//! Tests that the kernel's developers wrote, run in L0: its virtual machines, nested ones among them,
//! and its memory management must be as they expect, with our code as without.

use crate::common::scene::{Scene, kvm, steps};
use crate::common::{cache, machine, parts};
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use strata_lab::{Kernel, KernelVariant, Layer, Make, Memory};

/// KVM's parameters: as much alignment as there can be. `vanilla` passes over them.
const FORCED: &str = "nested_align=1 nested_align_cpu_percent=100 nested_align_period_ms=100 \
                      nested_align_min_present=256";

/// Programs of `tools/testing/selftests/kvm`, with their arguments, and the status each ends with.
///
/// Two fail on any kernel, for the emulated processor: it does not save the next instruction's
/// address (nRIP), and reports another error code of an exception.
const KVM: [(&str, i32); 15] = [
    ("x86_64/state_test", 0),
    ("x86_64/smm_test", 0),
    ("x86_64/svm_vmcall_test", 0),
    ("x86_64/svm_int_ctl_test", 0),
    ("x86_64/svm_nested_shutdown_test", 0),
    ("x86_64/svm_nested_soft_inject_test", 254),
    ("x86_64/nested_exceptions_test", 254),
    ("x86_64/hyperv_svm_test", 0),
    ("x86_64/triple_fault_event_test", 0),
    ("x86_64/fix_hypercall_test", 0),
    ("x86_64/exit_on_emulation_failure_test", 0),
    ("memslot_modification_stress_test -c 20", 0),
    ("pre_fault_memory_test", 0),
    ("demand_paging_test", 0),
    ("kvm_page_table_test", 0),
];
/// The same on an Intel machine, of one processor. Left out is `vmx_preemption_timer_test`, in which this
/// emulated processor comes to a standstill on any kernel; one needs a processor without unrestricted guests,
/// and passes over itself.
const VMX: [(&str, i32); 19] = [
    ("x86_64/state_test", 0),
    ("x86_64/smm_test", 0),
    ("x86_64/nested_exceptions_test", 0),
    ("x86_64/triple_fault_event_test", 0),
    ("x86_64/fix_hypercall_test", 0),
    ("x86_64/exit_on_emulation_failure_test", 0),
    ("x86_64/hyperv_evmcs", 0),
    ("x86_64/vmx_apic_access_test", 0),
    ("x86_64/vmx_close_while_nested_test", 0),
    ("x86_64/vmx_dirty_log_test", 0),
    ("x86_64/vmx_exception_with_invalid_guest_state", 4),
    ("x86_64/vmx_invalid_nested_guest_state", 0),
    ("x86_64/vmx_msrs_test", 0),
    ("x86_64/vmx_nested_tsc_scaling_test", 0),
    ("x86_64/vmx_set_nested_state_test", 0),
    ("x86_64/vmx_tsc_adjust_test", 0),
    ("memslot_modification_stress_test -c 20", 0),
    ("pre_fault_memory_test", 0),
    ("kvm_page_table_test -b 64M", 0),
];
/// The same of `tools/testing/selftests/mm`. Of shared memory khugepaged itself collapses nothing here, on
/// `vanilla` either: three fail for it.
const MM: [(&str, i32); 10] = [
    ("ksm_functional_tests", 0),
    ("ksm_tests -M -p 10", 0),
    ("ksm_tests -U", 0),
    ("ksm_tests -Z -p 10 -z 0", 0),
    ("ksm_tests -Z -p 10 -z 1", 0),
    ("khugepaged all:anon", 0),
    ("khugepaged all:shmem", 3),
    ("cow", 0),
    ("mremap_test", 0),
    ("madv_populate", 0),
];
/// It expects of the scan under way that it sees what it has just written, which that one may have
/// passed: it is run this often, and must end as expected once.
const RACY: (&str, usize) = ("ksm_tests -U", 4);
/// What moves memory between nodes. It takes two minutes and failed on no kernel, so that the one with our code alone runs it.
const MIGRATION: (&str, i32) = ("migration", 0);
/// What they need besides: somewhere to swap to.
const SWAP: [&str; 2] = ["/bin/busybox mkswap /dev/ram0", "/bin/busybox swapon /dev/ram0"];

/// An L0 with this kernel, in which virtual machines are aligned as much as can be.
fn l0_alone(variant: KernelVariant, mib: u64) -> Scene {
    let layer = Layer::new(Kernel::Lab(variant), Memory::mib(mib));
    Scene::new("The kernel's own tests", vec![layer]).layer(0, |l0| kvm(l0, FORCED))
}

/// Held while programs are built: all in one tree, and `make` in it is for one at a time.
static BUILDING: Mutex<()> = Mutex::new(());

/// Builds programs of a suite from the source of the lab's kernel, outside of it.
fn build(suite: &str, programs: &[(&str, i32)], machine: Make) -> Vec<PathBuf> {
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let source = parts(machine).lab[&KernelVariant::Vanilla].source.clone();
    let version = source.split(' ').nth(1).expect("a package has a version");
    let built = cache().root().join("selftests").join(version);
    let (tree, headers) = (built.join("tree"), built.join("headers"));
    fs::create_dir_all(&headers).unwrap();
    if !tree.exists() {
        // The suites put files beside their sources: in a tree of links, not in the kernel's. It is there whole or not
        // at all.
        let source = cache().root().join("source").join(version);
        let new = tempfile::tempdir_in(&built).unwrap();
        let links = new.path().join("tree");
        let made = Command::new("cp").arg("-al").args([&source, &links]).status().unwrap();
        assert!(made.success(), "cp -al {}", source.display());
        fs::rename(links, &tree).unwrap();
    }
    if !headers.join("usr/include/linux/kvm.h").exists() {
        make(&tree, &[format!("O={}", headers.display()), "headers".into()]);
    }
    let output = built.join(suite);
    fs::create_dir_all(&output).unwrap();
    let names: BTreeSet<&str> =
        programs.iter().map(|(line, _)| line.split(' ').next().unwrap()).collect();
    let files: Vec<PathBuf> = names.iter().map(|name| output.join(name)).collect();
    let include = headers.join("usr/include");
    let mut arguments = vec![
        "ARCH=x86".to_owned(),
        format!("OUTPUT={}", output.display()),
        format!("INSTALL_HDR_PATH={}", headers.join("usr").display()),
        format!("KHDR_INCLUDES=-isystem {}", include.display()),
        "LDFLAGS=-static".to_owned(),
        // Linux 6.12's khugepaged.c uses it and includes nothing that defines it.
        "EXTRA_CFLAGS=-DKSFT_SKIP=4".to_owned(),
    ];
    arguments.extend(files.iter().map(|file| file.display().to_string()));
    make(&tree.join("tools/testing/selftests").join(suite), &arguments);
    files
}

fn make(directory: &Path, arguments: &[String]) {
    let output = Command::new("make")
        .current_dir(directory)
        .arg("-j2")
        .args(arguments)
        .output()
        .expect("make is there: apt-get install make");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs programs with these arguments in an L0 with this kernel, each as often as [`RACY`] says, and tells
/// which never end with the status they should.
fn run_programs(
    machine: Make,
    variant: KernelVariant,
    change: impl FnOnce(&mut Layer),
    files: &[PathBuf],
    programs: &BTreeMap<String, i32>,
) -> Vec<String> {
    let mut scene = l0_alone(variant, 3000)
        .layer(0, |l0| l0.programs = files.to_vec())
        .layer(0, change)
        .then(SWAP.iter().fold(steps(), |steps, line| steps.run(line)));
    scene.0.set_make(machine, "suites").unwrap();
    let times = |line: &str| if line == RACY.0 { RACY.1 } else { 1 };
    let lines: Vec<&str> =
        programs.keys().flat_map(|line| iter::repeat_n(line.as_str(), times(line))).collect();
    let of_suites = lines.iter().fold(steps(), |steps, line| steps.run(line));
    let report = scene.then(of_suites).run("suites");
    let mut wrong = Vec::new();
    for step in &report.steps[..SWAP.len()] {
        assert_eq!(step.status, Some(0), "{step:?}");
    }
    let mut steps = &report.steps[SWAP.len()..];
    assert_eq!(steps.len(), lines.len());
    for (line, expected) in programs {
        let (tries, rest) = steps.split_at(times(line));
        steps = rest;
        let last = &tries[tries.len() - 1];
        if tries.iter().all(|step| step.status != Some(*expected)) {
            wrong.push(format!("{line}: {:?}\n{}", last.status, last.output.join("\n")));
        }
        println!("{line}: {}", last.output.last().map_or("", String::as_str));
    }
    wrong
}

/// Programs and the status they are to end with, without the directories of their sources.
fn by_name<'a>(programs: impl Iterator<Item = &'a (&'a str, i32)>) -> BTreeMap<String, i32> {
    programs.map(|(line, status)| (line.rsplit('/').next().unwrap().to_owned(), *status)).collect()
}

/// Runs both suites in an L0 with this kernel.
fn suites(variant: KernelVariant) {
    let _machine = machine();
    let files = [build("kvm", &KVM, Make::Amd), build("mm", &MM, Make::Amd)].concat();
    let of_two = |l0: &mut Layer| {
        l0.cpus = 2;
        l0.write.insert("/proc/sys/vm/overcommit_memory".into(), "1".into());
    };
    let programs = by_name(KVM.iter().chain(&MM));
    let wrong = run_programs(Make::Amd, variant, of_two, &files, &programs);
    assert!(wrong.is_empty(), "{variant}:\n{}", wrong.join("\n"));
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn suites_on_the_vanilla_kernel() {
    suites(KernelVariant::Vanilla);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn suites_on_the_aligned_kernel() {
    suites(KernelVariant::Aligned);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn migration_on_the_aligned_kernel() {
    let _machine = machine();
    // It wants two nodes of memory, three processors and huge pages set apart.
    let files = build("mm", &[MIGRATION], Make::Amd);
    let of_three = |l0: &mut Layer| {
        l0.cpus = 3;
        l0.parameters = "numa=fake=2U".to_owned();
        l0.thp = Some("always".to_owned());
        l0.write.insert("/proc/sys/vm/nr_hugepages".into(), "16".into());
    };
    let programs = BTreeMap::from([(MIGRATION.0.to_owned(), MIGRATION.1)]);
    let wrong = run_programs(Make::Amd, KernelVariant::Aligned, of_three, &files, &programs);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs what is about VMX in an L0 with this kernel on an Intel machine.
fn vmx_suite(variant: KernelVariant) {
    let _machine = machine();
    let files = build("kvm", &VMX, Make::Intel);
    let wrong = run_programs(Make::Intel, variant, |_| (), &files, &by_name(VMX.iter()));
    assert!(wrong.is_empty(), "{variant}:\n{}", wrong.join("\n"));
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn intel_suite_on_the_vanilla_kernel() {
    vmx_suite(KernelVariant::Vanilla);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn intel_suite_on_the_aligned_kernel() {
    vmx_suite(KernelVariant::Aligned);
}

#[test]
#[ignore = "needs the kernel's source: make lab-test"]
fn checkpatch_passes_the_kernel_code() {
    let source = parts(Make::Amd).lab[&KernelVariant::Vanilla].source.clone();
    let version = source.split(' ').nth(1).expect("a package has a version");
    let script = cache().root().join("source").join(version).join("scripts/checkpatch.pl");
    let linux = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../linux");
    let files = |directory: &str, of: &[&str]| {
        let all = files_under(&linux.join(directory));
        let all = all.into_iter().filter(|path| of.iter().any(|end| path.ends_with(end)));
        all.collect::<Vec<_>>()
    };
    // Lists of counters and of names for tracepoints are macros that no brackets can hold.
    // A Kconfig that reads another begins with the same name.
    let ignored = "COMPLEX_MACRO,MACRO_ARG_UNUSED,TRAILING_SEMICOLON,SPACING,EMBEDDED_FILENAME";
    let check = |how: &str, file: &str| {
        let output = Command::new("perl")
            .arg(&script)
            .args(["--no-tree", "--no-signoff", "--terse", "--ignore", ignored, how, file])
            .output()
            .expect("perl is there: apt-get install perl");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    };
    let sources = files("overlay", &[".c", ".h"]);
    assert!(sources.len() > 10, "{sources:?}");
    sources.iter().for_each(|file| check("--file", file));
    let hooks = files("hooks", &[".patch"]);
    assert!(hooks.len() > 5, "{hooks:?}");
    // In a repository it would take a patch for a source: a copy elsewhere.
    let directory = tempfile::tempdir().unwrap();
    for hook in &hooks {
        let copy = directory.path().join(Path::new(hook).file_name().unwrap());
        fs::copy(hook, &copy).unwrap();
        check("--patch", &copy.display().to_string());
    }
}

/// All files under a directory.
fn files_under(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => files_under(&path),
            false => vec![path.display().to_string()],
        })
        .collect()
}

/// How long one test of kvm-unit-tests may take, in seconds. The slowest that ends, `reg_corruption`, took 102
/// beside another machine; most take 2, and `host_rflags` finds no end where the emulator steps over VMRUN.
const UNIT_LIMIT: u64 = 300;
/// What QEMU reads to start them, at the places of Debian's packages.
const FIRMWARE: [&str; 5] = [
    "/usr/share/qemu/kvmvapic.bin",
    "/usr/share/qemu/linuxboot_dma.bin",
    "/usr/share/qemu/multiboot.bin",
    "/usr/share/qemu/multiboot_dma.bin",
    "/usr/share/seabios/bios-256k.bin",
];

/// The tests of kvm-unit-tests about nested SVM: a program, and which of its tests. Each has a machine of its
/// own, for one that never ends in an emulator would hide the rest.
///
/// Left out is what measures a million exits and passes whatever it finds, what goes by the time that passes
/// between two instructions, and what ends early now and then, on each of the kernels.
fn unit_tests(directory: &Path) -> Vec<(&'static str, Option<String>)> {
    let path = directory.join("x86/svm_tests.c");
    let source = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (_, table) = source.split_once("struct svm_test svm_tests[]").expect("the table of tests");
    let names = table.lines().map(str::trim_start).filter_map(|line| {
        let begin = line.strip_prefix("{ \"").or_else(|| line.strip_prefix("TEST("))?;
        let (name, _) = begin.split_once(['"', ')'])?;
        Some(name.replace(' ', "_"))
    });
    let unsteady = ["tsc_adjust", "vgif"];
    let left_out = |name: &String| name.starts_with("latency_") || unsteady.contains(&&name[..]);
    let names: Vec<String> = names.filter(|name| !left_out(name)).collect();
    assert!(names.len() > 50, "{names:?}");
    [("svm_npt", None)]
        .into_iter()
        .chain(names.into_iter().map(|name| ("svm", Some(name))))
        .collect()
}

/// A line without its values: some tests draw them at random, some are addresses.
fn without_hexadecimals(line: &str) -> String {
    let mut parts = line.split("0x");
    let begin = parts.next().unwrap_or_default().to_owned();
    parts.fold(begin, |line, part| {
        line + "0x_" + part.trim_start_matches(|digit: char| digit.is_ascii_hexdigit())
    })
}

/// What each of these tests came to, in an L0 with this kernel.
fn run_unit_tests(variant: KernelVariant, directory: &Path) -> Vec<String> {
    let image = |program: &str| directory.join(format!("x86/{program}.flat"));
    let mut scene = l0_alone(variant, 6000).layer(0, |l0| {
        l0.cpus = 3;
        l0.files = ["svm", "svm_npt"].map(image).into();
        l0.files.extend(FIRMWARE.map(PathBuf::from));
        l0.programs.push("/usr/bin/qemu-system-x86_64".into());
    });
    let tests = unit_tests(directory);
    for (program, test) in &tests {
        // Not on the first processor, whose flags of a VM the emulator may lose.
        let line = "/bin/busybox taskset -c 1-2 qemu-system-x86_64 -nodefaults -no-reboot \
             -vga none -display none -serial stdio -device pc-testdev \
             -device isa-debug-exit,iobase=0xf4,iosize=0x4 -L /usr/share/qemu \
             -L /usr/share/seabios -machine accel=kvm -cpu max,+svm -m 4g -smp 2 -kernel";
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        words.push(image(program).display().to_string());
        if let Some(test) = test {
            words.extend(["-append".to_owned(), test.clone()]);
        }
        scene = scene.then(steps().program(words).limit(UNIT_LIMIT));
    }
    let report = scene.run("kvm-unit-tests");
    assert_eq!(report.steps.len(), tests.len());
    // Counters are those of machines that live when a sample is taken.
    for name in ["filled", "populated", "promoted", "scans", "steered"] {
        let name = format!("nested_align_{name}");
        let most = report.layers[0].samples.iter().map(|sample| sample.kvm(&name)).max();
        println!("{variant}: {name} up to {}", most.unwrap_or_default());
    }
    let mut results = Vec::new();
    for (step, (program, test)) in report.steps.iter().zip(&tests) {
        let name = test.as_deref().unwrap_or(program);
        let said = step.output.iter().filter(|line| {
            ["PASS", "FAIL", "SKIP", "XPASS", "XFAIL", "SUMMARY"]
                .iter()
                .any(|word| line.starts_with(word))
        });
        results.extend(said.map(|line| format!("{name}: {}", without_hexadecimals(line.trim()))));
        let end = if step.timed_out { "no end".to_owned() } else { format!("{:?}", step.status) };
        results.push(format!("{name}: {end}"));
    }
    results
}

/// They are no part of the kernel's source: `STRATA_KVM_UNIT_TESTS` names their directory, built.
#[test]
#[ignore = "boots real kernels, and needs kvm-unit-tests: see docs/lab.md"]
fn unit_tests_end_on_the_aligned_kernel_as_on_the_vanilla_one() {
    let directory = env::var_os("STRATA_KVM_UNIT_TESTS")
        .expect("STRATA_KVM_UNIT_TESTS names the directory where kvm-unit-tests was built");
    let _machine = machine();
    let directory = fs::canonicalize(directory).unwrap();
    let vanilla = run_unit_tests(KernelVariant::Vanilla, &directory);
    println!("{}", vanilla.join("\n"));
    let passed = vanilla.iter().filter(|line| line.contains(": PASS")).count();
    assert!(passed > 100, "the suite itself did not run");
    let ours = run_unit_tests(KernelVariant::Aligned, &directory);
    assert_eq!(ours, vanilla);
}
