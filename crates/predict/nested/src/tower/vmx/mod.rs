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
//! L1 has an iVMCS and an sVMCS for L2 and L3, too, and so on.

mod level;
mod merge;
mod request;
mod vmcs;
mod work;

use crate::access::Access;
use crate::costs::ExitCosts;
use crate::memory::Memory;
use crate::reason::ExitReason;
use crate::script::Hypervisor;
use crate::tower::account::Account;
use crate::tower::cause::{Cause, MemoryMode, Route};
use crate::virtualization::{Instructions, Virtualization};
use crate::vmx::exits::{self, Event};
use crate::vmx::region::Region;
use crate::vmx::{Capabilities, Field, Processor};
use level::Level;
use request::Request;
use std::collections::BTreeMap;
use vmcs::{COPY, MERGED, OWN, VMXON, initial, of_memory, prepare, shadow_controls};

/// Hypervisors in each other's VMs, the host's first, and a guest on top.
pub struct Tower {
    levels: Vec<Level>,
    cpu: Virtualization,
    hypervisor: Hypervisor,
    access: Access,
    /// By level of the hypervisor from 0.
    modes: Vec<MemoryMode>,
    account: Account,
    /// What the handler of the present exit takes itself while it works.
    own: Vec<Cause>,
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
            prepare(&mut memory, capabilities);
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
            account: Account::new(hypervisors),
            own: Vec::new(),
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
        self.account.reset();
    }

    /// Cycles of all that was counted, copies included.
    pub fn cycles(&self, costs: &ExitCosts) -> u64 {
        self.account.cycles(costs)
    }

    /// Exits of a VM, 1 for L1.
    pub fn exits(&self, vm: usize, reason: ExitReason) -> u64 {
        self.account.exits(vm, reason)
    }

    /// Fields that were copied from and to VMCSs in memory.
    pub const fn copied_fields(&self) -> u64 {
        self.account.copied_fields
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
        // Of what that one runs at the moment, which may be for a hypervisor in its VM again.
        let wants = |level: usize| {
            let level = &self.levels[level];
            let runs = if level.runs_nested { MERGED } else { OWN };
            exits::exits(Region(runs), &level.memory, event)
        };
        Route::Handler((0..last).find(|level| owns(*level) || !wants(level + 1)).unwrap_or(last))
    }
}
