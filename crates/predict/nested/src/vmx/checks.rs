//! What an entry checks (SDM volume 3C, sections 27.2 and 27.3).
//!
//! The checks of the fields that hypervisors here use: controls and their addresses, the event to
//! inject, host state, and of the guest's state control registers, RIP, RFLAGS, activity,
//! interruptibility, CS, TR and the link pointer. Left out are checks of what no capability here allows
//! (SMM, SGX, posted interrupts) and the finer ones of segments.

use super::capabilities::Capabilities;
use super::control::{entry, exit, pin, processor, secondary};
use super::field::Field;
use super::region::Region;
use crate::memory::{Memory, PAGE};

/// What made an entry fail before anything was loaded, with the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// A control field.
    Controls(Field),
    /// A field of the host state.
    HostState(Field),
}

/// What made an entry fail while the guest's state was loaded (section 27.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryFailure {
    /// A field of the guest state.
    GuestState(Field),
    /// The VMCS link pointer.
    LinkPointer,
}

impl EntryFailure {
    /// The exit reason: *VM-entry failure due to invalid guest state* (appendix C), which says that it
    /// was no entry.
    pub const fn exit_reason(self) -> u32 {
        1 << 31 | 33
    }

    /// The exit qualification (section 27.8).
    pub const fn qualification(self) -> u64 {
        match self {
            Self::GuestState(_) => 0,
            Self::LinkPointer => 4,
        }
    }
}

/// Bits of CR0 that VMX operation fixes to 1: PE, NE, PG (appendix A.7).
const CR0_FIXED: u64 = 1 << 31 | 1 << 5 | 1;
/// Those that an unrestricted guest need not have: PE and PG.
const CR0_UNRESTRICTED: u64 = 1 << 31 | 1;
/// CR4.VMXE (appendix A.8).
const CR4_FIXED: u64 = 1 << 13;
/// CR4.PAE.
const CR4_PAE: u64 = 1 << 5;
/// Bits of CR4 that exist.
const CR4_KNOWN: u64 = 0x01ff_7fff;

/// Whether an address is canonical, with 48 bits (volume 1, section 3.3.7.1).
pub(super) const fn is_canonical(address: u64) -> bool {
    (address << 16).cast_signed() >> 16 == address.cast_signed()
}

/// Whether this can be an EPT pointer (sections 25.6.11 and 27.2.1.1).
pub(super) fn is_ept_pointer(capabilities: &Capabilities, pointer: u64) -> bool {
    let memory_type = pointer & 7;
    let levels = pointer >> 3 & 7;
    matches!(memory_type, 0 | 6)
        && matches!(levels, 3 | 4)
        && pointer & 0xf80 == 0
        && capabilities.is_physical(pointer)
}

/// Whether IA32_PAT can have this value.
fn is_pat(value: u64) -> bool {
    value.to_le_bytes().iter().all(|kind| matches!(kind, 0 | 1 | 4..=7))
}

/// Whether controls have every bit that must be 1 and no bit that must be 0.
const fn are_allowed(value: u32, default1: u32, allowed: u32) -> bool {
    value & default1 == default1 && value & !allowed == 0
}

struct Reader<'a> {
    region: Region,
    memory: &'a Memory,
}

impl Reader<'_> {
    fn get(&self, field: Field) -> u64 {
        self.region.get(self.memory, field)
    }

    fn bits(&self, field: Field) -> u32 {
        self.get(field) as u32
    }
}

/// Checks controls, then the host state.
pub(super) fn entry_of_controls(
    capabilities: &Capabilities,
    region: Region,
    memory: &Memory,
) -> Result<(), Invalid> {
    let vmcs = Reader { region, memory };
    execution_controls(capabilities, &vmcs).map_err(Invalid::Controls)?;
    exit_controls(capabilities, &vmcs).map_err(Invalid::Controls)?;
    entry_controls(capabilities, &vmcs).map_err(Invalid::Controls)?;
    host_state(capabilities, &vmcs).map_err(Invalid::HostState)
}

fn ensure(holds: bool, field: Field) -> Result<(), Field> {
    if holds { Ok(()) } else { Err(field) }
}

/// Section 27.2.1.1.
fn execution_controls(capabilities: &Capabilities, vmcs: &Reader<'_>) -> Result<(), Field> {
    let pins = vmcs.bits(Field::PIN_CONTROLS);
    ensure(are_allowed(pins, pin::DEFAULT1, pin::ALLOWED), Field::PIN_CONTROLS)?;
    let primary = vmcs.bits(Field::PROCESSOR_CONTROLS);
    let known = are_allowed(primary, processor::DEFAULT1, processor::ALLOWED);
    // CR3-load and CR3-store exiting may be off though they are among the defaults (appendix A.3.2).
    let relaxed = processor::CR3_LOAD | processor::CR3_STORE | processor::INVLPG;
    let known = known || are_allowed(primary, processor::DEFAULT1 & !relaxed, processor::ALLOWED);
    ensure(known, Field::PROCESSOR_CONTROLS)?;
    let has_secondary = primary & processor::SECONDARY != 0;
    let second = if has_secondary { vmcs.bits(Field::SECONDARY_CONTROLS) } else { 0 };
    let shadowing = if capabilities.shadowing { secondary::VMCS_SHADOWING } else { 0 };
    ensure(second & !(secondary::ALLOWED | shadowing) == 0, Field::SECONDARY_CONTROLS)?;
    ensure(vmcs.get(Field::CR3_TARGETS) <= 4, Field::CR3_TARGETS)?;
    let address = |field| ensure(capabilities.is_region(vmcs.get(field)), field);
    if primary & processor::IO_BITMAPS != 0 {
        address(Field::IO_BITMAP_A)?;
        address(Field::IO_BITMAP_B)?;
    }
    if primary & processor::MSR_BITMAPS != 0 {
        address(Field::MSR_BITMAP)?;
    }
    if primary & processor::TPR_SHADOW != 0 {
        address(Field::VIRTUAL_APIC)?;
        ensure(vmcs.get(Field::TPR_THRESHOLD) < 16, Field::TPR_THRESHOLD)?;
    }
    let has = |bit| pins & bit != 0;
    ensure(has(pin::NMI) || !has(pin::VIRTUAL_NMI), Field::PIN_CONTROLS)?;
    let window = primary & processor::NMI_WINDOW != 0;
    ensure(has(pin::VIRTUAL_NMI) || !window, Field::PROCESSOR_CONTROLS)?;
    let ept = second & secondary::EPT != 0;
    if ept {
        let pointer = vmcs.get(Field::EPT_POINTER);
        ensure(is_ept_pointer(capabilities, pointer), Field::EPT_POINTER)?;
    }
    let needs_ept = second & (secondary::UNRESTRICTED_GUEST | secondary::PML) != 0;
    ensure(ept || !needs_ept, Field::SECONDARY_CONTROLS)?;
    if second & secondary::VPID != 0 {
        ensure(vmcs.get(Field::VPID) != 0, Field::VPID)?;
    }
    if second & secondary::PML != 0 {
        address(Field::PML_ADDRESS)?;
    }
    if second & secondary::VMCS_SHADOWING != 0 {
        address(Field::VMREAD_BITMAP)?;
        address(Field::VMWRITE_BITMAP)?;
    }
    Ok(())
}

/// The area of MSRs that a count and an address say (sections 27.2.1.2 and 27.2.1.3).
fn msr_area(
    capabilities: &Capabilities,
    vmcs: &Reader<'_>,
    count: Field,
    address: Field,
) -> Result<(), Field> {
    let count = vmcs.get(count);
    if count == 0 {
        return Ok(());
    }
    let first = vmcs.get(address);
    let last = first.checked_add(16 * count - 1);
    let fits = last.is_some_and(|last| capabilities.is_physical(last));
    ensure(first.is_multiple_of(16) && fits, address)
}

/// Section 27.2.1.2.
fn exit_controls(capabilities: &Capabilities, vmcs: &Reader<'_>) -> Result<(), Field> {
    let exits = vmcs.bits(Field::EXIT_CONTROLS);
    ensure(are_allowed(exits, exit::DEFAULT1, exit::ALLOWED), Field::EXIT_CONTROLS)?;
    let timer = vmcs.bits(Field::PIN_CONTROLS) & pin::PREEMPTION_TIMER != 0;
    ensure(timer || exits & exit::SAVE_PREEMPTION_TIMER == 0, Field::EXIT_CONTROLS)?;
    msr_area(capabilities, vmcs, Field::EXIT_MSR_STORE_COUNT, Field::EXIT_MSR_STORE)?;
    msr_area(capabilities, vmcs, Field::EXIT_MSR_LOAD_COUNT, Field::EXIT_MSR_LOAD)
}

/// Section 27.2.1.3.
fn entry_controls(capabilities: &Capabilities, vmcs: &Reader<'_>) -> Result<(), Field> {
    let entries = vmcs.bits(Field::ENTRY_CONTROLS);
    ensure(are_allowed(entries, entry::DEFAULT1, entry::ALLOWED), Field::ENTRY_CONTROLS)?;
    event(vmcs)?;
    msr_area(capabilities, vmcs, Field::ENTRY_MSR_LOAD_COUNT, Field::ENTRY_MSR_LOAD)
}

/// The event to inject (section 27.2.1.3; format in section 25.8.3).
fn event(vmcs: &Reader<'_>) -> Result<(), Field> {
    let event = vmcs.bits(Field::ENTRY_EVENT);
    if event >> 31 == 0 {
        return Ok(());
    }
    let (vector, kind) = (event & 0xff, event >> 8 & 7);
    let has_error_code = event >> 11 & 1 == 1;
    let is_known = match kind {
        // External interrupt; software interrupt, privileged software exception, software exception.
        0 | 4..=6 => true,
        // NMI.
        2 => vector == 2,
        // Hardware exception.
        3 => vector <= 31,
        // Other event: a pending MTF exit alone.
        7 => vector == 0,
        _ => false,
    };
    // #DF, #TS, #NP, #SS, #GP, #PF, #AC; in protected mode, which every guest here is in unless
    // unrestricted.
    let pushes = kind == 3 && matches!(vector, 8 | 10..=14 | 17);
    let protected = vmcs.get(Field::GUEST_CR0) & 1 == 1;
    let right_code = has_error_code == (pushes && protected);
    ensure(is_known && right_code && event & 0x7fff_f000 == 0, Field::ENTRY_EVENT)?;
    if has_error_code {
        let code = vmcs.bits(Field::ENTRY_EVENT_ERROR_CODE);
        ensure(code >> 16 == 0, Field::ENTRY_EVENT_ERROR_CODE)?;
    }
    if matches!(kind, 4..=6) {
        let length = vmcs.get(Field::ENTRY_INSTRUCTION_LENGTH);
        ensure((1..=15).contains(&length), Field::ENTRY_INSTRUCTION_LENGTH)?;
    }
    Ok(())
}

/// Sections 27.2.2 to 27.2.4.
fn host_state(capabilities: &Capabilities, vmcs: &Reader<'_>) -> Result<(), Field> {
    let exits = vmcs.bits(Field::EXIT_CONTROLS);
    let cr0 = vmcs.get(Field::HOST_CR0);
    ensure(cr0 & CR0_FIXED == CR0_FIXED && cr0 >> 32 == 0, Field::HOST_CR0)?;
    let cr4 = vmcs.get(Field::HOST_CR4);
    ensure(cr4 & CR4_FIXED != 0 && cr4 & !CR4_KNOWN == 0, Field::HOST_CR4)?;
    ensure(capabilities.is_physical(vmcs.get(Field::HOST_CR3)), Field::HOST_CR3)?;
    let canonical = [
        Field::HOST_SYSENTER_ESP,
        Field::HOST_SYSENTER_EIP,
        Field::HOST_FS_BASE,
        Field(Field::HOST_FS_BASE.0 + 2),
        Field::HOST_TR_BASE,
        Field::HOST_GDTR_BASE,
        Field::HOST_IDTR_BASE,
        Field::HOST_RIP,
    ];
    for field in canonical {
        ensure(is_canonical(vmcs.get(field)), field)?;
    }
    if exits & exit::LOAD_PAT != 0 {
        ensure(is_pat(vmcs.get(Field::HOST_PAT)), Field::HOST_PAT)?;
    }
    if exits & exit::LOAD_EFER != 0 {
        // LMA and LME, as the host is in 64-bit mode.
        let efer = vmcs.get(Field::HOST_EFER);
        ensure(efer & 0x500 == 0x500 && efer & !0xd01 == 0, Field::HOST_EFER)?;
    }
    for index in 0..7 {
        let field = Field(Field::HOST_ES_SELECTOR.0 + 2 * index);
        ensure(vmcs.get(field) & 7 == 0, field)?;
    }
    for field in [Field::HOST_CS_SELECTOR, Field::HOST_TR_SELECTOR] {
        ensure(vmcs.get(field) != 0, field)?;
    }
    // Every processor here has Intel 64, and its hypervisor uses it.
    ensure(exits & exit::HOST_64_BIT != 0, Field::EXIT_CONTROLS)?;
    ensure(cr4 & CR4_PAE != 0, Field::HOST_CR4)
}

/// Checks the guest's state (section 27.3.1).
pub(super) fn entry_of_guest(
    capabilities: &Capabilities,
    region: Region,
    memory: &Memory,
) -> Result<(), EntryFailure> {
    let vmcs = Reader { region, memory };
    guest_state(capabilities, &vmcs).map_err(EntryFailure::GuestState)?;
    link_pointer(capabilities, &vmcs)
}

fn guest_state(capabilities: &Capabilities, vmcs: &Reader<'_>) -> Result<(), Field> {
    let entries = vmcs.bits(Field::ENTRY_CONTROLS);
    let has_secondary = vmcs.bits(Field::PROCESSOR_CONTROLS) & processor::SECONDARY != 0;
    let unrestricted =
        has_secondary && vmcs.bits(Field::SECONDARY_CONTROLS) & secondary::UNRESTRICTED_GUEST != 0;
    let ia32e = entries & entry::GUEST_IA32E != 0;
    let cr0 = vmcs.get(Field::GUEST_CR0);
    let fixed = if unrestricted { CR0_FIXED & !CR0_UNRESTRICTED } else { CR0_FIXED };
    let paging_without_protection = cr0 >> 31 & 1 == 1 && cr0 & 1 == 0;
    let fits = cr0 & fixed == fixed && cr0 >> 32 == 0 && !paging_without_protection;
    ensure(fits && (!ia32e || cr0 >> 31 & 1 == 1), Field::GUEST_CR0)?;
    let cr4 = vmcs.get(Field::GUEST_CR4);
    let fits = cr4 & CR4_FIXED != 0 && cr4 & !CR4_KNOWN == 0 && (!ia32e || cr4 & CR4_PAE != 0);
    ensure(fits, Field::GUEST_CR4)?;
    ensure(capabilities.is_physical(vmcs.get(Field::GUEST_CR3)), Field::GUEST_CR3)?;
    for field in [Field::GUEST_SYSENTER_ESP, Field::GUEST_SYSENTER_EIP] {
        ensure(is_canonical(vmcs.get(field)), field)?;
    }
    if entries & entry::LOAD_PAT != 0 {
        ensure(is_pat(vmcs.get(Field::GUEST_PAT)), Field::GUEST_PAT)?;
    }
    if entries & entry::LOAD_EFER != 0 {
        let efer = vmcs.get(Field::GUEST_EFER);
        let (lme, lma) = (efer >> 8 & 1 == 1, efer >> 10 & 1 == 1);
        let fits = lma == ia32e && (cr0 >> 31 & 1 == 0 || lma == lme) && efer & !0xd01 == 0;
        ensure(fits, Field::GUEST_EFER)?;
    }
    // TR must be usable, present, and a busy TSS (section 27.3.1.2).
    let tr = vmcs.bits(Field::GUEST_TR_RIGHTS);
    let is_busy = if ia32e { tr & 0xf == 11 } else { matches!(tr & 0xf, 3 | 11) };
    let fits = is_busy && tr >> 4 & 1 == 0 && tr >> 7 & 1 == 1 && tr >> 16 & 1 == 0;
    ensure(fits, Field::GUEST_TR_RIGHTS)?;
    let cs = vmcs.bits(Field::GUEST_CS_RIGHTS);
    let kind = cs & 0xf;
    let is_code = matches!(kind, 9 | 11 | 13 | 15) || unrestricted && kind == 3;
    let long_and_32 = ia32e && cs >> 13 & 1 == 1 && cs >> 14 & 1 == 1;
    ensure(is_code && cs >> 7 & 1 == 1 && !long_and_32, Field::GUEST_CS_RIGHTS)?;
    // Sections 27.3.1.4 and 27.3.1.5.
    let rip = vmcs.get(Field::GUEST_RIP);
    let wide = ia32e && cs >> 13 & 1 == 1;
    ensure(if wide { is_canonical(rip) } else { rip >> 32 == 0 }, Field::GUEST_RIP)?;
    let flags = vmcs.get(Field::GUEST_RFLAGS);
    // Reserved: 63:22, 15, 5, 3 are 0 and 1 is 1; no virtual-8086 mode in IA-32e mode.
    let fits = flags >> 22 == 0 && flags & 0x8028 == 0 && flags & 2 != 0;
    let virtual_8086 = flags >> 17 & 1 == 1;
    let injects_interrupt = vmcs.bits(Field::ENTRY_EVENT) & 0x8000_0700 == 0x8000_0000;
    let may_interrupt = flags >> 9 & 1 == 1 || !injects_interrupt;
    let fits = fits && !(virtual_8086 && (ia32e || cr0 & 1 == 0)) && may_interrupt;
    ensure(fits, Field::GUEST_RFLAGS)?;
    let activity = vmcs.get(Field::GUEST_ACTIVITY);
    ensure(activity <= 3, Field::GUEST_ACTIVITY)?;
    let blocked = vmcs.get(Field::GUEST_INTERRUPTIBILITY);
    let by_both = blocked & 3 == 3;
    let by_sti_disabled = blocked & 1 == 1 && flags >> 9 & 1 == 0;
    let blocks_injected = injects_interrupt && blocked & 3 != 0;
    let fits = blocked >> 5 == 0 && !by_both && !by_sti_disabled && !blocks_injected;
    ensure(fits, Field::GUEST_INTERRUPTIBILITY)?;
    // Only an active guest is blocked by STI or MOV SS.
    ensure(activity == 0 || blocked & 3 == 0, Field::GUEST_ACTIVITY)
}

/// The VMCS link pointer (section 27.3.1.5).
fn link_pointer(capabilities: &Capabilities, vmcs: &Reader<'_>) -> Result<(), EntryFailure> {
    let link = vmcs.get(Field::LINK_POINTER);
    if link == u64::MAX {
        return Ok(());
    }
    let has_secondary = vmcs.bits(Field::PROCESSOR_CONTROLS) & processor::SECONDARY != 0;
    let shadowing =
        has_secondary && vmcs.bits(Field::SECONDARY_CONTROLS) & secondary::VMCS_SHADOWING != 0;
    let fits = link.is_multiple_of(PAGE) && capabilities.is_physical(link);
    let region = Region(link);
    let fits = fits
        && region.revision(vmcs.memory) & 0x7fff_ffff == capabilities.revision
        && region.is_shadow(vmcs.memory) == shadowing;
    if fits { Ok(()) } else { Err(EntryFailure::LinkPointer) }
}
