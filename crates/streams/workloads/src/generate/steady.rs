//! Workloads on one piece of memory that is mapped at the start.

use super::pattern::{Chase, Pattern, Popular, Uniform, Updates, Walk};
use super::random::{Permutation, SplitMix64};
use super::requests::Requests;
use super::spec::Spec;
use super::zipf::Zipf;
use super::{BASE, Common, MAX_SIZE, Plan, pages, pages_to_bytes};
use strata_addr::{Gva, PageSize, Range};
use strata_stream::{Access, Batch, Fill, Tid};

/// One or more threads, each with its pattern, taking turns.
pub struct Steady {
    common: Common,
    /// Base pages to touch first, and how many have been.
    touch: u64,
    touched: u64,
    threads: Vec<Thread>,
    turn: usize,
    started: bool,
    accesses: u64,
    footprint: u64,
    requests: Requests,
}

struct Thread {
    tid: Tid,
    pattern: Box<dyn Pattern>,
    /// Accesses it still has to make.
    left: u64,
}

impl Steady {
    /// The workload that `spec` asks for.
    ///
    /// # Errors
    /// One line, for a bad value.
    pub fn new(spec: &Spec, common: Common) -> Result<Self, String> {
        let (mut threads, footprint) = match spec.kind.name {
            "sequential" | "strided" => walks(spec, &common)?,
            "chase" => chases(spec, &common)?,
            _ => random(spec, &common)?,
        };
        threads.retain(|thread| thread.left > 0);
        let touch = if spec.flag("touch")? { pages(common.size) } else { 0 };
        let accesses = threads.iter().try_fold(touch, |sum, thread| sum.checked_add(thread.left));
        let accesses = accesses.ok_or_else(|| spec.wrong("passes", "too many accesses"))?;
        let footprint = footprint.max(touch).min(pages(common.size));
        Ok(Self {
            requests: Requests::new(spec, &common)?,
            common,
            touch,
            touched: 0,
            threads,
            turn: 0,
            started: false,
            accesses,
            footprint,
        })
    }
}

/// Accesses of each thread, which make `per_pass` in one pass.
fn quotas(spec: &Spec, common: &Common, per_pass: &[u64]) -> Result<Vec<u64>, String> {
    let threads = per_pass.len() as u64;
    if spec.text("passes").is_empty() {
        let share =
            |thread| common.accesses / threads + u64::from(thread < common.accesses % threads);
        return Ok((0..threads).map(share).collect());
    }
    if spec.is_given("accesses") {
        return Err(spec.wrong("passes", "cannot be given together with accesses; leave out one"));
    }
    let passes = spec.count("passes", 1, u64::MAX)?;
    let quotas = per_pass.iter().map(|accesses| accesses.checked_mul(passes)).collect();
    Option::ok_or_else(quotas, || spec.wrong("passes", "too many accesses"))
}

type Threads = (Vec<Thread>, u64);

/// The threads of a sequential or strided workload, and at most how many base pages they touch.
/// Each thread has a part of its own.
fn walks(spec: &Spec, common: &Common) -> Result<Threads, String> {
    let bytes = common.shape.bytes();
    let stride = spec.size("stride", 1, MAX_SIZE)?;
    let shift = if spec.kind.name == "strided" { bytes } else { 0 };
    let (all, threads) = (pages(common.size), common.threads);
    if all < threads {
        return Err(spec.wrong("threads", "more threads than base pages in size"));
    }
    let boundary = |thread| {
        let page = (u128::from(all) * u128::from(thread) / u128::from(threads)) as u64;
        Gva::new(BASE + pages_to_bytes(page).min(common.size))
    };
    let parts: Vec<_> = (0..threads).map(|t| Range::new(boundary(t), boundary(t + 1))).collect();
    if parts.iter().any(|part| part.bytes() < bytes) {
        return Err(spec.wrong("size", "too small for its threads"));
    }
    let per_pass: Vec<_> =
        parts.iter().map(|part| Walk::per_pass(part.bytes(), stride, bytes)).collect();
    let quotas = quotas(spec, common, &per_pass)?;
    let mut footprint = 0u64;
    let threads = parts.iter().zip(quotas).zip(per_pass).zip(0..);
    let threads = threads.map(|(((&part, left), per_pass), thread)| {
        footprint += if left > per_pass && shift > 0 && stride > PageSize::Base.bytes() {
            // Later passes touch pages between those of the first.
            pages(part.bytes())
        } else if left == 0 {
            0
        } else {
            let steps = left.min(per_pass);
            let straddling = if stride % bytes == 0 { 1 } else { 2 };
            pages((steps - 1) * stride + bytes).min(steps.saturating_mul(straddling))
        };
        let random = SplitMix64::new(common.seed, thread);
        let pattern = Box::new(Walk::new(part, stride, shift, common.shape, random));
        Thread { tid: Tid(thread as u32), pattern, left }
    });
    let threads = threads.collect();
    Ok((threads, footprint))
}

/// The threads of a pointer chase. They follow the same cycle from places equally far apart.
fn chases(spec: &Spec, common: &Common) -> Result<Threads, String> {
    let node = spec.size("node", common.shape.bytes(), common.size)?;
    let nodes = common.size / node;
    let order = Permutation::new(nodes, common.seed);
    let quotas = quotas(spec, common, &vec![nodes; common.threads as usize])?;
    let threads = quotas.into_iter().zip(0..).map(|(left, thread)| {
        let position = u128::from(nodes) * u128::from(thread) / u128::from(common.threads);
        let pattern = Box::new(Chase {
            base: BASE,
            node,
            nodes,
            order: order.clone(),
            position: position as u64,
            shape: common.shape,
            random: SplitMix64::new(common.seed, thread),
        });
        Thread { tid: Tid(thread as u32), pattern, left }
    });
    Ok((threads.collect(), pages(common.size).min(common.accesses)))
}

/// The threads of a workload that draws its places, all from the whole memory.
fn random(spec: &Spec, common: &Common) -> Result<Threads, String> {
    let shape = common.shape;
    let words = common.size / shape.bytes();
    let zipf = match spec.kind.name {
        "zipf" => {
            let grain = spec.size("grain", shape.bytes(), common.size)?;
            if grain % shape.bytes() != 0 {
                return Err(spec.wrong("grain", "must be a multiple of bytes"));
            }
            let items = common.size / grain;
            let zipf = Zipf::new(items, spec.real("theta", 0.0, 8.0)?);
            let places = spec.flag("scatter")?.then(|| Permutation::new(items, common.seed));
            Some((grain, zipf, places))
        }
        _ => None,
    };
    let threads = (0..common.threads).map(|thread| {
        let random = SplitMix64::new(common.seed, thread);
        let pattern: Box<dyn Pattern> = match &zipf {
            Some((grain, zipf, places)) => Box::new(Popular {
                base: BASE,
                grain: *grain,
                zipf: zipf.clone(),
                places: places.clone(),
                shape,
                random,
            }),
            None if spec.kind.name == "gups" => {
                Box::new(Updates { base: BASE, words, shape, random, loaded: None })
            }
            None => Box::new(Uniform { base: BASE, words, shape, random }),
        };
        let left =
            common.accesses / common.threads + u64::from(thread < common.accesses % common.threads);
        Thread { tid: Tid(thread as u32), pattern, left }
    });
    Ok((threads.collect(), pages(common.size).min(common.accesses)))
}

impl Plan for Steady {
    fn fill(&mut self, batch: &mut Batch) -> Fill {
        if !std::mem::replace(&mut self.started, true) {
            self.common.start(batch);
            self.common.map(batch, Range::sized(Gva::new(BASE), self.common.size));
        }
        while !batch.is_full() {
            let most = self.common.turn();
            if self.touched < self.touch {
                let count = most.min(self.touch - self.touched);
                let pages = self.touched..self.touched + count;
                let bytes = self.common.shape.bytes() as u32;
                let store = |page| Access::store(Gva::new(BASE + pages_to_bytes(page)), bytes);
                self.common.run(batch, Tid(0), count, |out| out.extend(pages.map(store)));
                self.touched += count;
                continue;
            }
            if self.threads.is_empty() {
                return Fill::End;
            }
            self.turn %= self.threads.len();
            let thread = &mut self.threads[self.turn];
            let count = most.min(thread.left);
            let pattern = &mut thread.pattern;
            let next = |count, out: &mut Vec<Access>| pattern.next(count as usize, out);
            self.requests.run(thread.tid, count, &self.common, batch, next);
            thread.left -= count;
            if thread.left == 0 {
                self.threads.remove(self.turn);
            } else {
                self.turn += 1;
            }
        }
        Fill::More
    }

    fn accesses(&self) -> u64 {
        self.accesses
    }

    fn footprint(&self) -> u64 {
        pages_to_bytes(self.footprint)
    }

    fn held(&self) -> u64 {
        pages_to_bytes(self.touch)
    }
}
