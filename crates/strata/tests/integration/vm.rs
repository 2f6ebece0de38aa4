//! A real VM, scanned from inside and from outside, joined, and the join checked by content: a
//! program in the guest writes each page's GPA into it, and the pages are read in the VMM where the
//! snapshots say they are.
//!
//! Needs root, busybox, `qemu-system-x86_64` and a kernel with a serial console and THP named by
//! `STRATA_TEST_KERNEL`; says so and does nothing where one is missing. The VM runs under emulation,
//! which hosts without usable KVM have too; a tree of links stands in for the one thing that then
//! is not there, the file descriptor of a KVM VM. `STRATA_TEST_ACCEL=kvm` uses KVM and the real tree.

use crate::common;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use strata_inspect::scan::pagemap::PAGE;
use strata_inspect::snapshot::model::SlotSource;
use strata_inspect::{Judged, Options, Snapshot, Verdict, join, read, verdicts};

const PATTERN: u64 = 0x5354_5241_5441_5041;
const SIZE: usize = 64 << 20;

/// The guest's side: fills memory with its own addresses and waits.
#[test]
#[ignore = "runs inside the VM of the test below"]
fn inside_the_vm() {
    let mut memory = vec![0u8; SIZE];
    memory.iter_mut().step_by(PAGE as usize).for_each(|byte| *byte = 1);
    let start = memory.as_ptr() as u64;
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let first = (PAGE - start % PAGE) as usize % PAGE as usize;
    for at in (first..SIZE - PAGE as usize).step_by(PAGE as usize) {
        let mut word = [0; 8];
        pagemap.read_exact_at(&mut word, (start + at as u64) / PAGE * 8).unwrap();
        let gpa = (u64::from_ne_bytes(word) & ((1 << 55) - 1)) * PAGE;
        memory[at..at + 8].copy_from_slice(&PATTERN.to_ne_bytes());
        memory[at + 8..at + 16].copy_from_slice(&gpa.to_ne_bytes());
    }
    fs::write("/tmp/ready", "").unwrap();
    sleep(Duration::from_secs(600));
    drop(memory);
}

const INIT: &str = r#"#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc none /proc
$b mount -t sysfs none /sys
$b mount -t devtmpfs none /dev
$b hostname guest
echo always > /sys/kernel/mm/transparent_hugepage/enabled
/bin/pattern vm::inside_the_vm --exact --ignored --nocapture &
while [ ! -e /tmp/ready ]; do $b sleep 0.2; done
$b stty -F /dev/ttyS1 raw
/bin/strata scan -o /tmp/guest.scan && $b cat /tmp/guest.scan > /dev/ttyS1
echo SCANNED
$b sleep 600
"#;

/// What the test needs, or what is missing.
fn needs() -> Result<(PathBuf, PathBuf, &'static str), String> {
    let kernel = std::env::var_os("STRATA_TEST_KERNEL").map(PathBuf::from);
    let kernel = kernel.ok_or("STRATA_TEST_KERNEL names no kernel")?;
    let busybox = ["/usr/bin/busybox", "/bin/busybox"].into_iter().map(PathBuf::from);
    let busybox = busybox.into_iter().find(|path| path.exists()).ok_or("busybox is missing")?;
    Command::new("qemu-system-x86_64")
        .arg("--version")
        .output()
        .map_err(|_| "qemu-system-x86_64 is missing")?;
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let mut word = [0; 8];
    let here = word.as_ptr() as u64;
    pagemap.read_exact_at(&mut word, here / PAGE * 8).unwrap();
    if u64::from_ne_bytes(word) & ((1 << 55) - 1) == 0 {
        return Err("frames are hidden: not root".to_owned());
    }
    let accel = match std::env::var("STRATA_TEST_ACCEL").as_deref() {
        Ok("kvm") => "kvm",
        _ => "tcg",
    };
    Ok((kernel, busybox, accel))
}

/// An archive of files and directories in the `newc` format that kernels unpack.
#[derive(Default)]
struct Archive(Vec<u8>);

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        let fields =
            [0, mode, 0, 0, 1, 0, content.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.0.extend(b"070701");
        fields.iter().for_each(|field| self.0.extend(format!("{field:08x}").bytes()));
        self.0.extend(name.bytes().chain([0]));
        self.pad();
        self.0.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn program(&mut self, name: &str, path: &Path, libraries: &mut Vec<String>) {
        self.add(name, 0o100_755, &fs::read(path).unwrap());
        let ldd = Command::new("ldd").arg(path).output().unwrap();
        for word in String::from_utf8_lossy(&ldd.stdout).split_whitespace() {
            if word.starts_with("/lib") && !libraries.contains(&word.to_owned()) {
                libraries.push(word.to_owned());
                self.add(&word[1..], 0o100_755, &fs::read(word).unwrap());
            }
        }
    }
}

fn initramfs(busybox: &Path) -> Vec<u8> {
    let mut archive = Archive::default();
    for directory in ["bin", "lib", "lib/x86_64-linux-gnu", "lib64", "proc", "sys", "dev", "tmp"] {
        archive.add(directory, 0o040_755, &[]);
    }
    let mut libraries = Vec::new();
    archive.add("init", 0o100_755, INIT.as_bytes());
    archive.program("bin/busybox", busybox, &mut libraries);
    archive.program("bin/strata", &common::program(), &mut libraries);
    archive.program("bin/pattern", &std::env::current_exe().unwrap(), &mut libraries);
    archive.add("TRAILER!!!", 0, &[]);
    archive.0
}

/// A VM that ends with the test.
struct Vm(Child);

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A tree in which the process has the file descriptor of a KVM VM.
fn stand_in(directory: &Path, pid: u32) -> PathBuf {
    let root = directory.join("root");
    let process = root.join(format!("proc/{pid}"));
    fs::create_dir_all(process.join("fd")).unwrap();
    let own = PathBuf::from(format!("/proc/{pid}"));
    let files = [
        "pagemap",
        "maps",
        "smaps",
        "stat",
        "comm",
        "cmdline",
        "status",
        "mountinfo",
        "net",
        "root",
    ];
    files.iter().for_each(|file| symlink(own.join(file), process.join(file)).unwrap());
    symlink("anon_inode:kvm-vm", process.join("fd/9")).unwrap();
    for file in
        ["sys", "kpageflags", "meminfo", "buddyinfo", "vmstat", "cpuinfo", "uptime", "iomem"]
    {
        symlink(Path::new("/proc").join(file), root.join("proc").join(file)).unwrap();
    }
    symlink("/sys", root.join("sys")).unwrap();
    root
}

fn boot(directory: &Path, kernel: &Path, busybox: &Path, accel: &str, options: &[&str]) -> Vm {
    let initrd = directory.join("initrd");
    File::create(&initrd).unwrap().write_all(&initramfs(busybox)).unwrap();
    let console = format!("file:{}", directory.join("console").display());
    let second = format!("file:{}", directory.join("guest.scan").display());
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-accel", accel, "-nodefaults", "-display", "none", "-no-reboot"])
        .args(options)
        .args(["-serial", &console, "-serial", &second])
        .args(["-append", "console=ttyS0 rdinit=/init panic=-1"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(&initrd);
    let vm = Vm(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let begun = Instant::now();
    loop {
        let log = fs::read(directory.join("console")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        if log.contains("SCANNED") {
            return vm;
        }
        assert!(begun.elapsed() < Duration::from_secs(240), "the guest came not far: {log}");
        sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_join_of_a_real_vm_is_true_to_its_content() {
    let (kernel, busybox, accel) = match needs() {
        Ok(found) => found,
        Err(missing) => {
            eprintln!("SKIPPED: {missing}");
            return;
        }
    };
    let sockets = tempfile::tempdir().unwrap();
    let qmp = format!("unix:{}/q,server=on,wait=off", sockets.path().display());
    let memfd = "memory-backend-memfd,id=m,size=512M";
    let file = "memory-backend-file,id=m,size=512M,mem-path=/dev/shm,share=on";
    let qemus: [&[&str]; 4] = [
        &["-m", "512"],
        &["-m", "512", "-qmp", &qmp],
        &["-M", "q35,memory-backend=m", "-m", "512", "-object", memfd],
        &["-M", "pc,memory-backend=m", "-m", "512", "-object", file],
    ];
    for options in qemus {
        let directory = tempfile::tempdir().unwrap();
        let vm = boot(directory.path(), &kernel, &busybox, accel, options);
        let pid = vm.0.id();
        let root = match accel {
            "kvm" => PathBuf::from("/"),
            _ => stand_in(directory.path(), pid),
        };
        let host = directory.path().join("host.scan");
        let scan = Command::new(common::program())
            .args(["scan", "-o", host.to_str().unwrap(), "--root", root.to_str().unwrap()])
            .output()
            .unwrap();
        assert!(scan.status.success(), "{}", common::complaint(&scan));
        let guest = read(&directory.path().join("guest.scan")).unwrap();
        let host = read(&host).unwrap();
        check(&guest, &host, pid, options);
        if let Some(keep) = std::env::var_os("STRATA_TEST_KEEP") {
            fs::create_dir_all(&keep).unwrap();
            for file in ["guest.scan", "host.scan"] {
                fs::copy(directory.path().join(file), Path::new(&keep).join(file)).unwrap();
            }
        }
    }
}

fn check(guest: &Snapshot, host: &Snapshot, pid: u32, options: &[&str]) {
    let pattern = guest.processes.iter().find(|process| process.name.starts_with("pattern"));
    let pattern = pattern.expect("the guest's program has huge pages").pid;
    let snapshots = [guest.clone(), host.clone()];
    let choice = Options { vms: vec![pid.to_string()], force: true, taken_at: None };
    let report = join(&snapshots, &choice).unwrap();
    assert!(report.totals.huge >= 16, "{options:?}: {:?}", report.totals);
    let backed = host.vms.iter().find(|vm| vm.vm.pid == pid).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let (mut pages, mut aligned) = (0, 0);
    for Judged { pid: process, gpa, verdict, .. } in verdicts(&snapshots, &choice).unwrap() {
        if process != pattern {
            continue;
        }
        assert_ne!(verdict, Verdict::Unknown, "{options:?}: {gpa:?}");
        aligned += u32::from(matches!(verdict, Verdict::WellAligned { .. }));
        for page in 0..512 {
            let at = gpa.get() + page * PAGE;
            let hva = backed.vm.slot(at).expect("guest memory is in a slot").hva(at);
            let mut words = [0; 16];
            memory.read_exact_at(&mut words, hva).unwrap();
            let word = |at: usize| u64::from_ne_bytes(words[at..at + 8].try_into().unwrap());
            // The first and the last page of the program's memory carry no pattern.
            if word(0) == PATTERN {
                assert_eq!(word(8), at, "{options:?}: the page at {hva:#x} says where it is");
                pages += 1;
            }
            let mut own = [0; 8];
            pagemap.read_exact_at(&mut own, hva / PAGE * 8).unwrap();
            let frame = u64::from_ne_bytes(own) & ((1 << 55) - 1);
            let region = backed.region(at >> 21).expect("the region was scanned");
            assert_eq!(region.frame(page as u16), Some(frame), "{options:?}: {at:#x}");
        }
    }
    assert!(pages >= 16 * 512 - 2, "{options:?}: only {pages} pages were recognised");
    eprintln!("{options:?}: {pages} pages are where the join says, {aligned} well aligned");
    let expected = match options.contains(&"-qmp") {
        true => SlotSource::Qmp,
        false => SlotSource::Inferred,
    };
    assert_eq!(backed.vm.source, expected, "{options:?}: {}", backed.vm.evidence);
    let found = strata_inspect::join::matching::holds(&backed.vm, &guest.head.machine);
    assert!(found, "{options:?}: the guest's RAM fits the slots inferred");
}
