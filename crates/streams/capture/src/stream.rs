//! The consumer: turns what arrives through the wire into a stream.

use crate::CaptureError;
use crate::edges::Edges;
use crate::launch::{self, Launch, Options, Supervisor};
use crate::processes::Processes;
use crate::vmas::page_of;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use strata_addr::{Range, space::Virtual};
use strata_phases::{Profile, Profiled};
use strata_stream::{
    Access, Backing, Batch, Edge, Event, Fill, Pid, Protection, Source, SourceError, Tid,
    WorkloadInfo, command_line,
};
use strata_wire::{Cut, Drain, Message, SlotIndex, Wire, decode};
use strata_workloads::{Chooser, Touches, tell_touched};

/// First and longest sleep while nothing arrives; after the longest, the caller gets an empty batch
/// and with it a chance to do something else.
const SLEEP: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(32)];
/// How often processes are checked for having ended silently.
const CHECK: Duration = Duration::from_millis(200);
/// How long what a program leaves running goes on before it is spoken of.
const OUTLIVED: Duration = Duration::from_secs(2);
/// What is said of a process that had no time for a last word.
const KILLED: &str = "a process was killed (SIGKILL) between two windows: what it did since the last of them \
                      is not known, and is in no figure";
/// Notes of programs kept; there is no use in thousands.
const NOTES: usize = 100;

/// A program that runs under the emulator, and the stream of what it does.
///
/// [`Source::fill`] returns an empty batch from time to time while the program waits for something,
/// so that the caller can look at its own affairs. Dropping the capture ends the program. An
/// interrupt from the terminal reaches the program as it reaches the caller; when the program ends
/// by it, so does the stream, with everything done before.
#[derive(Debug)]
pub struct Capture {
    wire: Arc<Wire>,
    /// Producers open the wire through this process's descriptor.
    _file: File,
    supervisor: Supervisor,
    argv: Vec<String>,
    drain: Drain,
    /// How much of each slot was delivered, by index: a cut delivers a part ahead.
    progress: Vec<Progress>,
    processes: Processes,
    /// What was touched, if the stream is sampled.
    touches: Option<Touches>,
    /// What puts the edges in order, if the stream is sampled.
    edges: Option<Edges>,
    /// What places the intervals, if their places are not drawn.
    chooser: Option<Chooser>,
    /// What was counted, where only that is wanted.
    profile: Option<Profile>,
    /// Whether the stream is in a gap.
    in_gap: bool,
    /// Processes found dead, whose committed slots are still in `drain`.
    dying: Vec<Pid>,
    /// Processes that ended before what a slot tells of, and did not tell of it; looked for where that matters.
    unheard: Option<Vec<Pid>>,
    checked: Instant,
    begun: bool,
    ended: bool,
    /// The program goes on without being observed.
    detached: bool,
    inferred: u64,
    stray: u64,
    notes: Vec<String>,
    /// Once set, what the program leaves running is not waited for.
    interrupted: Option<Arc<AtomicBool>>,
    /// When the program was found to have left something running.
    outlived: Option<Instant>,
    /// What was told at once, and how much of it.
    warnings: Vec<String>,
    told: usize,
}

/// How much of a slot was delivered.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// In which use of the slot.
    taking: u64,
    accesses: usize,
    instructions: u64,
}

impl Capture {
    /// Starts `program` with `args`, searched in `PATH` as a shell does.
    ///
    /// # Errors
    /// When the program, the emulator or the plugin is missing or unfit, before anything started;
    /// or when the system refuses to start it.
    pub fn spawn(
        program: &OsStr,
        args: &[OsString],
        options: Options,
    ) -> Result<Self, CaptureError> {
        let (wire, file) = Wire::create().map_err(|source| CaptureError::System {
            context: "making memory for the capture",
            source,
        })?;
        let touches = options.sampling.map(|sampling| {
            wire.sample(&sampling);
            Touches::default()
        });
        let edges = options.sampling.as_ref().map(Edges::new);
        let adaptive = options.sampling.filter(|sampling| sampling.adaptive);
        let aimed = adaptive.zip(options.aimed.clone());
        let chooser = aimed.map(|(sampling, aimed)| Chooser::new(sampling, aimed));
        chooser.iter().flat_map(Chooser::placed).for_each(|placed| wire.place(placed));
        let profile = options.counting.map(|interval| {
            wire.count(interval);
            Profile::new(interval)
        });
        let wire = Arc::new(wire);
        let interrupted = options.interrupted.clone();
        let launch = Launch::prepare(program, args, options, &file)?;
        let supervisor = launch.start(wire.clone())?;
        let words = [program].into_iter().chain(args.iter().map(OsString::as_os_str));
        let argv = words.map(|word| word.to_string_lossy().into_owned()).collect();
        Ok(Self {
            wire,
            _file: file,
            supervisor,
            argv,
            drain: Drain::default(),
            progress: Vec::new(),
            processes: Processes::default(),
            touches,
            edges,
            chooser,
            profile,
            in_gap: false,
            dying: Vec::new(),
            unheard: None,
            checked: Instant::now(),
            begun: false,
            ended: false,
            detached: false,
            inferred: 0,
            stray: 0,
            notes: Vec::new(),
            interrupted,
            outlived: None,
            warnings: Vec::new(),
            told: 0,
        })
    }

    /// How the program ended, signals included, once it has. Its descendants may still run.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.supervisor.status()
    }

    /// Reads the rest of the stream without looking at it, and returns how the program ended.
    ///
    /// # Errors
    /// As [`Source::fill`].
    pub fn wait(&mut self) -> Result<Option<ExitStatus>, SourceError> {
        let mut batch = Batch::new();
        while self.fill(&mut batch)? == Fill::More {}
        Ok(self.status())
    }

    /// What was counted ([`Options::counting`]), once the stream is over.
    pub fn profiled(&mut self) -> Option<Profiled> {
        let profile = self.profile.take()?;
        Some(profile.end(self.wire.take_blocks().into_iter()))
    }

    // ---- slots ----

    /// Puts a committed slot into the batch and gives it back to the producers.
    fn deliver(&mut self, index: SlotIndex, batch: &mut Batch) {
        self.accesses(index, None, batch);
        self.unheard = None;
        let wire = self.wire.clone();
        let pid = wire.slot(index).owner().pid;
        let mut words = wire.slot(index).messages();
        while let Some((message, rest)) = decode(words) {
            words = rest;
            self.message(message, pid, batch);
        }
        wire.release(index);
    }

    /// Puts the accesses of a slot into the batch, up to `limit`, that were not yet.
    fn accesses(&mut self, index: SlotIndex, limit: Option<usize>, batch: &mut Batch) {
        let wire = self.wire.clone();
        let slot = wire.slot(index);
        let (taking, at) = (slot.taking(), index as usize);
        if at >= self.progress.len() {
            self.progress.resize(at + 1, Progress::default());
        }
        let (accesses, instructions) = (slot.accesses(), slot.instructions());
        let before = match self.progress[at] {
            progress if progress.taking == taking => progress,
            _ => Progress::default(),
        };
        let end = limit.unwrap_or(accesses.len()).min(accesses.len()).max(before.accesses);
        self.progress[at] = Progress { taking, accesses: end, instructions };
        let owner = slot.owner();
        if owner.in_gap {
            // The few accesses in it are of blocks that were running when the gap began.
            let instructions = instructions - before.instructions;
            if instructions > 0 && self.processes.get(owner.pid).is_some() {
                batch.event(Event::Skipped { tid: owner.tid, instructions });
            }
            return;
        }
        let piece = &accesses[before.accesses..end];
        self.run(owner.pid, owner.tid, instructions - before.instructions, piece, batch);
    }

    /// Adds a run, with mappings inferred where accesses fall outside all known ones.
    fn run(&mut self, pid: Pid, tid: Tid, instructions: u64, words: &[u64], batch: &mut Batch) {
        let Some(process) = self.processes.get(pid) else {
            self.stray += words.len() as u64;
            return;
        };
        let mut instructions = instructions;
        let mut rest = words;
        loop {
            let vmas = &mut process.vmas;
            let mut outside = None;
            let mut used = 0;
            batch.run(tid, instructions, |out| {
                let from = out.len();
                out.extend(rest.iter().map(|&word| Access::from_bits(word)));
                used = rest.len();
                if let Some(index) = vmas.first_outside(&out[from..]) {
                    outside = Some(out[from + index].addr());
                    out.truncate(from + index);
                    used = index;
                }
            });
            if let Some(touches) = &mut self.touches {
                let all = batch.accesses();
                touches.run(tid, &all[all.len() - used..], false);
            }
            if let Some(chooser) = &mut self.chooser {
                let all = batch.accesses();
                chooser.run(pid, instructions, &all[all.len() - used..]);
            }
            let Some(at) = outside else { return };
            instructions = 0;
            rest = &rest[used..];
            let (range, backing) = (page_of(at), Backing::Anonymous);
            let protection = Protection::READ_WRITE;
            vmas.map(range, backing, protection);
            self.inferred += 1;
            batch.event(Event::Map { pid, range, backing, protection, fixed: false });
        }
    }

    // ---- messages ----

    fn message(&mut self, message: Message, sender: Pid, batch: &mut Batch) {
        match message {
            Message::Event(event) => self.event(event, batch),
            Message::Runs { pid, process } => {
                // The parent's word counts more than the child's own: in a PID namespace a process
                // does not know its number outside.
                if let Some(known) = self.processes.get(pid)
                    && (sender != pid || known.identity.is_none())
                {
                    known.identity = Some(process);
                }
            }
            Message::Exec { pid, image } => {
                self.abandoned(|owner| owner.pid == pid && owner.image < image, batch);
                if let Some(process) = self.processes.get(pid) {
                    process.image = image;
                    process.vmas = Default::default();
                    process.fetched = Default::default();
                    let event = Event::Exec { pid };
                    if let Some(touches) = &mut self.touches {
                        touches.event(&event, &mut |told| {
                            tell_touched(told, &mut self.chooser, batch)
                        });
                    }
                    batch.event(event);
                }
            }
            Message::Cut(cut) => self.cut(&cut, sender, batch),
            Message::Grow { pid, range } => {
                let Some(process) = self.processes.get(pid) else { return };
                let (backing, protection) = process
                    .vmas
                    .before(range.start)
                    .unwrap_or((Backing::Anonymous, Protection::READ_WRITE));
                self.event(Event::Map { pid, range, backing, protection, fixed: false }, batch);
            }
            Message::Blocks { intervals, counts } => self.count(intervals, &counts),
            Message::LastWord { pid } => {
                if let Some(process) = self.processes.get(pid) {
                    process.has_last_word = true;
                }
                self.leaves(pid);
            }
            Message::Leaves { pid } => self.leaves(pid),
            Message::Note(note) => add(note, &mut self.notes),
            Message::Warning(warning) => add(warning, &mut self.warnings),
        }
    }

    fn event(&mut self, event: Event, batch: &mut Batch) {
        match event {
            Event::Touched { pid, range, store } => {
                return self.touched(pid, range, store, batch);
            }
            Event::Fetched { pid, range } => {
                let Some(process) = self.processes.get(pid) else { return };
                let news = process.fetched.add(range).into_iter();
                return news.for_each(|range| batch.event(Event::Fetched { pid, range }));
            }
            Event::Sampling(edge) => {
                let due = self.edges.as_mut().map_or(vec![edge], |edges| edges.told(edge));
                return due.into_iter().for_each(|edge| self.edge(edge, batch));
            }
            _ => {}
        }
        match event {
            Event::ProcessStart { pid } => {
                self.begun = true;
                self.processes.start(pid);
            }
            Event::Fork { parent, child } => self.processes.fork(parent, child),
            Event::ProcessExit { pid } if !self.processes.end(pid) => return,
            Event::Map { pid, range, backing, protection, .. } => match self.processes.get(pid) {
                Some(process) => {
                    process.vmas.map(range, backing, protection);
                    process.fetched.remove(range);
                }
                None => return,
            },
            Event::Unmap { pid, range } => match self.processes.get(pid) {
                Some(process) => {
                    process.vmas.unmap(range);
                    process.fetched.remove(range);
                }
                None => return,
            },
            Event::Remap { pid, from, to } => match self.processes.get(pid) {
                Some(process) => {
                    process.vmas.remap(from, to);
                    process.fetched.remove(from);
                    process.fetched.remove(to);
                }
                None => return,
            },
            Event::Protect { pid, range, protection } => match self.processes.get(pid) {
                Some(process) => process.vmas.protect(range, protection),
                None => return,
            },
            _ => {}
        }
        if let Some(touches) = &mut self.touches {
            touches.event(&event, &mut |told| tell_touched(told, &mut self.chooser, batch));
        }
        batch.event(event);
    }

    /// The stream goes from one part to the next.
    fn edge(&mut self, edge: Edge, batch: &mut Batch) {
        self.in_gap = matches!(edge, Edge::Interval | Edge::Gap);
        batch.event(Event::Sampling(edge));
        if let Some(chooser) = &mut self.chooser {
            chooser.told(edge).into_iter().for_each(|event| batch.event(event));
            if let Some(placed) = chooser.edge(edge) {
                self.wire.place(placed);
            }
        }
        if let (true, Some(touches)) = (self.in_gap, &mut self.touches) {
            touches.tell_begun(&mut |told| tell_touched(told, &mut self.chooser, batch));
        }
    }

    /// Intervals are over in which so much was counted, the same in each as far as is known.
    fn count(&mut self, intervals: u64, counts: &[(usize, u64)]) {
        let Some(profile) = &mut self.profile else { return };
        for part in 0..intervals {
            let share = |count: u64| count * (part + 1) / intervals - count * part / intervals;
            profile.push(counts.iter().map(|(bucket, count)| (*bucket, share(*count))));
        }
    }

    /// A process is about to give up its memory.
    fn leaves(&mut self, pid: Pid) {
        if let Some(touches) = &mut self.touches {
            touches.leave(pid);
        }
    }

    /// Page tables show pages of a process.
    fn touched(&mut self, pid: Pid, range: Range<Virtual>, store: bool, batch: &mut Batch) {
        if store && self.unheard.is_none() {
            self.unheard = Some(self.ended_before());
        }
        let (Some(process), Some(touches)) = (self.processes.get(pid), &mut self.touches) else {
            return;
        };
        for data in process.vmas.data_in(range) {
            touches.shown(pid, data, store, self.unheard.as_deref().unwrap_or_default());
        }
        touches.tell(None, &mut |told| tell_touched(told, &mut self.chooser, batch));
    }

    /// Processes that have ended without a word, before what is delivered now was seen or soon after. What is in
    /// line was handed over later: who handed over any of it lived then.
    fn ended_before(&mut self) -> Vec<Pid> {
        let mut ended = self.processes.silently_ended();
        if !ended.is_empty() {
            // They hand over no more, so that all of theirs is in line.
            self.wire.drain(&mut self.drain);
            let later: BTreeSet<Pid> =
                self.drain.slots().map(|index| self.wire.slot(index).owner().pid).collect();
            ended.retain(|pid| !later.contains(pid));
        }
        ended
    }

    /// A sibling of the sender had come this far when what follows happened.
    fn cut(&mut self, cut: &Cut, sender: Pid, batch: &mut Batch) {
        if self.wire.is_current(cut) && self.wire.slot(cut.slot).owner().pid == sender {
            self.accesses(cut.slot, Some(cut.accesses as usize), batch);
        }
    }

    // ---- ends ----

    /// Delivers what these owners left in slots without handing it over.
    fn abandoned(&mut self, gone: impl Fn(strata_wire::Owner) -> bool, batch: &mut Batch) {
        for index in self.wire.clone().orphans(gone) {
            // Committed slots are found too, when they are still in line; they come in time.
            if !self.drain.contains(index) {
                self.deliver(index, batch);
            }
        }
    }

    /// Looks for processes that ended without a word. What they committed before is drained here,
    /// so that it precedes their end.
    fn check(&mut self) {
        self.checked = Instant::now();
        if self.dying.is_empty() {
            self.dying = self.processes.silently_ended();
            self.wire.drain(&mut self.drain);
        }
    }

    fn bury(&mut self, batch: &mut Batch) {
        for pid in std::mem::take(&mut self.dying) {
            self.abandoned(|owner| owner.pid == pid, batch);
            if self.in_gap && self.processes.get(pid).is_some_and(|dead| !dead.has_last_word) {
                add(KILLED.to_owned(), &mut self.notes);
            }
            self.event(Event::ProcessExit { pid }, batch);
        }
    }

    /// The program has ended and left processes running: says so when that goes on, and gives whether
    /// they are to be left to themselves.
    fn abandons(&mut self) -> bool {
        let since = *self.outlived.get_or_insert_with(Instant::now);
        let goes_on = since.elapsed() >= OUTLIVED;
        if goes_on {
            let numbers = self.processes.identities().into_iter().map(|id| id.number.to_string());
            add(
                format!(
                    "the program has ended, but not what it started (process {}), which is waited \
                     for; Ctrl-C leaves it to itself",
                    numbers.collect::<Vec<_>>().join(", ")
                ),
                &mut self.warnings,
            );
        }
        let interrupted = self.interrupted.as_ref().is_some_and(|flag| flag.load(Relaxed));
        if goes_on && interrupted {
            self.detach();
        }
        self.detached
    }

    /// Waits a while for the end of a program that is not observed any more; daemons are not waited
    /// for. Gives whether it came.
    fn await_end(&mut self) -> bool {
        // What was on the way makes room for threads that wait to hand over.
        self.wire.drain(&mut self.drain);
        while let Some(index) = self.drain.pop() {
            self.wire.release(index);
        }
        self.ended = self.supervisor.has_ended();
        if !self.ended {
            self.wire.sleep(SLEEP[1]);
        }
        self.ended
    }

    /// Nothing is there to be read: waits, or finds the end.
    fn idle(&mut self, sleep: &mut Duration, batch: &mut Batch) -> Result<bool, SourceError> {
        if !self.dying.is_empty() {
            self.bury(batch);
            return Ok(false);
        }
        let over = self.supervisor.has_ended() && (self.processes.is_empty() || self.abandons());
        if over || self.supervisor.has_ended() || self.checked.elapsed() >= CHECK {
            self.check();
            if !self.dying.is_empty() || !self.drain.is_empty() {
                return Ok(false);
            }
        }
        if over {
            self.ended = true;
            if self.begun {
                return Ok(true);
            }
            return Err(SourceError::Invalid(format!(
                "{}: the emulator could not run it; try qemu-x86_64 with it alone",
                self.argv[0]
            )));
        }
        self.wire.sleep(*sleep);
        *sleep *= 2;
        Ok(false)
    }
}

impl Source for Capture {
    fn info(&self) -> WorkloadInfo {
        let mut notes = self.notes.clone();
        notes.extend(self.chooser.iter().flat_map(Chooser::notes));
        let mut count = |number: u64, text: &str| {
            if number > 0 {
                notes.push(format!("{number} {text}"));
            }
        };
        count(self.inferred, "pages were used that no system call had mapped; mappings inferred");
        count(self.wire.lost(), "accesses lost: more threads than the capture can hold");
        count(self.stray, "accesses left out: made by processes that had already ended");
        if self.detached {
            notes.push("the rest of the program ran unobserved".to_owned());
        }
        WorkloadInfo {
            name: command_line(self.argv.iter().map(String::as_str)),
            argv: self.argv.clone(),
            kind: "live",
            notes,
            exit_status: self.supervisor.known_status().and_then(exit_code),
            ..WorkloadInfo::default()
        }
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        if self.detached && !self.await_end() {
            return Ok(Fill::More);
        }
        let mut sleep = SLEEP[0];
        while !self.ended {
            while let Some(index) = self.drain.pop() {
                self.deliver(index, batch);
                if batch.is_full() {
                    return Ok(Fill::More);
                }
            }
            if self.dying.is_empty() && self.checked.elapsed() >= CHECK {
                self.check();
            } else if self.dying.is_empty() {
                self.wire.drain(&mut self.drain);
            }
            if !self.drain.is_empty() {
                continue;
            }
            if !batch.is_empty() {
                return Ok(Fill::More);
            }
            if self.idle(&mut sleep, batch)? {
                break;
            }
            if sleep > SLEEP[1] {
                return Ok(Fill::More);
            }
        }
        self.supervisor.status();
        Ok(Fill::End)
    }

    fn detach(&mut self) -> bool {
        self.detached = true;
        self.wire.detach();
        true
    }

    fn news(&mut self) -> Vec<String> {
        let news = self.warnings[self.told..].to_vec();
        self.told = self.warnings.len();
        news
    }
}

/// Adds a text that is not there yet, while there are few.
fn add(text: String, list: &mut Vec<String>) {
    if list.len() < NOTES && !list.contains(&text) {
        list.push(text);
    }
}

/// The code, or 128 + the number of the signal that killed it, as shells have it.
fn exit_code(status: ExitStatus) -> Option<i32> {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

impl Drop for Capture {
    fn drop(&mut self) {
        // What a program let go leaves behind is its own affair.
        if !(self.detached && self.ended) {
            self.wire.close();
            self.processes.identities().into_iter().for_each(launch::kill);
        }
        self.supervisor.kill();
    }
}
