//! Streams made by rule, for controlled experiments.
//!
//! A generator is asked for by a text like `zipf:size=64GiB,theta=0.8`; [`list`] gives all kinds
//! with their parameters. What it makes depends on the text alone. Memory use does not grow with
//! the size modelled (`churn` remembers the objects alive, `canneal` the elements moved), so
//! footprints may be far larger than this machine's memory.
//!
//! Every generator is one process. Its memory is still mapped when the stream ends, as results
//! describe the machine at that moment.

mod btree;
mod canneal;
mod churn;
mod dedup;
mod heap;
mod kernel;
mod pattern;
mod random;
mod requests;
mod spec;
mod steady;
mod streamcluster;
mod zipf;

pub use random::SplitMix64;
pub use spec::{Key, Kind};

use pattern::Shape;
use spec::Spec;
use strata_addr::{Gva, PageSize, Range, space::Virtual};
use strata_stream::{
    Access, Backing, Batch, Event, Fill, Pid, Protection, Source, SourceError, Tid, WorkloadInfo,
};

/// The kinds of generators.
pub fn list() -> &'static [Kind] {
    spec::KINDS
}

/// Where mapped memory begins: aligned to 1 GiB, far from both ends of the user half.
const BASE: u64 = 1 << 44;

/// Largest size of a generator's memory: 64 TiB, so that all of it lies in the user half of
/// 4-level paging, whatever moves.
const MAX_SIZE: u64 = 1 << 46;

/// Accesses a thread makes before the next one has its turn.
const TURN: u64 = 512;

const PID: Pid = Pid(0);

/// A stream made by rule.
pub struct Generator {
    text: String,
    plan: Box<dyn Plan>,
    over: bool,
}

/// What a kind of generator does.
trait Plan: Send {
    /// Adds to the batch until it is full or all is done.
    fn fill(&mut self, batch: &mut Batch) -> Fill;

    /// Accesses in the whole stream.
    fn accesses(&self) -> u64;

    /// At most how many bytes are touched, at base-page grain.
    fn footprint(&self) -> u64;

    /// How many bytes are certain to be touched and stay mapped, at base-page grain.
    fn held(&self) -> u64 {
        0
    }
}

/// Parameters that all kinds have.
#[derive(Clone, Copy, Debug)]
struct Common {
    size: u64,
    accesses: u64,
    seed: u64,
    threads: u64,
    /// Instructions per access.
    ipa: u64,
    shape: Shape,
}

/// Base pages that hold this many bytes.
fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PageSize::Base.bytes())
}

fn pages_to_bytes(pages: u64) -> u64 {
    pages << PageSize::BASE_SHIFT
}

impl Common {
    fn new(spec: &Spec) -> Result<Self, String> {
        let has = |name| spec.kind.keys.iter().any(|key| key.name == name);
        // Kinds that have none have accesses of several sizes.
        let bytes = if has("bytes") { spec.count("bytes", 1, 128)? } else { 8 };
        if !bytes.is_power_of_two() {
            return Err(spec.wrong("bytes", &format!("{bytes} is no power of two")));
        }
        let stores = if has("stores") { spec.real("stores", 0.0, 1.0)? } else { 0.0 };
        Ok(Self {
            size: spec.size("size", PageSize::Base.bytes(), MAX_SIZE)?,
            accesses: spec.count("accesses", 1, u64::MAX / 4096)?,
            seed: spec.count("seed", 0, u64::MAX)?,
            threads: spec.count("threads", 1, 4096)?,
            ipa: spec.count("ipa", 1, 1 << 20)?,
            shape: Shape::new(bytes as u32, stores),
        })
    }

    /// Begins the process and its threads.
    fn start(&self, batch: &mut Batch) {
        batch.event(Event::ProcessStart { pid: PID });
        for thread in 0..self.threads {
            batch.event(Event::ThreadStart { pid: PID, tid: Tid(thread as u32) });
        }
    }

    /// Maps private anonymous memory.
    fn map(&self, batch: &mut Batch, range: Range<Virtual>) {
        batch.event(Event::Map {
            pid: PID,
            range: range.pad(PageSize::Base),
            backing: Backing::Anonymous,
            protection: Protection::READ_WRITE,
            fixed: false,
        });
    }

    /// Accesses of one turn.
    fn turn(&self) -> u64 {
        if self.threads == 1 { Batch::TARGET as u64 } else { TURN }
    }

    /// Adds a run of `count` accesses.
    fn run(&self, batch: &mut Batch, tid: Tid, count: u64, fill: impl FnOnce(&mut Vec<Access>)) {
        batch.run(tid, count * self.ipa, fill);
    }
}

impl Generator {
    /// The generator that a text like `random:size=1GiB,accesses=50M` asks for.
    ///
    /// # Errors
    /// One line, for an unknown kind or key (with the nearest name) or a bad value.
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        Self::from_text(text).map_err(SourceError::Invalid)
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let spec = Spec::parse(text)?;
        let common = Common::new(&spec)?;
        let plan: Box<dyn Plan> = match spec.kind.name {
            "heap" => Box::new(heap::Heap::new(&spec, common)?),
            "churn" => Box::new(churn::Churn::new(&spec, common)?),
            "canneal" => kernel::with(&spec, common, canneal::Canneal::new)?,
            "streamcluster" => kernel::with(&spec, common, streamcluster::StreamCluster::new)?,
            "dedup" => kernel::with(&spec, common, dedup::Dedup::new)?,
            "btree" => kernel::with(&spec, common, btree::Tree::new)?,
            _ => Box::new(steady::Steady::new(&spec, common)?),
        };
        Ok(Self { text: spec.text, plan, over: false })
    }
}

impl Source for Generator {
    /// The footprint is an upper bound: exact where every page is sure to be touched.
    fn info(&self) -> WorkloadInfo {
        WorkloadInfo {
            name: self.text.clone(),
            kind: "generator",
            footprint_bytes: Some(self.plan.footprint()),
            held_bytes: self.plan.held(),
            accesses: Some(self.plan.accesses()),
            ..WorkloadInfo::default()
        }
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        if self.over {
            return Ok(Fill::End);
        }
        let fill = self.plan.fill(batch);
        self.over = fill == Fill::End;
        Ok(fill)
    }
}

/// A random aligned place for an access within a range, which holds at least one.
#[inline]
fn place(range: Range<Virtual>, bytes: u64, bits: u64) -> u64 {
    range.start.get() + random::scale(bits, range.bytes() / bytes) * bytes
}

/// A range from numbers.
fn range(start: u64, bytes: u64) -> Range<Virtual> {
    Range::sized(Gva::new(start), bytes)
}
