//! What a guest does that exits, by the intercepts of its VMCB (APM volume 2, sections 15.7 to 15.13).

use super::vmcb::{Place, Vmcb};
use crate::memory::Memory;

/// Something that a guest does, or that happens while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An exception with this vector, below 32.
    Exception(u8),
    /// An external interrupt.
    Interrupt,
    /// A non-maskable interrupt.
    Nmi,
    /// CPUID.
    Cpuid,
    /// HLT.
    Halt,
    /// INVLPG.
    Invlpg,
    /// The nested page table does not allow an access (section 15.25.6).
    NestedPageFault,
    /// MOV from a control register, by its number.
    ReadCr(u8),
    /// MOV to a control register.
    WriteCr(u8),
    /// VMRUN.
    Vmrun,
    /// VMMCALL.
    Vmmcall,
    /// VMLOAD.
    Vmload,
    /// VMSAVE.
    Vmsave,
    /// STGI.
    Stgi,
    /// CLGI.
    Clgi,
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

/// In the second half of the exception intercepts: external interrupts, NMIs, and others.
const INTERRUPT: u32 = 32;
const NMI: u32 = 33;
const CPUID: u32 = 32 + 18;
const HALT: u32 = 32 + 24;
const INVLPG: u32 = 32 + 25;
const IO: u32 = 32 + 27;
const MSR: u32 = 32 + 28;

/// The bit of a map in memory.
fn bit(memory: &Memory, map: u64, number: u64) -> bool {
    let word = memory.read((map & !0xfff) + number / 64 * 8);
    word >> (number % 64) & 1 == 1
}

/// Whether an event makes the guest of a VMCB exit: for hardware, and for whoever emulates SVM, of whom
/// `vmcb` and the maps it points to are in the memory.
pub fn exits(vmcb: Vmcb, memory: &Memory, event: Event) -> bool {
    let set = |place, bit: u32| vmcb.get(memory, place) >> bit & 1 == 1;
    let misc = |bit| set(Place::EXCEPTION_INTERCEPTS, bit);
    match event {
        Event::Exception(vector) => misc(vector.into()),
        Event::Interrupt => misc(INTERRUPT),
        Event::Nmi => misc(NMI),
        Event::Cpuid => misc(CPUID),
        Event::Halt => misc(HALT),
        Event::Invlpg => misc(INVLPG),
        // There is no intercept: whoever has the guest use a nested page table gets its faults.
        Event::NestedPageFault => set(Place::NESTED, 0),
        Event::ReadCr(register) => set(Place::CR_INTERCEPTS, register.into()),
        Event::WriteCr(register) => set(Place::CR_INTERCEPTS, 16 + u32::from(register)),
        Event::Vmrun => set(Place::INTERCEPTS, 0),
        Event::Vmmcall => set(Place::INTERCEPTS, 1),
        // Section 15.33.1: whatever virtual VMLOAD and VMSAVE would do, an intercept goes first.
        Event::Vmload => set(Place::INTERCEPTS, 2),
        Event::Vmsave => set(Place::INTERCEPTS, 3),
        Event::Stgi => set(Place::INTERCEPTS, 4),
        Event::Clgi => set(Place::INTERCEPTS, 5),
        // 15.10.1: a bit for each port, those of an access beyond the last port in the third page.
        Event::Io { port, bytes } => {
            let ports = u64::from(port)..u64::from(port) + u64::from(bytes);
            let map = vmcb.get(memory, Place::IOPM);
            misc(IO) && ports.into_iter().any(|port| bit(memory, map, port))
        }
        Event::ReadMsr(msr) => misc(MSR) && msr_exits(vmcb, memory, msr, 0),
        Event::WriteMsr(msr) => misc(MSR) && msr_exits(vmcb, memory, msr, 1),
    }
}

/// 15.11: two bits for each MSR of three ranges, for reads and for writes; others exit always.
fn msr_exits(vmcb: Vmcb, memory: &Memory, msr: u32, write: u64) -> bool {
    let (from, msr) = match msr {
        0..0x2000 => (0, msr),
        0xc000_0000..0xc000_2000 => (0x800, msr - 0xc000_0000),
        0xc001_0000..0xc001_2000 => (0x1000, msr - 0xc001_0000),
        _ => return true,
    };
    bit(memory, vmcb.get(memory, Place::MSRPM), 8 * from + 2 * u64::from(msr) + write)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VMCB: Vmcb = Vmcb(0x2000);
    const MAPS: (u64, u64) = (0x10_0000, 0x20_0000);

    /// Whether an event exits with one bit set in a place, and bits of maps.
    fn with(place: Place, bit: u32, maps: &[(u64, u64)], event: Event) -> bool {
        let mut memory = Memory::default();
        VMCB.set(&mut memory, Place::IOPM, MAPS.0);
        VMCB.set(&mut memory, Place::MSRPM, MAPS.1);
        VMCB.set(&mut memory, place, 1 << bit);
        for (map, number) in maps {
            let word = map + number / 64 * 8;
            let value = memory.read(word) | 1 << (number % 64);
            memory.write(word, value);
        }
        exits(VMCB, &memory, event)
    }

    #[test]
    fn every_intercept_is_a_bit_of_its_own() {
        let all = [
            (Place::EXCEPTION_INTERCEPTS, 14, Event::Exception(14)),
            (Place::EXCEPTION_INTERCEPTS, 32, Event::Interrupt),
            (Place::EXCEPTION_INTERCEPTS, 33, Event::Nmi),
            (Place::EXCEPTION_INTERCEPTS, 50, Event::Cpuid),
            (Place::EXCEPTION_INTERCEPTS, 56, Event::Halt),
            (Place::EXCEPTION_INTERCEPTS, 57, Event::Invlpg),
            (Place::NESTED, 0, Event::NestedPageFault),
            (Place::CR_INTERCEPTS, 3, Event::ReadCr(3)),
            (Place::CR_INTERCEPTS, 19, Event::WriteCr(3)),
            (Place::INTERCEPTS, 0, Event::Vmrun),
            (Place::INTERCEPTS, 1, Event::Vmmcall),
            (Place::INTERCEPTS, 2, Event::Vmload),
            (Place::INTERCEPTS, 3, Event::Vmsave),
            (Place::INTERCEPTS, 4, Event::Stgi),
            (Place::INTERCEPTS, 5, Event::Clgi),
        ];
        for (place, bit, _) in all {
            for (other, number, event) in all {
                let same = (place, bit) == (other, number);
                assert_eq!(with(place, bit, &[], event), same, "{event:?} by {place:?} {bit}");
            }
        }
    }

    #[test]
    fn ports_and_msrs_exit_by_their_bits_if_maps_are_looked_at() {
        let io = |bit, event| {
            with(Place::EXCEPTION_INTERCEPTS, bit, &[(MAPS.0, 0x1f0), (MAPS.0, 0x1_0000)], event)
        };
        for (port, bytes, expected) in [
            (0x1f0, 1, true),
            (0x1ef, 2, true),
            (0x1ef, 1, false),
            (0xffff, 1, false),
            (0xffff, 2, true),
        ] {
            assert_eq!(io(59, Event::Io { port, bytes }), expected, "{port:#x} {bytes}");
            assert!(!io(60, Event::Io { port, bytes }), "no intercept");
        }
        let bits = [(MAPS.1, 2 * 0x10), (MAPS.1, 8 * 0x800 + 2 * 0x80 + 1), (MAPS.1, 8 * 0x1000)];
        let msr = |event| with(Place::EXCEPTION_INTERCEPTS, 60, &bits, event);
        for (event, expected) in [
            (Event::ReadMsr(0x10), true),
            (Event::WriteMsr(0x10), false),
            (Event::ReadMsr(0xc000_0080), false),
            (Event::WriteMsr(0xc000_0080), true),
            (Event::ReadMsr(0xc001_0000), true),
            (Event::ReadMsr(0x4000_0000), true),
        ] {
            assert_eq!(msr(event), expected, "{event:?}");
        }
    }
}
