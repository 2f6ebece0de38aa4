//! Where kernels place base pages: each page placement does what it is called, with every page.

use crate::world::machines::{self, colours};
use std::collections::BTreeMap;
use strata_addr::{Frame, Gva, Range, space::Lower};
use strata_stack::{
    AlignAreas, BuildError, KernelSettings, NodeId, Owner, PagePlacement, Policy, Position,
    SpaceId, Stack, StackConfig, ThpMode, ThpParameters,
};
use strata_stream::{Advice, Backing, Event, Pid, Protection};

struct BasePages;

impl Policy for BasePages {
    fn settings(&mut self, _: Position) -> KernelSettings {
        let (thp, align_areas) = (ThpMode::Never, AlignAreas::Never);
        KernelSettings { thp, align_areas, fragmented: true, coloured: false }
    }
}

const COLOURS: u64 = 16;
const MIB: u64 = 1 << 20;
const AREA: u64 = 1 << 40;

fn config(placement: PagePlacement, fragmentation: f64, seed: u64) -> StackConfig {
    let mut kernels = StackConfig::chain(&[(64 * MIB, fragmentation)], seed);
    kernels[0].placement = placement;
    StackConfig { thp: ThpParameters::default(), ..machines::config(kernels) }
}

/// A kernel alone, and processes with an area each.
struct Machine {
    stack: Stack,
}

impl Machine {
    fn new(placement: PagePlacement, seed: u64) -> Self {
        Self::of(&config(placement, 0.0, seed))
    }

    fn of(config: &StackConfig) -> Self {
        let stack = Stack::build(config, &mut BasePages, &|| false).unwrap();
        let mut machine = Self { stack };
        (0..2).for_each(|pid| machine.start(Pid(pid)));
        machine
    }

    fn event(&mut self, event: Event) {
        self.stack.event(&mut BasePages, NodeId::HOST, &event).unwrap();
    }

    fn start(&mut self, pid: Pid) {
        let range = Range::sized(Gva::new(AREA), 1 << 38);
        let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
        self.event(Event::ProcessStart { pid });
        self.event(Event::Map { pid, range, backing, protection, fixed: true });
    }

    fn space(&self, pid: u32) -> SpaceId {
        self.stack.process_space(NodeId::HOST, Pid(pid)).unwrap()
    }

    fn touch(&mut self, pid: u32, page: u64) {
        let (space, at) = (self.space(pid), Frame::new((AREA >> 12) + page));
        self.stack.guest_fault(&mut BasePages, NodeId::HOST, space, at, true).unwrap();
    }

    fn frame(&self, pid: u32, page: u64) -> Frame<Lower> {
        let kernel = self.stack.kernel(NodeId::HOST);
        kernel.frame_behind(self.space(pid), Frame::new((AREA >> 12) + page)).unwrap()
    }

    fn colour(&self, pid: u32, page: u64) -> u64 {
        u64::from(colours().of(self.frame(pid, page)).index())
    }

    /// How many page-table pages have each colour.
    fn tables(&self) -> Vec<u64> {
        let kernel = self.stack.kernel(NodeId::HOST);
        let mut counts = vec![0; COLOURS as usize];
        for frame in (0..kernel.memory().frames()).map(Frame::new) {
            if kernel.owner(frame) == Owner::Table {
                counts[colours().of(frame).index() as usize] += 1;
            }
        }
        counts
    }
}

fn spread(counts: impl IntoIterator<Item = u64> + Clone) -> u64 {
    let (most, least) = (counts.clone().into_iter().max(), counts.into_iter().min());
    most.unwrap() - least.unwrap()
}

/// Pages in no order, some far apart.
fn pages(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(|i| i * 7919 % 4093 + (i % 5) * 100_000)
}

#[test]
fn colouring_follows_the_virtual_page_and_tells_processes_apart() {
    let mut machine = Machine::new(PagePlacement::Colouring, 1);
    let offset = |machine: &mut Machine, pid: u32, page: u64| {
        machine.touch(pid, page);
        (machine.colour(pid, page) + COLOURS - page % COLOURS) % COLOURS
    };
    let first: Vec<u64> = (0..2).map(|pid| offset(&mut machine, pid, 1 << 20)).collect();
    assert_ne!(first[0], first[1], "processes begin alike");
    for page in pages(500) {
        for pid in 0..2 {
            assert_eq!(offset(&mut machine, pid, page), first[pid as usize], "page {page}");
        }
    }
}

#[test]
fn bin_hopping_follows_the_order_of_first_touches_of_each_process() {
    let mut machine = Machine::new(PagePlacement::BinHopping, 3);
    let mut last: BTreeMap<u32, u64> = BTreeMap::new();
    for (number, page) in pages(500).enumerate() {
        let pid = (number % 3 / 2) as u32;
        machine.touch(pid, page);
        let colour = machine.colour(pid, page);
        if let Some(before) = last.insert(pid, colour) {
            assert_eq!(colour, (before + 1) % COLOURS);
        }
    }
}

#[test]
fn best_bins_are_filled_evenly_whatever_else_is_there() {
    for placement in [PagePlacement::BestBin, PagePlacement::Hierarchical] {
        let mut machine = Machine::new(placement, 3);
        let mut counts = vec![0; COLOURS as usize];
        for (number, page) in pages(400).enumerate() {
            // The other process takes pages now and then.
            if number % 3 == 0 {
                machine.touch(1, page);
            }
            machine.touch(0, page);
            counts[machine.colour(0, page) as usize] += 1;
            assert!(spread(counts.iter().copied()) <= 1, "{placement}: {counts:?}");
            // In a cache of half the colours, a quarter, ...: only the tree cares.
            for modulus in [2, 4, 8].into_iter().filter(|_| placement != PagePlacement::BestBin) {
                let smaller = (0..modulus)
                    .map(|residue| counts.iter().skip(residue).step_by(modulus).sum::<u64>());
                assert!(spread(smaller) <= 1, "{counts:?} modulo {modulus}");
            }
        }
        // What is given back counts no more: the bin that lost most is filled again.
        let pages: Vec<u64> = pages(400).collect();
        let emptied = machine.colour(0, pages[0]);
        let range = Range::sized(Gva::new(AREA + pages[0] * 4096), 4096);
        let event = Event::Advise { pid: Pid(0), range, advice: Advice::DontNeed };
        machine.event(event);
        machine.touch(0, 1 << 22);
        assert_eq!(machine.colour(0, 1 << 22), emptied, "{placement}");
    }
}

#[test]
fn random_colours_are_as_even_as_chance_and_the_same_for_the_same_seed() {
    let colours_of = |seed| {
        let mut machine = Machine::new(PagePlacement::Random, seed);
        let of_page = |page| {
            machine.touch(0, page);
            machine.colour(0, page)
        };
        (0..1600).map(of_page).collect::<Vec<u64>>()
    };
    let drawn = colours_of(1);
    assert_eq!(drawn, colours_of(1));
    assert_ne!(drawn, colours_of(2));
    let count = |colour: u64| drawn.iter().filter(|drawn| **drawn == colour).count() as f64;
    let chi_square: f64 = (0..COLOURS).map(|colour| (count(colour) - 100.0).powi(2) / 100.0).sum();
    // 15 degrees of freedom: between the quantiles 0.001 and 0.999.
    assert!((3.48..37.7).contains(&chi_square), "{chi_square}");
    let follows = drawn.windows(2).filter(|pair| pair[1] == (pair[0] + 1) % COLOURS).count();
    assert!(follows < 200, "{follows} of 1599 follow the one before");
}

#[test]
fn page_tables_are_placed_too() {
    // A page-table page for each page.
    let tables_under = |placement| {
        let mut machine = Machine::new(placement, 3);
        (0..96).for_each(|page| machine.touch(0, page << 9));
        machine.tables()
    };
    for placement in [
        PagePlacement::BinHopping,
        PagePlacement::Colouring,
        PagePlacement::BestBin,
        PagePlacement::Hierarchical,
    ] {
        let tables = tables_under(placement);
        assert!(spread(tables.iter().copied()) <= 1, "{placement}: {tables:?}");
    }
    // Linux takes a table and a page in turn.
    let tables = tables_under(PagePlacement::Linux);
    assert!(spread(tables.iter().copied()) > 1, "{tables:?}");
}

#[test]
fn copies_on_write_are_placed_too() {
    let mut machine = Machine::new(PagePlacement::Colouring, 3);
    (0..40).for_each(|page| machine.touch(0, page));
    let before: Vec<u64> = (0..40).map(|page| machine.colour(0, page)).collect();
    machine.event(Event::Fork { parent: Pid(0), child: Pid(7) });
    machine.touch(7, 1000);
    let offset = machine.colour(7, 1000) + 2 * COLOURS - 1000 % COLOURS;
    for page in 0..40 {
        assert_eq!(machine.frame(7, page), machine.frame(0, page), "shared");
        machine.touch(7, page);
        assert_eq!(machine.colour(7, page), (page + offset) % COLOURS, "as the child's pages");
        assert_eq!(machine.colour(0, page), before[page as usize]);
    }
}

#[test]
fn pages_that_compaction_moves_keep_their_colour() {
    let mut config = config(PagePlacement::BinHopping, 1.0, 3);
    config.start.movable = 1.0;
    let mut machine = Machine::of(&config);
    (0..1024).for_each(|page| machine.touch(0, page));
    (2048..2560).for_each(|page| machine.touch(1, page));
    let at = |machine: &Machine| -> Vec<_> {
        let first = (0..1024).map(|page| machine.frame(0, page));
        first.chain((2048..2560).map(|page| machine.frame(1, page))).collect()
    };
    let before = at(&machine);
    // No region is free, so the second process's huge page is made by compaction.
    let space = machine.space(1);
    let page = Frame::new((AREA >> 12) + (1 << 20));
    machine.touch(1, 1 << 20);
    machine.stack.collapse(&mut BasePages, NodeId::HOST, space, page, None).unwrap();
    let after = at(&machine);
    let moved: Vec<_> =
        before.iter().zip(&after).filter(|(before, after)| before != after).collect();
    assert!(moved.len() > 20, "{} pages were moved", moved.len());
    for (before, after) in moved {
        assert_eq!(colours().of(*before), colours().of(*after));
    }
}

#[test]
fn nobody_places_pages_by_the_colours_of_a_cache_without() {
    let config = StackConfig { colours: None, ..config(PagePlacement::Random, 0.0, 1) };
    let error = Stack::build(&config, &mut BasePages, &|| false).err().unwrap();
    assert!(matches!(error, BuildError::NoColours { level: 0 }), "{error}");
    // As Linux does it needs none.
    let kernels = StackConfig::chain(&[(64 * MIB, 0.0)], 1);
    assert!(Stack::build(&StackConfig { kernels, ..config }, &mut BasePages, &|| false).is_ok());
}
