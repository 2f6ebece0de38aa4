//! `aligned` is a bound: whatever is touched is huge and well aligned from its first touch, so no policy
//! misses the TLB less, whatever the workload does.

use strata_addr::{Gva, Range};
use strata_engine::{LayerFmfi, Setup, StackKind, Stop, catalogue};
use strata_hardware::CpuModel;
use strata_policies::REGISTRY;
use strata_stream::{
    Access, Advice, Backing, Batch, Event, Fill, Pid, Protection, Source, SourceError, Tid,
    WorkloadInfo,
};
use strata_workloads::{Generator, generate};

const MIB: u64 = 1 << 20;

/// A program that does with its areas whatever could split a huge page: small areas side by side, of files,
/// too, a heap that grows by pages, a stack, parts that are given back and moved, and a child.
#[derive(Default)]
struct Splitter {
    step: u64,
    random: u64,
}

const PARENT: Pid = Pid(1);
const STEPS: u64 = 60;

impl Splitter {
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(97);
        (self.random >> 33) % below
    }

    fn area(&self, at: u64, pages: u64) -> Range<strata_addr::space::Virtual> {
        Range::sized(Gva::new((1 << 40) + (at << 12)), pages << 12)
    }

    fn map(&self, batch: &mut Batch, at: u64, pages: u64, backing: Backing) {
        let (range, protection) = (self.area(at, pages), Protection::READ_WRITE);
        batch.event(Event::Map { pid: PARENT, range, backing, protection, fixed: false });
    }

    fn touch(&mut self, batch: &mut Batch, tid: Tid, at: u64, pages: u64) {
        for _ in 0..2 * pages {
            let page = at + self.random(pages);
            let addr = Gva::new((1 << 40) + (page << 12) + self.random(512) * 8);
            let store = self.random(2) == 0;
            batch.access(
                tid,
                if store { Access::store(addr, 8) } else { Access::load(addr, 8) },
                2,
            );
        }
    }
}

impl Source for Splitter {
    fn info(&self) -> WorkloadInfo {
        WorkloadInfo { name: "splitter".into(), ..WorkloadInfo::default() }
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        batch.clear();
        let step = self.step;
        self.step += 1;
        if step == 0 {
            batch.event(Event::ProcessStart { pid: PARENT });
            batch.event(Event::ThreadStart { pid: PARENT, tid: Tid(1) });
            self.map(batch, 100_000, 2000, Backing::Stack);
        }
        // Areas of 24 pages, every other one of a file.
        let backing = if step.is_multiple_of(2) { Backing::Anonymous } else { Backing::File };
        self.map(batch, step * 24, 24, backing);
        // The heap grows.
        self.map(batch, 50_000 + step * 7, 7, Backing::Heap);
        match step % 10 {
            3 => {
                let at = self.random(step) * 24 + 3;
                let range = self.area(at, 9);
                batch.event(Event::Unmap { pid: PARENT, range });
            }
            5 => {
                let at = 50_000 + self.random(step * 7);
                let range = self.area(at, 5);
                batch.event(Event::Advise { pid: PARENT, range, advice: Advice::DontNeed });
            }
            7 => {
                let (from, to) =
                    (self.area(50_000 + step * 7 - 40, 30), self.area(70_000 + step * 33, 30));
                batch.event(Event::Remap { pid: PARENT, from, to });
                self.touch(batch, Tid(1), 70_000 + step * 33, 30);
            }
            8 => {
                let (child, tid) = (Pid(2 + step as u32), Tid(2 + step as u32));
                batch.event(Event::Fork { parent: PARENT, child });
                batch.event(Event::ThreadStart { pid: child, tid });
                self.touch(batch, tid, step * 12, 300);
                self.touch(batch, Tid(1), step * 12, 300);
                batch.event(Event::ProcessExit { pid: child });
            }
            _ => {}
        }
        self.touch(batch, Tid(1), 0, (step + 1) * 24);
        self.touch(batch, Tid(1), 50_000, (step + 1) * 7);
        self.touch(batch, Tid(1), 100_000, 200);
        Ok(if step == STEPS { Fill::End } else { Fill::More })
    }
}

/// The text, and what it makes.
type Workload = (String, fn(&str) -> Box<dyn Source>);

fn workloads() -> Vec<Workload> {
    let generator: fn(&str) -> Box<dyn Source> =
        |text| Box::new(Generator::parse(text).expect("well formed"));
    let mut all: Vec<Workload> = generate::list()
        .iter()
        .map(|kind| (format!("{}:size=12MiB,accesses=40k", kind.name), generator))
        .collect();
    for more in
        ["heap:size=12MiB,accesses=40k,step=12KiB", "zipf:size=12MiB,accesses=40k,scatter=no"]
    {
        all.push((more.to_owned(), generator));
    }
    all.push(("splitter".to_owned(), |_| Box::new(Splitter::default())));
    all
}

/// Misses of the last level TLB.
fn misses(setup: &Setup, (text, open): &Workload) -> u64 {
    let mut source = open(text);
    let info = source.info();
    let mut run = (catalogue().build)(setup, &info, &Stop::default()).expect("it fits");
    let mut batch = Batch::new();
    while source.fill(&mut batch).unwrap() == Fill::More {
        run.consume(&batch);
    }
    run.consume(&batch);
    let result = run.finish();
    assert!(!result.out_of_memory, "{text}: {setup:?}");
    result.tlb.l2_misses
}

#[test]
fn no_policy_misses_the_tlb_less_than_the_upper_bound() {
    let (native, vm, nested) = (StackKind::Native, StackKind::Vm, StackKind::Nested);
    for (stack, fmfi) in [(native, 0.0), (vm, 0.8), (nested, 0.0), (nested, 0.8)] {
        for workload in &workloads() {
            let setup = |policy: &str| Setup {
                memory: Some(192 * MIB),
                fragmentation: LayerFmfi::everywhere(fmfi),
                overrides: vec![("time.scale".to_owned(), "1000".to_owned())],
                ..Setup::new(stack, policy, CpuModel::preset(CpuModel::DEFAULT).unwrap())
            };
            let bound = misses(&setup("aligned"), workload);
            for entry in REGISTRY.iter().filter(|entry| !entry.words.upper_bound) {
                let found = misses(&setup(entry.name), workload);
                let what = format!("{} {stack:?} {fmfi} {}", workload.0, entry.name);
                assert!(bound <= found, "{what}: {found}, the bound is {bound}");
            }
        }
    }
}
