//! Asking a QEMU that offers a QMP socket nobody uses where its guest memory is.
//!
//! Two questions are asked, `info mtree -f` and `info ramblock`, and whether a migration runs. They
//! change nothing in the VM. A socket with a client, libvirt's for one, is left alone.

use crate::model::Slot;
use crate::tree::Tree;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Longest wait for one answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Longest answer, in bytes.
const LONGEST: u64 = 16 << 20;

/// What the VMM told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Memory slots.
    pub slots: Vec<Slot>,
    /// Whether dirty pages are being logged, as far as migration tells.
    pub dirty_logging: Option<bool>,
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
        match converse(path) {
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

fn converse(path: PathBuf) -> io::Result<Answer> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut session = Session { input: BufReader::new(stream.try_clone()?.take(LONGEST)), stream };
    session.receive("QMP")?;
    session.execute(&json!({"execute": "qmp_capabilities"}))?;
    let tree = session.monitor("info mtree -f")?;
    let blocks = session.monitor("info ramblock")?;
    let migration = session.execute(&json!({"execute": "query-migrate"}))?;
    let status = migration.get("status").and_then(Value::as_str).unwrap_or("none");
    let logging = matches!(status, "active" | "setup" | "device" | "pre-switchover");
    Ok(Answer { slots: slots(&tree, &blocks), dirty_logging: Some(logging) })
}

struct Session {
    input: BufReader<io::Take<UnixStream>>,
    stream: UnixStream,
}

impl Session {
    fn execute(&mut self, command: &Value) -> io::Result<Value> {
        self.stream.write_all(format!("{command}\n").as_bytes())?;
        self.receive("return")
    }

    fn monitor(&mut self, line: &str) -> io::Result<String> {
        let command = json!({
            "execute": "human-monitor-command",
            "arguments": {"command-line": line},
        });
        Ok(self.execute(&command)?.as_str().unwrap_or("").to_owned())
    }

    /// The next message with this key; events in between are left out.
    fn receive(&mut self, key: &str) -> io::Result<Value> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.input.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut message: Value = serde_json::from_str(&line)?;
            if let Some(error) = message.get("error") {
                return Err(io::Error::other(error.to_string()));
            }
            if let Some(found) = message.get_mut(key) {
                return Ok(found.take());
            }
        }
    }
}

/// Slots by the flat view that KVM uses and the addresses of the blocks it names.
pub fn slots(mtree: &str, ramblocks: &str) -> Vec<Slot> {
    let blocks = blocks(ramblocks);
    let mut slots = Vec::new();
    let mut ours = false;
    for line in mtree.lines() {
        if line.starts_with("FlatView") {
            ours = false;
        } else if line.trim_start().starts_with("AS \"memory\"") {
            ours = true;
        } else if ours {
            slots.extend(flat_range(line, &blocks));
        }
    }
    slots.sort_by_key(|slot: &Slot| slot.gpa);
    slots
}

/// `  00000000000c0000-00000000000cafff (prio 0, rom): pc.ram @00000000000c0000 KVM`
fn flat_range(line: &str, blocks: &BTreeMap<String, (u64, u64)>) -> Option<Slot> {
    let (range, rest) = line.trim().split_once(" (prio ")?;
    let (kind, rest) = rest.split_once("): ")?;
    if !(kind.ends_with(", ram") || kind.ends_with(", rom")) {
        return None;
    }
    let rest = rest.strip_suffix(" KVM")?;
    let (name, offset) = match rest.rsplit_once(" @") {
        Some((name, offset)) => (name, u64::from_str_radix(offset.trim(), 16).ok()?),
        None => (rest, 0),
    };
    let (start, last) = range.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let size = u64::from_str_radix(last, 16).ok()?.checked_sub(start)?.checked_add(1)?;
    let &(hva, length) = blocks.get(name.trim())?;
    // What holds no guest memory, option ROMs and video memory, is left out by its size.
    if offset.checked_add(size)? > length {
        return None;
    }
    Some(Slot { gpa: start, hva: hva.checked_add(offset)?, size })
}

/// Blocks by the last part of their names: HVA and bytes.
fn blocks(text: &str) -> BTreeMap<String, (u64, u64)> {
    let line = |line: &str| {
        let name = line.split_whitespace().next()?;
        let numbers: Vec<u64> = line
            .split_whitespace()
            .filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
            .collect();
        // Offset, used, total, HVA; the last since QEMU 7.1.
        let &[_, used, _, hva] = numbers.as_slice() else { return None };
        let name = name.rsplit('/').next().unwrap_or(name);
        Some((name.to_owned(), (hva, used)))
    };
    text.lines().filter_map(line).collect()
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
    const BLOCKS: &str = "\
              Block Name    PSize              Offset               Used              Total                HVA  RO
                  pc.ram    4 KiB  0x0000000000000000 0x0000000100000000 0x0000000100000000 0x00007f0000000000  rw
                pc.bios    4 KiB  0x0000000100000000 0x0000000000040000 0x0000000000040000 0x00007e0000000000  ro
";

    #[test]
    fn slots_are_joined_from_the_two_answers() {
        let slots = slots(MTREE, BLOCKS);
        let shape: Vec<_> = slots.iter().map(|slot| (slot.gpa, slot.hva, slot.size)).collect();
        assert_eq!(
            shape,
            [
                (0, 0x7f00_0000_0000, 0xa_0000),
                (0xc_0000, 0x7f00_000c_0000, 0xb000),
                (0xfffc_0000, 0x7e00_0000_0000, 0x4_0000),
                (0x1_0000_0000, 0x7f00_c000_0000, 0x4000_0000),
            ]
        );
    }

    #[test]
    fn before_qemu_7_1_no_address_is_told() {
        let old = "pc.ram 4 KiB 0x0000000000000000 0x0000000100000000 0x0000000100000000\n";
        assert!(slots(MTREE, old).is_empty());
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
