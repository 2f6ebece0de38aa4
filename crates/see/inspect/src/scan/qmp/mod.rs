//! Asking a QEMU that offers a QMP socket nobody uses where its guest memory is.
//!
//! Asked are `info mtree -f`, `gpa2hva` for each range of it that is memory, whether a migration or a
//! dirty-rate measurement runs, and what the balloon holds. These change nothing in the VM. A socket with a client, libvirt's for one, is left alone.

mod client;

pub use client::{Client, QmpError};

use crate::scan::tree::Tree;
use crate::snapshot::model::Slot;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the VMM told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Memory slots.
    pub slots: Vec<Slot>,
    /// Whether dirty pages are being logged, as far as migration and dirty-rate measurement tell.
    pub dirty_logging: Option<bool>,
    /// Bytes that the balloon holds.
    pub ballooned: Option<u64>,
}

/// Asks the first socket that is free.
///
/// # Errors
/// Why none could be asked, in words.
pub fn ask(tree: &Tree, pid: u32, sockets: &[String]) -> Result<Answer, String> {
    let table = tree.maybe(&format!("proc/{pid}/net/unix")).unwrap_or_default();
    let mut why = "no socket is offered".to_owned();
    for socket in sockets {
        if !is_free(&table, socket) {
            why = format!("the socket {socket} is in use");
            continue;
        }
        // The VMM may live in other mounts.
        let path = match socket.strip_prefix('/') {
            Some(rest) => tree.path(&format!("proc/{pid}/root/{rest}")),
            None => tree.path(&format!("proc/{pid}/cwd/{socket}")),
        };
        match converse(&path) {
            Ok(answer) => return Ok(answer),
            Err(error) => why = format!("the socket {socket} did not answer: {error}"),
        }
    }
    Err(why)
}

/// Whether a listening socket has no client, by `/proc/PID/net/unix`: a client's connection shows
/// there under the listener's path.
fn is_free(table: &str, path: &str) -> bool {
    let rows = table.lines().filter(|line| line.split_whitespace().nth(7) == Some(path));
    let states: Vec<&str> = rows.filter_map(|line| line.split_whitespace().nth(5)).collect();
    // SS_UNCONNECTED, and no other row.
    states == ["01"]
}

fn converse(path: &Path) -> Result<Answer, QmpError> {
    let mut vmm = Client::connect(path, Some(PATIENCE))?;
    let nothing = json!({});
    let mut slots = ranges(&monitor(&mut vmm, "info mtree -f")?);
    for slot in &mut slots {
        let answer = monitor(&mut vmm, &format!("gpa2hva {:#x}", slot.gpa))?;
        slot.hva = address(&answer).unwrap_or(0);
    }
    slots.retain(|slot| slot.hva != 0);
    let mut logging = migrates(&vmm.execute("query-migrate", &nothing)?);
    if logging {
        // An error is an answer too: of a QEMU without this.
        let capabilities = vmm.execute("query-migrate-capabilities", &nothing);
        logging = !capabilities.is_ok_and(|list| is_snapshot(&list));
    }
    let rate = vmm.execute("query-dirty-rate", &nothing);
    logging |= rate.is_ok_and(|rate| measures(&rate));
    let balloon = vmm.execute("query-balloon", &nothing).ok();
    let actual = balloon.and_then(|balloon| balloon.get("actual")?.as_u64());
    let summary = vmm.execute("query-memory-size-summary", &nothing).ok();
    let memory = summary.and_then(|summary| summary.get("base-memory")?.as_u64());
    let ballooned = memory.zip(actual).map(|(memory, actual)| memory.saturating_sub(actual));
    Ok(Answer { slots, dirty_logging: Some(logging), ballooned })
}

/// What the human monitor answers to a line.
fn monitor(vmm: &mut Client, line: &str) -> Result<String, QmpError> {
    let answer = vmm.execute("human-monitor-command", &json!({ "command-line": line }))?;
    Ok(answer.as_str().unwrap_or("").to_owned())
}

/// Whether a migration runs, by the answer to `query-migrate`.
fn migrates(answer: &Value) -> bool {
    let status = answer.get("status").and_then(Value::as_str).unwrap_or("none");
    matches!(status, "active" | "setup" | "device" | "pre-switchover")
}

/// Whether what runs is a snapshot of a running VM, by the answer to `query-migrate-capabilities`:
/// QEMU learns of writes by userfaultfd then, and KVM logs nothing.
fn is_snapshot(capabilities: &Value) -> bool {
    capabilities.as_array().into_iter().flatten().any(|one| {
        one.get("capability").and_then(Value::as_str) == Some("background-snapshot")
            && one.get("state").and_then(Value::as_bool) == Some(true)
    })
}

/// Whether a measurement of the dirty rate makes KVM log writes, by the answer to
/// `query-dirty-rate`. One that samples pages does not.
fn measures(answer: &Value) -> bool {
    let text = |key| answer.get(key).and_then(Value::as_str);
    text("status") == Some("measuring") && text("mode") != Some("page-sampling")
}

/// Most ranges that are asked about; VMs have some ten.
const RANGES: usize = 256;

/// Memory by the flat view that KVM uses, without its place in the VMM.
pub fn ranges(mtree: &str) -> Vec<Slot> {
    // Ranges that KVM does not know are no slots; under another accelerator none is marked.
    let marked = mtree.contains(" KVM");
    let mut slots = Vec::new();
    let mut ours = false;
    for line in mtree.lines() {
        if line.starts_with("FlatView") {
            ours = false;
        } else if line.trim_start().starts_with("AS \"memory\"") {
            ours = true;
        } else if ours && (!marked || line.ends_with(" KVM")) {
            slots.extend(flat_range(line));
        }
    }
    slots.sort_by_key(|slot: &Slot| slot.gpa);
    slots.truncate(RANGES);
    slots
}

/// `  00000000000c0000-00000000000cafff (prio 0, rom): pc.ram @00000000000c0000 KVM`
fn flat_range(line: &str) -> Option<Slot> {
    let (range, rest) = line.trim().split_once(" (prio ")?;
    let (kind, _) = rest.split_once("): ")?;
    if !(kind.ends_with(", ram") || kind.ends_with(", rom")) {
        return None;
    }
    let (start, last) = range.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let size = u64::from_str_radix(last, 16).ok()?.checked_sub(start)?.checked_add(1)?;
    Some(Slot { gpa: start, hva: 0, size })
}

/// `Host virtual address for 0x0 (pc.ram) is 0x7f0000000000`
fn address(answer: &str) -> Option<u64> {
    let (_, address) = answer.trim().rsplit_once(" is 0x")?;
    u64::from_str_radix(address, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTREE: &str = "\
FlatView #0
 AS \"I/O\", root: io
 Root memory region: io
  0000000000000000-0000000000000007 (prio 0, i/o): dma-chan KVM
FlatView #1
 AS \"memory\", root: system
 AS \"cpu-memory-0\", root: system
 Root memory region: system
  0000000000000000-000000000009ffff (prio 0, ram): pc.ram KVM
  00000000000a0000-00000000000bffff (prio 1, i/o): vga-lowmem
  00000000000c0000-00000000000cafff (prio 0, rom): pc.ram @00000000000c0000 KVM
  00000000fffc0000-00000000ffffffff (prio 0, rom): pc.bios KVM
  0000000100000000-000000013fffffff (prio 0, ram): pc.ram @00000000c0000000 KVM
";
    #[test]
    fn what_kvm_has_as_memory_is_asked_about() {
        let shape = |text: &str| -> Vec<_> {
            ranges(text).iter().map(|slot| (slot.gpa, slot.size)).collect()
        };
        let expected = [
            (0, 0xa_0000),
            (0xc_0000, 0xb000),
            (0xfffc_0000, 0x4_0000),
            (0x1_0000_0000, 0x4000_0000),
        ];
        assert_eq!(shape(MTREE), expected);
        assert_eq!(shape(&MTREE.replace(" KVM", "")), expected);
        let unknown_to_kvm = MTREE.replace("pc.bios KVM", "pc.bios");
        assert_eq!(shape(&unknown_to_kvm).len(), 3);
        assert!(shape("nothing\n of (prio): the kind").is_empty());
    }

    #[test]
    fn addresses_are_read_and_complaints_are_none() {
        let answer = "Host virtual address for 0x0 (pc.ram) is 0x7f0000000000\r\n";
        assert_eq!(address(answer), Some(0x7f00_0000_0000));
        assert_eq!(address("Memory at address 0xa0000 is not RAM"), None);
    }

    #[test]
    fn what_logs_writes_is_told_from_what_does_not() {
        assert!(migrates(&json!({"status": "active", "ram": {}})));
        assert!(!migrates(&json!({"status": "completed"})) && !migrates(&json!({})));
        let capability = |state| {
            json!([{"capability": "xbzrle", "state": true},
                   {"capability": "background-snapshot", "state": state}])
        };
        assert!(is_snapshot(&capability(true)) && !is_snapshot(&capability(false)));
        let rate = |status, mode| json!({"status": status, "mode": mode, "calc-time": 10});
        assert!(measures(&rate("measuring", "dirty-bitmap")));
        assert!(!measures(&rate("measuring", "page-sampling")));
        assert!(!measures(&rate("measured", "dirty-bitmap")) && !measures(&json!({})));
    }

    #[test]
    fn a_socket_with_a_client_is_left_alone() {
        let listening = "Num RefCount Protocol Flags Type St Inode Path\n\
                         0: 00000002 00000000 00010000 0001 01 123 /run/q.sock\n";
        assert!(is_free(listening, "/run/q.sock"));
        let busy = format!("{listening}0: 00000003 00000000 00000000 0001 03 124 /run/q.sock\n");
        assert!(!is_free(&busy, "/run/q.sock"));
        assert!(!is_free(listening, "/run/other.sock"));
        let busy = ask(&Tree::new("/nowhere"), 1, &["/run/q.sock".to_owned()]).unwrap_err();
        assert_eq!(busy, "the socket /run/q.sock is in use");
    }
}
