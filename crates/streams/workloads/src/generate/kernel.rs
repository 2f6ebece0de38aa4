//! Kernels of known programs: threads that do one operation after the other on one piece of memory.

use super::spec::Spec;
use super::{BASE, Common, Plan, pages, pages_to_bytes};
use strata_addr::{Gva, Range};
use strata_stream::{Access, Batch, Event, Fill, Mark, Tid};

/// What the threads do.
pub trait Kernel: Send {
    /// Appends a small piece of an operation of a thread, in which there is at least one access.
    fn step(&mut self, thread: usize, out: &mut Vec<Access>) -> Step;
}

/// How far a step has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The operation goes on.
    Within,
    /// The operation is over.
    Ended,
    /// Nothing was done: other threads must come as far first, and one of them can.
    Waits,
}

/// The threads of a kernel, taking turns.
pub struct Kernels<K> {
    common: Common,
    kernel: K,
    /// Base pages to touch first, and how many have been.
    touch: u64,
    touched: u64,
    started: bool,
    left: u64,
    turn: usize,
    /// Operations that serve a request; 0 for no requests.
    request: u64,
    /// Operations of its present request that each thread has done; `None` outside of any.
    served: Vec<Option<u64>>,
    /// Accesses made and not yet given; kept for its memory.
    made: Vec<Access>,
}

/// The workload of a kernel that `new` makes.
///
/// # Errors
/// One line, for a bad value.
pub fn with<K: Kernel + 'static>(
    spec: &Spec,
    common: Common,
    new: impl FnOnce(&Spec, &Common) -> Result<K, String>,
) -> Result<Box<dyn Plan>, String> {
    Ok(Box::new(Kernels {
        kernel: new(spec, &common)?,
        touch: if spec.flag("touch")? { pages(common.size) } else { 0 },
        touched: 0,
        started: false,
        left: common.accesses,
        turn: 0,
        request: spec.count("request", 0, 1 << 40)?,
        served: vec![None; common.threads as usize],
        made: Vec::new(),
        common,
    }))
}

impl<K: Kernel> Kernels<K> {
    /// Gives the first `count` accesses made.
    fn give(&mut self, count: usize, thread: usize, batch: &mut Batch) {
        let count = count.min(self.left as usize);
        let tid = Tid(thread as u32);
        self.common.run(batch, tid, count as u64, |out| out.extend_from_slice(&self.made[..count]));
        self.made.drain(..count);
        self.left -= count as u64;
    }

    /// A thread has its turn.
    fn turn(&mut self, batch: &mut Batch) {
        let thread = self.turn;
        self.turn = (self.turn + 1) % self.served.len();
        let mark = |mark| Event::Request { tid: Tid(thread as u32), mark };
        let end = self.left.saturating_sub(self.common.turn());
        self.made.clear();
        while self.left > end && self.left > self.made.len() as u64 {
            let before = self.made.len();
            let step = self.kernel.step(thread, &mut self.made);
            if step == Step::Waits {
                break;
            }
            if self.request == 0 {
                if self.made.len() as u64 >= self.left - end {
                    break;
                }
                continue;
            }
            if self.served[thread].is_none() {
                self.give(before, thread, batch);
                batch.event(mark(Mark::Begin));
                self.served[thread] = Some(0);
            }
            if step == Step::Ended {
                let whole = self.left >= self.made.len() as u64;
                self.give(self.made.len(), thread, batch);
                let served = self.served[thread].map(|served| served + 1);
                self.served[thread] = served.filter(|served| *served < self.request);
                if self.served[thread].is_none() && whole {
                    batch.event(mark(Mark::End));
                }
            } else if self.made.len() as u64 >= self.left.saturating_sub(end) {
                break;
            }
        }
        self.give(self.made.len(), thread, batch);
    }
}

impl<K: Kernel> Plan for Kernels<K> {
    fn fill(&mut self, batch: &mut Batch) -> Fill {
        if !std::mem::replace(&mut self.started, true) {
            self.common.start(batch);
            self.common.map(batch, Range::sized(Gva::new(BASE), self.common.size));
        }
        while !batch.is_full() {
            if self.touched < self.touch {
                let count = self.common.turn().min(self.touch - self.touched);
                let pages = self.touched..self.touched + count;
                let store = |page| Access::store(Gva::new(BASE + pages_to_bytes(page)), 8);
                self.common.run(batch, Tid(0), count, |out| out.extend(pages.map(store)));
                self.touched += count;
            } else if self.left == 0 {
                return Fill::End;
            } else {
                self.turn(batch);
            }
        }
        Fill::More
    }

    fn accesses(&self) -> u64 {
        self.common.accesses + self.touch
    }

    fn footprint(&self) -> u64 {
        // A bound: an access within two pages is not made.
        pages_to_bytes(pages(self.common.size).min(self.common.accesses + self.touch))
    }

    fn held(&self) -> u64 {
        pages_to_bytes(self.touch)
    }
}

/// Hands out a piece of memory part by part, from [`BASE`] on.
#[derive(Clone, Copy, Debug)]
pub struct Layout(u64);

impl Layout {
    /// All of it.
    pub fn new() -> Self {
        Self(BASE)
    }

    /// The next part, of so many bytes, at a multiple of 8.
    pub fn part(&mut self, bytes: u64) -> u64 {
        let start = self.0;
        self.0 += bytes.next_multiple_of(8);
        start
    }
}

/// A load of `bytes` bytes.
#[inline]
pub fn load(at: u64, bytes: u32) -> Access {
    Access::load(Gva::new(at), bytes)
}

/// A store of `bytes` bytes.
#[inline]
pub fn store(at: u64, bytes: u32) -> Access {
    Access::store(Gva::new(at), bytes)
}
