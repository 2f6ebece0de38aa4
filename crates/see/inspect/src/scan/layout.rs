//! Where a VMM puts a VM's memory in its physical address space, when nobody can be asked.
//!
//! The rules are those of the programs' sources; the file is named at each.

use crate::text::cmdline::{Vmm, VmmKind};

const GIB: u64 = 1 << 30;
const FOUR_GIB: u64 = 4 * GIB;

/// A piece of guest-physical memory: `size` bytes at `gpa`, from byte `offset` of the VM's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First guest-physical byte.
    pub gpa: u64,
    /// Where it is in the VM's memory, counted over all its backends.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// How the VM's `memory` bytes lie, or `None` when the program's rule is not known and the memory
/// too large to lie below every hole.
pub fn pieces(vmm: &Vmm, memory: u64) -> Option<Vec<Piece>> {
    let below = match vmm.kind {
        VmmKind::Qemu => qemu_below_4g(vmm, memory)?,
        // arch/x86_64/src/layout.rs: MEM_32BIT_RESERVED_START.
        VmmKind::CloudHypervisor => memory.min(3 * GIB),
        // src/vmm/src/arch/x86_64/layout.rs: MMIO32_MEM_START, 768 MiB below 4 GiB.
        VmmKind::Firecracker => memory.min(FOUR_GIB - (768 << 20)),
        // Every x86 machine has devices below 4 GiB; none known has them below 2 GiB.
        VmmKind::Other if memory <= 2 * GIB => memory,
        VmmKind::Other => return None,
    };
    let mut pieces = Vec::new();
    if vmm.kind == VmmKind::Qemu && below > 0x10_0000 && !is_microvm(vmm) {
        // 640 KiB, then the VGA window, then memory again (hw/i386/pc.c, hw/pci-host/pam.c).
        pieces.push(Piece { gpa: 0, offset: 0, size: 0xa_0000 });
        pieces.push(Piece { gpa: 0xc_0000, offset: 0xc_0000, size: below - 0xc_0000 });
    } else {
        pieces.push(Piece { gpa: 0, offset: 0, size: below });
    }
    if memory > below {
        pieces.push(Piece { gpa: FOUR_GIB, offset: below, size: memory - below });
    }
    Some(pieces)
}

fn machine(vmm: &Vmm) -> &str {
    vmm.machine.as_deref().unwrap_or("pc")
}

fn is_microvm(vmm: &Vmm) -> bool {
    machine(vmm).starts_with("microvm")
}

/// Bytes of memory that QEMU puts below 4 GiB.
fn qemu_below_4g(vmm: &Vmm, memory: u64) -> Option<u64> {
    let machine = machine(vmm);
    if is_microvm(vmm) {
        // hw/i386/microvm.c, microvm_memory_init.
        return Some(memory.min(3 * GIB));
    }
    let low = if machine.contains("q35") {
        // hw/i386/pc_q35.c: leaves room for PCI Express configuration space.
        let low = if memory >= 0xb000_0000 { 0x8000_0000 } else { 0xb000_0000 };
        low.min(vmm.below_4g.unwrap_or(FOUR_GIB))
    } else if machine == "pc" || machine.starts_with("pc-i440fx") || machine.contains("i440") {
        // hw/i386/pc_piix.c: 3.5 GiB, rounded to whole GiB for large memory.
        let bound = vmm.below_4g.unwrap_or(0xe000_0000);
        if memory >= bound { bound.min(0xc000_0000) } else { bound }
    } else {
        return None;
    };
    Some(memory.min(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qemu(machine: &str, memory: u64) -> Vec<(u64, u64, u64)> {
        let vmm = Vmm { kind: VmmKind::Qemu, machine: Some(machine.to_owned()), ..Vmm::default() };
        let pieces = pieces(&vmm, memory).unwrap();
        pieces.iter().map(|piece| (piece.gpa, piece.offset, piece.size)).collect()
    }

    #[test]
    fn qemus_holes() {
        let rest = |below: u64| (0xc_0000, 0xc_0000, below - 0xc_0000);
        let first = (0, 0, 0xa_0000);
        assert_eq!(qemu("pc", GIB), [first, rest(GIB)]);
        assert_eq!(qemu("pc", 3 * GIB), [first, rest(3 * GIB)]);
        assert_eq!(
            qemu("pc-i440fx-7.2", 4 * GIB),
            [first, rest(3 * GIB), (FOUR_GIB, 3 * GIB, GIB),]
        );
        assert_eq!(qemu("q35", 2 * GIB), [first, rest(2 * GIB)]);
        assert_eq!(
            qemu("pc-q35-7.2", 8 * GIB),
            [first, rest(2 * GIB), (FOUR_GIB, 2 * GIB, 6 * GIB),]
        );
        assert_eq!(qemu("microvm", 4 * GIB), [(0, 0, 3 * GIB), (FOUR_GIB, 3 * GIB, GIB)]);
    }

    #[test]
    fn others_and_the_unknown() {
        let other = |kind| Vmm { kind, ..Vmm::default() };
        let of = |kind, memory| pieces(&other(kind), memory);
        assert_eq!(of(VmmKind::CloudHypervisor, 4 * GIB).unwrap()[1].offset, 3 * GIB);
        assert_eq!(of(VmmKind::Firecracker, 4 * GIB).unwrap()[0].size, 0xd000_0000);
        assert_eq!(of(VmmKind::Other, GIB).unwrap().len(), 1);
        assert_eq!(of(VmmKind::Other, 3 * GIB), None);
        let odd = Vmm { kind: VmmKind::Qemu, machine: Some("isapc".to_owned()), ..Vmm::default() };
        assert_eq!(pieces(&odd, GIB), None);
    }

    #[test]
    fn every_byte_is_placed_once() {
        for machine in ["pc", "q35", "microvm"] {
            for memory in (1..200).map(|step| step * (64 << 20)) {
                let vmm = Vmm {
                    kind: VmmKind::Qemu,
                    machine: Some(machine.to_owned()),
                    ..Vmm::default()
                };
                let pieces = pieces(&vmm, memory).unwrap();
                let hidden = if machine == "microvm" { 0 } else { 0x2_0000 };
                assert_eq!(pieces.iter().map(|piece| piece.size).sum::<u64>() + hidden, memory);
                assert!(pieces.windows(2).all(|two| two[0].gpa + two[0].size <= two[1].gpa));
            }
        }
    }
}
