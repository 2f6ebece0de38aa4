//! What a guest does that exits, by the controls of its VMCS (SDM volume 3C, chapter 26).
//!
//! Whoever emulates VMX asks the same of the VMCS that a hypervisor in a VM wrote, and so learns
//! whether that one wants to see an exit ([`crate::tower`]).

use super::control::{pin, processor, secondary};
use super::field::Field;
use super::region::Region;
use crate::memory::Memory;

/// Something that a guest does, or that happens while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An exception, with its error code if it has one.
    Exception {
        /// The vector.
        vector: u8,
        /// The error code; 0 without one.
        error_code: u32,
    },
    /// An external interrupt.
    ExternalInterrupt,
    /// A non-maskable interrupt.
    Nmi,
    /// Interrupts are allowed from here on.
    InterruptWindow,
    /// NMIs are allowed from here on.
    NmiWindow,
    /// The preemption timer has counted down.
    PreemptionTimer,
    /// The second stage does not allow an access.
    SecondStageViolation,
    /// CPUID, GETSEC, INVD, XSETBV, and VMX instructions that no shadow VMCS can serve.
    Always,
    /// VMREAD of the field with this encoding.
    Vmread(u64),
    /// VMWRITE of the field with this encoding.
    Vmwrite(u64),
    /// HLT.
    Halt,
    /// INVLPG.
    Invlpg,
    /// MOV to CR0 of a value.
    WriteCr0(u64),
    /// MOV to CR3 of a value.
    WriteCr3(u64),
    /// MOV from CR3.
    ReadCr3,
    /// MOV to CR4 of a value.
    WriteCr4(u64),
    /// An I/O instruction: first port, and how many bytes.
    Io {
        /// The first port.
        port: u16,
        /// Bytes: 1, 2 or 4.
        bytes: u8,
    },
    /// RDMSR.
    ReadMsr(u32),
    /// WRMSR.
    WriteMsr(u32),
}

/// Vector of a page fault.
pub const PAGE_FAULT: u8 = 14;

/// The bit of a bitmap in memory.
fn bit(memory: &Memory, bitmap: u64, number: u64) -> bool {
    let word = memory.read_u32((bitmap & !0xfff) + number / 32 * 4);
    word >> (number % 32) & 1 == 1
}

/// Whether an event makes the guest of a VMCS exit.
pub(crate) fn exits(vmcs: Region, memory: &Memory, event: Event) -> bool {
    let get = |field| vmcs.get(memory, field);
    let pins = |control| get(Field::PIN_CONTROLS) as u32 & control != 0;
    let primary = |control| get(Field::PROCESSOR_CONTROLS) as u32 & control != 0;
    let second = |control| {
        primary(processor::SECONDARY) && get(Field::SECONDARY_CONTROLS) as u32 & control != 0
    };
    let owned = |value: u64, mask, shadow| (value ^ get(shadow)) & get(mask) != 0;
    let served = |field: u64, bitmap| {
        second(secondary::VMCS_SHADOWING) && field >> 15 == 0 && !bit(memory, get(bitmap), field)
    };
    match event {
        Event::Exception { vector, error_code } => {
            // 26.2: for page faults the bit means those whose error code matches, or those that do not.
            let set = get(Field::EXCEPTION_BITMAP) >> vector & 1 == 1;
            let masked = u64::from(error_code) & get(Field::PAGE_FAULT_MASK);
            set == (vector != PAGE_FAULT || masked == get(Field::PAGE_FAULT_MATCH))
        }
        Event::ExternalInterrupt => pins(pin::EXTERNAL_INTERRUPT),
        Event::Nmi => pins(pin::NMI),
        Event::PreemptionTimer => pins(pin::PREEMPTION_TIMER),
        Event::InterruptWindow => primary(processor::INTERRUPT_WINDOW),
        Event::NmiWindow => primary(processor::NMI_WINDOW),
        Event::SecondStageViolation => second(secondary::EPT),
        Event::Always => true,
        Event::Vmread(field) => !served(field, Field::VMREAD_BITMAP),
        Event::Vmwrite(field) => !served(field, Field::VMWRITE_BITMAP),
        // 26.1.3.
        Event::Halt => primary(processor::HLT),
        Event::Invlpg => primary(processor::INVLPG),
        Event::WriteCr0(value) => owned(value, Field::CR0_MASK, Field::CR0_SHADOW),
        Event::WriteCr4(value) => owned(value, Field::CR4_MASK, Field::CR4_SHADOW),
        Event::ReadCr3 => primary(processor::CR3_STORE),
        Event::WriteCr3(value) => {
            let target = |index| Field(Field::CR3_TARGET.0 + 2 * index);
            let targets = get(Field::CR3_TARGETS).min(4) as u32;
            primary(processor::CR3_LOAD) && !(0..targets).any(|index| get(target(index)) == value)
        }
        Event::Io { port, bytes } if primary(processor::IO_BITMAPS) => {
            let ports = u64::from(port)..u64::from(port) + u64::from(bytes);
            // An access that goes beyond the last port exits whatever the bitmaps say.
            ports.into_iter().any(|port| match port {
                0..0x8000 => bit(memory, get(Field::IO_BITMAP_A), port),
                0x8000..0x1_0000 => bit(memory, get(Field::IO_BITMAP_B), port - 0x8000),
                _ => true,
            })
        }
        Event::Io { .. } => primary(processor::IO),
        Event::ReadMsr(msr) => msr_exits(vmcs, memory, msr, 0),
        Event::WriteMsr(msr) => msr_exits(vmcs, memory, msr, 0x800),
    }
}

/// RDMSR and WRMSR: four bitmaps of a KiB each (25.6.9), those for writes behind those for reads.
fn msr_exits(vmcs: Region, memory: &Memory, msr: u32, from: u64) -> bool {
    let controls = vmcs.get(memory, Field::PROCESSOR_CONTROLS) as u32;
    if controls & processor::MSR_BITMAPS == 0 {
        return true;
    }
    let (bitmap, msr) = match msr {
        0..0x2000 => (from, msr),
        0xc000_0000..0xc000_2000 => (from + 0x400, msr - 0xc000_0000),
        _ => return true,
    };
    bit(memory, vmcs.get(memory, Field::MSR_BITMAP), 8 * bitmap + u64::from(msr))
}

/// Exception bitmap, PFEC mask and PFEC match of a VMCS.
pub(crate) type Exceptions = [u64; 3];

/// Those with which everything exits that one of two VMCSs wants to see, and page faults no more often than
/// has to be: two different matches cannot be said in one VMCS, so all page faults exit then
/// (`vmx_update_exception_bitmap` of Linux 6.12 does so).
pub(crate) fn merged_exceptions(own: Exceptions, above: Exceptions) -> Exceptions {
    let page_faults = 1 << PAGE_FAULT;
    let is_set = |[bitmap, ..]: Exceptions| bitmap & page_faults != 0;
    // Those that match exit, and none can; or those that do not match, and all do.
    let wants_none = |exceptions: Exceptions| {
        let [_, mask, matched] = exceptions;
        if is_set(exceptions) { matched & !mask != 0 } else { mask == 0 && matched == 0 }
    };
    let alike = own[1..] == above[1..] && is_set(own) == is_set(above);
    let [bit, mask, matched] = match (wants_none(own), wants_none(above)) {
        (true, _) => above,
        (false, true) => own,
        (false, false) if alike => own,
        (false, false) => [page_faults, 0, 0],
    };
    [(own[0] | above[0]) & !page_faults | bit & page_faults, mask, matched]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VMCS: Region = Region(0x1000);

    fn exceptions() -> impl Strategy<Value = Exceptions> {
        let bits = prop::sample::select(vec![0u64, 1 << PAGE_FAULT, 1 << 3, 1 << PAGE_FAULT | 8]);
        (bits, 0..4u64, 0..4u64).prop_map(|(bitmap, mask, matched)| [bitmap, mask, matched])
    }

    fn exits_with([bitmap, mask, matched]: Exceptions, vector: u8, error_code: u32) -> bool {
        let mut memory = Memory::default();
        VMCS.set(&mut memory, Field::EXCEPTION_BITMAP, bitmap);
        VMCS.set(&mut memory, Field::PAGE_FAULT_MASK, mask);
        VMCS.set(&mut memory, Field::PAGE_FAULT_MATCH, matched);
        exits(VMCS, &memory, Event::Exception { vector, error_code })
    }

    proptest! {
        #[test]
        fn of_two_vmcss_each_sees_what_it_wants_and_alike_ones_nothing_more(
            own in exceptions(), above in exceptions(), error_code in 0..16u32,
            vector in prop::sample::select(vec![3, 13, PAGE_FAULT]),
        ) {
            let merged = exits_with(merged_exceptions(own, above), vector, error_code);
            let wanted = exits_with(own, vector, error_code) || exits_with(above, vector, error_code);
            prop_assert!(merged || !wanted);
            if own == above || vector != PAGE_FAULT {
                prop_assert_eq!(merged, wanted);
            }
        }
    }
}
