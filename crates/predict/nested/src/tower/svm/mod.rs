//! Hypervisors in each other's VMs at work, on VMCBs in memory (Linux 6.12, `arch/x86/kvm/svm`).
//!
//! ```text
//! in L0's memory   VMCB01   L1 runs on it
//!                  VMCB02   L2 runs on it: made by L0 from VMCB12 and its own wishes
//! in L1's memory   VMCB12   what L1 thinks that L2 runs on: plain memory, so that no access exits
//! ```
//!
//! L1 has such a pair for L2 and L3, too, and so on. What VMRUN leaves alone (FS, GS, system call entries and
//! others) is one set of registers, which each hypervisor in turn loads and saves for its VM: whatever the depth,
//! a guest finds its own in them again, which tests look at.

mod level;
mod request;
mod vmcb;
mod work;

use crate::costs::ExitCosts;
use crate::memory::Memory;
use crate::reason::ExitReason;
use crate::script::Hypervisor;
use crate::svm::exits::{self, Event};
use crate::svm::vmcb::Place;
use crate::svm::{Processor, Vmcb};
use crate::tower::account::Account;
use crate::tower::cause::{Cause, MemoryMode, Route};
use crate::virtualization::{Instructions, Virtualization};
use level::Level;
use request::Request;
use vmcb::{HOST, MERGED, OWN, prepare};

/// Hypervisors in each other's VMs, the host's first, and a guest on top.
pub struct Tower {
    levels: Vec<Level>,
    cpu: Virtualization,
    hypervisor: Hypervisor,
    account: Account,
    /// What the handler of the present exit takes itself while it works.
    own: Vec<Cause>,
    /// What the next to handle an exit of the guest injects.
    injected: Option<u64>,
}

impl Tower {
    /// Starts `hypervisors` of them, each in a VM of the one before, and the guest of the last.
    ///
    /// # Panics
    /// Without a hypervisor, or with instructions other than SVM.
    pub fn new(hypervisors: usize, cpu: Virtualization, hypervisor: Hypervisor) -> Self {
        Self::with_memory(&vec![MemoryMode::Nested; hypervisors], cpu, hypervisor)
    }

    /// The same, each hypervisor with a way to have memory for its VM.
    ///
    /// # Panics
    /// As [`Tower::new`]; when page faults are to go to a guest without an exit by their error code, which
    /// SVM cannot; or when a hypervisor is to have a second stage that has a shadow of its own page table below.
    pub fn with_memory(modes: &[MemoryMode], cpu: Virtualization, hypervisor: Hypervisor) -> Self {
        assert!(!modes.is_empty() && cpu.instructions == Instructions::Svm);
        assert!(!modes.contains(&MemoryMode::Shadow { bypass: true }), "{modes:?}");
        let is_nested = |mode: &&MemoryMode| **mode == MemoryMode::Nested;
        let nested = modes.iter().take_while(is_nested).count();
        assert_eq!(nested, modes.iter().filter(is_nested).count(), "{modes:?}");
        let level = |mode: &MemoryMode| {
            let mut memory = Memory::default();
            prepare(&mut memory, *mode, &cpu);
            let mut processor = Processor::new();
            processor.enabled = true;
            processor.save_area = HOST;
            Level { memory, processor, runs_nested: false }
        };
        let mut tower = Self {
            levels: modes.iter().map(level).collect(),
            cpu,
            hypervisor,
            account: Account::new(modes.len()),
            own: Vec::new(),
            injected: None,
        };
        (0..modes.len()).for_each(|level| tower.enter(level));
        tower.reset();
        tower
    }

    /// Starts counting anew.
    pub fn reset(&mut self) {
        self.account.reset();
    }

    /// Cycles of all that was counted.
    pub fn cycles(&self, costs: &ExitCosts) -> u64 {
        self.account.cycles(costs)
    }

    /// Exits of a VM, 1 for L1.
    pub fn exits(&self, vm: usize, reason: ExitReason) -> u64 {
        self.account.exits(vm, reason)
    }

    /// The VM that runs: 1 for L1.
    pub fn runs(&self) -> usize {
        1 + self.levels.iter().take_while(|level| level.runs_nested).count()
    }

    /// Address of the VMCB that hardware runs, in L0's memory.
    pub fn physical_vmcb(&self) -> Option<u64> {
        self.levels[0].processor.guest().map(|vmcb| vmcb.0)
    }

    /// Addresses of the VMCB that L0 has for L1 (VMCB01), and of the one for guests of hypervisors in L1
    /// (VMCB02).
    pub const fn vmcbs_of_host() -> (u64, u64) {
        (OWN.0, MERGED.0)
    }

    /// What is at a place of the VMCB that a hypervisor has for its VM: from L1 on, of VMCB12.
    pub fn place(&self, level: usize, place: Place) -> u64 {
        OWN.get(&self.levels[level].memory, place)
    }

    /// What is at a place of the VMCB that a hypervisor made for guests of the one in its VM.
    pub fn merged(&self, level: usize, place: Place) -> u64 {
        MERGED.get(&self.levels[level].memory, place)
    }

    /// A hypervisor changes what is at a place of the VMCB of its VM, which takes effect with its next VMRUN.
    pub fn set_place(&mut self, level: usize, place: Place, value: u64) {
        OWN.set(&mut self.levels[level].memory, place, value);
    }

    /// The next hypervisor that handles an exit of the guest injects an event (APM volume 2, section 15.20).
    pub fn inject(&mut self, event: u64) {
        self.injected = Some(event);
    }

    /// Whether interrupts are let through to a hypervisor, by the flag that it sees.
    pub fn interrupts(&self, level: usize) -> bool {
        self.levels[level].processor.interrupts()
    }

    /// What hardware has in a register that VMLOAD loads.
    ///
    /// # Panics
    /// For a place that VMLOAD does not load.
    pub fn register(&self, place: Place) -> u64 {
        self.levels[0].processor.registers()[position(place)]
    }

    /// The guest writes to such a register. There is one set of them, whoever runs.
    ///
    /// # Panics
    /// For a place that VMLOAD does not load.
    pub fn set_register(&mut self, place: Place, value: u64) {
        for level in &mut self.levels {
            let mut registers = *level.processor.registers();
            registers[position(place)] = value;
            level.processor.set_registers(registers);
        }
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
    /// VMCB to say that hardware runs. A hypervisor keeps an exit that is its own affair, as `owns` says, or
    /// that the one in its VM does not want to see, as the VMCB of that one says.
    pub fn route(&self, event: Event, owns: impl Fn(usize) -> bool) -> Route {
        self.route_of(self.levels.len(), event, owns)
    }

    /// The same for a VM, 1 for L1.
    fn route_of(&self, vm: usize, event: Event, owns: impl Fn(usize) -> bool) -> Route {
        let host = &self.levels[0];
        let running: Vmcb = host.processor.guest().expect("a VM runs");
        if !exits::exits(running, &host.memory, event) {
            return Route::NoExit;
        }
        // Of what that one runs at the moment, which may be for a hypervisor in its VM again.
        let wants = |level: usize| {
            let level = &self.levels[level];
            exits::exits(level.runs(), &level.memory, event)
        };
        let last = vm - 1;
        Route::Handler((0..last).find(|level| owns(*level) || !wants(level + 1)).unwrap_or(last))
    }
}

/// Which of the registers that VMLOAD loads it is.
fn position(place: Place) -> usize {
    let position = Place::MOVED_BY_VMLOAD.iter().position(|moved| *moved == place);
    position.expect("VMLOAD loads it")
}
