//! What `x86/svm_tests.c` of kvm-unit-tests expects of a processor, stated anew for the one here: each test names
//! the one there. What needs a guest's instructions, time or devices is left out.

use strata_nested::memory::Memory;
use strata_nested::svm::exits::{Event, exits};
use strata_nested::svm::vmcb::Place;
use strata_nested::svm::{Processor, Run, Vmcb};

const VMCB: Vmcb = Vmcb(0x2000);
const LIMIT: u64 = 1 << 48;
const PAGE: u64 = 4096;

const STATE: [(Place, u64); 11] = [
    (Place::INTERCEPTS, 1),
    (Place::ASID, 1),
    (Place::NESTED, 1),
    (Place::NESTED_CR3, 0x10_0000),
    (Place::EFER, 0x1d01),
    (Place::CR0, 0x8005_0033),
    (Place::CR3, 0x20_0000),
    (Place::CR4, 0x20),
    (Place::CS, 0x0000_029b_0008),
    (Place::IOPM, 0x40_0000),
    (Place::MSRPM, 0x50_0000),
];

/// Whether VMRUN enters with these changes, and that memory then says so.
fn enters(changes: &[(Place, u64)]) -> bool {
    let mut memory = Memory::default();
    for (place, value) in STATE.iter().chain(changes) {
        VMCB.set(&mut memory, *place, *value);
    }
    let mut processor = Processor::new();
    processor.enabled = true;
    let run = processor.vmrun(&mut memory, VMCB.0).expect("it is allowed, and the address is one");
    let entered = run == Run::Entered;
    assert_eq!(VMCB.get(&memory, Place::EXIT_CODE) == u64::MAX, !entered, "{changes:x?}");
    assert_eq!(processor.interrupts(), entered, "the flag is set by an entry, cleared by an exit");
    entered
}

/// As they are at first.
fn of(place: Place) -> u64 {
    STATE.iter().find(|(known, _)| *known == place).expect("it has a value").1
}

#[test]
fn null_and_vmrun_without_its_intercept_and_asid_zero() {
    assert!(enters(&[]));
    assert!(!enters(&[(Place::INTERCEPTS, 0)]), "no_vmrun_int");
    assert!(!enters(&[(Place::ASID, 0)]), "asid_zero");
}

#[test]
fn efer() {
    assert!(!enters(&[(Place::EFER, of(Place::EFER) & !(1 << 12))]), "SVME");
    for bit in [9].into_iter().chain((19..64).step_by(4)) {
        assert!(!enters(&[(Place::EFER, of(Place::EFER) | 1 << bit)]), "bit {bit} is reserved");
    }
    let long = [
        ("CR4.PAE", (Place::CR4, 0)),
        ("CR0.PE", (Place::CR0, of(Place::CR0) & !1)),
        ("CS.L and CS.D", (Place::CS, of(Place::CS) | 3 << 25)),
    ];
    for (what, change) in long {
        assert!(!enters(&[change]), "long mode with {what} wrong");
        // Without EFER.LME each of them may be.
        assert!(enters(&[change, (Place::EFER, of(Place::EFER) & !(1 << 8))]), "{what}");
    }
}

#[test]
fn cr0() {
    let (not_write_through, cache_disable) = (1 << 29, 1 << 30);
    let base = of(Place::CR0) & !(not_write_through | cache_disable);
    for (bits, right) in [
        (cache_disable, true),
        (cache_disable | not_write_through, true),
        (0, true),
        (not_write_through, false),
    ] {
        assert_eq!(enters(&[(Place::CR0, base | bits)]), right, "{bits:#x}");
    }
    for bit in (32..64).step_by(4) {
        assert!(!enters(&[(Place::CR0, base | 1 << bit)]), "bit {bit}");
    }
}

#[test]
fn cr3() {
    for bit in 52..64 {
        assert!(!enters(&[(Place::CR3, of(Place::CR3) | 1 << bit)]), "bit {bit} must be zero");
    }
    for bit in 0..12 {
        assert!(enters(&[(Place::CR3, of(Place::CR3) | 1 << bit)]), "bit {bit} is only reserved");
    }
}

#[test]
fn cr4() {
    for efer in [of(Place::EFER), of(Place::EFER) & !(1 << 8)] {
        for bit in (32..64).step_by(4) {
            assert!(!enters(&[(Place::EFER, efer), (Place::CR4, 0x20 | 1 << bit)]), "bit {bit}");
        }
    }
}

#[test]
fn dr() {
    for place in [Place::DR6, Place::DR7] {
        for bit in (32..64).step_by(4) {
            assert!(!enters(&[(place, 1 << bit)]), "{place:?} bit {bit}");
        }
        assert!(enters(&[(place, 0xffff_ffff)]), "{place:?}");
    }
}

#[test]
fn msrpm_iopm_bitmap_addrs() {
    let map = |place, address| enters(&[(place, address)]);
    for (address, right) in [
        (LIMIT - PAGE, false),
        (LIMIT, false),
        (of(Place::MSRPM), true),
        (of(Place::MSRPM) | (PAGE - 1), true),
    ] {
        assert_eq!(map(Place::MSRPM, address), right, "MSRs {address:#x}");
    }
    for (address, right) in [
        (LIMIT - 4 * PAGE, true),
        (LIMIT - 3 * PAGE, true),
        // Bits of it that are no page's are ignored.
        (LIMIT - 2 * PAGE - 2, true),
        (LIMIT - 2 * PAGE, false),
        (LIMIT - PAGE, false),
        (of(Place::IOPM) | (PAGE - 1), true),
    ] {
        assert_eq!(map(Place::IOPM, address), right, "ports {address:#x}");
    }
}

#[test]
fn canonicalization() {
    let mut memory = Memory::default();
    let mut processor = Processor::new();
    processor.enabled = true;
    for place in Place::MOVED_BY_VMLOAD.into_iter().filter(|place| place.is_base()) {
        for (value, expected) in [
            (0xaaaa_0000_1234_5000, 0x1234_5000),
            (0x0000_8000_0000_0000, 0xffff_8000_0000_0000),
            (0x0000_7fff_ffff_f000, 0x0000_7fff_ffff_f000),
        ] {
            VMCB.set(&mut memory, place, value);
            processor.vmload(&memory, VMCB.0).unwrap();
            processor.vmsave(&mut memory, VMCB.0).unwrap();
            assert_eq!(VMCB.get(&memory, place), expected, "{place:?}");
        }
    }
    // VMRUN takes whatever base there is.
    assert!(enters(&[(Place(Place::CS.0 + 8), 0xaaaa_0000_0000_0000)]));
}

#[test]
fn exc_inject() {
    let exception = |vector: u64| 1 << 31 | 3 << 8 | vector;
    assert!(!enters(&[(Place::EVENT, exception(2))]), "2 is no exception");
    assert!(enters(&[(Place::EVENT, exception(0))]));
    let mut memory = Memory::default();
    for (place, value) in STATE {
        VMCB.set(&mut memory, place, value);
    }
    VMCB.set(&mut memory, Place::EVENT, exception(0));
    let mut processor = Processor::new();
    processor.enabled = true;
    assert_eq!(processor.vmrun(&mut memory, VMCB.0), Ok(Run::Entered));
    processor.exit(&mut memory, 0x81, [0; 2]);
    assert_eq!(VMCB.get(&memory, Place::EVENT) >> 31, 0, "it is not valid any more");
}

#[test]
fn intercepts_of_cr3_dr_msr_ioio_vmload_and_vmsave() {
    let mut memory = Memory::default();
    VMCB.set(&mut memory, Place::IOPM, 0x40_0000);
    VMCB.set(&mut memory, Place::MSRPM, 0x50_0000);
    let mut check = |place, bits: u64, event, expected: bool| {
        for place in [Place::CR_INTERCEPTS, Place::EXCEPTION_INTERCEPTS, Place::INTERCEPTS] {
            VMCB.set(&mut memory, place, 0);
        }
        VMCB.set(&mut memory, place, bits);
        assert_eq!(exits(VMCB, &memory, event), expected, "{event:?} by {bits:#x}");
    };
    check(Place::CR_INTERCEPTS, 1 << 3, Event::ReadCr(3), true);
    check(Place::CR_INTERCEPTS, 1 << 3, Event::WriteCr(3), false);
    check(Place::INTERCEPTS, 1 << 2, Event::Vmload, true);
    check(Place::INTERCEPTS, 1 << 2, Event::Vmsave, false);
    check(Place::INTERCEPTS, 1 << 3, Event::Vmsave, true);
    // An MSR that no range has exits whatever the map says; 0x2000 is the first behind the first.
    let msrs = 1 << 60;
    check(Place::EXCEPTION_INTERCEPTS, msrs, Event::ReadMsr(0x1fff), false);
    check(Place::EXCEPTION_INTERCEPTS, msrs, Event::ReadMsr(0x2000), true);
    check(Place::EXCEPTION_INTERCEPTS, msrs, Event::WriteMsr(0xc000_2000), true);
    check(Place::EXCEPTION_INTERCEPTS, 0, Event::WriteMsr(0xc000_2000), false);
    // Of the last port, an access of four bytes is looked up in the third page.
    check(Place::EXCEPTION_INTERCEPTS, 1 << 59, Event::Io { port: 0xffff, bytes: 4 }, false);
}
