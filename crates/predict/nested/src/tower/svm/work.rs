//! What hypervisors execute: for an exit, and for that of their own instructions.

use super::Tower;
use super::level::Level;
use super::request::Request;
use super::vmcb::{HOST, OWN, merge, set_flag, take_over};
use crate::reason::ExitReason;
use crate::script::{Step, Work, script};
use crate::svm::vmcb::Place;
use crate::svm::{Run, Vmcb};
use crate::tower::cause::{Cause, Route};
use std::mem;

impl Tower {
    /// A hypervisor runs its VM.
    pub(super) fn enter(&mut self, level: usize) {
        self.execute(level, Request::Clear);
        self.execute(level, Request::Load(OWN.0));
        let runs = self.levels[level].runs();
        self.execute(level, Request::Run(runs.0));
    }

    /// What an instruction does on the processor that its hypervisor sees.
    fn perform(&mut self, level: usize, request: Request) {
        let Level { memory, processor, .. } = &mut self.levels[level];
        let answer = match request {
            Request::Clear => processor.clgi(),
            Request::Set => processor.stgi(),
            Request::Load(address) => processor.vmload(memory, address),
            Request::Save(address) => processor.vmsave(memory, address),
            Request::Run(address) => {
                let run = processor.vmrun(memory, address);
                assert_eq!(run, Ok(Run::Entered), "L{level}: {address:#x}");
                return;
            }
            Request::Guest(_) => return,
        };
        assert_eq!(answer, Ok(()), "L{level}: {request:?}");
    }

    /// The hypervisor at a level, which runs, executes an instruction: whether that exits, and who handles it,
    /// VMCBs say.
    fn execute(&mut self, level: usize, request: Request) {
        if level == 0 {
            return self.perform(0, request);
        }
        debug_assert_eq!(self.runs(), level, "{request:?}");
        debug_assert_eq!(
            self.levels[0].processor.registers(),
            self.levels[level].processor.registers(),
            "L{level} has other registers than it thinks, at {request:?}"
        );
        let event = request.event().expect("an instruction");
        match self.route_of(level, event, |_| false) {
            Route::Handler(handler) => self.exit(level, handler, request),
            // Hardware does it, with the registers that there are, whoever has VMs below.
            Route::NoExit => {
                self.perform(level, request);
                let Level { processor, .. } = &self.levels[level];
                let (registers, flag) = (*processor.registers(), processor.interrupts());
                self.levels[..level].iter_mut().for_each(|below| {
                    below.processor.set_registers(registers);
                });
                // Where it changed the flag of the VMCB that it runs, the one below finds it in its own.
                set_flag(&mut self.levels[level - 1].memory, flag);
            }
        }
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

    /// The hypervisor at a level makes an exit look like one to the hypervisor in its VM, and runs that.
    fn hand_on(&mut self, level: usize, request: Request) {
        assert!(self.levels[level].runs_nested, "L{level} handed on what is its own");
        self.work(level, Work::HandOn, |tower| {
            let [below, above] = &mut tower.levels[level..level + 2] else {
                unreachable!("there is a hypervisor in the VM")
            };
            let theirs: Vmcb = above.processor.guest().expect("it thinks that its VM runs");
            take_over(&below.memory, &mut above.memory, theirs);
            leave(above, request);
            set_flag(&mut below.memory, false);
            below.runs_nested = false;
        });
    }

    /// The hypervisor at a level handles an exit of a VM: its own, or one of the hypervisor in it.
    fn handle(&mut self, level: usize, vm: usize, request: Request) {
        let work = match request {
            Request::Guest(cause) => cause.work,
            _ => Work::of(request.reason()),
        };
        self.work(level, work, |tower| {
            if vm == tower.levels.len() {
                // It knows what there is to do, and works on its tables.
                if let Some(event) = tower.injected.take() {
                    let Level { memory, .. } = &mut tower.levels[level];
                    OWN.set(memory, Place::EVENT, event);
                }
                for cause in mem::take(&mut tower.own) {
                    tower.exit(level, level - 1, Request::Guest(cause));
                }
            }
            if !matches!(request, Request::Guest(_)) {
                tower.emulate(level, vm, request);
            }
        });
    }

    /// A hypervisor goes from the exit to the next VMRUN, and does something in between.
    fn work(&mut self, level: usize, work: Work, act: impl FnOnce(&mut Self)) {
        let mut act = Some(act);
        // Which VMLOAD it is: of its own state, or of its VM's.
        let mut enters = false;
        for step in script(work, self.hypervisor, &self.cpu) {
            let request = match step {
                Step::Other(ExitReason::Vmsave) => Request::Save(OWN.0),
                Step::Other(ExitReason::Vmload) if !enters => Request::Load(HOST),
                Step::Other(ExitReason::Stgi) => Request::Set,
                Step::Other(ExitReason::Clgi) => {
                    enters = true;
                    if let Some(act) = act.take() {
                        act(self);
                    }
                    Request::Clear
                }
                Step::Other(ExitReason::Vmload) => Request::Load(OWN.0),
                Step::Other(ExitReason::Vmrun) => Request::Run(self.levels[level].runs().0),
                Step::Same(reason) => {
                    if level > 0 {
                        self.exit(level, level - 1, Request::Guest(Cause::of(reason)));
                    }
                    continue;
                }
                other => unreachable!("{other:?} is no step on SVM"),
            };
            self.execute(level, request);
        }
    }

    /// The hypervisor at a level does for the one in its VM what that one's instruction asks.
    fn emulate(&mut self, level: usize, vm: usize, request: Request) {
        debug_assert_eq!(vm, level + 1, "{request:?}");
        let [below, above] = &mut self.levels[level..level + 2] else {
            unreachable!("there is a hypervisor in the VM")
        };
        // Its registers have been saved, and will be loaded.
        match request {
            Request::Load(address) => {
                for place in Place::MOVED_BY_VMLOAD {
                    OWN.set(&mut below.memory, place, Vmcb(address).get(&above.memory, place));
                }
            }
            Request::Save(address) => {
                for place in Place::MOVED_BY_VMLOAD {
                    let value = OWN.get(&below.memory, place);
                    Vmcb(address).set(&mut above.memory, place, value);
                }
                return;
            }
            _ => {}
        }
        self.perform(vm, request);
        let [below, above] = &mut self.levels[level..level + 2] else {
            unreachable!("there is a hypervisor in the VM")
        };
        set_flag(&mut below.memory, above.processor.interrupts());
        if let Request::Run(address) = request {
            merge(&mut below.memory, &above.memory, Vmcb(address), &self.cpu);
            below.runs_nested = true;
        }
    }
}

/// A VM exits, and the VMCB that ran takes why.
fn leave(level: &mut Level, request: Request) {
    let information = match request {
        Request::Guest(Cause { reason: ExitReason::PageFault, error_code, .. }) => {
            u64::from(error_code)
        }
        _ => 0,
    };
    level.processor.exit(&mut level.memory, request.code(), [information, 0]);
}
