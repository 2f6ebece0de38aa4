//! One logical processor's VMX: instructions that work on VMCS regions (SDM volume 3C, chapter 31).
//!
//! ```text
//! outside --VMXON--> root --VMLAUNCH, VMRESUME--> guest
//!         <-VMXOFF--      <------ exit ----------
//! ```

use super::capabilities::Capabilities;
use super::checks::{EntryFailure, Invalid, entry_of_controls, entry_of_guest};
use super::control::secondary;
use super::exits::{self, Event};
use super::field::Field;
use super::region::{Region, SHADOW};
use crate::memory::Memory;

/// A VM-instruction error (section 31.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum InstructionError {
    /// VMCLEAR with an address no VMCS can have.
    ClearAddress = 2,
    /// VMCLEAR with the VMXON pointer.
    ClearVmxon = 3,
    /// VMLAUNCH with a VMCS that is not clear.
    LaunchNotClear = 4,
    /// VMRESUME with a VMCS that was not launched.
    ResumeNotLaunched = 5,
    /// Entry with an invalid control field.
    EntryControls = 7,
    /// Entry with an invalid field of the host state.
    EntryHostState = 8,
    /// VMPTRLD with an address no VMCS can have.
    LoadAddress = 9,
    /// VMPTRLD with the VMXON pointer.
    LoadVmxon = 10,
    /// VMPTRLD with another revision identifier.
    LoadRevision = 11,
    /// VMREAD or VMWRITE of a field that does not exist.
    UnsupportedField = 12,
    /// VMWRITE to a field that is read-only.
    ReadOnlyField = 13,
    /// VMXON in VMX root operation.
    VmxonInRoot = 15,
    /// Entry with events blocked by MOV SS.
    EntryMovSs = 26,
    /// INVEPT or INVVPID with an operand that cannot be.
    InvalidateOperand = 28,
}

/// An exception that an instruction raises in place of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exception {
    /// Invalid opcode (#UD).
    InvalidOpcode,
    /// General protection, error code 0 (#GP(0)).
    GeneralProtection,
}

/// The answer of an instruction (section 31.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// VMsucceed, with what was read, if anything.
    Succeed(u64),
    /// VMfailInvalid: no current VMCS could take an error.
    FailInvalid,
    /// VMfailValid: the error is in the current VMCS.
    FailValid(InstructionError),
}

/// What came of VMLAUNCH or VMRESUME.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The guest runs.
    Entered,
    /// The hypervisor goes on behind the instruction, which failed.
    Failed(Answer),
    /// The guest's state was refused: the hypervisor goes on where its exits go.
    Refused(EntryFailure),
}

/// What INVEPT or INVVPID invalidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidate {
    /// INVEPT: type, EPT pointer, the reserved half of the descriptor.
    Ept(u64, u64, u64),
    /// INVVPID: type, first half of the descriptor with the VPID, linear address.
    Vpid(u64, u64, u64),
}

/// Where a processor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Outside,
    /// With the VMXON pointer, and the current VMCS if there is one.
    Root(u64, Option<Region>),
    Guest(u64, Region),
}

/// The VMX of one logical processor, as one hypervisor has it.
#[derive(Clone, Debug)]
pub struct Processor {
    capabilities: Capabilities,
    mode: Mode,
    /// CR4.VMXE.
    pub enabled: bool,
    /// Current privilege level of the hypervisor.
    pub privilege: u8,
    /// Events are blocked by MOV SS.
    pub blocked_by_mov_ss: bool,
}

impl Processor {
    /// A processor after a reset.
    pub const fn new(capabilities: Capabilities) -> Self {
        Self {
            capabilities,
            mode: Mode::Outside,
            enabled: false,
            privilege: 0,
            blocked_by_mov_ss: false,
        }
    }

    /// What it can do.
    pub const fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Whether it is in VMX root operation.
    pub const fn is_root(&self) -> bool {
        matches!(self.mode, Mode::Root(..))
    }

    /// Whether a guest runs.
    pub const fn is_guest(&self) -> bool {
        matches!(self.mode, Mode::Guest(..))
    }

    /// The address of the current VMCS.
    pub fn current(&self) -> Option<u64> {
        self.region().map(|region| region.0)
    }

    fn region(&self) -> Option<Region> {
        match self.mode {
            Mode::Outside => None,
            Mode::Root(_, current) => current,
            Mode::Guest(_, current) => Some(current),
        }
    }

    /// What every instruction but VMXON checks first; gives the VMXON pointer and the current VMCS.
    ///
    /// # Panics
    /// When a guest runs: then the instruction exits, which is not this processor's affair.
    fn in_root(&self) -> Result<(u64, Option<Region>), Exception> {
        match self.mode {
            Mode::Outside => Err(Exception::InvalidOpcode),
            Mode::Root(..) if self.privilege > 0 => Err(Exception::GeneralProtection),
            Mode::Root(vmxon, current) => Ok((vmxon, current)),
            Mode::Guest(..) => panic!("an instruction of a guest exits"),
        }
    }

    /// VMfail (section 31.2): in the current VMCS if there is one.
    fn fail(&self, memory: &mut Memory, error: InstructionError) -> Answer {
        let Some(current) = self.region() else { return Answer::FailInvalid };
        current.set(memory, Field::INSTRUCTION_ERROR, error as u64);
        Answer::FailValid(error)
    }

    /// VMXON.
    ///
    /// # Errors
    /// #UD without CR4.VMXE; #GP above privilege level 0.
    pub fn vmxon(&mut self, memory: &mut Memory, address: u64) -> Result<Answer, Exception> {
        if !self.enabled {
            return Err(Exception::InvalidOpcode);
        }
        if !matches!(self.mode, Mode::Outside) {
            self.in_root()?;
            return Ok(self.fail(memory, InstructionError::VmxonInRoot));
        }
        if self.privilege > 0 {
            return Err(Exception::GeneralProtection);
        }
        if !self.capabilities.is_region(address)
            || Region(address).revision(memory) != self.capabilities.revision
        {
            return Ok(Answer::FailInvalid);
        }
        self.mode = Mode::Root(address, None);
        Ok(Answer::Succeed(0))
    }

    /// VMXOFF.
    ///
    /// # Errors
    /// #UD outside VMX operation; #GP above privilege level 0.
    pub fn vmxoff(&mut self) -> Result<Answer, Exception> {
        self.in_root()?;
        self.mode = Mode::Outside;
        Ok(Answer::Succeed(0))
    }

    /// VMCLEAR.
    ///
    /// # Errors
    /// As [`Processor::vmxoff`].
    pub fn vmclear(&mut self, memory: &mut Memory, address: u64) -> Result<Answer, Exception> {
        let (vmxon, current) = self.in_root()?;
        if !self.capabilities.is_region(address) {
            return Ok(self.fail(memory, InstructionError::ClearAddress));
        }
        if address == vmxon {
            return Ok(self.fail(memory, InstructionError::ClearVmxon));
        }
        Region(address).set_launched(memory, false);
        if current == Some(Region(address)) {
            self.mode = Mode::Root(vmxon, None);
        }
        Ok(Answer::Succeed(0))
    }

    /// VMPTRLD.
    ///
    /// # Errors
    /// As [`Processor::vmxoff`].
    pub fn vmptrld(&mut self, memory: &mut Memory, address: u64) -> Result<Answer, Exception> {
        let (vmxon, _) = self.in_root()?;
        if !self.capabilities.is_region(address) {
            return Ok(self.fail(memory, InstructionError::LoadAddress));
        }
        if address == vmxon {
            return Ok(self.fail(memory, InstructionError::LoadVmxon));
        }
        let found = Region(address).revision(memory);
        let shadow_allowed = if self.capabilities.shadowing { SHADOW } else { 0 };
        if found & !shadow_allowed != self.capabilities.revision {
            return Ok(self.fail(memory, InstructionError::LoadRevision));
        }
        self.mode = Mode::Root(vmxon, Some(Region(address)));
        Ok(Answer::Succeed(0))
    }

    /// VMPTRST: the address of the current VMCS, all ones if there is none.
    ///
    /// # Errors
    /// As [`Processor::vmxoff`].
    pub fn vmptrst(&self) -> Result<Answer, Exception> {
        let (_, current) = self.in_root()?;
        Ok(Answer::Succeed(current.map_or(u64::MAX, |current| current.0)))
    }

    /// VMREAD.
    ///
    /// # Errors
    /// As [`Processor::vmxoff`].
    pub fn vmread(&self, memory: &mut Memory, field: Field) -> Result<Answer, Exception> {
        let (_, Some(current)) = self.in_root()? else { return Ok(Answer::FailInvalid) };
        if field.slot().is_none() {
            return Ok(self.fail(memory, InstructionError::UnsupportedField));
        }
        let value = current.get(memory, field.full());
        Ok(Answer::Succeed(if field.is_high() { value >> 32 } else { value }))
    }

    /// VMWRITE.
    ///
    /// # Errors
    /// As [`Processor::vmxoff`].
    pub fn vmwrite(
        &self,
        memory: &mut Memory,
        field: Field,
        value: u64,
    ) -> Result<Answer, Exception> {
        use super::field::Area;
        let (_, Some(current)) = self.in_root()? else { return Ok(Answer::FailInvalid) };
        if field.slot().is_none() {
            return Ok(self.fail(memory, InstructionError::UnsupportedField));
        }
        if field.area() == Area::ExitInformation && !self.capabilities.writes_exit_information {
            return Ok(self.fail(memory, InstructionError::ReadOnlyField));
        }
        let full = field.full();
        let value = match field.is_high() {
            true => current.get(memory, full) & 0xffff_ffff | value << 32,
            false => value,
        };
        current.set(memory, full, value);
        Ok(Answer::Succeed(0))
    }

    /// VMLAUNCH, or VMRESUME if `resume` (sections 27.1 to 27.3).
    ///
    /// # Errors
    /// As [`Processor::vmxoff`].
    pub fn enter(&mut self, memory: &mut Memory, resume: bool) -> Result<Entry, Exception> {
        let (vmxon, current) = self.in_root()?;
        let Some(current) = current.filter(|current| !current.is_shadow(memory)) else {
            return Ok(Entry::Failed(Answer::FailInvalid));
        };
        let error = if self.blocked_by_mov_ss {
            Some(InstructionError::EntryMovSs)
        } else {
            match (resume, current.is_launched(memory)) {
                (false, true) => Some(InstructionError::LaunchNotClear),
                (true, false) => Some(InstructionError::ResumeNotLaunched),
                _ => match entry_of_controls(&self.capabilities, current, memory) {
                    Err(Invalid::Controls(_)) => Some(InstructionError::EntryControls),
                    Err(Invalid::HostState(_)) => Some(InstructionError::EntryHostState),
                    Ok(()) => None,
                },
            }
        };
        if let Some(error) = error {
            return Ok(Entry::Failed(self.fail(memory, error)));
        }
        if let Err(failure) = entry_of_guest(&self.capabilities, current, memory) {
            current.set(memory, Field::EXIT_REASON, u64::from(failure.exit_reason()));
            current.set(memory, Field::EXIT_QUALIFICATION, failure.qualification());
            return Ok(Entry::Refused(failure));
        }
        current.set_launched(memory, true);
        self.mode = Mode::Guest(vmxon, current);
        Ok(Entry::Entered)
    }

    /// Whether something makes the guest exit that runs (chapter 26).
    ///
    /// # Panics
    /// When no guest runs.
    pub fn guest_exits(&self, memory: &Memory, event: Event) -> bool {
        let Mode::Guest(_, current) = self.mode else { panic!("only a guest exits") };
        exits::exits(current, memory, event)
    }

    /// The guest exits by an exception (section 28.2.2): its VMCS takes what it was.
    ///
    /// # Panics
    /// When no guest runs.
    pub fn exit_by_exception(
        &mut self,
        memory: &mut Memory,
        vector: u8,
        error_code: Option<u32>,
        qualification: u64,
    ) {
        self.exit(memory, 0, qualification);
        let current = self.region().expect("it ran on one");
        let has_code = u64::from(error_code.is_some());
        let information = 1 << 31 | has_code << 11 | 3 << 8 | u64::from(vector);
        current.set(memory, Field::EXIT_EVENT, information);
        current.set(memory, Field::EXIT_EVENT_ERROR_CODE, error_code.unwrap_or(0).into());
        // Section 28.2.4: no event was being delivered.
        current.set(memory, Field::VECTORING_EVENT, 0);
    }

    /// The guest exits while an event is delivered to it (section 28.2.4), for one that was injected with
    /// the entry: its VMCS says which, so that the hypervisor can inject it anew.
    ///
    /// # Panics
    /// When no guest runs.
    pub fn exit_during_injection(&mut self, memory: &mut Memory, reason: u32, qualification: u64) {
        let Mode::Guest(_, current) = self.mode else { panic!("only a guest exits") };
        let event = current.get(memory, Field::ENTRY_EVENT);
        let code = current.get(memory, Field::ENTRY_EVENT_ERROR_CODE);
        self.exit(memory, reason, qualification);
        current.set(memory, Field::VECTORING_EVENT, event);
        if event >> 11 & 1 == 1 {
            current.set(memory, Field::VECTORING_ERROR_CODE, code);
        }
    }

    /// The guest exits (chapter 28): its VMCS takes the reason, and the hypervisor goes on.
    ///
    /// # Panics
    /// When no guest runs.
    pub fn exit(&mut self, memory: &mut Memory, reason: u32, qualification: u64) {
        let Mode::Guest(vmxon, current) = self.mode else { panic!("only a guest exits") };
        current.set(memory, Field::EXIT_REASON, u64::from(reason));
        current.set(memory, Field::EXIT_QUALIFICATION, qualification);
        // Section 28.2.4: an event that was injected has been delivered.
        let event = current.get(memory, Field::ENTRY_EVENT);
        current.set(memory, Field::ENTRY_EVENT, event & !(1 << 31));
        self.mode = Mode::Root(vmxon, Some(current));
        self.privilege = 0;
        self.blocked_by_mov_ss = false;
    }

    /// INVEPT or INVVPID.
    ///
    /// # Errors
    /// As [`Processor::vmxoff`].
    pub fn invalidate(&self, memory: &mut Memory, what: Invalidate) -> Result<Answer, Exception> {
        self.in_root()?;
        let is_possible = match what {
            // Single context, or all.
            Invalidate::Ept(1, pointer, 0) => {
                super::checks::is_ept_pointer(&self.capabilities, pointer)
            }
            Invalidate::Ept(2, ..) => true,
            Invalidate::Ept(..) => false,
            // A single address, a single context, all, a single context but for global pages.
            Invalidate::Vpid(0, vpid, linear) => {
                vpid >> 16 == 0 && vpid != 0 && super::checks::is_canonical(linear)
            }
            Invalidate::Vpid(1 | 3, vpid, _) => vpid >> 16 == 0 && vpid != 0,
            Invalidate::Vpid(2, vpid, _) => vpid >> 16 == 0,
            Invalidate::Vpid(..) => false,
        };
        match is_possible {
            true => Ok(Answer::Succeed(0)),
            false => Ok(self.fail(memory, InstructionError::InvalidateOperand)),
        }
    }

    /// VMREAD or VMWRITE by the guest: the shadow VMCS serves it without an exit if the controls and
    /// bitmaps of its hypervisor say so (sections 25.6.15 and 26.1.3). `None` when it exits; otherwise
    /// the answer.
    ///
    /// # Panics
    /// When no guest runs.
    pub fn shadow_access(
        &self,
        memory: &mut Memory,
        field: Field,
        write: Option<u64>,
    ) -> Option<Answer> {
        let Mode::Guest(_, current) = self.mode else { panic!("only a guest has a shadow VMCS") };
        let controls = current.get(memory, Field::SECONDARY_CONTROLS) as u32;
        let is_on = current.get(memory, Field::PROCESSOR_CONTROLS) >> 31 == 1
            && controls & secondary::VMCS_SHADOWING != 0;
        if !is_on || field.0 >> 15 != 0 {
            return None;
        }
        let bitmap = if write.is_some() { Field::VMWRITE_BITMAP } else { Field::VMREAD_BITMAP };
        let bitmap = current.get(memory, bitmap);
        let word = memory.read_u32(bitmap + u64::from(field.0 / 32) * 4);
        if word >> (field.0 % 32) & 1 == 1 {
            return None;
        }
        let link = current.get(memory, Field::LINK_POINTER);
        if link == u64::MAX {
            return Some(Answer::FailInvalid);
        }
        let shadow = Region(link);
        if field.slot().is_none() {
            shadow.set(memory, Field::INSTRUCTION_ERROR, InstructionError::UnsupportedField as u64);
            return Some(Answer::FailValid(InstructionError::UnsupportedField));
        }
        let old = shadow.get(memory, field.full());
        let Some(value) = write else {
            return Some(Answer::Succeed(if field.is_high() { old >> 32 } else { old }));
        };
        let value = if field.is_high() { old & 0xffff_ffff | value << 32 } else { value };
        shadow.set(memory, field.full(), value);
        Some(Answer::Succeed(0))
    }
}
