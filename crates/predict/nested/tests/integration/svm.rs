//! Every instruction of SVM, legal and illegal, as the manual says (APM volume 2, chapter 15), and a
//! driver that does anything in any order.

use proptest::prelude::*;
use strata_nested::memory::Memory;
use strata_nested::svm::vmcb::Place;
use strata_nested::svm::{Exception, Invalid, Processor, Run, Vmcb};

const VMCB: u64 = 0x2000;
const OTHER: u64 = 0x3000;

/// A guest in 64-bit mode with nested paging.
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

fn ready() -> (Memory, Processor) {
    let mut memory = Memory::default();
    for vmcb in [VMCB, OTHER] {
        for (place, value) in STATE {
            Vmcb(vmcb).set(&mut memory, place, value);
        }
    }
    let mut processor = Processor::new();
    processor.enabled = true;
    (memory, processor)
}

#[test]
fn nothing_works_while_svm_is_off_or_without_privilege() {
    let (mut memory, mut processor) = ready();
    for (enabled, privilege, exception) in [
        (false, 0, Exception::InvalidOpcode),
        (false, 3, Exception::InvalidOpcode),
        (true, 3, Exception::GeneralProtection),
    ] {
        processor.enabled = enabled;
        processor.privilege = privilege;
        assert_eq!(processor.vmrun(&mut memory, VMCB), Err(exception));
        assert_eq!(processor.vmload(&memory, VMCB), Err(exception));
        assert_eq!(processor.vmsave(&mut memory, VMCB), Err(exception));
        assert_eq!(processor.stgi(), Err(exception));
        assert_eq!(processor.clgi(), Err(exception));
        assert_eq!(processor.invlpga(), Err(exception));
    }
    assert!(processor.interrupts(), "nothing happened");
}

#[test]
fn a_vmcb_is_a_page_of_physical_memory() {
    let (mut memory, mut processor) = ready();
    for address in [VMCB + 8, 1 << 48, u64::MAX] {
        let protection = Exception::GeneralProtection;
        assert_eq!(processor.vmrun(&mut memory, address), Err(protection));
        assert_eq!(processor.vmload(&memory, address), Err(protection));
        assert_eq!(processor.vmsave(&mut memory, address), Err(protection));
    }
}

#[test]
fn vmrun_lets_interrupts_through_and_an_exit_holds_them_back() {
    let (mut memory, mut processor) = ready();
    processor.clgi().unwrap();
    assert!(!processor.interrupts());
    assert_eq!(processor.vmrun(&mut memory, VMCB), Ok(Run::Entered));
    assert!(processor.interrupts());
    assert_eq!(processor.guest(), Some(Vmcb(VMCB)));
    processor.exit(&mut memory, 0x400, [4, 0x1234_5000]);
    assert!(!processor.interrupts() && processor.guest().is_none());
    let get = |place| Vmcb(VMCB).get(&memory, place);
    assert_eq!(get(Place::EXIT_CODE), 0x400);
    assert_eq!([get(Place::EXIT_INFORMATION_1), get(Place::EXIT_INFORMATION_2)], [4, 0x1234_5000]);
    processor.stgi().unwrap();
    assert!(processor.interrupts());
}

#[test]
fn state_that_cannot_be_is_refused() {
    let event = |kind: u64, vector: u64| 1 << 31 | kind << 8 | vector;
    let cases = [
        // Section 15.5.1.
        (Place::EFER, 0xd01, Invalid::Efer),
        (Place::EFER, 1 << 32 | 0x1d01, Invalid::Efer),
        (Place::CR0, 0xa005_0033, Invalid::Cr0),
        (Place::CR0, 1 << 32 | 0x8005_0033, Invalid::Cr0),
        (Place::CR3, 1 << 48, Invalid::Cr3),
        (Place::CR4, 1 << 40, Invalid::Cr4),
        (Place::DR6, 1 << 32, Invalid::Debug),
        (Place::DR7, 1 << 63, Invalid::Debug),
        (Place::CR4, 0, Invalid::LongMode),
        (Place::CR0, 0x8005_0032, Invalid::LongMode),
        (Place::CS, 0x0600_0008, Invalid::Code),
        (Place::INTERCEPTS, 0, Invalid::Intercepts),
        (Place::ASID, 0, Invalid::Asid),
        (Place::ASID, 1 << 32, Invalid::Asid),
        (Place::IOPM, (1 << 48) - 0x2000, Invalid::Map),
        (Place::MSRPM, (1 << 48) - 0x1000, Invalid::Map),
        (Place::NESTED_CR3, 1 << 48, Invalid::NestedRoot),
        // Section 15.20.
        (Place::EVENT, event(1, 0), Invalid::Event),
        (Place::EVENT, event(5, 0), Invalid::Event),
        (Place::EVENT, event(3, 2), Invalid::Event),
        (Place::EVENT, event(3, 32), Invalid::Event),
    ];
    for (place, value, invalid) in cases {
        let (mut memory, mut processor) = ready();
        Vmcb(VMCB).set(&mut memory, place, value);
        let refused = processor.vmrun(&mut memory, VMCB);
        assert_eq!(refused, Ok(Run::Refused(invalid)), "{place:?} = {value:#x}");
        assert!(processor.guest().is_none() && !processor.interrupts());
        assert_eq!(Vmcb(VMCB).get(&memory, Place::EXIT_CODE), u64::MAX);
        let right = STATE.iter().find(|(known, _)| *known == place);
        Vmcb(VMCB).set(&mut memory, place, right.map_or(0, |(_, value)| *value));
        assert_eq!(processor.vmrun(&mut memory, VMCB), Ok(Run::Entered), "{place:?}");
    }
    for legal in [event(0, 0x20), event(2, 9), event(3, 14), event(4, 0x80), 3 << 8 | 99] {
        let (mut memory, mut processor) = ready();
        Vmcb(VMCB).set(&mut memory, Place::EVENT, legal);
        assert_eq!(processor.vmrun(&mut memory, VMCB), Ok(Run::Entered), "{legal:#x}");
        processor.exit(&mut memory, 0x60, [0; 2]);
        assert_eq!(Vmcb(VMCB).get(&memory, Place::EVENT), 0, "delivered");
    }
}

#[test]
fn vmload_and_vmsave_move_what_vmrun_leaves_alone() {
    let (mut memory, mut processor) = ready();
    for (index, place) in Place::MOVED_BY_VMLOAD.into_iter().enumerate() {
        Vmcb(VMCB).set(&mut memory, place, 0x100 + index as u64);
    }
    let before = memory.clone();
    processor.vmload(&memory, VMCB).unwrap();
    assert_eq!(memory, before);
    processor.vmsave(&mut memory, OTHER).unwrap();
    for &place in Place::ALL {
        let moved = Place::MOVED_BY_VMLOAD.contains(&place);
        let (from, to) = (Vmcb(VMCB).get(&memory, place), Vmcb(OTHER).get(&memory, place));
        let stayed = Vmcb(OTHER).get(&before, place);
        assert_eq!(to, if moved { from } else { stayed }, "{place:?}");
    }
}

#[test]
fn a_clean_bit_that_lies_leaves_the_old_value_in_force() {
    let (mut memory, mut processor) = ready();
    let run = |processor: &mut Processor, memory: &mut Memory, vmcb| {
        assert_eq!(processor.vmrun(memory, vmcb), Ok(Run::Entered));
        processor.exit(memory, 0x60, [0; 2]);
    };
    run(&mut processor, &mut memory, VMCB);
    let vmcb = Vmcb(VMCB);
    vmcb.set(&mut memory, Place::CR3, 0x77_7000);
    vmcb.set(&mut memory, Place::RIP, 0x99);
    // Section 15.15.3: bit 5 is for CR0, CR3, CR4 and EFER.
    vmcb.set(&mut memory, Place::CLEAN, 1 << 5);
    run(&mut processor, &mut memory, VMCB);
    assert_eq!(processor.state(Place::CR3), 0x20_0000, "remembered");
    assert_eq!(processor.state(Place::RIP), 0x99, "no bit vouches for it");
    vmcb.set(&mut memory, Place::CLEAN, 0);
    run(&mut processor, &mut memory, VMCB);
    assert_eq!(processor.state(Place::CR3), 0x77_7000);
    // Another VMCB in between: nothing is remembered.
    vmcb.set(&mut memory, Place::CLEAN, u64::MAX);
    run(&mut processor, &mut memory, OTHER);
    vmcb.set(&mut memory, Place::CR3, 0x88_8000);
    run(&mut processor, &mut memory, VMCB);
    assert_eq!(processor.state(Place::CR3), 0x88_8000);
}

#[derive(Clone, Debug)]
enum Op {
    Run(u64),
    Exit(u64),
    Load(u64),
    Save(u64),
    Gif(bool),
    Set(usize, u64),
    Mend,
    Svme(bool),
    Privilege(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let address = || prop_oneof![4 => (1..5u64).prop_map(|page| page << 12), 1 => any::<u64>()];
    let value = || prop_oneof![0..4u64, any::<u64>()];
    prop_oneof![
        6 => address().prop_map(Op::Run),
        4 => value().prop_map(Op::Exit),
        2 => address().prop_map(Op::Load),
        2 => address().prop_map(Op::Save),
        2 => any::<bool>().prop_map(Op::Gif),
        6 => (0..Place::ALL.len(), value()).prop_map(|(place, value)| Op::Set(place, value)),
        3 => Just(Op::Mend),
        1 => prop_oneof![3 => Just(true), 1 => Just(false)].prop_map(Op::Svme),
        1 => (0..2u8).prop_map(|level| Op::Privilege(3 * level)),
    ]
}

proptest! {
    #[test]
    fn whatever_a_hypervisor_does_no_state_is_one_the_manual_forbids(
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let (mut memory, mut processor) = ready();
        for op in ops {
            let runs = processor.guest().is_some();
            match op {
                Op::Exit(code) if runs => {
                    processor.exit(&mut memory, code, [0; 2]);
                    prop_assert!(!processor.interrupts());
                }
                Op::Set(place, value) => Vmcb(VMCB).set(&mut memory, Place::ALL[place], value),
                Op::Svme(on) => processor.enabled = on,
                Op::Privilege(level) => processor.privilege = level,
                Op::Mend => {
                    for (place, value) in STATE {
                        Vmcb(VMCB).set(&mut memory, place, value);
                    }
                }
                _ if runs => {}
                Op::Run(at) => {
                    let entered = processor.vmrun(&mut memory, at) == Ok(Run::Entered);
                    prop_assert_eq!(processor.guest(), entered.then_some(Vmcb(at)));
                }
                Op::Load(at) => {
                    let _ = processor.vmload(&memory, at);
                }
                Op::Save(at) => {
                    let _ = processor.vmsave(&mut memory, at);
                }
                Op::Gif(true) => {
                    let _ = processor.stgi();
                }
                Op::Gif(false) => {
                    let _ = processor.clgi();
                }
                Op::Exit(_) => {}
            }
            if processor.guest().is_some() {
                prop_assert_ne!(processor.state(Place::ASID) & 0xffff_ffff, 0);
                prop_assert_ne!(processor.state(Place::EFER) & 1 << 12, 0);
            }
        }
    }
}
