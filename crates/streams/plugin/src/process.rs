//! The traced process: who it is, its threads and the slots they fill.
//!
//! A thread is known by its vCPU's index, which the emulator hands to every callback.

use crate::calls::{self, Call, Space};
use crate::code::Code;
use crate::counting::{self, Counting};
use crate::pending::{PENDING, Pending, VCPU};
use crate::requests::{self, Connections};
use crate::sampling::{Found, Progress};
use crate::slots::{MAX_THREADS, SERIAL_INSTRUCTIONS, SLOTS};
use crate::{glib, guest, image, observation, sampling, switch, touched, waits};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use strata_addr::{Range, space::Virtual};
use strata_stream::{Edge, Event, Mark, Pid, Tid};
use strata_wire::{Cut, Emulator, Execution, Lock, Message, Owner, ProcessId, Slot, Wire, encode};

const NO_THREAD: u32 = u32::MAX;

/// Instructions that one of several threads adds at a time to the clock of a sampled stream.
const TELL: u64 = 1 << 12;

/// Bytes up to which all page-table entries of a range are looked at, mapped or not.
const DENSE: u64 = 1 << 30;

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

    // ---- slots ----

    /// Hands over what the thread has filled, and gives it a new slot.
    pub fn hand_over(&self, vcpu: u32) {
        let slot = self.slot(vcpu);
        if self.wire.is_detached() {
            return self.detach(vcpu);
        }
        let Some(tid) = self.tid(vcpu) else {
            slot.reset();
            return;
        };
        if slot.is_empty() && !self.is_serial_count_due() {
            return;
        }
        self.settle(slot);
        let owner = self.owner(tid);
        if self.wire.index(slot).is_some() {
            self.wire.commit(slot);
            let next = self.wire.take(owner).unwrap_or_else(|| self.without_slot());
            self.set_slot(vcpu, next);
        } else {
            self.wire.count_lost(u64::from(slot.reset()));
            if let Some(next) = self.wire.try_take(owner) {
                self.set_slot(vcpu, next);
            }
        }
    }

    /// Nobody wants to know more: the thread writes to a place of its own until its code is
    /// translated anew, without observation.
    fn detach(&self, vcpu: u32) {
        let slot = self.slot(vcpu);
        if self.wire.index(slot).is_some() {
            self.set_slot(vcpu, Box::leak(Slot::detached()));
        } else {
            slot.reset();
        }
        // Without the way around the emulator's fault it goes on being slow.
        if observation::give_up() && glib::is_preloaded() {
            observation::ends();
            (self.stop_observing)();
        }
    }

    fn is_serial_count_due(&self) -> bool {
        SERIAL_INSTRUCTIONS.load(Relaxed) != self.told.load(Relaxed)
    }

    /// Credits instructions counted inline to the slot of the one thread there is.
    fn settle(&self, slot: &Slot) {
        let now = SERIAL_INSTRUCTIONS.load(Relaxed);
        slot.retire(now - self.told.swap(now, Relaxed));
    }

    /// There is no slot to be had. When nobody reads any more, the process ends: programs started
    /// for a capture end with it. Otherwise live threads hold every slot of the wire, and what
    /// this one does is lost, but counted.
    fn without_slot(&self) -> &Slot {
        if self.wire.is_closed() {
            guest::end_process();
        }
        if !self.wire.consumer_runs() {
            eprintln!("strata: the capture of this program was killed; ending the program too");
            guest::end_process();
        }
        Box::leak(Slot::detached())
    }

    /// Sends messages, after everything the thread did before.
    pub fn send(&self, vcpu: u32, messages: &[Message]) {
        let mut words = Vec::new();
        for message in messages {
            if calls::divides_siblings(message) {
                self.cuts(vcpu)
                    .iter()
                    .for_each(|&cut| self.put(vcpu, Message::Cut(cut), &mut words));
            }
            self.put(vcpu, message.clone(), &mut words);
        }
        self.hand_over(vcpu);
    }

    fn put(&self, vcpu: u32, message: Message, words: &mut Vec<u64>) {
        words.clear();
        encode(&message, words);
        if !self.slot(vcpu).append(words) {
            self.hand_over(vcpu);
            self.slot(vcpu).append(words);
        }
    }

    /// How far the sibling threads of `vcpu` have come.
    fn cuts(&self, vcpu: u32) -> Vec<Cut> {
        (0..self.vcpus.load(Acquire))
            .filter(|&other| other != vcpu)
            .filter_map(|other| {
                let (tid, slot) = (self.tid(other)?, self.slot(other));
                let taking = slot.taking();
                let accesses = slot.accesses().len() as u32;
                // A thread that waits for a slot still points to its last, by now another's.
                if slot.owner().tid != tid || accesses == 0 {
                    return None;
                }
                Some(Cut { slot: self.wire.index(slot)?, taking, accesses })
            })
            .collect()
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

    // ---- sampling ----

    /// A thread looks at the clock of a sampled stream, to which it adds instructions that are not counted
    /// inline.
    pub fn look(&self, vcpu: u32, instructions: u64) {
        if let Some(counting) = &self.counting {
            if let Some(told) = counting.look(&self.wire, instructions) {
                self.send(vcpu, &[told]);
            }
            return;
        }
        let Some(sampling) = &self.sampling else { return };
        if self.switching.load(Relaxed) {
            return;
        }
        match sampling.look(&self.wire, instructions) {
            Found::Nothing => {}
            // What counts follows what warms up: nothing changes but what it is for.
            Found::Passed(Edge::Window) if !sampling::is_in_gap() => {
                self.send(vcpu, &[Message::Event(Event::Sampling(Edge::Window))]);
            }
            Found::Passed(Edge::Interval) if sampling::is_in_gap() => {
                self.send(vcpu, &[Message::Event(Event::Sampling(Edge::Interval))]);
            }
            Found::Passed(edge) => self.begin_switch(vcpu, Some(edge)),
            Found::Lags => self.begin_switch(vcpu, None),
        }
    }

    /// The same for one of several threads, which adds what it has done from time to time.
    pub fn look_as_one_of_many(&self, vcpu: u32, instructions: u64) {
        if self.slot(vcpu).is_in_gap() != sampling::is_in_gap() {
            self.notice_switch(vcpu);
        }
        let slot = self.slot(vcpu);
        let most = if self.counting.is_some() { counting::LOOK } else { TELL };
        if let Some(instructions) = slot.tell(instructions, most) {
            self.look(vcpu, instructions);
        }
    }

    fn begin_switch(&self, vcpu: u32, edge: Option<Edge>) {
        self.passed().extend(edge);
        // Whoever switches already tells of all that was passed.
        if !self.switching.swap(true, Relaxed) {
            switch::alone(vcpu as usize);
        }
    }

    fn passed(&self) -> MutexGuard<'_, Vec<Edge>> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No thread runs translated code: what was done before is handed over, and what observes changes.
    pub fn switch(&self, vcpu: usize) {
        let vcpu = vcpu as u32;
        self.switching.store(false, Relaxed);
        let edges = std::mem::take(&mut *self.passed());
        let in_gap =
            self.sampling.as_ref().is_some_and(|sampling| sampling.is_gap_next(&self.wire));
        if sampling::is_in_gap() && !in_gap {
            self.tell_touched(vcpu, &image::guest_ranges());
        }
        match edges.is_empty() {
            true => self.hand_over(vcpu),
            false => {
                let told: Vec<Message> =
                    edges.into_iter().map(|edge| Message::Event(Event::Sampling(edge))).collect();
                self.send(vcpu, &told);
            }
        }
        sampling::set_in_gap(in_gap);
        // Of what nobody wants to know, nothing is translated that observes.
        switch::observe(!in_gap && !self.wire.is_detached());
        self.notice_switch(vcpu);
    }

    /// What a thread fills is of a gap, or no more: each thread sees to its own slot.
    fn notice_switch(&self, vcpu: u32) {
        let in_gap = sampling::is_in_gap();
        if self.slot(vcpu).is_in_gap() != in_gap {
            self.hand_over(vcpu);
            // One that was empty was kept.
            self.slot(vcpu).relabel(in_gap);
        }
    }

    /// Tells of pages in these ranges that page tables show.
    fn tell_touched(&self, vcpu: u32, ranges: &[Range<Virtual>]) {
        if self.sampling.is_none() {
            return;
        }
        let found = touched::pages(ranges.iter().copied(), self.pid());
        let messages: Vec<Message> = found.into_iter().map(Message::Event).collect();
        if !messages.is_empty() {
            self.send(vcpu, &messages);
        }
    }

    /// Tells of the blocks that the process has counted, before it is gone.
    fn tell_blocks(&self, vcpu: u32) {
        if self.counting.is_some() && !self.wire.is_detached() {
            self.look(vcpu, 0);
        }
    }

    /// The same before a call hides what was touched.
    fn tell_before(&self, vcpu: u32, call: &Call) {
        if self.sampling.is_none() || !sampling::is_in_gap() {
            return;
        }
        for range in self.with_space(|space| calls::hides(call, space)) {
            if range.bytes() <= DENSE {
                self.tell_touched(vcpu, &[range]);
                continue;
            }
            let guest = image::guest_ranges();
            let overlap = guest.into_iter().filter_map(|mapping| {
                let start = mapping.start.max(range.start);
                let end = mapping.end.min(range.end);
                (start < end).then(|| Range::new(start, end))
            });
            self.tell_touched(vcpu, &overlap.collect::<Vec<_>>());
        }
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

    // ---- system calls ----

    /// A system call is about to be made.
    pub fn call_starts(&self, vcpu: u32, call: Call) {
        VCPU.set(Some(vcpu));
        let unobserved = !observation::is_wanted();
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
            // Only what `glib` needs; `execve` then leads out of the emulator.
            number if unobserved && number != libc::SYS_clone => {}
            number if calls::changes_space(number) => {
                self.lock.acquire();
                self.tell_before(vcpu, &call);
                let message = self.with_space(|space| calls::before(&call, self.pid(), space));
                if let Some(message) = message {
                    self.send(vcpu, &[message]);
                }
                PENDING.set(Some(Pending::Space(call)));
            }
            libc::SYS_fork | libc::SYS_vfork => {
                self.tell_before(vcpu, &call);
                self.fork_starts(vcpu);
            }
            // The emulator refuses clone3, as an old kernel would.
            libc::SYS_clone => self.clone_starts(vcpu, &call),
            libc::SYS_execve | libc::SYS_execveat => {
                self.tell_before(vcpu, &call);
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
            Some(Pending::Connection(call)) => {
                let told = self.connections.after(&call, result);
                told.into_iter().for_each(|mark| self.tell_of_request(vcpu, mark));
            }
            Some(Pending::Space(call)) => {
                if self.sampling.is_some()
                    && let Some(range) = self.with_space(|space| calls::grown(&call, result, space))
                {
                    guest::forget_zeroes(range);
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
            Some(Pending::Fork { child, tid }) => {
                match result {
                    0 => self.become_child(vcpu, child, tid),
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

    fn with_space<T>(&self, act: impl FnOnce(&mut Space) -> T) -> T {
        act(&mut self.space.lock().unwrap_or_else(PoisonError::into_inner))
    }

    // ---- fork and exec ----

    fn clone_starts(&self, vcpu: u32, call: &Call) {
        let flags = call.args[0];
        let has = |flag: i32| flags & flag as u64 != 0;
        // The emulator makes a fork of a vfork.
        if has(libc::CLONE_VM) && !has(libc::CLONE_VFORK) {
            self.hand_over(vcpu);
            self.parallel.store(true, Relaxed);
            PENDING.set(Some(Pending::Thread));
        } else if observation::is_wanted() {
            self.tell_before(vcpu, call);
            self.fork_starts(vcpu);
        }
    }

    /// The child is told of before it exists: told by itself, it might come after what the parent
    /// did to its own memory meanwhile.
    fn fork_starts(&self, vcpu: u32) {
        self.lock.acquire();
        self.is_related.store(true, Relaxed);
        let (parent, child, tid) = (self.pid(), self.wire.new_pid(), self.wire.new_tid());
        self.send(
            vcpu,
            &[
                Message::Event(Event::Fork { parent, child }),
                Message::Event(Event::ThreadStart { pid: child, tid }),
            ],
        );
        PENDING.set(Some(Pending::Fork { child, tid }));
    }

    /// In the child of a fork: its one thread starts over, without the parent's slots.
    fn become_child(&self, vcpu: u32, child: Pid, tid: Tid) {
        self.pid.store(child.0, Relaxed);
        self.image.store(0, Relaxed);
        requests::forget();
        waits::forget();
        if let Some(sampling) = &self.sampling {
            sampling.fork(&self.wire);
        }
        if let Some(counting) = &self.counting {
            counting.fork(&self.wire);
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

    fn exec(&self, vcpu: u32, call: &Call) {
        use crate::exec::{Plan, plan};
        let reachable = |path| guest::may_write(path);
        match plan(call, self.program.get().map(PathBuf::as_path)) {
            Plan::Follow { program, environment } if reachable(&self.emulator.wire) => {
                self.hand_over(vcpu);
                self.tell_blocks(vcpu);
                let image = self.image.load(Relaxed) + 1;
                let caller = self.tid(vcpu).map(|tid| (self.pid(), tid, image));
                let identity = strata_wire::Identity { caller };
                let (arguments, environment) =
                    self.emulator.command(program, environment, identity);
                // When the kernel refuses, the emulator's own call finds the error again.
                if let Ok(execution) = Execution::new(arguments, environment) {
                    if self.sampling.is_some() {
                        // What it shared is its relatives' alone, long before the new program tells of itself.
                        self.send(vcpu, &[Message::Leaves { pid: self.pid() }]);
                    }
                    execution.replace_process();
                }
            }
            Plan::Follow { program, .. } => {
                if !self.wire.consumer_runs() {
                    self.without_slot();
                }
                let path = program.path.display();
                let note = format!("{path}: ran unseen, as its process cannot reach the capture");
                self.send(vcpu, &[Message::Note(note)]);
            }
            Plan::Lose(note) => self.send(vcpu, &[Message::Note(note)]),
            Plan::Fail => {}
        }
    }

    /// Whether page tables are looked at once more before they are gone: in a gap, and outside of one for copies of
    /// what relatives share, as a page that is seen to be a process's own is no sign of a copy once the others
    /// have ended.
    fn has_last_look(&self) -> bool {
        let is_related = || self.is_related.load(Relaxed) && self.wire.edges_passed() > 0;
        sampling::is_in_gap() || self.sampling.is_some() && is_related()
    }

    /// A signal is about to end the process, as the calling thread found. Others may still run, so that it
    /// speaks for itself and for what page tables show; what they did is found in their slots.
    pub fn dies(&self) {
        let Some(vcpu) = VCPU.get().filter(|vcpu| self.tid(*vcpu).is_some()) else { return };
        if self.wire.is_detached() {
            return;
        }
        self.tell_blocks(vcpu);
        if self.has_last_look() {
            self.tell_touched(vcpu, &image::guest_ranges());
        }
        self.send(vcpu, &[Message::LastWord { pid: self.pid() }]);
    }

    /// The process ends; no thread runs observed code any more.
    pub fn ends(&self) {
        if self.has_last_look()
            && let Some(vcpu) = (0..self.vcpus.load(Acquire)).find(|vcpu| self.tid(*vcpu).is_some())
        {
            self.tell_blocks(vcpu);
            self.tell_touched(vcpu, &image::guest_ranges());
        }
        let mut last = None;
        for vcpu in 0..self.vcpus.load(Acquire) {
            if let Some(tid) = self.tid(vcpu) {
                let slot = self.slot(vcpu);
                self.settle(slot);
                self.wire.commit(slot);
                last = Some(tid);
            }
        }
        let Some(slot) = last.and_then(|tid| self.wire.take(self.owner(tid))) else { return };
        let mut words = Vec::new();
        encode(&Message::Event(Event::ProcessExit { pid: self.pid() }), &mut words);
        slot.append(&words);
        self.wire.commit(slot);
        self.wire.wake_consumer();
    }
}
