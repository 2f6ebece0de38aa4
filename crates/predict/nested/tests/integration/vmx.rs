//! Every instruction, legal and illegal, as the manual says (SDM volume 3C, chapters 25, 27 and 31), and
//! a driver that does anything in any order.

use proptest::prelude::*;
use strata_nested::memory::Memory;
use strata_nested::vmx::{
    Answer, Capabilities, Entry, EntryFailure, Exception, Field, InstructionError as Error,
    Invalidate, Processor, control,
};

const VMXON: u64 = 0x1000;
const VMCS: u64 = 0x2000;
const OTHER: u64 = 0x3000;
const SHADOW: u64 = 0x4000;
const FREE: u64 = 0x5000;

struct World {
    memory: Memory,
    processor: Processor,
}

impl World {
    fn new(capabilities: Capabilities) -> Self {
        let mut memory = Memory::default();
        for region in [VMXON, VMCS, OTHER] {
            memory.write_u32(region, capabilities.revision);
        }
        memory.write_u32(SHADOW, capabilities.revision | 1 << 31);
        Self { memory, processor: Processor::new(capabilities) }
    }

    /// In VMX root operation, with a current VMCS that can be entered.
    fn ready() -> Self {
        let mut world = Self::new(Capabilities::default());
        world.processor.enabled = true;
        assert_eq!(world.processor.vmxon(&mut world.memory, VMXON), Ok(Answer::Succeed(0)));
        world.load(VMCS);
        for (field, value) in fields() {
            world.write(field, value);
        }
        world
    }

    fn load(&mut self, address: u64) {
        let answer = self.processor.vmclear(&mut self.memory, address);
        assert_eq!(answer, Ok(Answer::Succeed(0)));
        let answer = self.processor.vmptrld(&mut self.memory, address);
        assert_eq!(answer, Ok(Answer::Succeed(0)));
    }

    fn write(&mut self, field: Field, value: u64) {
        let answer = self.processor.vmwrite(&mut self.memory, field, value);
        assert_eq!(answer, Ok(Answer::Succeed(0)), "{field:?}");
    }

    fn read(&mut self, field: Field) -> u64 {
        match self.processor.vmread(&mut self.memory, field) {
            Ok(Answer::Succeed(value)) => value,
            other => panic!("{field:?}: {other:?}"),
        }
    }

    fn enter(&mut self, resume: bool) -> Entry {
        self.processor.enter(&mut self.memory, resume).unwrap()
    }
}

/// A guest in 64-bit mode with EPT and a VPID.
fn fields() -> Vec<(Field, u64)> {
    use control::{entry, exit, pin, processor, secondary};
    let mut fields = vec![
        (
            Field::PIN_CONTROLS,
            pin::DEFAULT1 | pin::EXTERNAL_INTERRUPT | pin::NMI | pin::VIRTUAL_NMI,
        ),
        (Field::PROCESSOR_CONTROLS, processor::DEFAULT1 | processor::SECONDARY | processor::HLT),
        (Field::SECONDARY_CONTROLS, secondary::EPT | secondary::VPID),
        (Field::EXIT_CONTROLS, exit::DEFAULT1 | exit::HOST_64_BIT | exit::LOAD_EFER),
        (Field::ENTRY_CONTROLS, entry::DEFAULT1 | entry::GUEST_IA32E | entry::LOAD_EFER),
        (Field::GUEST_TR_RIGHTS, 0x8b),
        (Field::GUEST_CS_RIGHTS, 0xa09b),
    ]
    .into_iter()
    .map(|(field, value)| (field, u64::from(value)))
    .collect::<Vec<_>>();
    fields.extend([
        (Field::VPID, 1),
        (Field::EPT_POINTER, 0x10_0000 | 3 << 3 | 6),
        (Field::HOST_CR0, 0x8005_0033),
        (Field::HOST_CR3, 0x20_0000),
        (Field::HOST_CR4, 0x2_2020),
        (Field::HOST_EFER, 0xd01),
        (Field::HOST_CS_SELECTOR, 0x10),
        (Field::HOST_TR_SELECTOR, 0x40),
        (Field::HOST_RIP, 0xffff_ffff_8100_0000),
        (Field::GUEST_CR0, 0x8005_0033),
        (Field::GUEST_CR3, 0x30_0000),
        (Field::GUEST_CR4, 0x2_2020),
        (Field::GUEST_EFER, 0xd01),
        (Field::GUEST_RFLAGS, 0x202),
        (Field::GUEST_RIP, 0x40_0000),
        (Field::LINK_POINTER, u64::MAX),
    ]);
    fields
}

#[test]
fn nothing_works_outside_vmx_operation() {
    let mut world = World::new(Capabilities::default());
    let World { memory, processor } = &mut world;
    let opcode = Exception::InvalidOpcode;
    assert_eq!(processor.vmxon(memory, VMXON), Err(opcode), "31.3, VMXON: CR4.VMXE is 0");
    assert_eq!(processor.vmxoff(), Err(opcode));
    assert_eq!(processor.vmclear(memory, VMCS), Err(opcode));
    assert_eq!(processor.vmptrld(memory, VMCS), Err(opcode));
    assert_eq!(processor.vmptrst(), Err(opcode));
    assert_eq!(processor.vmread(memory, Field::GUEST_RIP), Err(opcode));
    assert_eq!(processor.vmwrite(memory, Field::GUEST_RIP, 0), Err(opcode));
    assert_eq!(processor.enter(memory, false), Err(opcode));
    assert_eq!(processor.invalidate(memory, Invalidate::Ept(2, 0, 0)), Err(opcode));
}

#[test]
fn above_privilege_level_0_everything_is_a_general_protection() {
    let mut world = World::ready();
    world.processor.privilege = 3;
    let World { memory, processor } = &mut world;
    let protection = Exception::GeneralProtection;
    assert_eq!(processor.vmxon(memory, VMXON), Err(protection));
    assert_eq!(processor.vmxoff(), Err(protection));
    assert_eq!(processor.vmclear(memory, VMCS), Err(protection));
    assert_eq!(processor.vmptrld(memory, VMCS), Err(protection));
    assert_eq!(processor.vmptrst(), Err(protection));
    assert_eq!(processor.vmread(memory, Field::GUEST_RIP), Err(protection));
    assert_eq!(processor.vmwrite(memory, Field::GUEST_RIP, 0), Err(protection));
    assert_eq!(processor.enter(memory, false), Err(protection));
    assert_eq!(processor.invalidate(memory, Invalidate::Vpid(2, 0, 0)), Err(protection));
}

#[test]
fn vmxon_takes_a_region_of_the_right_revision_once() {
    let mut world = World::new(Capabilities::default());
    world.processor.enabled = true;
    let World { memory, processor } = &mut world;
    for address in [VMXON + 8, 1 << 46, SHADOW, FREE] {
        assert_eq!(processor.vmxon(memory, address), Ok(Answer::FailInvalid), "{address:#x}");
    }
    assert_eq!(processor.vmxon(memory, VMXON), Ok(Answer::Succeed(0)));
    assert_eq!(processor.vmptrst(), Ok(Answer::Succeed(u64::MAX)), "no current VMCS");
    assert_eq!(processor.vmxon(memory, VMXON), Ok(Answer::FailInvalid), "in root, without a VMCS");
    assert_eq!(processor.vmptrld(memory, VMCS), Ok(Answer::Succeed(0)));
    assert_eq!(processor.vmxon(memory, VMXON), Ok(Answer::FailValid(Error::VmxonInRoot)));
    assert_eq!(world.read(Field::INSTRUCTION_ERROR), 15);
    assert_eq!(world.processor.vmxoff(), Ok(Answer::Succeed(0)));
    assert_eq!(world.processor.vmptrst(), Err(Exception::InvalidOpcode));
}

#[test]
fn pointers_must_be_to_vmcss() {
    let mut world = World::ready();
    let World { memory, processor } = &mut world;
    for (address, clear, load) in [
        (VMCS + 1, Error::ClearAddress, Error::LoadAddress),
        (1 << 46, Error::ClearAddress, Error::LoadAddress),
        (VMXON, Error::ClearVmxon, Error::LoadVmxon),
    ] {
        assert_eq!(processor.vmclear(memory, address), Ok(Answer::FailValid(clear)));
        assert_eq!(processor.vmptrld(memory, address), Ok(Answer::FailValid(load)));
    }
    assert_eq!(processor.vmptrld(memory, FREE), Ok(Answer::FailValid(Error::LoadRevision)));
    assert_eq!(processor.vmptrst(), Ok(Answer::Succeed(VMCS)), "failures leave it current");
    assert_eq!(processor.vmptrld(memory, SHADOW), Ok(Answer::Succeed(0)));
    assert_eq!(world.enter(false), Entry::Failed(Answer::FailInvalid), "25.10: a shadow VMCS");

    let old = Capabilities { shadowing: false, ..Capabilities::default() };
    let mut world = World::new(old);
    world.processor.enabled = true;
    let World { memory, processor } = &mut world;
    processor.vmxon(memory, VMXON).unwrap();
    processor.vmptrld(memory, VMCS).unwrap();
    assert_eq!(processor.vmptrld(memory, SHADOW), Ok(Answer::FailValid(Error::LoadRevision)));
}

#[test]
fn without_a_current_vmcs_there_is_none_to_work_on() {
    let mut world = World::ready();
    let World { memory, processor } = &mut world;
    assert_eq!(processor.vmclear(memory, VMCS), Ok(Answer::Succeed(0)));
    assert_eq!(processor.vmptrst(), Ok(Answer::Succeed(u64::MAX)), "VMCLEAR of the current VMCS");
    assert_eq!(processor.vmread(memory, Field::GUEST_RIP), Ok(Answer::FailInvalid));
    assert_eq!(processor.vmwrite(memory, Field::GUEST_RIP, 0), Ok(Answer::FailInvalid));
    assert_eq!(processor.enter(memory, false), Ok(Entry::Failed(Answer::FailInvalid)));
    assert_eq!(processor.vmptrld(memory, FREE), Ok(Answer::FailInvalid));
}

#[test]
fn fields_keep_what_fits_and_upper_halves_are_fields_of_their_own() {
    let mut world = World::ready();
    world.write(Field::VPID, 0x1_2345);
    assert_eq!(world.read(Field::VPID), 0x2345);
    world.write(Field::TSC_OFFSET, 0x1111_2222_3333_4444);
    let upper = Field(Field::TSC_OFFSET.0 + 1);
    assert_eq!(world.read(upper), 0x1111_2222);
    world.write(upper, 0xaaaa_bbbb);
    assert_eq!(world.read(Field::TSC_OFFSET), 0xaaaa_bbbb_3333_4444);

    let World { memory, processor } = &mut world;
    for field in [Field(0x0006), Field(0x482c), Field(0x4001), Field(u32::MAX)] {
        let unsupported = Ok(Answer::FailValid(Error::UnsupportedField));
        assert_eq!(processor.vmread(memory, field), unsupported, "{field:?}");
        assert_eq!(processor.vmwrite(memory, field, 1), unsupported, "{field:?}");
    }
    assert_eq!(world.read(Field::INSTRUCTION_ERROR), 12);
    let old = Capabilities { writes_exit_information: false, ..Capabilities::default() };
    let mut world = World::new(old);
    world.processor.enabled = true;
    let World { memory, processor } = &mut world;
    processor.vmxon(memory, VMXON).unwrap();
    processor.vmptrld(memory, VMCS).unwrap();
    let answer = processor.vmwrite(memory, Field::EXIT_REASON, 1);
    assert_eq!(answer, Ok(Answer::FailValid(Error::ReadOnlyField)));
}

#[test]
fn a_vmcs_is_launched_once_and_resumed_until_it_is_cleared() {
    let mut world = World::ready();
    let failed = |error| Entry::Failed(Answer::FailValid(error));
    assert_eq!(world.enter(true), failed(Error::ResumeNotLaunched));
    assert_eq!(world.enter(false), Entry::Entered);
    assert!(world.processor.is_guest());
    world.processor.exit(&mut world.memory, 48, 0x181);
    assert_eq!(
        (world.read(Field::EXIT_REASON), world.read(Field::EXIT_QUALIFICATION)),
        (48, 0x181)
    );
    assert_eq!(world.enter(false), failed(Error::LaunchNotClear));
    assert_eq!(world.enter(true), Entry::Entered);
    world.processor.exit(&mut world.memory, 12, 0);
    world.processor.vmclear(&mut world.memory, VMCS).unwrap();
    world.processor.vmptrld(&mut world.memory, VMCS).unwrap();
    assert_eq!(world.enter(true), failed(Error::ResumeNotLaunched));
    world.processor.blocked_by_mov_ss = true;
    assert_eq!(world.enter(false), failed(Error::EntryMovSs));
    world.processor.blocked_by_mov_ss = false;
    assert_eq!(world.enter(false), Entry::Entered);
}

#[test]
fn what_is_injected_once_is_not_injected_again() {
    let mut world = World::ready();
    world.write(Field::ENTRY_EVENT, 1 << 31 | 3 << 8 | 6);
    assert_eq!(world.enter(false), Entry::Entered);
    world.processor.exit(&mut world.memory, 12, 0);
    assert_eq!(world.read(Field::ENTRY_EVENT), 3 << 8 | 6);
}

#[test]
fn wrong_fields_fail_as_the_part_they_belong_to() {
    use control::{exit, pin, processor, secondary};
    let controls = Entry::Failed(Answer::FailValid(Error::EntryControls));
    let host = Entry::Failed(Answer::FailValid(Error::EntryHostState));
    let guest = |field| Entry::Refused(EntryFailure::GuestState(field));
    let link = Entry::Refused(EntryFailure::LinkPointer);
    let second = |bits: u32| u64::from(secondary::EPT | secondary::VPID | bits);
    let first = |bits: u32| u64::from(processor::DEFAULT1 | processor::SECONDARY | bits);
    let cases = [
        // Section 27.2.1.1.
        (Field::PIN_CONTROLS, 0, controls),
        (Field::PIN_CONTROLS, u64::from(pin::DEFAULT1 | 1 << 31), controls),
        (Field::PIN_CONTROLS, u64::from(pin::DEFAULT1 | pin::VIRTUAL_NMI), controls),
        (Field::PROCESSOR_CONTROLS, 0, controls),
        (Field::PROCESSOR_CONTROLS, first(1), controls),
        (Field::CR3_TARGETS, 5, controls),
        (Field::VPID, 0, controls),
        (Field::EPT_POINTER, 0x10_0000 | 3 << 3 | 5, controls),
        (Field::EPT_POINTER, 0x10_0000 | 2 << 3 | 6, controls),
        (Field::EPT_POINTER, 0x10_0000 | 3 << 3 | 6 | 1 << 7, controls),
        (Field::EPT_POINTER, 1 << 46 | 3 << 3 | 6, controls),
        (Field::SECONDARY_CONTROLS, u64::from(secondary::PML), controls),
        (Field::SECONDARY_CONTROLS, u64::from(secondary::UNRESTRICTED_GUEST), controls),
        (Field::SECONDARY_CONTROLS, second(1 << 30), controls),
        // Section 27.2.1.2.
        (Field::EXIT_CONTROLS, u64::from(exit::DEFAULT1 | exit::SAVE_PREEMPTION_TIMER), controls),
        (Field::EXIT_CONTROLS, 0, controls),
        // Section 27.2.1.3.
        (Field::ENTRY_CONTROLS, 0, controls),
        (Field::ENTRY_EVENT, 1 << 31 | 1 << 8, controls),
        (Field::ENTRY_EVENT, 1 << 31 | 2 << 8 | 3, controls),
        (Field::ENTRY_EVENT, 1 << 31 | 3 << 8 | 32, controls),
        (Field::ENTRY_EVENT, 1 << 31 | 3 << 8 | 14, controls),
        (Field::ENTRY_EVENT, 1 << 31 | 4 << 8 | 0x80, controls),
        (Field::ENTRY_EVENT, 1 << 31 | 1 << 12 | 0x20, controls),
        // Sections 27.2.2 to 27.2.4.
        (Field::HOST_CR0, 0x33, host),
        (Field::HOST_CR4, 0x20, host),
        (Field::HOST_CR4, 0x2000, host),
        (Field::HOST_CR3, 1 << 46, host),
        (Field::HOST_RIP, 1 << 47, host),
        (Field::HOST_GDTR_BASE, 1 << 62, host),
        (Field::HOST_CS_SELECTOR, 0, host),
        (Field::HOST_TR_SELECTOR, 0x43, host),
        (Field::HOST_EFER, 1, host),
        (Field::EXIT_CONTROLS, u64::from(exit::DEFAULT1), host),
        // Section 27.3.1.
        (Field::GUEST_CR0, 0x33, guest(Field::GUEST_CR0)),
        (Field::GUEST_CR4, 0x2000, guest(Field::GUEST_CR4)),
        (Field::GUEST_CR3, 1 << 50, guest(Field::GUEST_CR3)),
        (Field::GUEST_EFER, 1, guest(Field::GUEST_EFER)),
        (Field::GUEST_TR_RIGHTS, 0x89, guest(Field::GUEST_TR_RIGHTS)),
        (Field::GUEST_TR_RIGHTS, 0x1_008b, guest(Field::GUEST_TR_RIGHTS)),
        (Field::GUEST_CS_RIGHTS, 0xa093, guest(Field::GUEST_CS_RIGHTS)),
        (Field::GUEST_CS_RIGHTS, 0xe09b, guest(Field::GUEST_CS_RIGHTS)),
        (Field::GUEST_RIP, 1 << 47, guest(Field::GUEST_RIP)),
        (Field::GUEST_RFLAGS, 0x200, guest(Field::GUEST_RFLAGS)),
        (Field::GUEST_RFLAGS, 0x2_0202, guest(Field::GUEST_RFLAGS)),
        (Field::GUEST_ACTIVITY, 4, guest(Field::GUEST_ACTIVITY)),
        (Field::GUEST_INTERRUPTIBILITY, 3, guest(Field::GUEST_INTERRUPTIBILITY)),
        (Field::GUEST_INTERRUPTIBILITY, 1 << 5, guest(Field::GUEST_INTERRUPTIBILITY)),
        (Field::LINK_POINTER, VMCS + 1, link),
        (Field::LINK_POINTER, SHADOW, link),
        (Field::LINK_POINTER, FREE, link),
    ];
    for (field, value, expected) in cases {
        let mut world = World::ready();
        world.write(field, value);
        assert_eq!(world.enter(false), expected, "{field:?} = {value:#x}");
        assert!(!world.processor.is_guest());
        let (error, reason) =
            (world.read(Field::INSTRUCTION_ERROR), world.read(Field::EXIT_REASON));
        match expected {
            Entry::Failed(Answer::FailValid(expected)) => assert_eq!(error, expected as u64),
            _ => assert_eq!(reason, 1 << 31 | 33, "27.8"),
        }
        // Mended, it can be entered: a failed entry is none.
        let right = fields().into_iter().find(|(name, _)| *name == field);
        world.write(field, right.map_or(0, |(_, value)| value));
        assert_eq!(world.enter(false), Entry::Entered, "{field:?}");
    }
}

#[test]
fn msr_areas_are_checked_only_if_there_are_any() {
    for (count, address) in [
        (Field::EXIT_MSR_STORE_COUNT, Field::EXIT_MSR_STORE),
        (Field::EXIT_MSR_LOAD_COUNT, Field::EXIT_MSR_LOAD),
        (Field::ENTRY_MSR_LOAD_COUNT, Field::ENTRY_MSR_LOAD),
    ] {
        for (entries, at, fits) in [
            (0, 8, true),
            (1, 8, false),
            (1, 16, true),
            (2, (1 << 46) - 16, false),
            (1, (1 << 46) - 16, true),
            (1, u64::MAX - 15, false),
        ] {
            let mut world = World::ready();
            world.write(count, entries);
            world.write(address, at);
            assert_eq!(world.enter(false) == Entry::Entered, fits, "{entries} at {at:#x}");
        }
    }
}

#[test]
fn invalidations_take_the_types_there_are() {
    let mut world = World::ready();
    let pointer = 0x10_0000 | 3 << 3 | 6;
    let fails = Ok(Answer::FailValid(Error::InvalidateOperand));
    let works = Ok(Answer::Succeed(0));
    for (what, expected) in [
        (Invalidate::Ept(0, pointer, 0), fails),
        (Invalidate::Ept(1, pointer, 0), works),
        (Invalidate::Ept(1, pointer, 1), fails),
        (Invalidate::Ept(1, 5, 0), fails),
        (Invalidate::Ept(2, 5, 5), works),
        (Invalidate::Ept(3, pointer, 0), fails),
        (Invalidate::Vpid(0, 1, 0x1000), works),
        (Invalidate::Vpid(0, 0, 0x1000), fails),
        (Invalidate::Vpid(0, 1, 1 << 47), fails),
        (Invalidate::Vpid(1, 1, 1 << 47), works),
        (Invalidate::Vpid(1, 1 << 16, 0), fails),
        (Invalidate::Vpid(2, 0, 0), works),
        (Invalidate::Vpid(3, 0, 0), fails),
        (Invalidate::Vpid(4, 1, 0), fails),
    ] {
        assert_eq!(world.processor.invalidate(&mut world.memory, what), expected, "{what:?}");
    }
}

#[test]
fn a_shadow_vmcs_serves_the_fields_its_bitmaps_let_through() {
    const READ: u64 = 0x8000;
    const WRITE: u64 = 0x9000;
    let mut world = World::ready();
    world.write(Field::LINK_POINTER, SHADOW);
    let second = control::secondary::EPT | control::secondary::VPID;
    let second = second | control::secondary::VMCS_SHADOWING;
    world.write(Field::SECONDARY_CONTROLS, second.into());
    world.write(Field::VMREAD_BITMAP, READ);
    world.write(Field::VMWRITE_BITMAP, WRITE);
    // Section 25.6.15: a bit that is set makes the access exit.
    let field = Field::GUEST_CR3;
    world.memory.write_u32(WRITE + u64::from(field.0 / 32) * 4, 1 << (field.0 % 32));
    assert_eq!(world.enter(false), Entry::Entered);
    let World { memory, processor } = &mut world;
    let mut access = |field, write| processor.shadow_access(memory, field, write);
    assert_eq!(access(Field::GUEST_RIP, Some(0x1234)), Some(Answer::Succeed(0)));
    assert_eq!(access(Field::GUEST_RIP, None), Some(Answer::Succeed(0x1234)));
    assert_eq!(access(field, None), Some(Answer::Succeed(0)));
    assert_eq!(access(field, Some(1)), None);
    assert_eq!(access(Field(0x8000), None), None, "bits 31:15 are set");
    let unsupported = Some(Answer::FailValid(Error::UnsupportedField));
    assert_eq!(access(Field(0x0006), None), unsupported);
    // The VMCS it runs on is another.
    world.processor.exit(&mut world.memory, 12, 0);
    assert_eq!(world.read(Field::GUEST_RIP), 0x40_0000);
}

#[derive(Clone, Debug)]
enum Op {
    Vmxon(u64),
    Vmxoff,
    Clear(u64),
    Load(u64),
    Store,
    Read(u32),
    Write(u32, u64),
    Mend,
    Enter(bool),
    Exit(u32),
    Invalidate(bool, u64, u64, u64),
    Shadow(u32, Option<u64>),
    Privilege(u8),
    MovSs,
}

fn op() -> impl Strategy<Value = Op> {
    let address = || prop_oneof![(0..8u64).prop_map(|page| page << 12), any::<u64>()];
    let known: Vec<u32> = Field::all().map(|field| field.0).collect();
    let field = move || prop_oneof![4 => prop::sample::select(known.clone()), 1 => any::<u32>()];
    let value = || prop_oneof![0..64u64, any::<u64>()];
    prop_oneof![
        4 => address().prop_map(Op::Vmxon),
        1 => Just(Op::Vmxoff),
        2 => address().prop_map(Op::Clear),
        4 => address().prop_map(Op::Load),
        1 => Just(Op::Store),
        4 => field().prop_map(Op::Read),
        8 => (field(), value()).prop_map(|(field, value)| Op::Write(field, value)),
        4 => Just(Op::Mend),
        8 => any::<bool>().prop_map(Op::Enter),
        4 => (0..70u32).prop_map(Op::Exit),
        2 => (any::<bool>(), 0..5u64, value(), value())
            .prop_map(|(ept, kind, a, b)| Op::Invalidate(ept, kind, a, b)),
        3 => (field(), prop::option::of(value())).prop_map(|(field, value)| Op::Shadow(field, value)),
        1 => (0..2u8).prop_map(|level| Op::Privilege(level * 3)),
        1 => Just(Op::MovSs),
    ]
}

proptest! {
    #[test]
    fn whatever_a_hypervisor_does_no_state_is_one_the_manual_forbids(
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut world = World::new(Capabilities::default());
        world.processor.enabled = true;
        for op in ops {
            let current = world.processor.current();
            let was_guest = world.processor.is_guest();
            let World { memory, processor } = &mut world;
            match op {
                Op::Exit(reason) if was_guest => processor.exit(memory, reason, 0),
                Op::Shadow(field, value) if was_guest => {
                    let _ = processor.shadow_access(memory, Field(field), value);
                    prop_assert_eq!(processor.current(), current);
                }
                Op::Privilege(level) => processor.privilege = level,
                // A guest's instructions exit; there is nothing of this processor's to do.
                _ if was_guest => {}
                Op::Vmxon(at) => {
                    let _ = processor.vmxon(memory, at);
                }
                Op::Vmxoff => {
                    let _ = processor.vmxoff();
                }
                Op::Clear(at) => {
                    let cleared = processor.vmclear(memory, at);
                    if cleared == Ok(Answer::Succeed(0)) {
                        prop_assert_ne!(processor.current(), Some(at));
                    }
                }
                Op::Load(at) => {
                    let loaded = processor.vmptrld(memory, at) == Ok(Answer::Succeed(0));
                    prop_assert_eq!(processor.current(), if loaded { Some(at) } else { current });
                }
                Op::Store => {
                    let _ = processor.vmptrst();
                }
                Op::Read(field) => {
                    let answer = processor.vmread(memory, Field(field));
                    if let Ok(Answer::Succeed(_)) = answer {
                        prop_assert!(Field(field).slot().is_some());
                    }
                }
                Op::Write(field, value) => {
                    let _ = processor.vmwrite(memory, Field(field), value);
                }
                Op::Mend => {
                    for (field, value) in fields() {
                        let _ = processor.vmwrite(memory, field, value);
                    }
                }
                Op::Enter(resume) => {
                    let entered = processor.enter(memory, resume) == Ok(Entry::Entered);
                    prop_assert_eq!(processor.is_guest(), entered);
                    prop_assert_eq!(processor.current(), current);
                }
                Op::Invalidate(true, kind, a, b) => {
                    let _ = processor.invalidate(memory, Invalidate::Ept(kind, a, b));
                }
                Op::Invalidate(false, kind, a, b) => {
                    let _ = processor.invalidate(memory, Invalidate::Vpid(kind, a, b));
                }
                Op::MovSs => processor.blocked_by_mov_ss = true,
                Op::Exit(_) | Op::Shadow(..) => {}
            }
            // Section 25.1: the current VMCS is never the VMXON region's, and always one of this
            // processor's revision when it was loaded; a guest runs on a VMCS that was launched.
            if let Some(current) = world.processor.current() {
                prop_assert!(current.is_multiple_of(4096) && current >> 46 == 0);
            }
            if world.processor.is_guest() {
                prop_assert!(!world.processor.is_root());
                prop_assert!(world.processor.current().is_some());
            }
        }
    }
}
