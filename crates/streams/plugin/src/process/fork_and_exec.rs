//! Fork and exec: how relatives of the process come to be.

use super::{NO_THREAD, Process};
use crate::calls::Call;
use crate::exec::{Plan, plan};
use crate::pending::{PENDING, Pending};
use crate::{clone_lock, guest, image, observation, requests, sampling, waits};
use std::path::PathBuf;
use std::sync::atomic::Ordering::*;
use strata_stream::{Event, Pid, Tid};
use strata_wire::{Execution, Message, ProcessId};

impl Process {
    pub(super) fn clone_starts(&self, vcpu: u32, call: &Call) {
        let flags = call.args[0];
        let has = |flag: i32| flags & flag as u64 != 0;
        // The emulator makes a fork of a vfork.
        if has(libc::CLONE_VM) && !has(libc::CLONE_VFORK) {
            self.hand_over(vcpu);
            self.parallel.store(true, Relaxed);
            PENDING.set(Some(Pending::Thread));
        } else {
            let stored = [(libc::CLONE_PARENT_SETTID, 2), (libc::CLONE_CHILD_SETTID, 3)]
                .map(|(flag, argument)| has(flag).then_some(call.args[argument]));
            self.fork_starts(vcpu, call, stored);
        }
    }

    /// The child is told of before it exists: told by itself, it might come after what the parent
    /// did to its own memory meanwhile.
    pub(super) fn fork_starts(&self, vcpu: u32, call: &Call, stored: [Option<u64>; 2]) {
        self.lock.acquire();
        if !observation::is_wanted() {
            PENDING.set(Some(Pending::Untold));
            return clone_lock::acquire();
        }
        self.tell_before(vcpu, call);
        self.is_related.store(true, Relaxed);
        if self.sampling.is_some() || self.counting.is_some() {
            // Before it is there: its parent, which may wait for it, looks for the edges that it passes from now on.
            self.tell_counts(vcpu);
            self.wire.begin_process();
            sampling::look_at(0);
        }
        let (parent, child, tid) = (self.pid(), self.wire.new_pid(), self.wire.new_tid());
        self.send(
            vcpu,
            &[
                Message::Event(Event::Fork { parent, child }),
                Message::Event(Event::ThreadStart { pid: child, tid }),
            ],
        );
        PENDING.set(Some(Pending::Fork { child, tid, stored }));
        clone_lock::acquire();
    }

    /// In the child of a fork: its one thread starts over, without the parent's slots.
    pub(super) fn become_child(&self, vcpu: u32, child: Pid, tid: Tid, stored: [Option<u64>; 2]) {
        self.pid.store(child.0, Relaxed);
        self.image.store(0, Relaxed);
        requests::forget();
        waits::forget();
        self.forget_switch();
        if let Some(sampling) = &self.sampling {
            sampling.fork(&self.wire);
        }
        if let Some(watch) = &self.watch {
            watch.begin(vcpu, image::own_floor(), stored.into_iter().flatten());
        }
        if let Some(counting) = &self.counting {
            counting.fork();
        }
        for other in 0..self.vcpus.load(Relaxed) {
            self.tids[other as usize].store(NO_THREAD, Relaxed);
            self.set_slot(other, &self.nowhere);
        }
        let slot = self.wire.take_first(self.owner(tid));
        self.set_slot(vcpu, slot.unwrap_or_else(|| self.without_slot()));
        self.tids[vcpu as usize].store(tid.0, Relaxed);
        self.send(vcpu, &[Message::Runs { pid: child, process: ProcessId::own() }]);
    }

    pub(super) fn exec(&self, vcpu: u32, call: &Call) {
        let reachable = |path| guest::may_write(path);
        match plan(call, self.program.get().map(PathBuf::as_path)) {
            Plan::Follow { program, environment } if reachable(&self.emulator.wire) => {
                self.hand_over(vcpu);
                self.tell_counts(vcpu);
                let image = self.image.load(Relaxed) + 1;
                let caller = self.tid(vcpu).map(|tid| (self.pid(), tid, image));
                let identity = strata_wire::Identity { caller };
                let (arguments, environment) =
                    self.emulator.command(program, environment, identity);
                // When the kernel refuses, the emulator's own call finds the error again.
                if let Ok(execution) = Execution::new(arguments, environment) {
                    self.leave(vcpu);
                    execution.replace_process();
                }
            }
            Plan::Follow { program, .. } => {
                if !self.wire.consumer_runs() {
                    self.without_slot();
                }
                self.leave(vcpu);
                let path = program.path.display();
                let note = format!("{path}: ran unseen, as its process cannot reach the capture");
                self.send(vcpu, &[Message::Note(note)]);
            }
            Plan::Lose(note) => {
                self.leave(vcpu);
                self.send(vcpu, &[Message::Note(note)]);
            }
            Plan::Fail => {}
        }
    }

    /// What the process shared is its relatives' alone, long before a new program tells of itself, if it does.
    fn leave(&self, vcpu: u32) {
        if self.sampling.is_some() {
            self.send(vcpu, &[Message::Leaves { pid: self.pid() }]);
        }
    }
}
