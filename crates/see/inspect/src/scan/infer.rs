//! Memory slots inferred from the sizes of a VMM's mappings.

use crate::scan::layout::pieces;
use crate::snapshot::model::{Slot, VmmArea};
use crate::text::cmdline::{Vmm, VmmKind};
use crate::text::maps::Kind;

/// Slots, and how sure they are in words.
///
/// # Errors
/// Why they cannot be inferred, in words.
pub fn slots(vmm: &Vmm, areas: &[VmmArea]) -> Result<(Vec<Slot>, String), String> {
    let (memory, blocks) = match vmm.kind {
        VmmKind::Qemu if !vmm.backends.is_empty() => (
            vmm.backends.iter().fold(0u64, |sum, &size| sum.saturating_add(size)),
            vmm.backends.clone(),
        ),
        VmmKind::Qemu => {
            let memory = vmm.memory.ok_or("its command line gives no memory size")?;
            (memory, vec![memory])
        }
        VmmKind::CloudHypervisor => {
            let memory = vmm.memory.ok_or("its command line gives no memory size")?;
            let pieces = pieces(vmm, memory).ok_or("its memory layout is not known")?;
            (memory, pieces.iter().map(|piece| piece.size).collect())
        }
        VmmKind::Firecracker | VmmKind::Other => largest(vmm, areas)?,
    };
    let (starts, note) = place(&blocks, areas)?;
    let pieces = pieces(vmm, memory).ok_or_else(|| match &vmm.machine {
        Some(machine) => format!("the memory layout of machine '{machine}' is not known"),
        None => "the memory layout of this VMM is not known".to_owned(),
    })?;
    let mut slots = Vec::new();
    for piece in pieces {
        let (mut gpa, mut offset, mut left) = (piece.gpa, piece.offset, piece.size);
        let mut block_start = 0;
        for (&size, &hva) in blocks.iter().zip(&starts) {
            let within = offset.saturating_sub(block_start);
            if left > 0 && offset >= block_start && within < size {
                let part = left.min(size - within);
                slots.push(Slot { gpa, hva: hva + within, size: part });
                (gpa, offset, left) = (gpa + part, offset + part, left - part);
            }
            block_start += size;
        }
    }
    Ok((slots, note))
}

/// Memory of a VMM that does not tell: its largest mapping, and for Firecracker, which maps what
/// lies above the hole for itself, the largest two.
fn largest(vmm: &Vmm, areas: &[VmmArea]) -> Result<(u64, Vec<u64>), String> {
    let mut sizes: Vec<u64> = areas.iter().map(|area| area.end - area.start).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let &first = sizes.first().ok_or("it has no mapping that could be guest memory")?;
    let below = 0xd000_0000;
    if vmm.kind == VmmKind::Firecracker && sizes.contains(&below) {
        let above = sizes.iter().copied().find(|&size| size != below).unwrap_or(0);
        return Ok((below + above, [below, above].into_iter().filter(|&size| size > 0).collect()));
    }
    Ok((first, vec![first]))
}

/// Where each block is mapped.
fn place(blocks: &[u64], areas: &[VmmArea]) -> Result<(Vec<u64>, String), String> {
    let mut taken: Vec<u64> = Vec::new();
    let mut note = "sizes of mappings and the layout rules of the VMM".to_owned();
    for &size in blocks {
        let mut fitting: Vec<(u64, Kind)> = stretches(areas, size);
        fitting.retain(|(start, _)| !taken.contains(start));
        // VMMs align guest memory; other mappings of that size are chance.
        fitting.sort_by_key(|(start, kind)| {
            (!start.is_multiple_of(2 << 20), *kind == Kind::Anonymous, *start)
        });
        let Some((start, _)) = fitting.first() else {
            return Err(format!("it maps nothing of exactly {size} bytes"));
        };
        if fitting.len() > 1 && fitting[1].0.is_multiple_of(2 << 20) {
            note = format!("{note}; {} mappings of {size} bytes, one was taken", fitting.len());
        }
        taken.push(*start);
    }
    Ok((taken, note))
}

/// Starts of stretches of neighbouring areas of one kind that are `size` bytes together: memory is
/// one area until part of it is advised or registered otherwise.
fn stretches(areas: &[VmmArea], size: u64) -> Vec<(u64, Kind)> {
    let mut found = Vec::new();
    for (index, first) in areas.iter().enumerate() {
        let mut end = first.start;
        for area in &areas[index..] {
            if area.start != end || (area.kind, &area.name) != (first.kind, &first.name) {
                break;
            }
            end = area.end;
            if end - first.start >= size {
                break;
            }
        }
        if end - first.start == size {
            found.push((first.start, first.kind));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn area(start: u64, size: u64) -> VmmArea {
        VmmArea { start, end: start + size, ..VmmArea::default() }
    }

    fn qemu(memory: u64) -> Vmm {
        let machine = Some("pc".to_owned());
        Vmm { kind: VmmKind::Qemu, machine, memory: Some(memory), ..Vmm::default() }
    }

    #[test]
    fn qemus_memory_is_one_mapping_with_a_hole_in_physical_space() {
        let areas = [area(0x7000_0000_0000, GIB / 2), area(0x7f00_0000_0000, 4 * GIB)];
        let (slots, _) = slots(&qemu(4 * GIB), &areas).unwrap();
        let last = Slot { gpa: 4 * GIB, hva: 0x7f00_0000_0000 + 3 * GIB, size: GIB };
        assert_eq!((slots.len(), slots[2]), (3, last));
        assert!(slots.iter().all(Slot::congruent));
    }

    #[test]
    fn memory_cut_by_advice_is_put_together() {
        let areas = [area(0x7f00_0000_0000, GIB), area(0x7f00_4000_0000, GIB)];
        let (slots, _) = slots(&qemu(2 * GIB), &areas).unwrap();
        assert_eq!(slots.last().map(|slot| slot.size), Some(2 * GIB - 0xc_0000));
    }

    #[test]
    fn backends_follow_each_other() {
        let mut vmm = qemu(3 * GIB);
        vmm.backends = vec![GIB, 2 * GIB];
        let areas = [area(0x7e00_0000_0000, 2 * GIB), area(0x7f00_0000_0000, GIB)];
        let (slots, _) = slots(&vmm, &areas).unwrap();
        let shape: Vec<_> = slots.iter().map(|slot| (slot.gpa, slot.hva)).collect();
        let second = (GIB, 0x7e00_0000_0000);
        assert_eq!(shape, [(0, 0x7f00_0000_0000), (0xc_0000, 0x7f00_000c_0000), second]);
    }

    #[test]
    fn what_cannot_be_inferred_says_why() {
        let why = slots(&qemu(GIB), &[area(0x7f00_0000_0000, GIB + 4096)]).unwrap_err();
        assert_eq!(why, "it maps nothing of exactly 1073741824 bytes");
        let odd = Vmm { machine: Some("isapc".to_owned()), ..qemu(GIB) };
        let why = slots(&odd, &[area(0, GIB)]).unwrap_err();
        assert_eq!(why, "the memory layout of machine 'isapc' is not known");
        assert!(slots(&Vmm::default(), &[]).unwrap_err().contains("no mapping"));
        assert!(slots(&Vmm::default(), &[area(0, 4 * GIB)]).unwrap_err().contains("not known"));
    }

    #[test]
    fn two_that_fit_are_told() {
        let areas = [area(0x7e00_0000_0000, GIB), area(0x7f00_0000_0000, GIB)];
        let (_, note) = slots(&qemu(GIB), &areas).unwrap();
        assert!(note.contains("2 mappings of 1073741824 bytes, one was taken"), "{note}");
    }

    #[test]
    fn firecracker_and_cloud_hypervisor_map_each_piece() {
        let firecracker = Vmm { kind: VmmKind::Firecracker, ..Vmm::default() };
        let areas = [area(0x7000_0000_0000, GIB), area(0x7f00_0000_0000, 0xd000_0000)];
        let (found, _) = slots(&firecracker, &areas).unwrap();
        assert_eq!(found[1], Slot { gpa: 4 * GIB, hva: 0x7000_0000_0000, size: GIB });
        let kind = VmmKind::CloudHypervisor;
        let cloud = Vmm { kind, memory: Some(4 * GIB), ..Vmm::default() };
        let areas = [area(0x7000_0000_0000, GIB), area(0x7f00_0000_0000, 3 * GIB)];
        let (found, _) = slots(&cloud, &areas).unwrap();
        assert_eq!(found[1], Slot { gpa: 4 * GIB, hva: 0x7000_0000_0000, size: GIB });
    }
}
