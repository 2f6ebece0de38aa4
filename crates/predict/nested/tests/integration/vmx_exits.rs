//! What makes a guest exit, by the controls of its VMCS (SDM volume 3C, chapter 26), and to whom an exit of
//! a nested guest goes.

use strata_nested::memory::Memory;
use strata_nested::tower::vmx::Tower;
use strata_nested::tower::{MemoryMode, Route};
use strata_nested::vmx::{Answer, Capabilities, Entry, Event, Field, Processor, control};
use strata_nested::{Access, Hypervisor, Instructions, Virtualization};

const VMXON: u64 = 0x1000;
const VMCS: u64 = 0x2000;
const IO_A: u64 = 0x8000;
const IO_B: u64 = 0x9000;
const MSRS: u64 = 0xa000;

/// A guest that runs, with these fields besides; and what bits of memory are set.
fn guest(fields: &[(Field, u64)], bits: &[(u64, u64)]) -> (Memory, Processor) {
    use control::{entry, exit, pin, processor};
    let capabilities = Capabilities::default();
    let mut memory = Memory::default();
    memory.write_u32(VMXON, capabilities.revision);
    memory.write_u32(VMCS, capabilities.revision);
    let mut vmx = Processor::new(capabilities);
    vmx.enabled = true;
    vmx.vmxon(&mut memory, VMXON).unwrap();
    vmx.vmclear(&mut memory, VMCS).unwrap();
    vmx.vmptrld(&mut memory, VMCS).unwrap();
    let relaxed = processor::CR3_LOAD | processor::CR3_STORE;
    let base = [
        (Field::PIN_CONTROLS, u64::from(pin::DEFAULT1)),
        (Field::PROCESSOR_CONTROLS, u64::from(processor::DEFAULT1 & !relaxed)),
        (Field::EXIT_CONTROLS, u64::from(exit::DEFAULT1 | exit::HOST_64_BIT)),
        (Field::ENTRY_CONTROLS, u64::from(entry::DEFAULT1 | entry::GUEST_IA32E)),
        (Field::GUEST_TR_RIGHTS, 0x8b),
        (Field::GUEST_CS_RIGHTS, 0xa09b),
        (Field::HOST_CR0, 0x8005_0033),
        (Field::HOST_CR4, 0x2_2020),
        (Field::HOST_CS_SELECTOR, 0x10),
        (Field::HOST_TR_SELECTOR, 0x40),
        (Field::GUEST_CR0, 0x8005_0033),
        (Field::GUEST_CR4, 0x2_2020),
        (Field::GUEST_RFLAGS, 2),
        (Field::LINK_POINTER, u64::MAX),
    ];
    for (field, value) in base.into_iter().chain(fields.iter().copied()) {
        let answer = vmx.vmwrite(&mut memory, field, value);
        assert_eq!(answer, Ok(Answer::Succeed(0)), "{field:?}");
    }
    for (bitmap, bit) in bits {
        let word = bitmap + bit / 32 * 4;
        let value = memory.read_u32(word) | 1 << (bit % 32);
        memory.write_u32(word, value);
    }
    assert_eq!(vmx.enter(&mut memory, false), Ok(Entry::Entered));
    (memory, vmx)
}

fn exits(fields: &[(Field, u64)], bits: &[(u64, u64)], event: Event) -> bool {
    let (memory, vmx) = guest(fields, bits);
    vmx.guest_exits(&memory, event)
}

fn processor_controls(more: u32) -> (Field, u64) {
    use control::processor;
    let relaxed = processor::CR3_LOAD | processor::CR3_STORE;
    (Field::PROCESSOR_CONTROLS, u64::from(processor::DEFAULT1 & !relaxed | more))
}

const fn page_fault(error_code: u32) -> Event {
    Event::Exception { vector: 14, error_code }
}

#[test]
fn page_faults_exit_by_bitmap_mask_and_match() {
    // 26.2: equal and the bit set, or unequal and the bit clear.
    for (bit, mask, matched, not_present, present) in [
        (1, 0, 0, true, true),
        (0, 0, 0, false, false),
        (1, 1, 1, false, true),
        (0, 1, 1, true, false),
        (1, 1, 0, true, false),
        (1, 0, 1, false, false),
        (0, 0, 1, true, true),
    ] {
        let fields = [
            (Field::EXCEPTION_BITMAP, bit << 14),
            (Field::PAGE_FAULT_MASK, mask),
            (Field::PAGE_FAULT_MATCH, matched),
        ];
        let found = [2, 3].map(|code| exits(&fields, &[], page_fault(code)));
        assert_eq!(found, [not_present, present], "{bit} {mask} {matched}");
    }
    // Of other exceptions the bit alone decides.
    let fields = [(Field::EXCEPTION_BITMAP, 1 << 13), (Field::PAGE_FAULT_MATCH, 1)];
    assert!(exits(&fields, &[], Event::Exception { vector: 13, error_code: 0 }));
    assert!(!exits(&fields, &[], Event::Exception { vector: 6, error_code: 0 }));
}

#[test]
fn controls_let_each_thing_exit_and_nothing_else() {
    use control::{pin, processor};
    let pins = |more: u32| (Field::PIN_CONTROLS, u64::from(pin::DEFAULT1 | more));
    for (field, event) in [
        (pins(pin::EXTERNAL_INTERRUPT), Event::ExternalInterrupt),
        (pins(pin::NMI), Event::Nmi),
        (pins(pin::PREEMPTION_TIMER), Event::PreemptionTimer),
        (processor_controls(processor::INTERRUPT_WINDOW), Event::InterruptWindow),
        (processor_controls(processor::HLT), Event::Halt),
        (processor_controls(processor::INVLPG), Event::Invlpg),
        (processor_controls(processor::CR3_LOAD), Event::WriteCr3(0x1000)),
        (processor_controls(processor::CR3_STORE), Event::ReadCr3),
        (processor_controls(processor::IO), Event::Io { port: 0x80, bytes: 1 }),
    ] {
        assert!(exits(&[field], &[], event), "{event:?}");
        assert!(!exits(&[], &[], event), "{event:?}");
    }
    // 26.1.2: whatever the controls.
    for event in [Event::Always, Event::Vmread(0x681e), Event::Vmwrite(0x681e)] {
        assert!(exits(&[], &[], event), "{event:?}");
    }
    assert!(!exits(&[], &[], Event::SecondStageViolation), "without EPT");
}

#[test]
fn control_registers_exit_for_the_bits_that_the_hypervisor_owns() {
    let fields = [(Field::CR0_MASK, 0x8), (Field::CR0_SHADOW, 0x8), (Field::CR4_MASK, 0x2000)];
    for (event, expected) in [
        // 26.1.3: a bit of the mask that differs from the read shadow.
        (Event::WriteCr0(0x8005_003b), false),
        (Event::WriteCr0(0x8005_0033), true),
        (Event::WriteCr4(0x0020), false),
        (Event::WriteCr4(0x2020), true),
    ] {
        assert_eq!(exits(&fields, &[], event), expected, "{event:?}");
    }
    let targets = [
        processor_controls(control::processor::CR3_LOAD),
        (Field::CR3_TARGETS, 1),
        (Field::CR3_TARGET, 0x5000),
        (Field(Field::CR3_TARGET.0 + 2), 0x6000),
    ];
    assert!(!exits(&targets, &[], Event::WriteCr3(0x5000)), "25.6.7: a target");
    assert!(exits(&targets, &[], Event::WriteCr3(0x6000)), "no target, as there is only one");
}

#[test]
fn ports_exit_by_their_bits_and_beyond_the_last_one() {
    use control::processor;
    let fields = [
        // The unconditional control is ignored where there are bitmaps (25.6.4).
        processor_controls(processor::IO_BITMAPS | processor::IO),
        (Field::IO_BITMAP_A, IO_A),
        (Field::IO_BITMAP_B, IO_B),
    ];
    let bits = [(IO_A, 0x1f0), (IO_B, 0)];
    for (port, bytes, expected) in [
        (0x1f0, 1, true),
        (0x1ef, 1, false),
        (0x1ed, 4, true),
        (0x8000, 1, true),
        (0x7fff, 1, false),
        (0x7fff, 2, true),
        (0xffff, 1, false),
        (0xffff, 2, true),
    ] {
        assert_eq!(exits(&fields, &bits, Event::Io { port, bytes }), expected, "{port:#x} {bytes}");
    }
}

#[test]
fn msrs_exit_by_their_bits_and_where_there_are_none() {
    use control::processor;
    assert!(exits(&[], &[], Event::ReadMsr(0x10)), "without bitmaps all do");
    let fields = [processor_controls(processor::MSR_BITMAPS), (Field::MSR_BITMAP, MSRS)];
    // 25.6.9: reads low, reads high, writes low, writes high.
    let bits = [
        (MSRS, 0x10),
        (MSRS, 8 * 0x400 + 0x80),
        (MSRS, 8 * 0x800 + 0x174),
        (MSRS, 8 * 0xc00 + 0x82),
    ];
    for (event, expected) in [
        (Event::ReadMsr(0x10), true),
        (Event::WriteMsr(0x10), false),
        (Event::ReadMsr(0xc000_0080), true),
        (Event::WriteMsr(0xc000_0080), false),
        (Event::WriteMsr(0x174), true),
        (Event::ReadMsr(0x174), false),
        (Event::WriteMsr(0xc000_0082), true),
        (Event::ReadMsr(0x2000), true),
        (Event::WriteMsr(0xc000_2000), true),
    ] {
        assert_eq!(exits(&fields, &bits, event), expected, "{event:?}");
    }
}

#[test]
fn an_exit_by_an_exception_says_which_and_one_during_injection_what_was_lost() {
    let (mut memory, mut vmx) = guest(&[(Field::EXCEPTION_BITMAP, 1 << 14)], &[]);
    vmx.exit_by_exception(&mut memory, 14, Some(2), 0x1234_5000);
    let mut read = |vmx: &mut Processor, field| vmx.vmread(&mut memory, field);
    for (field, value) in [
        (Field::EXIT_REASON, 0),
        (Field::EXIT_QUALIFICATION, 0x1234_5000),
        // 25.9.2: valid, with an error code, a hardware exception.
        (Field::EXIT_EVENT, 0x8000_0b0e),
        (Field::EXIT_EVENT_ERROR_CODE, 2),
        (Field::VECTORING_EVENT, 0),
    ] {
        assert_eq!(read(&mut vmx, field), Ok(Answer::Succeed(value)), "{field:?}");
    }
    // 28.2.4: the page fault that was injected is to be injected anew.
    let injected = [(Field::ENTRY_EVENT, 0x8000_0b0e), (Field::ENTRY_EVENT_ERROR_CODE, 6)];
    let (mut memory, mut vmx) = guest(&injected, &[]);
    vmx.exit_during_injection(&mut memory, 48, 0x182);
    for (field, value) in [
        (Field::VECTORING_EVENT, 0x8000_0b0e),
        (Field::VECTORING_ERROR_CODE, 6),
        (Field::ENTRY_EVENT, 0x0b0e),
    ] {
        assert_eq!(vmx.vmread(&mut memory, field), Ok(Answer::Succeed(value)), "{field:?}");
    }
}

fn tower(modes: &[MemoryMode]) -> Tower {
    let cpu = Virtualization {
        instructions: Instructions::Vmx,
        vmcs_shadowing: false,
        vls: false,
        vgif: false,
    };
    Tower::with_memory(modes, cpu, Hypervisor::Kvm84, Access::Instructions)
}

#[test]
fn an_exit_goes_to_whom_it_concerns() {
    let nested = MemoryMode::Nested;
    let shadow = |bypass| MemoryMode::Shadow { bypass };
    let nobody = |_: usize| false;
    let two = tower(&[nested, nested]);
    assert_eq!(two.route(page_fault(2), nobody), Route::NoExit, "L2's own");
    assert_eq!(two.route(Event::WriteCr3(0), nobody), Route::NoExit);
    assert_eq!(two.route(Event::Halt, nobody), Route::Handler(1), "L1 asked for it");
    assert_eq!(two.route(Event::ExternalInterrupt, nobody), Route::Handler(1));
    assert_eq!(two.route(Event::ExternalInterrupt, |level| level == 0), Route::Handler(0));
    assert_eq!(two.route(Event::SecondStageViolation, |level| level == 0), Route::Handler(0));
    assert_eq!(two.route(Event::SecondStageViolation, nobody), Route::Handler(1));

    let on_ept = tower(&[nested, shadow(false)]);
    assert_eq!(on_ept.route(page_fault(0), nobody), Route::Handler(1));
    // L1 knows of no EPT: violations are L0's though it does not say that they are.
    assert_eq!(on_ept.route(Event::SecondStageViolation, nobody), Route::Handler(0));
    // L0 looks at what L1 runs for L3, in which L2's wishes are.
    let three = tower(&[nested, nested, shadow(false)]);
    assert_eq!(three.route(page_fault(0), nobody), Route::Handler(2));
    let bypassed = tower(&[shadow(true), shadow(true)]);
    assert_eq!(bypassed.route(page_fault(2), nobody), Route::NoExit);
    assert_eq!(bypassed.route(page_fault(3), nobody), Route::Handler(1));
    assert_eq!(bypassed.route(page_fault(3), |level| level == 0), Route::Handler(0));
}
