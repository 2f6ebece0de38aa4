//! What a hypervisor keeps in its memory for VMX, and what its VMCS has at the start.

use crate::memory::{Memory, PAGE};
use crate::script::shadowed;
use crate::tower::cause::MemoryMode;
use crate::vmx::region::Region;
use crate::vmx::{Capabilities, Field, control, exits};

/// Where a hypervisor keeps what VMX needs, in its own memory.
pub(super) const VMXON: u64 = PAGE;
/// The VMCS of its own VM.
pub(super) const OWN: u64 = 2 * PAGE;
/// The VMCS it makes for a guest of a hypervisor in its VM.
pub(super) const MERGED: u64 = 3 * PAGE;
/// Its copy of that hypervisor's VMCS.
pub(super) const COPY: u64 = 4 * PAGE;
/// The shadow VMCS of that hypervisor.
pub(super) const SHADOW: u64 = 5 * PAGE;
/// Bitmaps of accesses to the shadow VMCS that exit.
pub(super) const READS: u64 = 6 * PAGE;
pub(super) const WRITES: u64 = 7 * PAGE;

/// What a hypervisor writes for the way in which it has memory for its VM.
pub(super) fn of_memory(mode: MemoryMode) -> impl Iterator<Item = (Field, u64)> {
    use control::{processor, secondary};
    let fields = match mode {
        MemoryMode::Nested => {
            let controls =
                processor::DEFAULT1 | processor::SECONDARY | processor::HLT | processor::IO;
            let relaxed = processor::CR3_LOAD | processor::CR3_STORE;
            vec![(Field::PROCESSOR_CONTROLS, u64::from(controls & !relaxed))]
        }
        MemoryMode::Shadow { bypass } => vec![
            (Field::PROCESSOR_CONTROLS, {
                let controls = processor::DEFAULT1 | processor::SECONDARY | processor::HLT;
                u64::from(controls | processor::IO | processor::INVLPG)
            }),
            (Field::SECONDARY_CONTROLS, u64::from(secondary::VPID)),
            (Field::EXCEPTION_BITMAP, 1 << exits::PAGE_FAULT),
            // Mask and match 0: all page faults exit; 1: those of pages that are present (26.2).
            (Field::PAGE_FAULT_MASK, u64::from(bypass)),
            (Field::PAGE_FAULT_MATCH, u64::from(bypass)),
        ],
    };
    fields.into_iter()
}

/// A VMCS with which a guest in 64-bit mode can be entered.
pub(super) fn initial() -> impl Iterator<Item = (Field, u64)> {
    use control::{entry, exit, pin, processor, secondary};
    let controls = [
        (Field::PIN_CONTROLS, pin::DEFAULT1 | pin::EXTERNAL_INTERRUPT | pin::NMI),
        (Field::PROCESSOR_CONTROLS, processor::DEFAULT1 | processor::SECONDARY | processor::HLT),
        (Field::SECONDARY_CONTROLS, secondary::EPT | secondary::VPID),
        (Field::EXIT_CONTROLS, exit::DEFAULT1 | exit::HOST_64_BIT),
        (Field::ENTRY_CONTROLS, entry::DEFAULT1 | entry::GUEST_IA32E),
        (Field::GUEST_CS_RIGHTS, 0xa09b),
        (Field::GUEST_TR_RIGHTS, 0x8b),
    ];
    let others = [
        (Field::VPID, 1),
        (Field::EPT_POINTER, 0x10_0000 | 3 << 3 | 6),
        (Field::HOST_CR0, 0x8005_0033),
        (Field::HOST_CR3, 0x20_0000),
        (Field::HOST_CR4, 0x2_2020),
        (Field::HOST_CS_SELECTOR, 0x10),
        (Field::HOST_TR_SELECTOR, 0x40),
        (Field::GUEST_CR0, 0x8005_0033),
        (Field::GUEST_CR3, 0x30_0000),
        (Field::GUEST_CR4, 0x2_2020),
        (Field::GUEST_RFLAGS, 2),
        (Field::LINK_POINTER, u64::MAX),
    ];
    controls.into_iter().map(|(field, value)| (field, u64::from(value))).chain(others)
}

/// What lets hardware serve the hypervisor in the VM from its shadow VMCS.
pub(super) fn shadow_controls(mode: MemoryMode) -> [(Field, u64); 4] {
    use control::secondary;
    let second_stage = if mode == MemoryMode::Nested { secondary::EPT } else { 0 };
    let controls = second_stage | secondary::VPID | secondary::VMCS_SHADOWING;
    [
        (Field::SECONDARY_CONTROLS, controls.into()),
        (Field::LINK_POINTER, SHADOW),
        (Field::VMREAD_BITMAP, READS),
        (Field::VMWRITE_BITMAP, WRITES),
    ]
}

/// Sets the bits of all fields but those that are shadowed.
fn forbid_all_but_shadowed(memory: &mut Memory) {
    for bitmap in [READS, WRITES] {
        for word in (0..PAGE).step_by(8) {
            memory.write(bitmap + word, u64::MAX);
        }
    }
    for (field, writable) in shadowed() {
        let mut allow = |bitmap: u64| {
            let word = bitmap + u64::from(field.0 / 32) * 4;
            let bits = memory.read_u32(word);
            memory.write_u32(word, bits & !(1 << (field.0 % 32)));
        };
        allow(READS);
        if writable {
            allow(WRITES);
        }
    }
}

/// Regions of a hypervisor that starts: VMCSs that may be loaded, and the bitmaps of a shadow VMCS.
pub(super) fn prepare(memory: &mut Memory, capabilities: Capabilities) {
    for region in [VMXON, OWN, MERGED] {
        Region(region).prepare(memory, capabilities.revision, false);
    }
    Region(SHADOW).prepare(memory, capabilities.revision, capabilities.shadowing);
    forbid_all_but_shadowed(memory);
}
