//! What a hypervisor keeps in its memory for SVM, what its VMCB has at the start, and what it makes of that of a
//! hypervisor in its VM.
//!
//! The rules of merging are those of Linux 6.12, `arch/x86/kvm/svm/nested.c` (`recalc_intercepts`,
//! `nested_svm_merge_msrpm`, `nested_vmcb02_prepare_control`, `nested_vmcb02_prepare_save`,
//! `nested_svm_vmexit`).

use crate::memory::{Memory, PAGE};
use crate::svm::Vmcb;
use crate::svm::vmcb::Place;
use crate::tower::cause::MemoryMode;
use crate::virtualization::Virtualization;

/// Where VMRUN keeps the hypervisor's own state, and VMLOAD finds the rest of it.
pub(super) const HOST: u64 = PAGE;
/// The VMCB of its own VM.
pub(super) const OWN: Vmcb = Vmcb(2 * PAGE);
/// The VMCB that it makes for a guest of a hypervisor in its VM.
pub(super) const MERGED: Vmcb = Vmcb(3 * PAGE);
/// Permission maps: three pages for ports, two for MSRs; and two that it makes for such a guest.
const PORTS: u64 = 4 * PAGE;
const MSRS: u64 = 7 * PAGE;
const MERGED_MSRS: u64 = 9 * PAGE;

/// In the intercepts: of external interrupts, NMIs, CPUID, HLT, INVLPG, INVLPGA, ports, MSRs.
const INTERRUPT: u64 = 1 << 32;
const NMI: u64 = 1 << 33;
const CPUID: u64 = 1 << 50;
const HALT: u64 = 1 << 56;
const INVLPG: u64 = 1 << 57;
const INVLPGA: u64 = 1 << 58;
const IO: u64 = 1 << 59;
const MSR: u64 = 1 << 60;
const PAGE_FAULTS: u64 = 1 << 14;
/// VMRUN, VMMCALL; VMLOAD and VMSAVE; STGI and CLGI.
const RUN: u64 = 0b11;
const LOAD_AND_SAVE: u64 = 0b1100;
const FLAG: u64 = 0b11_0000;
/// MOV to CR3.
const WRITE_CR3: u64 = 1 << 19;
/// Virtual GIF: its value, whether it is in use; and that interrupts are the hypervisor's.
const VIRTUAL_FLAG: u64 = 1 << 9;
const VIRTUAL_FLAG_IN_USE: u64 = 1 << 25;
const MASKS_INTERRUPTS: u64 = 1 << 24;
/// Virtual VMLOAD and VMSAVE.
const VIRTUAL_LOAD_AND_SAVE: u64 = 1 << 1;

/// A VMCB with which a guest in 64-bit mode can be run, in the memory of a hypervisor. All ports and MSRs exit.
pub(super) fn prepare(memory: &mut Memory, mode: MemoryMode, cpu: &Virtualization) {
    let mut intercepts = RUN | LOAD_AND_SAVE | FLAG;
    let (mut extensions, mut interrupts) = (0, MASKS_INTERRUPTS | VIRTUAL_FLAG);
    if cpu.vls {
        intercepts &= !LOAD_AND_SAVE;
        extensions |= VIRTUAL_LOAD_AND_SAVE;
    }
    if cpu.vgif {
        intercepts &= !FLAG;
        interrupts |= VIRTUAL_FLAG_IN_USE;
    }
    let always = INTERRUPT | NMI | CPUID | HALT | INVLPGA | IO | MSR;
    let (registers, exceptions, nested) = match mode {
        MemoryMode::Nested => (0, always, 1),
        MemoryMode::Shadow { .. } => (WRITE_CR3, always | PAGE_FAULTS | INVLPG, 0),
    };
    let fields = [
        (Place::CR_INTERCEPTS, registers),
        (Place::EXCEPTION_INTERCEPTS, exceptions),
        (Place::INTERCEPTS, intercepts),
        (Place::IOPM, PORTS),
        (Place::MSRPM, MSRS),
        (Place::ASID, 1),
        (Place::VIRTUAL_INTERRUPT, interrupts),
        (Place::NESTED, nested),
        (Place::NESTED_CR3, 0x10_0000),
        (Place::EXTENSIONS, extensions),
        (Place::CS, 0x0000_029b_0008),
        (Place::EFER, 0x1d01),
        (Place::CR0, 0x8005_0033),
        (Place::CR3, 0x30_0000),
        (Place::CR4, 0x20),
        (Place::RFLAGS, 2),
    ];
    for (place, value) in fields {
        OWN.set(memory, place, value);
    }
    for word in (PORTS..MERGED_MSRS).step_by(8) {
        memory.write(word, u64::MAX);
    }
}

/// The global interrupt flag of the hypervisor in the VM, as this one plays it.
pub(super) fn set_flag(memory: &mut Memory, set: bool) {
    let value = OWN.get(memory, Place::VIRTUAL_INTERRUPT);
    let value = if set { value | VIRTUAL_FLAG } else { value & !VIRTUAL_FLAG };
    OWN.set(memory, Place::VIRTUAL_INTERRUPT, value);
}

/// Makes the VMCB for the guest of the hypervisor in the VM from that one's and this hypervisor's own.
pub(super) fn merge(below: &mut Memory, above: &Memory, theirs: Vmcb, cpu: &Virtualization) {
    let their = |place| theirs.get(above, place);
    for &place in Place::ALL {
        let own = OWN.get(below, place);
        let value = match place {
            // Exits of both.
            Place::CR_INTERCEPTS | Place::EXCEPTION_INTERCEPTS | Place::INTERCEPTS => {
                own | their(place)
            }
            Place::TSC_OFFSET => own.wrapping_add(their(place)),
            // The VM's memory and its ports are this hypervisor's affair.
            Place::IOPM | Place::ASID | Place::NESTED | Place::NESTED_CR3 => own,
            Place::MSRPM => MERGED_MSRS,
            Place::VIRTUAL_INTERRUPT => {
                let flag = VIRTUAL_FLAG | VIRTUAL_FLAG_IN_USE;
                let of_own = MASKS_INTERRUPTS | if cpu.vgif { 0 } else { flag };
                own & of_own | their(place) & !of_own
            }
            Place::EXTENSIONS => own & their(place),
            // It was another guest's before.
            Place::CLEAN => 0,
            Place::EXIT_CODE
            | Place::EXIT_INFORMATION_1
            | Place::EXIT_INFORMATION_2
            | Place::EXIT_EVENT => continue,
            place if Place::MOVED_BY_VMLOAD.contains(&place) => continue,
            place => their(place),
        };
        MERGED.set(below, place, value);
    }
    let map = their(Place::MSRPM) & !(PAGE - 1);
    for word in (0..2 * PAGE).step_by(8) {
        let bits = below.read(MSRS + word) | above.read(map + word);
        below.write(MERGED_MSRS + word, bits);
    }
}

/// What hardware wrote to the VMCB of such a guest while it ran is in that of the hypervisor in the VM.
pub(super) fn take_over(below: &Memory, above: &mut Memory, theirs: Vmcb) {
    for &place in Place::ALL {
        let of_guest = place.0 >= Place::ES.0 && !Place::MOVED_BY_VMLOAD.contains(&place);
        if of_guest || [Place::INTERRUPT_SHADOW, Place::EXIT_EVENT].contains(&place) {
            theirs.set(above, place, MERGED.get(below, place));
        }
    }
}
