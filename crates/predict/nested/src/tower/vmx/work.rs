//! What hypervisors execute: for an exit, and for that of their own instructions.

use super::Tower;
use super::level::{Level, current, leave};
use super::request::Request;
use super::vmcs::{COPY, MERGED, OWN, SHADOW};
use crate::access::Access;
use crate::reason::ExitReason;
use crate::script::{Step, Work, script};
use crate::tower::cause::Cause;
use crate::vmx::region::Region;
use crate::vmx::{Answer, Entry, Field};
use std::mem;

impl Tower {
    /// What an instruction does on the processor that its hypervisor sees.
    pub(super) fn perform(&mut self, level: usize, request: Request) {
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
    pub(super) fn execute(&mut self, level: usize, request: Request) {
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
    pub(super) fn exit(&mut self, vm: usize, handler: usize, request: Request) {
        self.account.exit(vm, handler, request.reason());
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

    /// The hypervisor at a level handles an exit of a VM: its own, or if it is not, one that it serves
    /// for the hypervisor in it.
    pub(super) fn handle(&mut self, level: usize, vm: usize, request: Request) {
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
