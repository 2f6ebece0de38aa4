//! One logical processor's SVM (APM volume 2, sections 15.5, 15.15, 15.17 and 15.30).
//!
//! ```text
//! off --EFER.SVME--> host --VMRUN--> guest
//!                         <-#VMEXIT-
//! ```

use super::vmcb::{Place, Vmcb};
use crate::memory::{Memory, PAGE};
use std::collections::BTreeMap;

/// Width of physical addresses in bits.
const PHYSICAL_BITS: u32 = 48;
/// Width of linear addresses in bits, with page tables of four levels.
const LINEAR_BITS: u32 = 48;
/// EFER.LME, EFER.LMA, EFER.SVME.
const LME: u64 = 1 << 8;
const SVME: u64 = 1 << 12;
/// Bits of EFER that exist: SCE, LME, LMA, NXE, SVME, LMSLE, FFXSR, TCE.
const EFER_KNOWN: u64 = 0xfd01;
/// CR0.PE, NW, CD, PG.
const PE: u64 = 1;
const NW: u64 = 1 << 29;
const CD: u64 = 1 << 30;
const PG: u64 = 1 << 31;
/// CR4.PAE.
const PAE: u64 = 1 << 5;
/// Bits of CR4 that exist.
const CR4_KNOWN: u64 = 0x00f7_0fff;
/// Exit code of a VMRUN that was refused: VMEXIT_INVALID.
pub const INVALID: u64 = u64::MAX;

/// An exception that an instruction raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exception {
    /// Invalid opcode (#UD): SVM is off.
    InvalidOpcode,
    /// General protection (#GP): privilege, or an address that no VMCB can have.
    GeneralProtection,
}

/// What VMRUN refuses (section 15.5.1, *Canonicalization and Consistency Checks*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// EFER.SVME is 0, or a bit is set that does not exist.
    Efer,
    /// CR0.CD is 0 and CR0.NW is 1, or one of bits 63:32 is 1.
    Cr0,
    /// A bit of CR3 is set that must be zero.
    Cr3,
    /// A bit of CR4 is set that does not exist.
    Cr4,
    /// One of bits 63:32 of DR6 or DR7 is 1.
    Debug,
    /// EFER.LME and CR0.PG without CR4.PAE or CR0.PE.
    LongMode,
    /// With all of those, CS.L and CS.D are both 1.
    Code,
    /// VMRUN is not intercepted.
    Intercepts,
    /// ASID 0.
    Asid,
    /// A permission map beyond physical memory.
    Map,
    /// The root of the nested page table beyond physical memory.
    NestedRoot,
    /// An event that cannot be injected.
    Event,
}

/// What came of VMRUN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// The guest runs.
    Entered,
    /// #VMEXIT at once, with the exit code VMEXIT_INVALID.
    Refused(Invalid),
}

/// The SVM of one logical processor, as one hypervisor has it.
#[derive(Clone, Debug, Default)]
pub struct Processor {
    /// EFER.SVME.
    pub enabled: bool,
    /// Current privilege level of the hypervisor.
    pub privilege: u8,
    /// Where the host's state goes (VM_HSAVE_PA).
    pub save_area: u64,
    /// The global interrupt flag.
    interrupts: bool,
    /// The guest that runs.
    guest: Option<Vmcb>,
    /// State that only VMLOAD and VMSAVE move.
    moved: [u64; Place::MOVED_BY_VMLOAD.len()],
    /// What it remembers of the VMCB it ran last (section 15.15).
    remembered: Option<(Vmcb, BTreeMap<Place, u64>)>,
}

impl Processor {
    /// A processor after a reset: interrupts are let through.
    pub fn new() -> Self {
        Self { interrupts: true, ..Self::default() }
    }

    /// The global interrupt flag (section 15.17).
    pub const fn interrupts(&self) -> bool {
        self.interrupts
    }

    /// The VMCB of the guest that runs.
    pub const fn guest(&self) -> Option<Vmcb> {
        self.guest
    }

    /// What is in the registers that only VMLOAD and VMSAVE move, in the order of
    /// [`Place::MOVED_BY_VMLOAD`].
    pub const fn registers(&self) -> &[u64; Place::MOVED_BY_VMLOAD.len()] {
        &self.moved
    }

    /// Whoever runs writes to them.
    pub fn set_registers(&mut self, registers: [u64; Place::MOVED_BY_VMLOAD.len()]) {
        self.moved = registers;
    }

    /// What every instruction checks first.
    ///
    /// # Panics
    /// When a guest runs: its instructions are its own processor's affair.
    fn in_host(&self) -> Result<(), Exception> {
        assert!(self.guest.is_none(), "an instruction of a guest exits");
        match (self.enabled, self.privilege) {
            (false, _) => Err(Exception::InvalidOpcode),
            (true, 1..) => Err(Exception::GeneralProtection),
            (true, 0) => Ok(()),
        }
    }

    fn vmcb(address: u64) -> Result<Vmcb, Exception> {
        let fits = address.is_multiple_of(PAGE) && address >> PHYSICAL_BITS == 0;
        if fits { Ok(Vmcb(address)) } else { Err(Exception::GeneralProtection) }
    }

    /// VMRUN.
    ///
    /// # Errors
    /// #UD while EFER.SVME is 0; #GP above privilege level 0 or for an address no VMCB can have.
    pub fn vmrun(&mut self, memory: &mut Memory, address: u64) -> Result<Run, Exception> {
        self.in_host()?;
        let vmcb = Self::vmcb(address)?;
        self.load(memory, vmcb);
        // Section 15.17: VMRUN sets the flag, #VMEXIT clears it.
        if let Err(invalid) = self.check(memory, vmcb) {
            self.interrupts = false;
            vmcb.set(memory, Place::EXIT_CODE, INVALID);
            return Ok(Run::Refused(invalid));
        }
        self.interrupts = true;
        self.guest = Some(vmcb);
        Ok(Run::Entered)
    }

    /// Reads what the clean bits do not vouch for. The processor may ignore them and read everything;
    /// this one does not, so that a bit which lies has consequences.
    fn load(&mut self, memory: &Memory, vmcb: Vmcb) {
        let clean = vmcb.get(memory, Place::CLEAN);
        let before = self.remembered.take().filter(|(known, _)| *known == vmcb);
        let mut state = before.map(|(_, state)| state).unwrap_or_default();
        for &place in Place::ALL {
            let is_clean = place.clean_bit().is_some_and(|bit| clean >> bit & 1 == 1);
            if !is_clean || !state.contains_key(&place) {
                state.insert(place, vmcb.get(memory, place));
            }
        }
        self.remembered = Some((vmcb, state));
    }

    /// What the guest has at a place of its VMCB, as the processor took it at VMRUN.
    pub fn state(&self, place: Place) -> u64 {
        let state = self.remembered.as_ref().and_then(|(_, state)| state.get(&place));
        state.copied().unwrap_or(0)
    }

    fn check(&self, memory: &Memory, vmcb: Vmcb) -> Result<(), Invalid> {
        let ensure = |holds: bool, invalid| if holds { Ok(()) } else { Err(invalid) };
        let get = |place| self.state(place);
        let (efer, cr0, cr4) = (get(Place::EFER), get(Place::CR0), get(Place::CR4));
        ensure(efer & SVME != 0 && efer & !EFER_KNOWN == 0, Invalid::Efer)?;
        ensure(!(cr0 & CD == 0 && cr0 & NW != 0) && cr0 >> 32 == 0, Invalid::Cr0)?;
        ensure(get(Place::CR3) >> PHYSICAL_BITS == 0, Invalid::Cr3)?;
        ensure(cr4 & !CR4_KNOWN == 0, Invalid::Cr4)?;
        ensure((get(Place::DR6) | get(Place::DR7)) >> 32 == 0, Invalid::Debug)?;
        let long = efer & LME != 0 && cr0 & PG != 0;
        ensure(!long || cr4 & PAE != 0 && cr0 & PE != 0, Invalid::LongMode)?;
        // Attributes are bits 31:16: L is bit 9 of them, D bit 10.
        let code = get(Place::CS) >> 16;
        ensure(!long || code >> 9 & 3 != 3, Invalid::Code)?;
        ensure(get(Place::INTERCEPTS) & 1 == 1, Invalid::Intercepts)?;
        ensure(get(Place::ASID) & 0xffff_ffff != 0, Invalid::Asid)?;
        // The maps are three and two pages long; where in a page they are said to begin is ignored (15.10.1).
        for (place, pages) in [(Place::IOPM, 3), (Place::MSRPM, 2)] {
            let end = (get(place) & !(PAGE - 1)).checked_add(pages * PAGE);
            ensure(end.is_some_and(|end| end <= 1 << PHYSICAL_BITS), Invalid::Map)?;
        }
        let nested = get(Place::NESTED) & 1 == 1;
        ensure(!nested || get(Place::NESTED_CR3) >> PHYSICAL_BITS == 0, Invalid::NestedRoot)?;
        ensure(is_event(vmcb.get(memory, Place::EVENT)), Invalid::Event)
    }

    /// The guest exits (section 15.6). The processor goes on to remember what it has of the VMCB.
    ///
    /// # Panics
    /// When no guest runs.
    pub fn exit(&mut self, memory: &mut Memory, code: u64, information: [u64; 2]) {
        let vmcb = self.guest.take().expect("only a guest exits");
        vmcb.set(memory, Place::EXIT_CODE, code);
        vmcb.set(memory, Place::EXIT_INFORMATION_1, information[0]);
        vmcb.set(memory, Place::EXIT_INFORMATION_2, information[1]);
        // What was injected has been delivered.
        vmcb.set(memory, Place::EVENT, 0);
        self.interrupts = false;
        self.privilege = 0;
    }

    /// VMLOAD.
    ///
    /// # Errors
    /// As [`Processor::vmrun`].
    pub fn vmload(&mut self, memory: &Memory, address: u64) -> Result<(), Exception> {
        self.in_host()?;
        let vmcb = Self::vmcb(address)?;
        self.moved = Place::MOVED_BY_VMLOAD.map(|place| {
            let value = vmcb.get(memory, place);
            if place.is_base() { canonical(value) } else { value }
        });
        Ok(())
    }

    /// VMSAVE.
    ///
    /// # Errors
    /// As [`Processor::vmrun`].
    pub fn vmsave(&self, memory: &mut Memory, address: u64) -> Result<(), Exception> {
        self.in_host()?;
        let vmcb = Self::vmcb(address)?;
        for (place, value) in Place::MOVED_BY_VMLOAD.into_iter().zip(self.moved) {
            vmcb.set(memory, place, value);
        }
        Ok(())
    }

    /// STGI.
    ///
    /// # Errors
    /// As [`Processor::vmrun`].
    pub fn stgi(&mut self) -> Result<(), Exception> {
        self.in_host()?;
        self.interrupts = true;
        Ok(())
    }

    /// CLGI.
    ///
    /// # Errors
    /// As [`Processor::vmrun`].
    pub fn clgi(&mut self) -> Result<(), Exception> {
        self.in_host()?;
        self.interrupts = false;
        Ok(())
    }

    /// INVLPGA: what is invalidated is the affair of TLBs.
    ///
    /// # Errors
    /// As [`Processor::vmrun`].
    pub fn invlpga(&self) -> Result<(), Exception> {
        self.in_host()
    }
}

/// An address as a register has it: its uppermost bits are like the last that counts.
const fn canonical(address: u64) -> u64 {
    let unused = u64::BITS - LINEAR_BITS;
    ((address << unused) as i64 >> unused) as u64
}

/// Whether this can be injected (section 15.20): a reserved type cannot, nor an exception that does not
/// exist.
fn is_event(event: u64) -> bool {
    if event >> 31 & 1 == 0 {
        return true;
    }
    let (vector, kind) = (event & 0xff, event >> 8 & 7);
    match kind {
        // External interrupt, software interrupt.
        0 | 4 => true,
        // NMI, whose vector is ignored.
        2 => true,
        // Exceptions; vector 2 is none.
        3 => vector <= 31 && vector != 2,
        _ => false,
    }
}
