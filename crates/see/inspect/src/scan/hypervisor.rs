//! Finding the VMs of a hypervisor and describing them.

use crate::scan::guest::each_area;
use crate::scan::infer;
use crate::scan::qmp;
use crate::scan::tree::Tree;
use crate::snapshot::model::{SlotSource, Vm, VmmArea};
use crate::snapshot::pseudo::{self, PseudoHuge};
use crate::text::cmdline::{self, VmmKind};
use crate::text::maps::{Area, Kind};
use crate::text::pairs;
use std::collections::BTreeMap;
use std::fs;
use std::io;

/// Mappings below this are no guest memory: 1 MiB.
const SMALLEST: u64 = 1 << 20;

/// Clock ticks of `/proc/PID/stat` in a second: fixed by the kernel's interface (`USER_HZ`).
const TICKS: u64 = 100;

/// A process that could not be looked into, and why.
pub type Refused = (u32, io::Error);

/// VMs as `(pid, fd)`, by their file descriptors; and which processes could not be looked into.
pub fn find(tree: &Tree, pids: &[u32]) -> (Vec<(u32, u32)>, Vec<Refused>) {
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for &pid in pids {
        let directory = tree.path(&format!("proc/{pid}/fd"));
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) => {
                if error.kind() == io::ErrorKind::PermissionDenied {
                    refused.push((pid, error));
                }
                continue;
            }
        };
        let mut fds: Vec<u32> = entries
            .flatten()
            .filter(|entry| {
                fs::read_link(entry.path())
                    .is_ok_and(|link| link.as_os_str().as_encoded_bytes().ends_with(b"kvm-vm"))
            })
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        fds.sort_unstable();
        found.extend(fds.into_iter().map(|fd| (pid, fd)));
    }
    (found, refused)
}

/// Describes a VM.
///
/// # Errors
/// When the VMM is gone or may not be read.
pub fn describe(tree: &Tree, pid: u32, fd: u32) -> io::Result<Vm> {
    let words: Vec<String> = tree
        .text(&format!("proc/{pid}/cmdline"))?
        .split('\0')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect();
    let status = tree.text(&format!("proc/{pid}/status"))?;
    let ticks = tree.maybe(&format!("proc/{pid}/stat")).and_then(|s| pairs::start_ticks(&s));
    let mut vmm = cmdline::parse(&words);
    let comm = tree.text(&format!("proc/{pid}/comm"))?;
    if vmm.kind == VmmKind::Other {
        // Jailers and wrappers change the first word, not the name.
        vmm = cmdline::parse(
            &[std::slice::from_ref(&comm), words.get(1..).unwrap_or_default()].concat(),
        );
    }
    let mut vm = Vm {
        pid,
        fd,
        comm,
        started_ms: ticks.unwrap_or(0).saturating_mul(1000 / TICKS),
        areas: areas(tree, pid)?,
        thp_disabled: pairs::field(&status, "THP_enabled").map(|value| value == "0"),
        stats: stats(tree, pid, fd),
        vmm,
        ..Vm::default()
    };
    slots(tree, &mut vm);
    // What holds no guest memory is nobody's concern.
    let slots = &vm.slots;
    vm.areas.retain(|area| {
        slots.is_empty() || slots.iter().any(|s| s.hva < area.end && area.start < s.hva + s.size)
    });
    Ok(vm)
}

/// Where the VM's memory is: told by the VMM, or inferred.
fn slots(tree: &Tree, vm: &mut Vm) {
    let asked = qmp::ask(tree, vm.pid, &vm.vmm.qmp);
    let mut untold = String::new();
    match asked {
        Ok(answer) => {
            vm.dirty_logging = answer.dirty_logging;
            vm.ballooned = answer.ballooned;
            if !answer.slots.is_empty() {
                vm.slots = answer.slots;
                vm.source = SlotSource::Qmp;
                vm.evidence = "told by the VMM over QMP".to_owned();
                return;
            }
            untold = "; QMP named no host addresses".to_owned();
        }
        Err(why) if !vm.vmm.qmp.is_empty() => untold = format!("; QMP: {why}"),
        Err(_) => {}
    }
    match infer::slots(&vm.vmm, &vm.areas) {
        Ok((slots, evidence)) => {
            vm.slots = slots;
            vm.source = SlotSource::Inferred;
            vm.evidence = format!("inferred from {evidence}{untold}");
        }
        Err(why) => {
            vm.source = SlotSource::Unknown;
            vm.evidence = format!("{why}{untold}");
        }
    }
}

/// Writable areas of a VMM that could hold guest memory.
fn areas(tree: &Tree, pid: u32) -> io::Result<Vec<VmmArea>> {
    let mounts = tree.maybe(&format!("proc/{pid}/mountinfo")).unwrap_or_default();
    let mut found = Vec::new();
    each_area(tree, pid, "smaps", |area| {
        if area.end - area.start >= SMALLEST && area.permissions.starts_with("rw") {
            found.push(vmm_area(area, &mounts));
        }
    })?;
    Ok(found)
}

fn vmm_area(area: Area, mounts: &str) -> VmmArea {
    let mut kind = area.kind();
    let mut mount_huge = None;
    if kind == Kind::File
        && let Some(huge) = tmpfs(&area.name, mounts)
    {
        kind = Kind::Tmpfs;
        mount_huge = huge;
    }
    VmmArea {
        start: area.start,
        end: area.end,
        kind,
        name: area.name,
        mount_huge,
        flags: area.detail.flags,
        ksm: area.detail.ksm,
    }
}

/// Whether a path is on tmpfs by `/proc/PID/mountinfo`, and the mount's `huge=`.
fn tmpfs(path: &str, mounts: &str) -> Option<Option<String>> {
    let mut best: Option<(usize, Option<Option<String>>)> = None;
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let Some(point) = left.split(' ').nth(4) else { continue };
        let below = path
            .strip_prefix(point)
            .is_some_and(|rest| point == "/" || rest.is_empty() || rest.starts_with('/'));
        // Of mounts one over the other the last counts.
        if !below || best.as_ref().is_some_and(|(length, _)| *length > point.len()) {
            continue;
        }
        let mut words = right.split(' ');
        let is_tmpfs = words.next() == Some("tmpfs");
        let options = words.nth(1).unwrap_or("");
        let huge = options.split(',').find_map(|option| option.strip_prefix("huge="));
        best = Some((point.len(), is_tmpfs.then(|| huge.map(str::to_owned))));
    }
    best?.1
}

/// In a VM's debugfs directory, where the kernel has it: its pseudo huge pages.
const PSEUDO_HUGE: &str = "nested_align_regions";
/// Beside it, and no number: a table of all reverse mappings, for which the kernel looks at each.
const REVERSE_MAPPINGS: &str = "mmu_rmaps_stat";

fn debugfs(pid: u32, fd: u32) -> String {
    format!("sys/kernel/debug/kvm/{pid}-{fd}")
}

/// KVM's counters of the VM.
fn stats(tree: &Tree, pid: u32, fd: u32) -> BTreeMap<String, u64> {
    let directory = debugfs(pid, fd);
    let mut names = tree.names(&directory);
    names.retain(|name| name != PSEUDO_HUGE && name != REVERSE_MAPPINGS);
    let numbers = names.into_iter();
    numbers
        .filter_map(|name| {
            let number = tree.number(&format!("{directory}/{name}"))?;
            Some((name, number))
        })
        .collect()
}

/// The VM's pseudo huge pages; `None` where the kernel does not list them to us.
///
/// # Errors
/// When there is a list and it makes no sense.
pub fn pseudo_huge(tree: &Tree, vm: &Vm) -> io::Result<Option<Vec<PseudoHuge>>> {
    let file = tree.open(&format!("{}/{PSEUDO_HUGE}", debugfs(vm.pid, vm.fd)));
    file.ok().map(pseudo::list).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_of_a_file_tells_tmpfs_and_its_huge_option() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/sda rw\n\
                      2 1 0:5 / /dev/shm rw,nosuid - tmpfs tmpfs rw,huge=within_size,size=1g\n\
                      3 1 0:6 / /run rw - tmpfs tmpfs rw\n\
                      4 3 8:2 / /run/disk rw - ext4 /dev/sdb rw\n";
        assert_eq!(tmpfs("/dev/shm/a", mounts), Some(Some("within_size".to_owned())));
        assert_eq!(tmpfs("/run/a", mounts), Some(None));
        assert_eq!(tmpfs("/run/disk/a", mounts), None);
        assert_eq!(tmpfs("/dev/shmem", mounts), None);
        assert_eq!(tmpfs("/a", "junk\n - \n"), None);
    }

    #[test]
    fn kvm_tells_counters_and_on_some_kernels_pseudo_huge_pages() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::new(directory.path());
        let vm = Vm { pid: 77, fd: 9, ..Vm::default() };
        assert_eq!(pseudo_huge(&tree, &vm).unwrap(), None);
        let files = directory.path().join(debugfs(77, 9));
        fs::create_dir_all(&files).unwrap();
        for (name, text) in
            [("pages_4k", "5\n"), (REVERSE_MAPPINGS, "1\n"), (PSEUDO_HUGE, "1000 400000 800000\n")]
        {
            fs::write(files.join(name), text).unwrap();
        }
        assert_eq!(stats(&tree, 77, 9), [("pages_4k".to_owned(), 5)].into());
        let one = PseudoHuge { guest_frame: 0x400, frame: 0x800, root: 1 };
        assert_eq!(pseudo_huge(&tree, &vm).unwrap(), Some(vec![one]));
        fs::write(files.join(PSEUDO_HUGE), "").unwrap();
        assert_eq!(pseudo_huge(&tree, &vm).unwrap(), Some(Vec::new()));
        fs::write(files.join(PSEUDO_HUGE), "words\n").unwrap();
        assert!(pseudo_huge(&tree, &vm).is_err());
    }

    #[test]
    fn vms_are_found_by_their_file_descriptors() {
        let directory = tempfile::tempdir().unwrap();
        let fds = directory.path().join("proc/77/fd");
        std::fs::create_dir_all(&fds).unwrap();
        for (fd, target) in [("9", "anon_inode:kvm-vm"), ("10", "anon_inode:kvm-vcpu:0")] {
            std::os::unix::fs::symlink(target, fds.join(fd)).unwrap();
        }
        let tree = Tree::new(directory.path());
        let (found, refused) = find(&tree, &[1, 77]);
        assert_eq!(found, [(77, 9)]);
        assert!(refused.is_empty(), "{refused:?}");
    }
}
