//! One reading of a stream, shared by several runs.
//!
//! The stream is filled once. Batches lie in a bounded window until every run has consumed them,
//! then go back to the reader:
//!
//! ```text
//!   reader --> [ b7 | b8 | b9 | b10 ] --> recycled
//!                ^         ^     ^
//!            furthest    run 2  run 1
//!             behind
//! ```
//!
//! A worker takes the free run that is furthest behind, so runs that are slow get more of the
//! threads' time and no thread idles while there is work; it stays with that run for some batches,
//! since its tables are in the core's cache now. A run meets every batch in order and on one
//! thread at a time; which thread that is cannot influence it.

use crate::{Run, RunResult};
use std::collections::VecDeque;
use std::mem;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;
use strata_stream::{Batch, Fill, Source, SourceError};

/// Batches the reader may be ahead of the slowest run: enough to ride over uneven batches, few
/// enough to stay in the last-level cache (16 Ki accesses of 8 bytes each).
pub(crate) const WINDOW: usize = 32;

/// Seconds that consuming all of the window may take: what lies in it is still consumed when
/// somebody asks to stop, so that all runs end at the same access.
const PATIENCE: f64 = 0.1;

/// Batches a worker's run may be ahead of the free run that is furthest behind before the worker
/// changes to that one.
const STREAK: u64 = 12;

/// Batches between two looks at how much memory a run holds.
const MEMORY_INTERVAL: u64 = 16;

/// Asks a sweep to stop early; cloning it gives another handle to the same request.
#[derive(Clone, Debug, Default)]
pub struct Stop(pub Arc<AtomicBool>);

impl Stop {
    /// Asks.
    pub fn request(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether anybody asked.
    pub fn requested(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// How far a sweep is; read by a display while the sweep writes.
#[derive(Debug, Default)]
pub struct Progress {
    accesses: AtomicU64,
    simulated_nanoseconds: AtomicU64,
    pass: AtomicUsize,
    passes: AtomicUsize,
    /// Number of the machine that is being set up, from 1; 0 when none is.
    setting_up: AtomicUsize,
    news: Mutex<Vec<String>>,
}

impl Progress {
    /// Accesses that every run of the present pass has consumed.
    pub fn accesses(&self) -> u64 {
        self.accesses.load(Relaxed)
    }

    /// Simulated time of the run that got least of it, in seconds.
    pub fn simulated_seconds(&self) -> f64 {
        self.simulated_nanoseconds.load(Relaxed) as f64 / 1e9
    }

    /// The present reading of the stream, from 1, and how many are planned. Zero before the
    /// first.
    pub fn pass(&self) -> (usize, usize) {
        (self.pass.load(Relaxed), self.passes.load(Relaxed))
    }

    /// The machine whose setting up began last, while machines are set up: its place in
    /// [`Sweep::builds`](crate::Sweep::builds).
    pub fn setting_up(&self) -> Option<usize> {
        self.setting_up.load(Relaxed).checked_sub(1)
    }

    pub(crate) fn begin_setup(&self, machine: usize) {
        self.setting_up.store(machine + 1, Relaxed);
    }

    pub(crate) fn end_setup(&self) {
        self.setting_up.store(0, Relaxed);
    }

    /// What the user should know now, before there is a result; each is given once.
    pub fn news(&self) -> Vec<String> {
        mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn tell(&self, text: String) {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    /// So many more accesses were made, on a machine that has come to this simulated time in seconds.
    pub(crate) fn note(&self, accesses: u64, seconds: f64) {
        self.accesses.fetch_add(accesses, Relaxed);
        self.simulated_nanoseconds.fetch_max((seconds * 1e9) as u64, Relaxed);
    }

    pub(crate) fn begin_pass(&self, passes: usize) {
        self.accesses.store(0, Relaxed);
        self.simulated_nanoseconds.store(0, Relaxed);
        self.passes.store(passes, Relaxed);
        self.pass.fetch_add(1, Relaxed);
    }
}

/// How a stream came to its end.
#[derive(Debug)]
pub(crate) enum Ended {
    /// All of it was read.
    Complete,
    /// [`Stop`] was requested.
    Stopped,
    /// The source failed; everything before was consumed.
    Failed(SourceError),
}

/// What a pass needs besides the runs.
pub(crate) struct Conditions<'a> {
    pub threads: usize,
    pub stop: &'a Stop,
    pub progress: &'a Progress,
    /// Bytes the runs may hold together before the last ones are given up, to be run in a later
    /// pass. `None` when the stream cannot be read again.
    pub memory_limit: Option<u64>,
}

/// Reads `source` to its end and gives every run all of it. The results are in the order of
/// `runs`; `None` for a run given up for want of memory.
pub(crate) fn pass(
    source: &mut dyn Source,
    runs: Vec<Box<dyn Run>>,
    conditions: &Conditions<'_>,
) -> (Vec<Option<RunResult>>, Ended) {
    let threads = conditions.threads.clamp(1, runs.len().max(1));
    let shared = Shared {
        state: Mutex::new(State::new(runs, conditions)),
        work: Condvar::new(),
        room: Condvar::new(),
    };
    let ended = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| shared.work())).collect();
        let ended = shared.read(source, conditions);
        for worker in workers {
            if let Err(panic) = worker.join() {
                resume_unwind(panic);
            }
        }
        ended
    });
    let state = shared.state.into_inner().expect("no worker panicked");
    let results = state.slots.into_iter().map(|slot| match slot.seat {
        Seat::Done(result) => Some(*result),
        Seat::GivenUp => None,
        Seat::Idle(_) | Seat::Busy => unreachable!("workers leave when all runs are done"),
    });
    (results.collect(), ended)
}

/// Where a run is.
enum Seat {
    Idle(Box<dyn Run>),
    Busy,
    Done(Box<RunResult>),
    GivenUp,
}

struct Slot {
    seat: Seat,
    /// Number of the batch it needs next.
    position: u64,
    memory: u64,
    simulated_seconds: f64,
    /// Seconds that its last batch took.
    seconds: f64,
    /// To be given up as soon as no worker holds it.
    doomed: bool,
    /// Memory ran out in it.
    short: bool,
    /// Nothing is left in it to run.
    over: bool,
}

impl Slot {
    fn is_alive(&self) -> bool {
        !self.doomed && matches!(self.seat, Seat::Idle(_) | Seat::Busy)
    }
}

enum Job {
    Consume(usize, Box<dyn Run>, Arc<Batch>),
    Finish(usize, Box<dyn Run>),
    Leave,
}

struct State<'a> {
    conditions: &'a Conditions<'a>,
    slots: Vec<Slot>,
    window: VecDeque<Arc<Batch>>,
    /// Number of the batch at the front of the window.
    first: u64,
    /// Emptied batches, for the reader.
    pool: Vec<Batch>,
    ended: bool,
    /// A worker panicked: everybody leaves.
    broken: bool,
}

impl<'a> State<'a> {
    fn new(runs: Vec<Box<dyn Run>>, conditions: &'a Conditions<'a>) -> Self {
        let slot = |run| Slot {
            seat: Seat::Idle(run),
            position: 0,
            memory: 0,
            simulated_seconds: 0.0,
            // None is known yet: as if they took very long.
            seconds: f64::INFINITY,
            doomed: false,
            short: false,
            over: false,
        };
        Self {
            conditions,
            slots: runs.into_iter().map(slot).collect(),
            window: VecDeque::with_capacity(WINDOW),
            first: 0,
            pool: Vec::new(),
            ended: false,
            broken: false,
        }
    }

    /// Whether the reader may put another batch into the window: fewer where batches take long, as
    /// they do while memory is touched first.
    fn has_room(&self) -> bool {
        self.window.len() < self.room()
    }

    fn room(&self) -> usize {
        let alive = self.slots.iter().filter(|slot| slot.is_alive());
        let batch: f64 = alive.map(|slot| slot.seconds).sum();
        let threads = self.conditions.threads as f64;
        ((PATIENCE * threads / batch) as usize).clamp(2, WINDOW)
    }

    /// Drops what no run has begun.
    fn cut(&mut self) {
        let alive = self.slots.iter().filter(|slot| slot.is_alive());
        let begun = alive.map(|slot| slot.position + u64::from(matches!(slot.seat, Seat::Busy)));
        let end = begun.max().unwrap_or(self.first);
        self.window.truncate((end - self.first) as usize);
    }

    fn end(&self) -> u64 {
        self.first + self.window.len() as u64
    }

    fn take(&mut self, index: usize) -> Box<dyn Run> {
        match mem::replace(&mut self.slots[index].seat, Seat::Busy) {
            Seat::Idle(run) => run,
            _ => unreachable!("only idle runs are taken"),
        }
    }

    /// The next thing to do for a worker that had the run `last` before; `None` when there is
    /// nothing now but will be.
    fn next_job(&mut self, last: Option<usize>) -> Option<Job> {
        let idle = self.slots.iter().enumerate().filter(|(_, s)| matches!(s.seat, Seat::Idle(_)));
        let idle = idle.map(|(index, slot)| (index, slot.position));
        let behind = idle.clone().min_by_key(|&(_, position)| position);
        if let Some((mut index, mut position)) = behind {
            let streak = STREAK.min(self.room() as u64);
            let stay = idle.clone().find(|&(other, at)| {
                Some(other) == last && at < self.end() && at < position + streak
            });
            if let Some(stay) = stay {
                (index, position) = stay;
            }
            if position < self.end() {
                let batch = Arc::clone(&self.window[(position - self.first) as usize]);
                return Some(Job::Consume(index, self.take(index), batch));
            }
            if self.ended {
                return Some(Job::Finish(index, self.take(index)));
            }
        }
        let over = |slot: &Slot| matches!(slot.seat, Seat::Done(_) | Seat::GivenUp);
        (self.broken || self.slots.iter().all(over)).then_some(Job::Leave)
    }

    fn give_back(&mut self, index: usize, run: Box<dyn Run>, seconds: f64) {
        let slot = &mut self.slots[index];
        slot.seconds = seconds;
        slot.position += 1;
        slot.simulated_seconds = run.simulated_seconds();
        if slot.position % MEMORY_INTERVAL == 1 {
            slot.memory = run.memory_estimate();
        }
        let news = !slot.short && run.ran_out_of_memory();
        slot.short |= news;
        slot.over |= run.is_over();
        let name = news.then(|| run.name());
        slot.seat = Seat::Idle(run);
        if let Some(name) = name {
            self.tell_of_shortage(&name);
        }
        self.keep_within_memory();
        let slot = &mut self.slots[index];
        if slot.doomed {
            slot.seat = Seat::GivenUp;
        }
        self.retire();
    }

    /// Says that memory ran out, of the first run and when none is left.
    fn tell_of_shortage(&self, name: &str) {
        let tell = |text: String| self.conditions.progress.tell(text);
        if self.is_over() {
            tell("memory ran out on every machine: raise --memory".to_owned());
        } else if self.slots.iter().filter(|slot| slot.short).count() == 1 {
            tell(format!("memory ran out under {name}, whose result is partial: raise --memory"));
        }
    }

    /// Whether nothing is left to run in any.
    fn is_over(&self) -> bool {
        let mut alive = self.slots.iter().filter(|slot| slot.is_alive()).peekable();
        alive.peek().is_some() && alive.all(|slot| slot.over)
    }

    /// Gives up runs from the last on while together they hold too much; the first always stays.
    fn keep_within_memory(&mut self) {
        let Some(limit) = self.conditions.memory_limit else { return };
        let mut held: u64 = self.slots.iter().filter(|s| s.is_alive()).map(|s| s.memory).sum();
        while held > limit && self.slots.iter().filter(|slot| slot.is_alive()).count() > 1 {
            let last = self.slots.iter_mut().rfind(|slot| slot.is_alive());
            let last = last.expect("two are alive");
            held -= last.memory;
            last.doomed = true;
            if matches!(last.seat, Seat::Idle(_)) {
                last.seat = Seat::GivenUp;
            }
        }
    }

    /// Takes batches that nobody needs any more out of the window.
    fn retire(&mut self) {
        let alive = || self.slots.iter().filter(|slot| slot.is_alive());
        let needed = alive().map(|slot| slot.position).min().unwrap_or(self.end());
        let seconds = alive().map(|slot| slot.simulated_seconds).fold(f64::INFINITY, f64::min);
        let progress = self.conditions.progress;
        if seconds.is_finite() {
            progress.simulated_nanoseconds.store((seconds * 1e9) as u64, Relaxed);
        }
        while self.first < needed {
            let batch = self.window.pop_front().expect("positions lie in the window");
            progress.accesses.fetch_add(batch.len() as u64, Relaxed);
            // A run that was given up may still be looking at it; then it is just dropped.
            self.pool.extend(Arc::into_inner(batch));
            self.first += 1;
        }
    }
}

struct Shared<'a> {
    state: Mutex<State<'a>>,
    /// There may be something for a worker to do.
    work: Condvar,
    /// There may be room in the window.
    room: Condvar,
}

impl<'a> Shared<'a> {
    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().expect("runs are not called with the lock held")
    }

    fn read(&self, source: &mut dyn Source, conditions: &Conditions<'_>) -> Ended {
        let Conditions { stop, progress, .. } = *conditions;
        // Whatever happens, the workers must learn that nothing more comes.
        let _end = OnDrop(|| {
            self.lock().ended = true;
            self.work.notify_all();
        });
        let mut detached = false;
        loop {
            let (mut batch, over) = {
                let mut state = self.lock();
                while !state.has_room() && !state.broken {
                    state = self.room.wait(state).expect("runs are not called with the lock held");
                }
                if state.broken || stop.requested() {
                    state.cut();
                    return Ended::Stopped;
                }
                (state.pool.pop().unwrap_or_default(), state.is_over())
            };
            if over && !mem::replace(&mut detached, true) {
                source.detach();
            }
            let filled = source.fill(&mut batch);
            source.news().into_iter().for_each(|text| progress.tell(text));
            if !batch.is_empty() {
                let mut state = self.lock();
                state.window.push_back(Arc::new(batch));
                drop(state);
                self.work.notify_all();
            }
            match filled {
                Ok(Fill::More) => {}
                // A pipe ends early when somebody asks.
                _ if stop.requested() => return Ended::Stopped,
                Ok(Fill::End) => return Ended::Complete,
                Err(error) => return Ended::Failed(error),
            }
        }
    }

    fn work(&self) {
        let broken = OnDrop(|| {
            self.lock().broken = true;
            self.work.notify_all();
            self.room.notify_all();
        });
        let mut last = None;
        loop {
            match self.wait_for_job(last) {
                Job::Consume(index, mut run, batch) => {
                    last = Some(index);
                    let begun = Instant::now();
                    run.consume(&batch);
                    drop(batch);
                    self.lock().give_back(index, run, begun.elapsed().as_secs_f64());
                    self.room.notify_one();
                }
                Job::Finish(index, run) => {
                    let result = Box::new(run.finish());
                    self.lock().slots[index].seat = Seat::Done(result);
                }
                Job::Leave => break,
            }
            self.work.notify_all();
        }
        mem::forget(broken);
    }

    fn wait_for_job(&self, last: Option<usize>) -> Job {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.next_job(last) {
                return job;
            }
            state = self.work.wait(state).expect("runs are not called with the lock held");
        }
    }
}

/// Calls a function when it goes, by return or by panic.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
