//! Which VM of a hypervisor's snapshot a guest's snapshot belongs to, and whether the two can belong
//! together at all.

use crate::error::Error;
use crate::snapshot::Snapshot;
use crate::snapshot::model::{Machine, Vm};

/// A guest's RAM ends this much below its VM's memory at most: firmware and kernel keep some at the
/// top.
const SLACK: u64 = 64 << 20;

/// Clocks further apart than this are not set at all: a day.
const UNSET_NS: u64 = 86_400_000_000_000;

/// How far clocks may be apart without a word, in nanoseconds: two minutes.
const CLOCKS_NS: u64 = 120_000_000_000;

/// A VM and how it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Its number in the snapshot.
    pub index: usize,
    /// How it was found, in words.
    pub how: String,
    /// It cannot be another one: an identity or the user says so, not the size of its memory.
    pub certain: bool,
}

/// Finds the VM of `host` that `guest` ran in. `wanted` is a process id, name or UUID. With `force`
/// the only VM will do, whatever its memory is.
///
/// # Errors
/// When there is none, or several; the message lists them.
pub fn find(
    guest: &Machine,
    host: &Snapshot,
    wanted: Option<&str>,
    force: bool,
) -> Result<Match, Error> {
    let vms: Vec<&Vm> = host.vms.iter().map(|backed| &backed.vm).collect();
    let name = &host.head.machine.host;
    if vms.is_empty() {
        return Err(Error::Join(format!(
            "the snapshot of '{name}' has no VM; give the snapshots from the guest down, the host \
             last, and scan the host as root while the VM runs"
        )));
    }
    let only = |fits: &dyn Fn(&Vm) -> bool, how: String, certain: bool| {
        let mut found = (0..vms.len()).filter(|&index| fits(vms[index]));
        match (found.next(), found.next()) {
            (Some(index), None) => Some(Match { index, how, certain }),
            _ => None,
        }
    };
    if let Some(wanted) = wanted {
        let lower = wanted.to_ascii_lowercase();
        let fits = |vm: &Vm| {
            vm.pid.to_string() == wanted
                || vm.vmm.name.as_deref() == Some(wanted)
                || vm.vmm.uuid.as_deref() == Some(lower.as_str())
        };
        return only(&fits, format!("chosen as '{wanted}'"), true).ok_or_else(|| {
            Error::Join(format!("not one VM of '{name}' is '{wanted}'; {}", choices(&vms)))
        });
    }
    if let Some(uuid) = &guest.product_uuid
        && let Some(found) =
            only(&|vm| vm.vmm.uuid.as_ref() == Some(uuid), format!("by its UUID {uuid}"), true)
    {
        return Ok(found);
    }
    let by_ram = only(&|vm| holds(vm, guest), "by the layout of its memory".to_owned(), false);
    if let Some(found) = by_ram.filter(|_| !guest.ram.is_empty()) {
        return Ok(found);
    }
    if let ([vm], true) = (vms.as_slice(), guest.ram.is_empty() || vms[0].slots.is_empty()) {
        let how = format!("the only VM, {}; its memory could not be compared", vm.label());
        return Ok(Match { index: 0, how, certain: false });
    }
    if let ([vm], true) = (vms.as_slice(), force) {
        let how = format!("the only VM, {}, forced", vm.label());
        return Ok(Match { index: 0, how, certain: true });
    }
    let fitting: Vec<&Vm> = vms.iter().copied().filter(|vm| holds(vm, guest)).collect();
    Err(Error::Join(match fitting.len() {
        0 => {
            format!("no VM of '{name}' has the memory that '{}' has; {}", guest.host, choices(&vms))
        }
        _ => format!("several VMs of '{name}' could be '{}'; {}", guest.host, choices(&fitting)),
    }))
}

/// Whether a VM's slots hold the guest's System RAM, and hardly more.
pub fn holds(vm: &Vm, guest: &Machine) -> bool {
    // Firmware lies below 4 GiB and is no RAM; what counts is where RAM begins and ends.
    let covered = guest.ram.iter().all(|&(start, end)| {
        let mut at = start;
        while at < end {
            match vm.slot(at) {
                Some(slot) => at = slot.gpa + slot.size,
                None => return false,
            }
        }
        true
    });
    let ram: u64 = guest.ram.iter().map(|(start, end)| end - start).sum();
    covered && vm.memory() <= ram + SLACK + (vm.memory() >> 6)
}

fn choices(vms: &[&Vm]) -> String {
    let one = |vm: &&Vm| {
        let uuid = vm.vmm.uuid.as_ref().map(|uuid| format!(", {uuid}")).unwrap_or_default();
        format!("{} with {} MiB{uuid}", vm.label(), vm.memory() >> 20)
    };
    let list = vms.iter().take(10).map(one).collect::<Vec<_>>().join("; ");
    let more = if vms.len() > 10 { "; and more" } else { "" };
    format!("choose with --vm PID|NAME|UUID: {list}{more}")
}

/// What speaks against two snapshots being of one stack at one time: reasons to refuse, and notes.
pub fn doubts(guest: &Machine, host: &Machine, vm: &Vm) -> (Vec<String>, Vec<String>) {
    let (mut refuse, mut notes) = (Vec::new(), Vec::new());
    if guest.boot_id.is_some() && guest.boot_id == host.boot_id {
        refuse.push("both snapshots are of the same machine".to_owned());
    }
    if guest.virtual_machine == Some(false) {
        refuse.push(format!("'{}' is no virtual machine", guest.host));
    }
    if !vm.slots.is_empty() && !guest.ram.is_empty() && !holds(vm, guest) {
        refuse.push(format!(
            "the memory of {} is not laid out as the guest's System RAM is",
            vm.label()
        ));
    }
    let apart = guest.wall_ns.abs_diff(host.wall_ns);
    if apart > UNSET_NS {
        notes.push(format!(
            "the clocks of '{}' and '{}' are {} apart: the time between the snapshots is not known",
            guest.host,
            host.host,
            span(apart)
        ));
        return (refuse, notes);
    }
    if apart > CLOCKS_NS {
        notes.push(format!(
            "the snapshots of '{}' and '{}' are {} apart; what changed meanwhile is joined wrongly",
            guest.host,
            host.host,
            span(apart)
        ));
    }
    if let Some(why) = too_old(guest, host, vm) {
        refuse.push(why);
        return (refuse, notes);
    }
    let vm_started = host.booted_ns() + vm.started_ms.saturating_mul(1_000_000);
    if vm.started_ms > 0 && guest.wall_ns + CLOCKS_NS < vm_started {
        refuse.push(format!(
            "{} started {} after the guest's snapshot was taken",
            vm.label(),
            span(vm_started - guest.wall_ns)
        ));
    } else if vm.started_ms > 0 && guest.booted_ns() + CLOCKS_NS < vm_started {
        refuse.push(format!("the guest had booted before {} started", vm.label()));
    }
    (refuse, notes)
}

/// Why the guest cannot have run in the VM for as long as it did, if it cannot. Uptimes are told by
/// each layer's own clock alone; only how far apart the scans were is taken from both.
fn too_old(guest: &Machine, host: &Machine, vm: &Vm) -> Option<String> {
    /// What clocks of one stack may differ and drift, in milliseconds: lab machines under load do
    /// so by some seconds.
    const SLACK_MS: u64 = 10_000;
    let age = host.uptime_ms.checked_sub(vm.started_ms).filter(|_| vm.started_ms > 0)?;
    let later = guest.wall_ns.saturating_sub(host.wall_ns) / 1_000_000;
    let possible = age + later + age / 100 + SLACK_MS;
    (guest.uptime_ms > possible).then(|| {
        format!(
            "the guest had been up for {} when {} was {} old",
            span(guest.uptime_ms * 1_000_000),
            vm.label(),
            span(age * 1_000_000)
        )
    })
}

/// A length of time for people.
pub fn span(ns: u64) -> String {
    match ns / 1_000_000 {
        ms if ms < 10_000 => format!("{ms} ms"),
        ms if ms < 600_000 => format!("{} s", ms / 1000),
        ms if ms < 36_000_000 => format!("{} min", ms / 60_000),
        ms if ms < 172_800_000 => format!("{} h", ms / 3_600_000),
        ms => format!("{} days", ms / 86_400_000),
    }
}
