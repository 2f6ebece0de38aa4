//! Streams that tests of sampling need.

use strata_addr::{Gva, Range};
use strata_stream::{
    Access, Array, Backing, Batch, Edge, Event, Fill, Pid, Protection, Source, SourceError, Step,
    Tid, WorkloadInfo,
};

/// Where the memory of programs is.
const START: u64 = 1 << 32;

/// A process with so many bytes, which these threads use.
pub fn begin(batch: &mut Batch, bytes: u64, backing: Backing, threads: &[Tid]) {
    let pid = Pid(0);
    batch.event(Event::ProcessStart { pid });
    threads.iter().for_each(|&tid| batch.event(Event::ThreadStart { pid, tid }));
    let (range, protection) = (Range::sized(Gva::new(START), bytes), Protection::READ_WRITE);
    batch.event(Event::Map { pid, range, backing, protection, fixed: false });
}

/// A place in its memory.
pub fn at(offset: u64) -> Gva {
    Gva::new(START + offset)
}

/// A sampled stream that tells, as its first interval begins, how warm arrays of windows are.
pub struct Told<S> {
    pub source: S,
    pub events: Vec<Event>,
}

impl<S: Source> Source for Told<S> {
    fn info(&self) -> WorkloadInfo {
        self.source.info()
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        let mut read = Batch::new();
        let fill = self.source.fill(&mut read)?;
        for step in read.steps() {
            match step {
                Step::Event(event) => {
                    batch.event(*event);
                    if *event == Event::Sampling(Edge::Interval) {
                        self.events.drain(..).for_each(|event| batch.event(event));
                    }
                }
                Step::Run { tid, instructions, accesses } => {
                    batch.run(tid, instructions, |out| out.extend_from_slice(accesses));
                }
            }
        }
        Ok(fill)
    }
}

/// Every array warm after so many instructions, with misses off by so much.
pub fn warmed(after: u64, [over, under, guessed]: [u64; 3]) -> Vec<Event> {
    let warmed = |array| Event::Warmed { array, after, over, under, guessed };
    Array::ALL.map(warmed).to_vec()
}

/// A program that touches 32 pages at once, and then a line more of each in every round.
#[derive(Default)]
pub struct LineByLine {
    round: u64,
}

impl Source for LineByLine {
    fn info(&self) -> WorkloadInfo {
        WorkloadInfo::default()
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        if self.round == 0 {
            begin(batch, 32 << 12, Backing::Anonymous, &[Tid(0)]);
        }
        let store = |page: u64| Access::store(at((page << 12) + self.round * 64), 8);
        batch.run(Tid(0), 10_000, |out| out.extend((0..32).map(store)));
        self.round += 1;
        Ok(if self.round < 64 { Fill::More } else { Fill::End })
    }
}

/// Two phases in turn, each shorter than an interval; the second touches new memory and nothing else does.
#[derive(Default)]
pub struct Phases {
    pub round: u64,
    /// Whether four rounds of sixteen do nothing but touch new memory, and the others touch none.
    pub by_bursts: bool,
}

impl Source for Phases {
    fn info(&self) -> WorkloadInfo {
        WorkloadInfo::default()
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        if self.round == 0 {
            begin(batch, 64 << 20, Backing::Anonymous, &[Tid(0)]);
        }
        let start = self.round << 16;
        let (is_burst, by_bursts) = (self.round % 16 < 4, self.by_bursts);
        let stores = |number: u64, stride: u64, bytes| {
            (0..number).map(move |n| Access::store(at(start + n * stride), bytes))
        };
        let loads = |number: u64| (0..number).map(|n| Access::load(at(n % 64 * 8), 8));
        batch.run(Tid(0), 20_000, |out| match (by_bursts, is_burst) {
            (true, true) => out.extend(stores(16_000, 4, 4)),
            (true, false) => out.extend(loads(200)),
            (false, _) => {
                out.extend(stores(16, 4096, 8));
                out.extend(loads(5000));
            }
        });
        self.round += 1;
        Ok(if self.round == 500 { Fill::End } else { Fill::More })
    }
}

/// A process reads half of its pages and stores to all, and so do three children, one after another, and the
/// process again after each.
pub fn family(backing: Backing) -> Batch {
    const PAGES: u64 = 500;
    let mut batch = Batch::new();
    begin(&mut batch, PAGES << 12, backing, &[Tid(0)]);
    let stores = |batch: &mut Batch, tid| {
        for page in 0..PAGES {
            batch.run(tid, 1000, |out| out.push(Access::store(at(page << 12), 8)));
        }
    };
    for page in (0..PAGES).step_by(2) {
        batch.run(Tid(0), 100, |out| out.push(Access::load(at(page << 12), 8)));
    }
    stores(&mut batch, Tid(0));
    for number in 1..4 {
        let (child, tid) = (Pid(number), Tid(number));
        batch.event(Event::Fork { parent: Pid(0), child });
        batch.event(Event::ThreadStart { pid: child, tid });
        stores(&mut batch, tid);
        batch.event(Event::ProcessExit { pid: child });
        batch.run(Tid(0), 10_000, |_| ());
        stores(&mut batch, Tid(0));
    }
    batch
}

/// A stream of one batch.
pub struct Once(pub Batch);

impl Source for Once {
    fn info(&self) -> WorkloadInfo {
        WorkloadInfo::default()
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        *batch = std::mem::take(&mut self.0);
        Ok(Fill::End)
    }
}
