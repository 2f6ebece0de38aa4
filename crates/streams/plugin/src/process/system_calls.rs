//! System calls, before and after the kernel has them.

use super::Process;
use crate::calls::{self, Call, Space};
use crate::pending::{PENDING, Pending, VCPU};
use crate::{clone_lock, guest, observation, sampling, waits};
use std::sync::PoisonError;
use strata_stream::{Event, Mark};
use strata_wire::{Message, ProcessId};

impl Process {
    /// A system call is about to be made.
    pub fn call_starts(&self, vcpu: u32, call: Call) {
        VCPU.set(Some(vcpu));
        let unobserved = !observation::is_wanted();
        if let Some(watch) = self.watch.as_ref().filter(|_| !unobserved) {
            watch.thread(vcpu, sampling::is_in_gap());
        }
        if let Some(remark) = calls::remark(&call).filter(|_| !unobserved) {
            self.send(vcpu, &[remark]);
        }
        if !unobserved {
            let (told, again) = self.connections.before(&call);
            self.tell_of_request(vcpu, told);
            if again {
                PENDING.set(Some(Pending::Connection(call)));
            }
        }
        match call.number {
            libc::SYS_fork | libc::SYS_vfork => self.fork_starts(vcpu, &call, [None; 2]),
            // The emulator refuses clone3, as an old kernel would.
            libc::SYS_clone => self.clone_starts(vcpu, &call),
            // Only what is above, for the emulator's faults; `execve` then leads out of it.
            _ if unobserved => {}
            number if calls::changes_space(number) => {
                self.lock.acquire();
                self.tell_before(vcpu, &call);
                if self.sampling.is_some() {
                    // Before the call: what another thread stores after it is to stay.
                    calls::freed(&call).into_iter().for_each(guest::give_back);
                }
                let message = self.with_space(|space| calls::before(&call, self.pid(), space));
                if let Some(message) = message {
                    self.send(vcpu, &[message]);
                }
                PENDING.set(Some(Pending::Space(call)));
            }
            libc::SYS_execve | libc::SYS_execveat => {
                self.lock.acquire();
                self.tell_before(vcpu, &call);
                self.lock.release();
                self.exec(vcpu, &call);
            }
            // What waits or wakes orders the threads: give what was done before it.
            number if self.is_parallel() && !calls::is_private(number) => self.hand_over(vcpu),
            _ => {}
        }
        // Last, so that nothing but the call itself waits until it returns.
        if unobserved {
            waits::forget();
        } else {
            waits::before(&call);
        }
    }

    /// A system call returned.
    pub fn call_ends(&self, vcpu: u32, result: i64) {
        clone_lock::release();
        let seen = waits::after(result);
        if let Some(tid) = self.tid(vcpu) {
            let messages: Vec<Message> =
                seen.map(|call| Message::Event(Event::Called { tid, call })).collect();
            if !messages.is_empty() {
                self.send(vcpu, &messages);
            }
        }
        match PENDING.take() {
            None | Some(Pending::Thread) => {}
            Some(Pending::Untold) => self.lock.release(),
            Some(Pending::Connection(call)) => {
                let told = self.connections.after(&call, result);
                told.into_iter().for_each(|mark| self.tell_of_request(vcpu, mark));
            }
            Some(Pending::Space(call)) => {
                if let Some(watch) = &self.watch
                    && let Some(range) = self.with_space(|space| calls::grown(&call, result, space))
                {
                    guest::forget_zeroes(range);
                    watch.seen().forget(range);
                }
                let messages = self.with_space(|space| {
                    calls::after(&call, result, self.pid(), space, guest::segment_bytes)
                });
                if !messages.is_empty() {
                    self.send(vcpu, &messages);
                }
                self.code().forget();
                self.lock.release();
            }
            Some(Pending::Fork { child, tid, stored }) => {
                match result {
                    0 => self.become_child(vcpu, child, tid, stored),
                    result if calls::failed(result) => {
                        self.send(vcpu, &[Message::Event(Event::ProcessExit { pid: child })]);
                    }
                    number => {
                        if let Some(process) = ProcessId::running(number as u32) {
                            self.send(vcpu, &[Message::Runs { pid: child, process }]);
                        }
                    }
                }
                self.lock.release();
            }
        }
    }

    fn tell_of_request(&self, vcpu: u32, mark: Option<Mark>) {
        if let (Some(mark), Some(tid)) = (mark, self.tid(vcpu)) {
            self.send(vcpu, &[Message::Event(Event::Request { tid, mark })]);
        }
    }

    pub(super) fn with_space<T>(&self, act: impl FnOnce(&mut Space) -> T) -> T {
        act(&mut self.space.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
