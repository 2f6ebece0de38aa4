//! The traced process: who it is, its threads and the slots they fill.
//!
//! A thread is known by its vCPU's index, which the emulator hands to every callback.
//!
//! | file | subject |
//! | --- | --- |
//! | `slots` | what threads tell, and the slots they tell it in |
//! | `gaps` | windows and gaps of a sampled stream |
//! | `system_calls` | system calls, before and after the kernel has them |
//! | `fork_and_exec` | how relatives of the process come to be |
//! | `end` | the end of the process |

mod end;
mod fork_and_exec;
mod gaps;
mod slots;
mod system_calls;

use crate::calls::Space;
use crate::code::Code;
use crate::counting::Counting;
use crate::faults::Watch;
use crate::pending::VCPU;
use crate::requests::Connections;
use crate::sampling::Progress;
use crate::slots::{MAX_THREADS, SLOTS};
use crate::{guest, image, sampling, switch};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use strata_addr::{Range, space::Virtual};
use strata_stream::{Edge, Event, Pid, Tid};
use strata_wire::{Emulator, Lock, Message, Owner, ProcessId, Slot, Wire};

const NO_THREAD: u32 = u32::MAX;

/// The traced process.
#[derive(Debug)]
pub struct Process {
    wire: Wire,
    /// How further programs are to be run.
    pub emulator: Emulator,
    /// Asks the emulator to drop what observes.
    stop_observing: fn(),
    pid: AtomicU32,
    image: AtomicU32,
    /// Thread numbers, by vCPU index.
    tids: [AtomicU32; MAX_THREADS],
    /// One past the highest vCPU index seen.
    vcpus: AtomicU32,
    /// The thread that called `execve`, until its vCPU appears.
    inherited: AtomicU32,
    /// The file that runs, absolute.
    program: OnceLock<PathBuf>,
    /// Whether the process ever had a second thread, so that code is translated for many.
    parallel: AtomicBool,
    /// Serial instructions already told.
    told: AtomicU64,
    /// Held over system calls that change the address space and over `fork`, so that messages
    /// about them are in the order in which they happen.
    lock: Lock,
    space: Mutex<Space>,
    /// What of its code is known.
    code: Mutex<Code>,
    connections: Connections,
    /// How far it is in a sampled stream.
    sampling: Option<Progress>,
    /// Its page faults, in a sampled stream.
    watch: Option<Watch>,
    /// What it has counted, where only that is wanted.
    counting: Option<Counting>,
    /// A switch between gap and no gap is under way.
    switching: AtomicBool,
    /// Whether it was forked, or has forked.
    is_related: AtomicBool,
    /// Edges that its threads have passed and that have not been told of.
    passed: Mutex<Vec<Edge>>,
    /// Stands in `SLOTS` where there is no thread; nothing is written to it.
    nowhere: Box<Slot>,
}

impl Process {
    /// A process in `wire`: a new one, or the one that called `execve`.
    /// `stop_observing` asks the emulator to drop what observes.
    pub fn new(
        wire: Wire,
        emulator: Emulator,
        caller: Option<(Pid, Tid, u32)>,
        stop_observing: fn(),
    ) -> Box<Self> {
        let (pid, inherited, image) = match caller {
            Some((pid, tid, image)) => (pid, tid.0, image),
            None => (wire.new_pid(), NO_THREAD, 0),
        };
        let sampling = wire.sampling().map(|sampling| Progress::new(sampling, &wire));
        if sampling.is_some() {
            switch::observe(!sampling::is_in_gap());
            // A huge page would show 512 pages touched where one was.
            guest::forbid_huge_pages();
        }
        let counting = wire.counting().map(|_| Counting::new(&wire));
        let nowhere = Slot::detached();
        for slot in &SLOTS {
            slot.store(ptr::from_ref(&*nowhere).cast_mut(), Relaxed);
        }
        Box::new(Self {
            wire,
            emulator,
            stop_observing,
            pid: AtomicU32::new(pid.0),
            image: AtomicU32::new(image),
            tids: [const { AtomicU32::new(NO_THREAD) }; MAX_THREADS],
            vcpus: AtomicU32::new(0),
            inherited: AtomicU32::new(inherited),
            program: OnceLock::new(),
            parallel: AtomicBool::new(false),
            told: AtomicU64::new(0),
            lock: Lock::new(),
            space: Mutex::default(),
            code: Mutex::default(),
            connections: Connections::default(),
            watch: sampling.as_ref().map(|_| Watch::default()),
            sampling,
            counting,
            switching: AtomicBool::new(false),
            is_related: AtomicBool::new(false),
            passed: Mutex::default(),
            nowhere,
        })
    }

    fn pid(&self) -> Pid {
        Pid(self.pid.load(Relaxed))
    }

    fn tid(&self, vcpu: u32) -> Option<Tid> {
        let tid = self.tids[vcpu as usize].load(Relaxed);
        (tid != NO_THREAD).then_some(Tid(tid))
    }

    fn owner(&self, tid: Tid) -> Owner {
        Owner {
            pid: self.pid(),
            tid,
            image: self.image.load(Relaxed),
            in_gap: sampling::is_in_gap(),
        }
    }

    fn slot(&self, vcpu: u32) -> &Slot {
        let slot = SLOTS[vcpu as usize].load(Relaxed);
        // SAFETY: points to a slot of the wire or to `nowhere`, which live as long as `self`.
        unsafe { &*slot }
    }

    fn set_slot(&self, vcpu: u32, slot: &Slot) {
        SLOTS[vcpu as usize].store(ptr::from_ref(slot).cast_mut(), Relaxed);
    }

    /// Whether code must be translated for several threads.
    pub fn is_parallel(&self) -> bool {
        self.parallel.load(Relaxed)
    }

    // ---- code ----

    /// A thread is about to execute a block for the first time, whose instructions lie in these pages.
    pub fn fetches(&self, range: Range<Virtual>) {
        let vcpu = match VCPU.get() {
            Some(vcpu) => vcpu,
            // The first thread is vCPU 0. Another tells with its next block after a system call.
            None if !self.is_parallel() => 0,
            None => return self.code().wait(range),
        };
        let news = self.code().news(range);
        if !news.is_empty() {
            let pid = self.pid();
            let told = |range| Message::Event(Event::Fetched { pid, range });
            self.send(vcpu, &news.into_iter().map(told).collect::<Vec<_>>());
        }
    }

    fn code(&self) -> MutexGuard<'_, Code> {
        self.code.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- threads ----

    /// A vCPU appears: the process's first thread, or one that another is about to start.
    pub fn thread_starts(&self, vcpu: u32) {
        let first = self.vcpus.fetch_max(vcpu + 1, AcqRel) == 0;
        let tid = match self.inherited.swap(NO_THREAD, Relaxed) {
            NO_THREAD => self.wire.new_tid(),
            inherited => Tid(inherited),
        };
        let slot = self.wire.take_first(self.owner(tid));
        self.set_slot(vcpu, slot.unwrap_or_else(|| self.without_slot()));
        self.tids[vcpu as usize].store(tid.0, Release);
        if !first {
            let event = Event::ThreadStart { pid: self.pid(), tid };
            self.send(vcpu, &[Message::Event(event)]);
        }
    }

    /// A thread ends while others go on.
    pub fn thread_ends(&self, vcpu: u32) {
        let Some(tid) = self.tid(vcpu) else { return };
        if let Some(watch) = &self.watch {
            watch.thread_ends(vcpu);
        }
        self.put(vcpu, Message::Event(Event::ThreadExit { tid }), &mut Vec::new());
        let slot = self.slot(vcpu);
        self.settle(slot);
        self.tids[vcpu as usize].store(NO_THREAD, Release);
        self.set_slot(vcpu, &self.nowhere);
        self.wire.commit(slot);
    }

    /// The first instruction is about to be translated: everything is loaded.
    pub fn program_loaded(
        &self,
        vcpu: u32,
        program: Option<PathBuf>,
        mappings: Vec<image::Mapping>,
    ) {
        if let Some(program) = program.and_then(|program| program.canonicalize().ok()) {
            self.program.get_or_init(|| program);
        }
        // Before its first instruction.
        if let Some(watch) = &self.watch {
            watch.begin(vcpu, image::own_floor(), std::iter::empty());
        }
        let pid = self.pid();
        let image = self.image.load(Relaxed);
        let mut messages = Vec::new();
        if image == 0 {
            messages.push(Message::Event(Event::ProcessStart { pid }));
            messages.push(Message::Runs { pid, process: ProcessId::own() });
            let tid = self.tid(vcpu).unwrap_or_default();
            messages.push(Message::Event(Event::ThreadStart { pid, tid }));
        } else {
            messages.push(Message::Exec { pid, image });
        }
        messages.extend(mappings.into_iter().map(|mapping| {
            let image::Mapping { range, protection, backing } = mapping;
            Message::Event(Event::Map { pid, range, backing, protection, fixed: false })
        }));
        self.send(vcpu, &messages);
    }
}
