//! What a VMM's command line says about its VM.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Programs whose memory layout is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VmmKind {
    /// QEMU, `qemu-system-x86_64` or `qemu-kvm`.
    Qemu,
    /// cloud-hypervisor.
    CloudHypervisor,
    /// Firecracker.
    Firecracker,
    /// Anything else.
    #[default]
    Other,
}

/// What is known of a VMM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vmm {
    /// The program.
    pub kind: VmmKind,
    /// QEMU's machine type, such as `pc` or `q35`.
    pub machine: Option<String>,
    /// Bytes of guest memory, where the command line tells.
    pub memory: Option<u64>,
    /// The VM's UUID.
    pub uuid: Option<String>,
    /// The VM's name.
    pub name: Option<String>,
    /// Bytes of each memory backend, in the order of their use.
    pub backends: Vec<u64>,
    /// Upper bound of memory below 4 GiB that the user chose.
    pub below_4g: Option<u64>,
    /// Whether the VM has a balloon.
    pub balloon: bool,
    /// Paths of QMP sockets it listens on.
    pub qmp: Vec<String>,
}

/// Parses the words of a command line.
pub fn parse(words: &[String]) -> Vmm {
    let program = words.first().and_then(|word| word.rsplit('/').next()).unwrap_or("");
    let kind = match program {
        name if name.starts_with("qemu-system-") || name.starts_with("qemu-kvm") => VmmKind::Qemu,
        // Debian's link, and what the program is called where only one is installed.
        "kvm" | "qemu" => VmmKind::Qemu,
        name if name.starts_with("cloud-hypervisor") => VmmKind::CloudHypervisor,
        name if name.starts_with("firecracker") => VmmKind::Firecracker,
        _ => VmmKind::Other,
    };
    let mut vmm = Vmm { kind, ..Vmm::default() };
    match kind {
        VmmKind::Qemu => qemu(words, &mut vmm),
        VmmKind::CloudHypervisor => cloud_hypervisor(words, &mut vmm),
        VmmKind::Firecracker => {
            // Memory is set through its API, the name is an option.
            vmm.name = options(words).find(|(name, _)| *name == "id").map(|(_, v)| v.to_owned());
        }
        VmmKind::Other => {}
    }
    vmm
}

/// Options with their values: `-m 4G`, `--name x`, `--name=x`.
fn options(words: &[String]) -> impl Iterator<Item = (&str, &str)> {
    words.iter().enumerate().filter_map(|(index, word)| {
        let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
        match name.split_once('=') {
            Some((name, value)) if word.starts_with("--") => Some((name, value)),
            _ => Some((name, words.get(index + 1).map_or("", String::as_str))),
        }
    })
}

/// `a,b=c` as pairs; the first word without `=` has the name `""`.
fn keys(value: &str) -> BTreeMap<&str, &str> {
    let pairs = value.split(',').map(|part| part.split_once('=').unwrap_or(("", part)));
    pairs.collect()
}

/// A size; `unit` is what a bare number counts.
fn size(text: &str, unit: u64) -> Option<u64> {
    let is_bare = text.trim_end().ends_with(|last: char| last.is_ascii_digit());
    strata_text::parse_size(text).ok()?.checked_mul(if is_bare { unit } else { 1 })
}

fn qemu(words: &[String], vmm: &mut Vmm) {
    // QEMU's own defaults: 128 MiB, machine pc.
    vmm.memory = Some(128 << 20);
    vmm.machine = Some("pc".to_owned());
    let mut objects: BTreeMap<String, u64> = BTreeMap::new();
    let mut numa: Vec<String> = Vec::new();
    let mut memdev = None;
    let mut monitors: Vec<String> = Vec::new();
    let mut sockets: BTreeMap<String, String> = BTreeMap::new();
    for (option, value) in options(words) {
        let keys = keys(value);
        match option {
            "m" => {
                let given =
                    keys.get("size").or_else(|| keys.get("")).and_then(|s| size(s, 1 << 20));
                vmm.memory = given.or(vmm.memory);
            }
            "M" | "machine" => {
                if let Some(machine) = keys.get("type").or_else(|| keys.get("")) {
                    vmm.machine = Some((*machine).to_owned());
                }
                memdev = keys.get("memory-backend").map(|id| (*id).to_owned()).or(memdev);
                let bound = keys.get("max-ram-below-4g").and_then(|s| size(s, 1));
                vmm.below_4g = bound.or(vmm.below_4g);
            }
            "uuid" => vmm.uuid = Some(value.to_ascii_lowercase()),
            "smbios" => {
                let uuid = keys.get("uuid").map(|uuid| uuid.to_ascii_lowercase());
                vmm.uuid = uuid.or(vmm.uuid.take());
            }
            "name" => {
                let name = keys.get("guest").or_else(|| keys.get("")).map(|n| (*n).to_owned());
                vmm.name = name.or(vmm.name.take());
            }
            "object" if value.starts_with("memory-backend-") => {
                let size = keys.get("size").and_then(|s| size(s, 1));
                if let (Some(id), Some(size)) = (keys.get("id"), size) {
                    objects.insert((*id).to_owned(), size);
                }
            }
            "numa" => numa.extend(keys.get("memdev").map(|id| (*id).to_owned())),
            "device" => vmm.balloon |= value.starts_with("virtio-balloon"),
            "balloon" => vmm.balloon |= value.starts_with("virtio"),
            "qmp" => vmm.qmp.extend(unix_server(value)),
            "chardev" if value.starts_with("socket") => {
                if let (Some(id), Some(path)) = (keys.get("id"), keys.get("path")) {
                    sockets.insert((*id).to_owned(), (*path).to_owned());
                }
            }
            "mon" if keys.get("mode") == Some(&"control") => {
                let id = keys.get("chardev").or_else(|| keys.get(""));
                monitors.extend(id.map(|id| (*id).to_owned()));
            }
            _ => {}
        }
    }
    vmm.qmp.extend(monitors.iter().filter_map(|id| sockets.get(id).cloned()));
    let used = if numa.is_empty() { memdev.into_iter().collect() } else { numa };
    vmm.backends = used.iter().filter_map(|id| objects.get(id).copied()).collect();
}

/// `unix:/path,server=on,wait=off`.
fn unix_server(value: &str) -> Option<String> {
    let (path, rest) = value.strip_prefix("unix:")?.split_once(',')?;
    let server = rest.split(',').any(|key| matches!(key, "server" | "server=on"));
    server.then(|| path.to_owned())
}

fn cloud_hypervisor(words: &[String], vmm: &mut Vmm) {
    vmm.memory = Some(512 << 20);
    for (option, value) in options(words) {
        let keys = keys(value);
        match option {
            "memory" => {
                vmm.memory = keys.get("size").and_then(|s| size(s, 1)).or(vmm.memory);
            }
            "balloon" => vmm.balloon = true,
            "platform" => vmm.uuid = keys.get("uuid").map(|uuid| uuid.to_ascii_lowercase()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Vmm {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn qemus_options() {
        let vmm = of(
            "/usr/bin/qemu-system-x86_64 -M q35,accel=kvm,memory-backend=ram0 -m size=4G,slots=2 \
             -name guest=vm7,debug-threads=on -uuid 11111111-2222-3333-4444-55555555AAAA \
             -object memory-backend-memfd,id=ram0,size=4G,share=on -device virtio-balloon-pci \
             -qmp unix:/run/q.sock,server=on,wait=off",
        );
        assert_eq!((vmm.kind, vmm.machine.as_deref()), (VmmKind::Qemu, Some("q35")));
        assert_eq!((vmm.memory, vmm.backends.as_slice()), (Some(4 << 30), &[4 << 30][..]));
        assert_eq!(vmm.uuid.as_deref(), Some("11111111-2222-3333-4444-55555555aaaa"));
        assert_eq!(vmm.name.as_deref(), Some("vm7"));
        assert!(vmm.balloon);
        assert_eq!(vmm.qmp, ["/run/q.sock"]);
    }

    #[test]
    fn defaults_numa_and_monitors() {
        let vmm = of("qemu-system-x86_64");
        assert_eq!((vmm.memory, vmm.machine.as_deref()), (Some(128 << 20), Some("pc")));
        let vmm = of("kvm -m 1.5G -object memory-backend-ram,id=b,size=1G \
             -object memory-backend-file,id=a,size=512M,mem-path=/x -numa node,memdev=a -numa node,memdev=b \
             -chardev socket,id=mon,path=/m.sock,server=on,wait=off -mon chardev=mon,mode=control");
        assert_eq!(vmm.memory, Some(3 << 29));
        assert_eq!(vmm.backends, [512 << 20, 1 << 30]);
        assert_eq!(vmm.qmp, ["/m.sock"]);
        assert_eq!(of("qemu-kvm -m 300").memory, Some(300 << 20));
        assert_eq!(of("/bin/qemu -m 300").kind, VmmKind::Qemu);
    }

    #[test]
    fn others() {
        let vmm = of("cloud-hypervisor --memory size=2G,shared=on --balloon size=0");
        assert_eq!(
            (vmm.kind, vmm.memory, vmm.balloon),
            (VmmKind::CloudHypervisor, Some(2 << 30), true)
        );
        let vmm = of("/bin/firecracker --id=a1 --api-sock /s");
        assert_eq!((vmm.kind, vmm.name.as_deref()), (VmmKind::Firecracker, Some("a1")));
        assert_eq!(of("lkvm run").kind, VmmKind::Other);
        assert_eq!(parse(&[]).kind, VmmKind::Other);
    }

    #[test]
    fn sizes() {
        assert_eq!(size("12x", 1), None);
        assert_eq!(size("99999999999999999999G", 1), None);
        assert_eq!(size("99999999999999", 1 << 20), None);
        assert_eq!(size("64KiB", 1), Some(64 << 10));
        assert_eq!(size("512", 1 << 20), Some(512 << 20));
        assert_eq!(size("512B", 1 << 20), Some(512));
        assert_eq!(size("1.5G", 1 << 20), Some(3 << 29));
    }
}
