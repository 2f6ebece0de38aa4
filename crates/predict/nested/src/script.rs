//! What a hypervisor executes at an exit of a guest of its own.
//!
//! Only instructions that can exit count. Two sources:
//!
//! - *NestCloud, table I*: of the exits that L1's hypervisor takes while a kernel is built in L2, 67 %
//!   are for VMREAD, 19 % for VMWRITE and 6 % for VMRESUME. There is one VMRESUME for each exit of L2
//!   that L1 handles, so 67 / 6 = 11 VMREAD and 19 / 6 = 3 VMWRITE go with it. (The other 7 % and 1 %
//!   are exceptions, of shadow paging, and the rest; in the model memory's exits have other reasons.)
//!   The hypervisor is KVM-84.
//! - *Linux 6.12*, read (6.12.117): `arch/x86/kvm/vmx/vmx.c`, `nested.c`, `vmcs_shadow_fields.h`,
//!   `arch/x86/kvm/svm/svm.c`, `vmenter.S`, `arch/x86/kvm/x86.c`; and counted in real layers
//!   (docs/lab-results.md).
//!
//! What a hypervisor does that has hypervisors in its own VMs matters only from four layers on. No
//! counts are published for that, so KVM 6.12's are taken for both.

use crate::reason::ExitReason;
use crate::virtualization::{Instructions, Virtualization};
use crate::vmx::Field;
use ExitReason::{
    Apic, Clgi, ControlRegister, ExternalInterrupt, Halt, Invalidation, Io, Msr, PageFault,
    SecondStageWrite, Stgi, Vmclear, Vmload, Vmptrld, Vmread, Vmresume, Vmrun, Vmsave, Vmwrite,
};
use strata_params::{ParameterError, Value};

/// The hypervisor that guest hypervisors are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hypervisor {
    /// KVM-84 of 2009, which NestCloud measures.
    #[default]
    Kvm84,
    /// KVM of Linux 6.12.
    Kvm612,
}

impl Hypervisor {
    /// Every hypervisor there is a script for.
    pub const ALL: [Self; 2] = [Self::Kvm84, Self::Kvm612];

    /// Name, as a parameter's value.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kvm84 => "kvm-84",
            Self::Kvm612 => "kvm-6.12",
        }
    }

    /// How many pages at most a guest's kernel of its time flushes one by one, by INVLPG, instead of by a load of its
    /// page table. In 2009 whatever was unmapped was flushed by a load (`tlb_flush` of
    /// `arch/x86/include/asm/tlb.h`); the limit came with Linux 3.17 (`tlb_single_page_flush_ceiling` of
    /// `arch/x86/mm/tlb.c`).
    pub const fn flushed_one_by_one(self) -> u64 {
        match self {
            Self::Kvm84 => 0,
            Self::Kvm612 => 33,
        }
    }
}

impl Value for Hypervisor {
    fn parse(name: &str, text: &str, _: &str) -> Result<Self, ParameterError> {
        let known = Self::ALL.into_iter().find(|known| known.name() == text);
        known.ok_or_else(|| ParameterError::Invalid {
            name: name.to_owned(),
            value: text.to_owned(),
            expected: "kvm-84 or kvm-6.12",
        })
    }

    fn print(&self) -> String {
        self.name().to_owned()
    }
}

/// What a hypervisor has to do with an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Map a page in its second stage.
    Map,
    /// Hand the exit on to a hypervisor in one of its VMs.
    HandOn,
    /// Enter a guest of a hypervisor in one of its VMs.
    Enter,
    /// Execute another instruction for a hypervisor in one of its VMs.
    Execute,
    /// Take over a second-stage entry that a hypervisor in one of its VMs wrote.
    Follow,
    /// Invalidate what a hypervisor in one of its VMs invalidates.
    Invalidate,
    /// Mend the shadow of a VM's page table.
    Shadow,
    /// Give a VM the page fault that is its own affair.
    Inject,
    /// Write for a VM to a page table of which it keeps a shadow.
    Emulate,
    /// Do for a VM what an instruction asks that is no hypervisor's, and go on behind it.
    Serve,
    /// Take an interrupt, and give the VM the one that is meant for it.
    Interrupt,
    /// Bring the entry of a page that a VM invalidates into line in the shadow of the VM's page table, and invalidate
    /// what hardware caches of it.
    Forget,
}

impl Work {
    /// Every kind of work, in their order.
    pub const ALL: [Self; 12] = [
        Self::Map,
        Self::HandOn,
        Self::Enter,
        Self::Execute,
        Self::Follow,
        Self::Invalidate,
        Self::Shadow,
        Self::Inject,
        Self::Emulate,
        Self::Serve,
        Self::Interrupt,
        Self::Forget,
    ];

    /// Whether it is for an exit of any guest, not of a hypervisor only.
    pub(crate) const fn is_of_guests(self) -> bool {
        !matches!(self, Self::HandOn | Self::Enter | Self::Execute | Self::Invalidate)
    }

    /// What an exit for this reason asks of whoever handles it.
    pub const fn of(reason: ExitReason) -> Self {
        match reason {
            ExitReason::SecondStageViolation => Self::Map,
            ExitReason::HandedOn => Self::HandOn,
            Vmresume | Vmrun => Self::Enter,
            SecondStageWrite => Self::Follow,
            Invalidation => Self::Invalidate,
            Vmread | Vmwrite | Vmptrld | Vmclear | Vmload | Vmsave | Stgi | Clgi => Self::Execute,
            PageFault => Self::Shadow,
            ControlRegister | Apic | Halt | Io | Msr => Self::Serve,
            ExternalInterrupt => Self::Interrupt,
        }
    }
}

/// An instruction of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// VMREAD.
    Read(Field),
    /// VMWRITE.
    Write(Field),
    /// VMPTRLD of the VMCS to go on with.
    Load,
    /// VMPTRLD of the shadow VMCS.
    LoadShadow,
    /// VMCLEAR of the shadow VMCS, and VMPTRLD of the one before.
    LeaveShadow,
    /// What the hypervisor in the VM asked for, in this one's own tables.
    Same(ExitReason),
    /// Enter a guest, or another instruction.
    Other(ExitReason),
}

/// An exit of a VM is read so (`vmx_vcpu_enter_exit`).
const EXIT: [Field; 2] = [Field::EXIT_REASON, Field::VECTORING_EVENT];

/// And so, if the VM is not a hypervisor's that runs a guest (`vmx_flush_pml_buffer`).
const LOG: [Field; 1] = [Field::PML_INDEX];

/// `handle_ept_violation`.
const VIOLATION: [Field; 2] = [Field::EXIT_QUALIFICATION, Field::GUEST_PHYSICAL_ADDRESS];

/// What an exception is (`handle_exception_nmi`).
const FAULT: [Field; 3] =
    [Field::EXIT_EVENT, Field::EXIT_EVENT_ERROR_CODE, Field::EXIT_QUALIFICATION];

/// What a walk of the VM's table takes for SMAP (`permission_fault`).
const WALK: [Field; 1] = [Field::GUEST_RFLAGS];

/// What is written to inject it: the resume flag (`kvm_check_and_inject_events`), `vmx_inject_exception`,
/// `vmx_update_cr8_intercept`.
const INJECT_WRITE: [Field; 4] =
    [Field::GUEST_RFLAGS, Field::ENTRY_EVENT_ERROR_CODE, Field::ENTRY_EVENT, Field::TPR_THRESHOLD];

/// What is read and written to do what an instruction does (`x86_emulate_instruction`).
const EMULATE_READ: [Field; 3] = [Field::GUEST_RIP, Field::GUEST_CS_RIGHTS, Field::GUEST_RFLAGS];
const EMULATE_WRITE: [Field; 2] = [Field::GUEST_RIP, Field::GUEST_RFLAGS];

/// What is read and written to go on behind an instruction (`handle_cr`, `handle_io`, `kvm_emulate_halt`,
/// `kvm_skip_emulated_instruction`).
const SERVE_READ: [Field; 5] = [
    Field::EXIT_QUALIFICATION,
    Field::GUEST_RFLAGS,
    Field::GUEST_RIP,
    Field::EXIT_INSTRUCTION_LENGTH,
    Field::GUEST_INTERRUPTIBILITY,
];
const SERVE_WRITE: [Field; 1] = [Field::GUEST_RIP];

/// Which interrupt it was, whether one can be injected, and what is written then
/// (`handle_external_interrupt_irqoff`, `__vmx_interrupt_blocked`, `vmx_inject_irq`, `vmx_update_cr8_intercept`).
const INTERRUPT_READ: [Field; 3] =
    [Field::EXIT_EVENT, Field::GUEST_RFLAGS, Field::GUEST_INTERRUPTIBILITY];
const INTERRUPT_WRITE: [Field; 2] = [Field::ENTRY_EVENT, Field::TPR_THRESHOLD];

/// What every entry writes as long as the VM's timer is the processor's preemption timer (`vmx_update_hv_timer`).
const TIMER: [Field; 1] = [Field::PREEMPTION_TIMER];

/// NestCloud says how many fields are read and written, not which: these are shadowed.
const MAP_KVM_84: ([Field; 11], [Field; 3]) = (
    [
        Field::EXIT_REASON,
        Field::VECTORING_EVENT,
        Field::EXIT_EVENT,
        Field::EXIT_EVENT_ERROR_CODE,
        Field::EXIT_QUALIFICATION,
        Field::GUEST_INTERRUPTIBILITY,
        Field::GUEST_RIP,
        Field::GUEST_RSP,
        Field::GUEST_RFLAGS,
        Field::GUEST_CR3,
        Field::GUEST_CS_RIGHTS,
    ],
    [Field::GUEST_RIP, Field::GUEST_RSP, Field::ENTRY_EVENT],
);

/// What is read to hand an exit on: `sync_vmcs02_to_vmcs12`, `prepare_vmcs12`, and CR4's mask in
/// `load_vmcs12_host_state`.
pub(crate) const HAND_ON_READ: [Field; 13] = [
    Field::GUEST_CR0,
    Field::GUEST_CR4,
    Field::GUEST_RSP,
    Field::GUEST_RIP,
    Field::GUEST_RFLAGS,
    Field::GUEST_CS_RIGHTS,
    Field::GUEST_SS_RIGHTS,
    Field::GUEST_INTERRUPTIBILITY,
    Field::GUEST_CR3,
    Field::GUEST_LINEAR_ADDRESS,
    Field::EXIT_INSTRUCTION_LENGTH,
    Field::EXIT_INSTRUCTION,
    Field::CR4_MASK,
];

/// What is written then, to go on with the hypervisor in the VM: `nested_vmx_vmexit` and
/// `load_vmcs12_host_state`; and four fields for each of eight segments.
const HAND_ON_WRITE: [Field; 23] = [
    Field::EXIT_MSR_LOAD_COUNT,
    Field::ENTRY_MSR_LOAD_COUNT,
    Field::TSC_OFFSET,
    Field::TSC_MULTIPLIER,
    Field::EPT_POINTER,
    Field::GUEST_SYSENTER_CS,
    Field::GUEST_SYSENTER_ESP,
    Field::GUEST_SYSENTER_EIP,
    Field::GUEST_IDTR_BASE,
    Field::GUEST_GDTR_BASE,
    Field::GUEST_IDTR_LIMIT,
    Field::GUEST_GDTR_LIMIT,
    Field::GUEST_PAT,
    Field::GUEST_DR7,
    Field::GUEST_DEBUGCTL,
    Field::GUEST_RSP,
    Field::GUEST_RIP,
    Field::GUEST_RFLAGS,
    Field::CR0_SHADOW,
    Field::GUEST_CR0,
    Field::CR4_SHADOW,
    Field::GUEST_CR4,
    Field::GUEST_CR3,
];

/// The first of the fields that there are for each segment: base, limit, selector, rights.
const SEGMENT: [Field; 4] =
    [Field::GUEST_ES_BASE, Field::GUEST_ES_LIMIT, Field::GUEST_ES_SELECTOR, Field::GUEST_ES_RIGHTS];

/// What is read to enter a guest of a hypervisor in the VM: `nested_vmx_run`.
const ENTER_READ: [Field; 2] = [Field::GUEST_SS_RIGHTS, Field::GUEST_INTERRUPTIBILITY];

/// What is written then: `prepare_vmcs02_early`, `prepare_vmcs02`. Fields that change seldom are left
/// out, as KVM does while the hypervisor in the VM has not written them.
const ENTER_WRITE: [Field; 23] = [
    Field::TPR_THRESHOLD,
    Field::ENTRY_EVENT,
    Field::ENTRY_EVENT_ERROR_CODE,
    Field::ENTRY_INSTRUCTION_LENGTH,
    Field::GUEST_INTERRUPTIBILITY,
    Field::GUEST_DR7,
    Field::GUEST_DEBUGCTL,
    Field::GUEST_RFLAGS,
    Field::EXCEPTION_BITMAP,
    Field::CR0_MASK,
    Field::GUEST_PAT,
    Field::TSC_OFFSET,
    Field::TSC_MULTIPLIER,
    Field::CR0_SHADOW,
    Field::GUEST_CR0,
    Field::CR0_SHADOW,
    Field::CR4_SHADOW,
    Field::GUEST_CR4,
    Field::CR4_SHADOW,
    Field::GUEST_CR3,
    Field::EPT_POINTER,
    Field::GUEST_RSP,
    Field::GUEST_RIP,
];

/// What is read to execute another instruction for a hypervisor in the VM: `handle_vmread` and its like.
const EXECUTE_READ: [Field; 7] = [
    Field::GUEST_SS_RIGHTS,
    Field::EXIT_QUALIFICATION,
    Field::EXIT_INSTRUCTION,
    Field::GUEST_RIP,
    Field::EXIT_INSTRUCTION_LENGTH,
    Field::GUEST_RFLAGS,
    Field::GUEST_INTERRUPTIBILITY,
];

/// And written.
const EXECUTE_WRITE: [Field; 2] = [Field::GUEST_RIP, Field::GUEST_RFLAGS];

/// Fields of a shadow VMCS that its user may write (`vmcs_shadow_fields.h`).
const SHADOWED: [Field; 24] = [
    Field::GUEST_INTERRUPT_STATUS,
    Field::PML_INDEX,
    Field::HOST_FS_SELECTOR,
    Field::HOST_GS_SELECTOR,
    Field::PROCESSOR_CONTROLS,
    Field::PIN_CONTROLS,
    Field::EXCEPTION_BITMAP,
    Field::ENTRY_EVENT_ERROR_CODE,
    Field::ENTRY_EVENT,
    Field::ENTRY_INSTRUCTION_LENGTH,
    Field::TPR_THRESHOLD,
    Field::GUEST_INTERRUPTIBILITY,
    Field::PREEMPTION_TIMER,
    Field::GUEST_RIP,
    Field::GUEST_RSP,
    Field::GUEST_CR0,
    Field::GUEST_CR3,
    Field::GUEST_CR4,
    Field::GUEST_RFLAGS,
    Field::CR0_MASK,
    Field::CR0_SHADOW,
    Field::CR4_SHADOW,
    Field::HOST_FS_BASE,
    Field::HOST_GS_BASE,
];

/// And that it may only read.
const SHADOWED_READ_ONLY: [Field; 11] = [
    Field::EXIT_REASON,
    Field::EXIT_EVENT,
    Field::EXIT_INSTRUCTION_LENGTH,
    Field::VECTORING_EVENT,
    Field::VECTORING_ERROR_CODE,
    Field::EXIT_EVENT_ERROR_CODE,
    Field::GUEST_CS_RIGHTS,
    Field::GUEST_SS_RIGHTS,
    Field::EXIT_QUALIFICATION,
    Field::GUEST_LINEAR_ADDRESS,
    Field::GUEST_PHYSICAL_ADDRESS,
];

/// Fields that KVM shadows: those that may be written, then those that may be read only.
pub fn shadowed() -> impl Iterator<Item = (Field, bool)> {
    let both = SHADOWED.into_iter().map(|field| (field, true));
    both.chain(SHADOWED_READ_ONLY.into_iter().map(|field| (field, false)))
}

/// `svm_vcpu_run` and `__svm_vcpu_run`, whatever the exit was for, since the VMCB is plain memory: from the exit on.
/// This VMLOAD is of the hypervisor's own state.
const EXIT_SVM: [ExitReason; 3] = [Vmsave, Vmload, Stgi];

/// And up to the entry back.
const ENTER_SVM: [ExitReason; 3] = [Clgi, Vmload, Vmrun];

impl Step {
    /// The exit that it can cause.
    pub const fn reason(self) -> ExitReason {
        match self {
            Self::Read(_) => Vmread,
            Self::Write(_) => Vmwrite,
            Self::Load | Self::LoadShadow => Vmptrld,
            Self::LeaveShadow => Vmclear,
            Self::Same(reason) | Self::Other(reason) => reason,
        }
    }

    /// Whether a shadow VMCS serves it.
    pub fn is_shadowed(self) -> bool {
        let find = |field| shadowed().find(|(known, _)| *known == field);
        match self {
            Self::Read(field) => find(field).is_some(),
            Self::Write(field) => find(field).is_some_and(|(_, writable)| writable),
            _ => false,
        }
    }
}

/// The instructions for a piece of work, from the exit to the entry back.
pub fn script(work: Work, hypervisor: Hypervisor, cpu: &Virtualization) -> Vec<Step> {
    let mut steps = Vec::new();
    if cpu.instructions == Instructions::Svm {
        steps.extend(EXIT_SVM.map(Step::Other));
        // What the hypervisor above did to its tables, this one does to those it made of them.
        steps.extend(same(work));
        steps.extend(of_every_entry(hypervisor));
        steps.extend(ENTER_SVM.map(Step::Other));
        return steps;
    }
    let mut read = |fields: &[Field]| steps.extend(fields.iter().copied().map(Step::Read));
    match work {
        // NestCloud counts over all that L1 handles.
        _ if hypervisor == Hypervisor::Kvm84 && work.is_of_guests() => read(&MAP_KVM_84.0),
        Work::Map | Work::Follow => [&EXIT[..], &LOG, &VIOLATION].into_iter().for_each(read),
        // Dirty pages are logged where there is a second stage.
        Work::Shadow | Work::Inject => [&EXIT[..], &FAULT, &WALK].into_iter().for_each(read),
        // The walk's field is among those.
        Work::Emulate => [&EXIT[..], &FAULT, &EMULATE_READ].into_iter().for_each(read),
        // `handle_invlpg` reads what `handle_cr` does, the address in place of the register.
        Work::Forget => [&EXIT[..], &SERVE_READ].into_iter().for_each(read),
        Work::Serve => [&EXIT[..], &LOG, &SERVE_READ].into_iter().for_each(read),
        Work::Interrupt => [&EXIT[..], &LOG, &INTERRUPT_READ].into_iter().for_each(read),
        Work::HandOn => [&EXIT[..], &VIOLATION, &HAND_ON_READ].into_iter().for_each(read),
        Work::Enter => [&EXIT[..], &LOG, &ENTER_READ].into_iter().for_each(read),
        Work::Execute | Work::Invalidate => {
            [&EXIT[..], &LOG, &EXECUTE_READ].into_iter().for_each(read);
        }
    }
    steps.extend(same(work));
    let shadows = cpu.vmcs_shadowing;
    if work == Work::Enter && shadows {
        // `copy_shadow_to_vmcs12`.
        steps.push(Step::LoadShadow);
        steps.extend(SHADOWED.map(Step::Read));
        steps.extend([Step::LeaveShadow, Step::Load]);
    }
    if matches!(work, Work::HandOn | Work::Enter) {
        steps.push(Step::Load);
    }
    let mut write = |fields: &[Field]| steps.extend(fields.iter().copied().map(Step::Write));
    match work {
        _ if hypervisor == Hypervisor::Kvm84 && work.is_of_guests() => write(&MAP_KVM_84.1),
        Work::Map | Work::Follow | Work::Shadow => {}
        Work::Inject => write(&INJECT_WRITE),
        Work::Emulate => write(&EMULATE_WRITE),
        Work::Serve | Work::Forget => write(&SERVE_WRITE),
        Work::Interrupt => write(&INTERRUPT_WRITE),
        Work::HandOn => {
            write(&HAND_ON_WRITE);
            for segment in 0..8 {
                write(&SEGMENT.map(|first| Field(first.0 + 2 * segment)));
            }
        }
        Work::Enter => write(&ENTER_WRITE),
        Work::Execute | Work::Invalidate => write(&EXECUTE_WRITE),
    }
    if work == Work::HandOn && shadows {
        // `copy_vmcs12_to_shadow`.
        steps.push(Step::LoadShadow);
        steps.extend(shadowed().map(|(field, _)| Step::Write(field)));
        steps.extend([Step::LeaveShadow, Step::Load]);
    }
    steps.extend(of_every_entry(hypervisor));
    if hypervisor == Hypervisor::Kvm612 {
        steps.extend(TIMER.map(Step::Write));
    }
    steps.push(Step::Other(Vmresume));
    steps
}

/// What a hypervisor does itself before it enters a VM, whichever: today's KVM reads the register DEBUGCTL
/// (`vcpu_enter_guest`), which KVM lets no hypervisor in a VM read without an exit.
fn of_every_entry(hypervisor: Hypervisor) -> Option<Step> {
    (hypervisor == Hypervisor::Kvm612).then_some(Step::Same(Msr))
}

/// What a hypervisor repeats in its own tables.
fn same(work: Work) -> Option<Step> {
    match work {
        Work::Follow => Some(Step::Same(SecondStageWrite)),
        // For a page of the VM's own: INVVPID (`vmx_flush_tlb_gva`), INVLPGA (`svm_flush_tlb_gva`).
        Work::Invalidate | Work::Forget => Some(Step::Same(Invalidation)),
        _ => None,
    }
}
