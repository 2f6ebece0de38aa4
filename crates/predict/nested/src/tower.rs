//! Hypervisors in each other's VMs at work, on VMCS regions in memory (NestCloud, section IV.A).
//!
//! ```text
//! in L0's memory   iVMCS    L1 runs on it
//!                  sVMCS    L2 runs on it: made by L0 from vVMCS and its own wishes
//!                  copy     of vVMCS, as L0 knows it
//! in L1's memory   vVMCS    what L1 thinks that L2 runs on
//! pVMCS            the one hardware uses: iVMCS while L1 runs, sVMCS while L2 runs
//! ```
//!
//! Each hypervisor is the same program and sees a [`Processor`] of its own: L0 hardware's, the others one
//! that the level below emulates. So L1 has an iVMCS and an sVMCS for L2 and L3, too, and there is no
//! end to it. Instructions of hypervisors in VMs exit; whoever handles the exit executes instructions
//! itself ([`crate::script`]). Nothing is multiplied here: what [`crate::unfold`] counts, happens.

pub use crate::access::Access;
use crate::costs::ExitCosts;
use crate::memory::{Memory, PAGE};
use crate::reason::ExitReason;
use crate::script::{Hypervisor, Step, Work, script, shadowed};
use crate::virtualization::{Instructions, Virtualization};
use crate::vmx::exits::{self, Event};
use crate::vmx::region::Region;
use crate::vmx::{Answer, Capabilities, Entry, Field, Processor, control};
use std::collections::BTreeMap;
use std::mem;

/// Where a hypervisor keeps what VMX needs, in its own memory.
const VMXON: u64 = PAGE;
/// The VMCS of its own VM.
const OWN: u64 = 2 * PAGE;
/// The VMCS it makes for a guest of a hypervisor in its VM.
const MERGED: u64 = 3 * PAGE;
/// Its copy of that hypervisor's VMCS.
const COPY: u64 = 4 * PAGE;
/// The shadow VMCS of that hypervisor.
const SHADOW: u64 = 5 * PAGE;
/// Bitmaps of accesses to the shadow VMCS that exit.
const READS: u64 = 6 * PAGE;
const WRITES: u64 = 7 * PAGE;

/// Basic exit reasons (SDM volume 3D, appendix C).
const EPT_VIOLATION: u32 = 48;

/// What an instruction of a hypervisor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Clear(u64),
    Load(u64),
    Read(Field),
    Write(Field, u64),
    Enter {
        resume: bool,
    },
    /// An exit that a guest takes by itself.
    Guest(Cause),
}

/// What a guest exits for by itself, and what the hypervisor that handles it does then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Why it exits.
    pub reason: ExitReason,
    /// What there is to do.
    pub work: Work,
    /// Error code of a page fault.
    pub error_code: u32,
}

impl Cause {
    /// An exit with what its reason usually asks for.
    pub const fn of(reason: ExitReason) -> Self {
        Self { reason, work: Work::of(reason), error_code: 0 }
    }

    /// The basic exit reason (SDM volume 3D, appendix C).
    const fn code(self) -> u32 {
        match self.reason {
            ExitReason::PageFault => 0,
            ExitReason::ExternalInterrupt => 1,
            ExitReason::Halt => 12,
            ExitReason::ControlRegister => 28,
            ExitReason::Io => 30,
            ExitReason::Apic => 44,
            ExitReason::Invalidation => 50,
            _ => EPT_VIOLATION,
        }
    }
}

/// The memory of its VM, as a hypervisor has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryMode {
    /// A second stage that hardware walks.
    #[default]
    Nested,
    /// A shadow of the VM's page table, for which page faults exit: those of pages that are not present do not
    /// if `bypass` (NestCloud, section V.A).
    Shadow {
        /// Faults of pages that are not present do not exit.
        bypass: bool,
    },
}

/// Where an exit of the guest leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Nowhere: hardware does what is to be done, and the guest goes on.
    NoExit,
    /// To the hypervisor at this level.
    Handler(usize),
}

impl Request {
    const fn reason(self) -> ExitReason {
        match self {
            Self::Clear(_) => ExitReason::Vmclear,
            Self::Load(_) => ExitReason::Vmptrld,
            Self::Read(_) => ExitReason::Vmread,
            Self::Write(..) => ExitReason::Vmwrite,
            Self::Enter { .. } => ExitReason::Vmresume,
            Self::Guest(cause) => cause.reason,
        }
    }

    /// The basic exit reason.
    const fn code(self) -> u32 {
        match self {
            Self::Clear(_) => 19,
            Self::Load(_) => 21,
            Self::Read(_) => 23,
            Self::Write(..) => 25,
            Self::Enter { resume: false } => 20,
            Self::Enter { resume: true } => 24,
            Self::Guest(cause) => cause.code(),
        }
    }
}

/// A hypervisor.
struct Level {
    memory: Memory,
    processor: Processor,
    /// A guest of a hypervisor in its VM is what it runs at the moment.
    runs_nested: bool,
    /// Fields of the VMCS of the hypervisor in its VM that have changed since it made its own from it.
    changed: BTreeMap<Field, u64>,
}

/// Hypervisors in each other's VMs, the host's first, and a guest on top.
pub struct Tower {
    levels: Vec<Level>,
    cpu: Virtualization,
    hypervisor: Hypervisor,
    access: Access,
    /// By level of the hypervisor from 0.
    modes: Vec<MemoryMode>,
    /// By level of the VM from 1.
    exits: Vec<[u64; ExitReason::ALL.len()]>,
    /// Those of them that L0 handed on.
    handed_on: Vec<[u64; ExitReason::ALL.len()]>,
    /// How often a hypervisor in a VM did work, by its level from 1.
    handled: Vec<u64>,
    /// What the handler of the present exit takes itself while it works.
    own: Vec<Cause>,
    copied_fields: u64,
}

impl Tower {
    /// Starts `hypervisors` of them, each in a VM of the one before, and the guest of the last.
    ///
    /// # Panics
    /// Without a hypervisor, or with instructions other than VMX.
    pub fn new(
        hypervisors: usize,
        cpu: Virtualization,
        hypervisor: Hypervisor,
        access: Access,
    ) -> Self {
        Self::with_memory(&vec![MemoryMode::Nested; hypervisors], cpu, hypervisor, access)
    }

    /// The same, each hypervisor with a way to have memory for its VM.
    ///
    /// # Panics
    /// As [`Tower::new`]; or when a hypervisor is to have a second stage that has a shadow of its own page
    /// table below.
    pub fn with_memory(
        modes: &[MemoryMode],
        mut cpu: Virtualization,
        hypervisor: Hypervisor,
        access: Access,
    ) -> Self {
        let hypervisors = modes.len();
        assert!(hypervisors > 0 && cpu.instructions == Instructions::Vmx);
        let is_nested = |mode: &&MemoryMode| **mode == MemoryMode::Nested;
        let nested = modes.iter().take_while(is_nested).count();
        assert_eq!(nested, modes.iter().filter(is_nested).count(), "{modes:?}");
        cpu = access.of_use(cpu);
        let capabilities =
            Capabilities { shadowing: cpu.vmcs_shadowing, ..Capabilities::default() };
        let level = || {
            let mut memory = Memory::default();
            for region in [VMXON, OWN, MERGED] {
                Region(region).prepare(&mut memory, capabilities.revision, false);
            }
            Region(SHADOW).prepare(&mut memory, capabilities.revision, cpu.vmcs_shadowing);
            forbid_all_but_shadowed(&mut memory);
            let mut processor = Processor::new(capabilities);
            processor.enabled = true;
            Level { memory, processor, runs_nested: false, changed: BTreeMap::new() }
        };
        let mut tower = Self {
            levels: (0..hypervisors).map(|_| level()).collect(),
            cpu,
            hypervisor,
            access,
            modes: modes.to_vec(),
            exits: vec![[0; ExitReason::ALL.len()]; hypervisors],
            handed_on: vec![[0; ExitReason::ALL.len()]; hypervisors],
            handled: vec![0; hypervisors],
            own: Vec::new(),
            copied_fields: 0,
        };
        for level in 0..hypervisors {
            tower.start(level);
        }
        tower.reset();
        tower
    }

    /// A hypervisor enters VMX operation and starts its VM.
    fn start(&mut self, level: usize) {
        // VMXON exits like any other; nobody counts the start.
        let Level { memory, processor, .. } = &mut self.levels[level];
        processor.vmxon(memory, VMXON).expect("VMX is enabled, at privilege level 0");
        self.execute(level, Request::Clear(OWN));
        self.execute(level, Request::Load(OWN));
        let memory = of_memory(self.modes[level]);
        for (field, value) in initial().chain(memory) {
            self.execute(level, Request::Write(field, value));
        }
        if self.cpu.vmcs_shadowing && level + 1 < self.levels.len() {
            for (field, value) in shadow_controls(self.modes[level]) {
                self.execute(level, Request::Write(field, value));
            }
        }
        self.execute(level, Request::Enter { resume: false });
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.exits.fill([0; ExitReason::ALL.len()]);
        self.handed_on.fill([0; ExitReason::ALL.len()]);
        self.handled.fill(0);
        self.copied_fields = 0;
    }

    /// Cycles of all that was counted, copies included.
    pub fn cycles(&self, costs: &ExitCosts) -> u64 {
        let mut cycles = self.copied_fields * costs.copied_field;
        for (exits, handed_on) in self.exits.iter().zip(&self.handed_on) {
            for reason in ExitReason::ALL {
                let (all, on) = (exits[reason as usize], handed_on[reason as usize]);
                cycles += match reason {
                    ExitReason::HandedOn => 0,
                    _ => (all - on) * costs.of(reason) + on * costs.handed_on,
                };
            }
        }
        cycles + self.handled.iter().sum::<u64>() * costs.handler
    }

    /// Exits of a VM, 1 for L1.
    pub fn exits(&self, vm: usize, reason: ExitReason) -> u64 {
        self.exits[vm - 1][reason as usize]
    }

    /// Fields that were copied from and to VMCSs in memory.
    pub const fn copied_fields(&self) -> u64 {
        self.copied_fields
    }

    /// The VM that runs: 1 for L1.
    pub fn runs(&self) -> usize {
        1 + self.levels.iter().take_while(|level| level.runs_nested).count()
    }

    /// Address of the VMCS that hardware uses, in L0's memory: pVMCS.
    pub fn physical_vmcs(&self) -> Option<u64> {
        self.levels[0].processor.current()
    }

    /// Address of the VMCS that L0 has for L1 (iVMCS), and of the one for guests of hypervisors in L1
    /// (sVMCS).
    pub const fn vmcss_of_host() -> (u64, u64) {
        (OWN, MERGED)
    }

    /// A field of the VMCS that a hypervisor has for its VM, as it would read it: from L1 on, of vVMCS.
    pub fn field(&self, level: usize, field: Field) -> u64 {
        Region(OWN).get(&self.levels[level].memory, field)
    }

    /// A field of what the hypervisor at `level` knows of the VMCS of the one in its VM.
    pub fn copied_field(&self, level: usize, field: Field) -> u64 {
        Region(COPY).get(&self.levels[level].memory, field)
    }

    /// The guest takes an exit, which the hypervisor at level `handler` handles, and goes on. The whole
    /// tower is at rest before and after.
    ///
    /// # Panics
    /// When no guest takes exits for this reason by itself, or there is no such hypervisor.
    pub fn guest_exits(&mut self, handler: usize, reason: ExitReason) {
        self.guest_exits_for(handler, Cause::of(reason), Vec::new());
    }

    /// The same for a cause; and these the handler takes itself as it works, in their order, each handled by
    /// the hypervisor below it.
    ///
    /// # Panics
    /// As [`Tower::guest_exits`]; or when L0 is to take exits itself.
    pub fn guest_exits_for(&mut self, handler: usize, cause: Cause, own: Vec<Cause>) {
        let Cause { reason, .. } = cause;
        assert!(!reason.is_instruction() && reason != ExitReason::HandedOn);
        assert!(handler > 0 || own.is_empty(), "nothing is below L0");
        let guest = self.levels.len();
        assert!(handler < guest && self.runs() == guest);
        self.own = own;
        self.exit(guest, handler, Request::Guest(cause));
        debug_assert!(self.own.is_empty());
        assert_eq!(self.runs(), guest, "the guest goes on");
    }

    /// Where something leads that the guest does or that happens to it: whether it exits at all is for the
    /// VMCS to say on which it runs. A hypervisor keeps an exit that is its own affair, as `owns` says,
    /// or that the one in its VM does not want to see, as the VMCS of that one says.
    pub fn route(&self, event: Event, owns: impl Fn(usize) -> bool) -> Route {
        let host = &self.levels[0];
        if !host.processor.guest_exits(&host.memory, event) {
            return Route::NoExit;
        }
        let last = self.levels.len() - 1;
        let wants = |level: usize| {
            let level = &self.levels[level];
            exits::exits(Region(OWN), &level.memory, event)
        };
        Route::Handler((0..last).find(|level| owns(*level) || !wants(level + 1)).unwrap_or(last))
    }

    /// What an instruction does on the processor that its hypervisor sees.
    fn perform(&mut self, level: usize, request: Request) {
        let Level { memory, processor, .. } = &mut self.levels[level];
        let answer = match request {
            Request::Clear(address) => processor.vmclear(memory, address),
            Request::Load(address) => processor.vmptrld(memory, address),
            Request::Read(field) => processor.vmread(memory, field),
            Request::Write(field, value) => processor.vmwrite(memory, field, value),
            Request::Enter { resume } => {
                let entry = processor.enter(memory, resume);
                assert_eq!(entry, Ok(Entry::Entered), "L{level}: {:x?}", processor.current());
                return;
            }
            Request::Guest(_) => return,
        };
        assert!(matches!(answer, Ok(Answer::Succeed(_))), "L{level} {request:?}: {answer:?}");
    }

    /// The hypervisor at a level, which runs, executes an instruction.
    fn execute(&mut self, level: usize, request: Request) {
        if level == 0 {
            self.perform(0, request);
            return;
        }
        debug_assert_eq!(self.runs(), level, "{request:?}");
        let access = match request {
            Request::Read(field) => Some((field, None)),
            Request::Write(field, value) => Some((field, Some(value))),
            _ => None,
        };
        let mut handler = level - 1;
        if let Some((field, write)) = access {
            if self.access != Access::Instructions {
                self.perform(level, request);
                if let Some(value) = write {
                    self.levels[level - 1].changed.insert(field, value);
                }
                return;
            }
            // The hypervisor below has set a shadow VMCS up for this one: the processor that it sees
            // serves the access, hardware itself for L1, otherwise whoever emulates that processor.
            let below = &mut self.levels[level - 1];
            if below.processor.is_guest()
                && below.processor.shadow_access(&mut below.memory, field, write).is_some()
            {
                if level == 1 {
                    return;
                }
                handler = level - 2;
                self.exit(level, handler, request);
                return;
            }
        }
        self.exit(level, handler, request);
    }

    /// A VM exits, and the hypervisor at level `handler` handles it.
    fn exit(&mut self, vm: usize, handler: usize, request: Request) {
        self.exits[vm - 1][request.reason() as usize] += 1;
        if handler > 0 {
            self.exits[vm - 1][ExitReason::HandedOn as usize] += 1;
            self.handed_on[vm - 1][request.reason() as usize] += 1;
            self.handled[1..=handler].iter_mut().for_each(|handled| *handled += 1);
        }
        leave(&mut self.levels[0], request);
        for level in 0..handler {
            self.hand_on(level, request);
        }
        self.handle(handler, vm, request);
    }

    /// The hypervisor at a level makes an exit look like one to the hypervisor in its VM, and enters that.
    fn hand_on(&mut self, level: usize, request: Request) {
        assert!(self.levels[level].runs_nested, "L{level} handed on what is its own");
        for step in script(Work::HandOn, self.hypervisor, &self.cpu) {
            match step {
                // Its VMCS takes what was read, and the exit.
                Step::Load if self.levels[level].runs_nested => {
                    self.take_over(level, request);
                    self.execute(level, Request::Load(OWN));
                    self.levels[level].runs_nested = false;
                }
                _ => self.step(level, step),
            }
        }
    }

    /// What hardware would have written to the VMCS of the hypervisor in the VM.
    fn take_over(&mut self, level: usize, request: Request) {
        let [below, above] = &mut self.levels[level..level + 2] else {
            unreachable!("there is a hypervisor in the VM")
        };
        leave(above, request);
        let taker = current(above);
        for field in crate::script::HAND_ON_READ {
            let value = Region(MERGED).get(&below.memory, field);
            taker.set(&mut above.memory, field, value);
        }
        self.synchronise(level, Field::all().count());
    }

    /// The copy of the VMCS of the hypervisor in the VM becomes what that has.
    fn synchronise(&mut self, level: usize, fields: usize) {
        let [below, above] = &mut self.levels[level..level + 2] else {
            unreachable!("there is a hypervisor in the VM")
        };
        for field in Field::all() {
            let value = current(above).get(&above.memory, field);
            Region(COPY).set(&mut below.memory, field, value);
        }
        self.copied_fields += match self.access {
            Access::Instructions => 0,
            Access::Paravirtual => fields as u64,
            Access::Enlightened => fields.min(below.changed.len().max(1)) as u64,
        };
    }

    /// The hypervisor at a level handles an exit of a VM: its own, or if it is not, one that it serves
    /// for the hypervisor in it.
    fn handle(&mut self, level: usize, vm: usize, request: Request) {
        // L0's own work is the direct exit and whatever it does natively.
        let work = match request {
            Request::Guest(cause) => cause.work,
            _ => Work::of(request.reason()),
        };
        let is_entry = matches!(request, Request::Enter { .. });
        for step in script(work, self.hypervisor, &self.cpu) {
            if vm == self.levels.len() && matches!(step, Step::Write(_) | Step::Other(_)) {
                // It knows what there is to do, and works on its tables.
                for cause in mem::take(&mut self.own) {
                    self.exit(level, level - 1, Request::Guest(cause));
                }
            }
            match step {
                Step::Load if is_entry && self.at_merge(level) => {
                    self.execute(level, Request::Load(MERGED));
                }
                Step::Other(ExitReason::Vmresume) => {
                    self.finish(level, vm, request);
                    let resume = self.was_launched(level);
                    self.execute(level, Request::Enter { resume });
                }
                _ => self.step(level, step),
            }
        }
    }

    /// Whether the next VMPTRLD is that of the VMCS for the guest of the hypervisor in the VM: when the
    /// entry has been found right.
    fn at_merge(&self, level: usize) -> bool {
        self.levels[level].processor.current() == Some(OWN)
    }

    /// Whether a hypervisor has entered its current VMCS before.
    fn was_launched(&self, level: usize) -> bool {
        let level = &self.levels[level];
        current(level).is_launched(&level.memory)
    }

    /// What is left to do for a request before its VM goes on.
    fn finish(&mut self, level: usize, vm: usize, request: Request) {
        match request {
            Request::Guest(_) => {}
            // Of the hypervisor in the VM.
            _ if vm == level + 1 => {
                if matches!(request, Request::Load(_) | Request::Clear(_)) {
                    self.leave_shadow(level);
                }
                self.perform(vm, request);
                match request {
                    Request::Enter { .. } => self.merge(level),
                    Request::Write(field, value) => {
                        self.levels[level].changed.insert(field, value);
                        Region(COPY).set(&mut self.levels[level].memory, field, value);
                    }
                    Request::Load(_) => {
                        self.synchronise(level, Field::all().count());
                        self.fill_shadow(level);
                    }
                    _ => {}
                }
            }
            // Served from the shadow VMCS already.
            _ => {}
        }
    }

    /// The hypervisor in the VM goes to another VMCS: the present one takes what was written to its
    /// shadow. (KVM uses instructions for that; they are not counted.)
    fn leave_shadow(&mut self, level: usize) {
        let [below, above] = &mut self.levels[level..level + 2] else {
            unreachable!("there is a hypervisor in the VM")
        };
        if !self.cpu.vmcs_shadowing || above.processor.current().is_none() {
            return;
        }
        for (field, _) in shadowed().filter(|(_, writable)| *writable) {
            let value = Region(SHADOW).get(&below.memory, field);
            current(above).set(&mut above.memory, field, value);
        }
    }

    /// Its shadow has what the VMCS has to which the hypervisor in the VM went.
    fn fill_shadow(&mut self, level: usize) {
        let [below, above] = &mut self.levels[level..level + 2] else {
            unreachable!("there is a hypervisor in the VM")
        };
        for (field, _) in shadowed() {
            let value = current(above).get(&above.memory, field);
            Region(SHADOW).set(&mut below.memory, field, value);
        }
    }

    /// Makes the VMCS for the guest of the hypervisor in the VM: its state and its wishes, and this
    /// hypervisor's own. What changed is written; the script has what always is.
    fn merge(&mut self, level: usize) {
        self.synchronise(level, Field::all().count());
        let [below, above] = &mut self.levels[level..level + 2] else {
            unreachable!("there is a hypervisor in the VM")
        };
        below.changed.clear();
        let exceptions = exits::merged_exceptions(
            EXCEPTIONS.map(|field| Region(OWN).get(&below.memory, field)),
            EXCEPTIONS.map(|field| current(above).get(&above.memory, field)),
        );
        for field in Field::all() {
            use crate::vmx::field::Area;
            let own = Region(OWN).get(&below.memory, field);
            let above = current(above).get(&above.memory, field);
            let value = match (field.area(), field) {
                (Area::ExitInformation, _) => continue,
                (Area::Host, _) => own,
                // Exits of both; the VM's memory is this hypervisor's affair.
                (_, Field::PIN_CONTROLS | Field::PROCESSOR_CONTROLS) => own | above,
                (_, Field::EXCEPTION_BITMAP) => exceptions[0],
                (_, Field::PAGE_FAULT_MASK) => exceptions[1],
                (_, Field::PAGE_FAULT_MATCH) => exceptions[2],
                (_, Field::SECONDARY_CONTROLS) => {
                    own & !u64::from(control::secondary::VMCS_SHADOWING)
                }
                (_, Field::LINK_POINTER) => u64::MAX,
                (_, Field::EXIT_CONTROLS | Field::EPT_POINTER | Field::VPID) => own,
                (Area::Control | Area::Guest, _) => above,
            };
            Region(MERGED).set(&mut below.memory, field, value);
        }
        below.runs_nested = true;
        if level > 0 && self.cpu.vmcs_shadowing {
            // What a hypervisor in a VM writes itself is in its shadow VMCS, too.
            self.fill_shadow(level - 1);
        }
    }

    /// A step of a script that is the same whatever it is for.
    fn step(&mut self, level: usize, step: Step) {
        match step {
            Step::Read(field) => {
                self.execute(level, Request::Read(field));
                // What the hypervisor in the VM wrote to its shadow VMCS is what its VMCS has.
                if self.levels[level].processor.current() == Some(SHADOW) {
                    let value = Region(SHADOW).get(&self.levels[level].memory, field);
                    let above = &mut self.levels[level + 1];
                    current(above).set(&mut above.memory, field, value);
                }
            }
            Step::Write(field) => {
                let own = current(&self.levels[level]);
                let value = match own {
                    // The hypervisor in the VM is to read there what its VMCS has.
                    Region(SHADOW) => {
                        let above = &self.levels[level + 1];
                        current(above).get(&above.memory, field)
                    }
                    _ => own.get(&self.levels[level].memory, field),
                };
                self.execute(level, Request::Write(field, value));
            }
            Step::Load => self.execute(level, Request::Load(OWN)),
            Step::LoadShadow => self.execute(level, Request::Load(SHADOW)),
            Step::LeaveShadow => self.execute(level, Request::Clear(SHADOW)),
            Step::Same(reason) if level > 0 => {
                self.exit(level, level - 1, Request::Guest(Cause::of(reason)));
            }
            Step::Same(_) => {}
            Step::Other(_) => {
                let resume = self.was_launched(level);
                self.execute(level, Request::Enter { resume });
            }
        }
    }
}

/// The VMCS that a hypervisor works on.
fn current(level: &Level) -> Region {
    Region(level.processor.current().expect("a VMCS is current"))
}

/// A VM exits, and the VMCS on which it ran takes why.
fn leave(level: &mut Level, request: Request) {
    let Level { memory, processor, .. } = level;
    match request {
        Request::Guest(Cause { reason: ExitReason::PageFault, error_code, .. }) => {
            processor.exit_by_exception(memory, exits::PAGE_FAULT, Some(error_code), 0);
        }
        _ => processor.exit(memory, request.code(), 0),
    }
}

/// Fields that say which exceptions exit.
const EXCEPTIONS: [Field; 3] =
    [Field::EXCEPTION_BITMAP, Field::PAGE_FAULT_MASK, Field::PAGE_FAULT_MATCH];

/// What a hypervisor writes for the way in which it has memory for its VM.
fn of_memory(mode: MemoryMode) -> impl Iterator<Item = (Field, u64)> {
    use control::{processor, secondary};
    let fields = match mode {
        MemoryMode::Nested => {
            let controls =
                processor::DEFAULT1 | processor::SECONDARY | processor::HLT | processor::IO;
            let relaxed = processor::CR3_LOAD | processor::CR3_STORE;
            vec![(Field::PROCESSOR_CONTROLS, u64::from(controls & !relaxed))]
        }
        MemoryMode::Shadow { bypass } => vec![
            (Field::PROCESSOR_CONTROLS, {
                let controls = processor::DEFAULT1 | processor::SECONDARY | processor::HLT;
                u64::from(controls | processor::IO | processor::INVLPG)
            }),
            (Field::SECONDARY_CONTROLS, u64::from(secondary::VPID)),
            (Field::EXCEPTION_BITMAP, 1 << exits::PAGE_FAULT),
            // Mask and match 0: all page faults exit; 1: those of pages that are present (26.2).
            (Field::PAGE_FAULT_MASK, u64::from(bypass)),
            (Field::PAGE_FAULT_MATCH, u64::from(bypass)),
        ],
    };
    fields.into_iter()
}

/// A VMCS with which a guest in 64-bit mode can be entered.
fn initial() -> impl Iterator<Item = (Field, u64)> {
    use control::{entry, exit, pin, processor, secondary};
    let controls = [
        (Field::PIN_CONTROLS, pin::DEFAULT1 | pin::EXTERNAL_INTERRUPT | pin::NMI),
        (Field::PROCESSOR_CONTROLS, processor::DEFAULT1 | processor::SECONDARY | processor::HLT),
        (Field::SECONDARY_CONTROLS, secondary::EPT | secondary::VPID),
        (Field::EXIT_CONTROLS, exit::DEFAULT1 | exit::HOST_64_BIT),
        (Field::ENTRY_CONTROLS, entry::DEFAULT1 | entry::GUEST_IA32E),
        (Field::GUEST_CS_RIGHTS, 0xa09b),
        (Field::GUEST_TR_RIGHTS, 0x8b),
    ];
    let others = [
        (Field::VPID, 1),
        (Field::EPT_POINTER, 0x10_0000 | 3 << 3 | 6),
        (Field::HOST_CR0, 0x8005_0033),
        (Field::HOST_CR3, 0x20_0000),
        (Field::HOST_CR4, 0x2_2020),
        (Field::HOST_CS_SELECTOR, 0x10),
        (Field::HOST_TR_SELECTOR, 0x40),
        (Field::GUEST_CR0, 0x8005_0033),
        (Field::GUEST_CR3, 0x30_0000),
        (Field::GUEST_CR4, 0x2_2020),
        (Field::GUEST_RFLAGS, 2),
        (Field::LINK_POINTER, u64::MAX),
    ];
    controls.into_iter().map(|(field, value)| (field, u64::from(value))).chain(others)
}

/// What lets hardware serve the hypervisor in the VM from its shadow VMCS.
fn shadow_controls(mode: MemoryMode) -> [(Field, u64); 4] {
    use control::secondary;
    let second_stage = if mode == MemoryMode::Nested { secondary::EPT } else { 0 };
    let controls = second_stage | secondary::VPID | secondary::VMCS_SHADOWING;
    [
        (Field::SECONDARY_CONTROLS, controls.into()),
        (Field::LINK_POINTER, SHADOW),
        (Field::VMREAD_BITMAP, READS),
        (Field::VMWRITE_BITMAP, WRITES),
    ]
}

/// Sets the bits of all fields but those that are shadowed.
fn forbid_all_but_shadowed(memory: &mut Memory) {
    for bitmap in [READS, WRITES] {
        for word in (0..PAGE).step_by(8) {
            memory.write(bitmap + word, u64::MAX);
        }
    }
    for (field, writable) in shadowed() {
        let mut allow = |bitmap: u64| {
            let word = bitmap + u64::from(field.0 / 32) * 4;
            let bits = memory.read_u32(word);
            memory.write_u32(word, bits & !(1 << (field.0 % 32)));
        };
        allow(READS);
        if writable {
            allow(WRITES);
        }
    }
}
