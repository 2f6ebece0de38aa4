//! Curves of a CPU that is known give that CPU back: made by running chains through the model's hardware,
//! with noise that only ever makes a load longer.

use strata_addr::space::{GuestPhysical, HostPhysical, Virtual};
use strata_addr::{Frame, Gva, PageSize, Vpn};
use strata_hardware::{Asid, CpuModel, Machine, Misaligned, Request, Tables, VmTag};
use strata_paging::{Ept, FrameSource, Radix, Rights, X86};
use strata_silicon::{
    Curve, Curves, Facts, Findings, Pages, Plan, Point, Stride, TlbFact, describe, find,
};

/// Frames of page tables, behind all data.
struct TableFrames(u64);

impl<L> FrameSource<L> for TableFrames {
    fn table_frame(&mut self) -> Option<Frame<L>> {
        self.0 += 1;
        Some(Frame::new(self.0))
    }
    fn free_table_frame(&mut self, _: Frame<L>) {}
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }
}

/// Cycles of a dependent load of the model, once everything is as it stays.
fn cycles_of_load(model: &CpuModel, stride: Stride, pages: Pages, lines: u64) -> f64 {
    let mut machine = Machine::new(model, Misaligned::Splinter);
    let cpu = machine.add_cpu();
    let mut frames = TableFrames(1 << 24);
    let root = frames.table_frame().unwrap();
    let mut table = Radix::<X86, Virtual, GuestPhysical>::new(4, root);
    let size = if pages == Pages::Huge { PageSize::Huge } else { PageSize::Base };
    let span = (lines * stride.bytes()).next_multiple_of(size.bytes()) >> 12;
    for page in (0..span).step_by(size.base_pages() as usize) {
        let rights = Rights::READ_WRITE;
        table.map(Vpn::new(page), size, Frame::new(page), rights, &mut frames).unwrap();
    }
    let mut order: Vec<u64> = (0..lines).collect();
    let mut random = Random(5);
    for at in (1..lines).rev() {
        order.swap(at as usize, random.below(at) as usize);
    }
    for _ in 0..2 {
        machine.reset_counters();
        for line in &order {
            let gva = Gva::new(line * stride.bytes());
            let request = Request { asid: Asid(1), gva, bytes: 8, store: false };
            let mut tables = Tables {
                vm: VmTag(0),
                guest: &mut table,
                second: None::<&mut Radix<Ept, GuestPhysical, HostPhysical>>,
            };
            machine.access(cpu, request, &mut tables).unwrap();
        }
    }
    let sums = machine.totals();
    let beyond = sums.data.l2 + sums.data.l3 + sums.data.memory;
    let cost = |count: u64, cycles: u32| count as f64 * f64::from(cycles);
    let all = cost(lines - beyond, model.cache.l1d.cycles)
        + cost(sums.data.l2, model.cache.l2.cycles)
        + cost(sums.data.l3, model.cache.llc.cycles)
        + cost(sums.data.memory, model.cache.memory_cycles)
        + cost(sums.l1_misses, model.tlb.l2_hit_cycles)
        + sums.walk_cycles as f64;
    all / lines as f64
}

/// Curves of a model; a round is longer by up to `noise`, a share, and the best of seven counts.
fn curves(model: &CpuModel, noise: f64) -> Curves {
    let cycle = 1000.0 / f64::from(model.core.frequency_mhz);
    let mut random = Random(11);
    let mut all = Vec::new();
    for (stride, pages, most) in [
        (Stride::Line, Pages::Huge, 128 << 20),
        (Stride::BasePage, Pages::Base, 256 << 20),
        (Stride::BasePage, Pages::Huge, 256 << 20),
        (Stride::HugePage, Pages::Huge, 16 << 30),
    ] {
        let plan = Plan { most, rounds: 7, seed: 1 };
        let point = |lines| {
            let exact = cycles_of_load(model, stride, pages, lines) * cycle;
            let mut rounds: Vec<f64> = (0..7)
                .map(|_| exact * (1.0 + noise * random.below(1000) as f64 / 1000.0))
                .collect();
            rounds.sort_by(f64::total_cmp);
            Point { lines, least: rounds[0], median: rounds[3] }
        };
        let points = plan.lines(stride).into_iter().map(point).collect();
        all.push(Curve { stride, pages, points });
    }
    Curves { cycle, cycle_spread: 0.0, all }
}

fn assert_near(what: &str, found: f64, true_value: u32, tolerance: f64) {
    let off = (found - f64::from(true_value)).abs();
    assert!(off <= tolerance, "{what}: {found:.1} found, {true_value} true");
}

fn assert_found(model: &CpuModel, found: &Findings, noise: f64) {
    let name = &model.name;
    let slack = |cycles: u32| 1.0 + f64::from(cycles) * noise;
    assert_near("frequency", found.mhz, model.core.frequency_mhz, 1.0);
    let caches = [model.cache.l1d, model.cache.l2, model.cache.llc];
    assert_eq!(found.caches.len(), 3, "{name}: {:?}", found.caches);
    for (seen, cache) in found.caches.iter().zip(caches) {
        assert!(seen.bytes.holds(cache.bytes), "{name}: {seen:?}, {} true", cache.bytes);
        assert_near(name, seen.hit.cycles, cache.cycles, slack(cache.cycles));
    }
    let memory = model.cache.memory_cycles;
    let tlb = f64::from(model.tlb.l2_hit_cycles);
    assert_near(name, found.memory.unwrap().cycles, memory, slack(memory) + tlb);
    assert_near(name, found.base.l2_hit.unwrap(), model.tlb.l2_hit_cycles, 3.0);
    for (level, of) in [(&model.tlb.l1, found.base.l1), (&model.tlb.l2, found.base.l2)] {
        let (_, array) = level.0.iter().find(|(key, _)| key.contains("4k")).unwrap();
        let reach = of.unwrap_or_else(|| panic!("{name}: {:?}", found.base));
        assert!(reach.holds(array.entries.into()), "{name}: {:?}, {array:?} true", found.base);
    }
    let (_, huge) = model.tlb.l1.0.iter().find(|(key, _)| key.contains("2m")).unwrap();
    assert!(found.huge.l1.unwrap().holds(huge.entries.into()), "{name}: {:?}", found.huge);
    assert!(found.base.walk.unwrap() > 0.0, "{name}: {:?}", found.base);
}

#[test]
fn a_known_cpu_is_found_again_from_its_curves() {
    for name in ["zen3", "zen2", "skylake-gold-6138"] {
        let model = CpuModel::preset(name).unwrap();
        assert_found(&model, &find(&curves(&model, 0.0)), 0.0);
    }
}

#[test]
fn noise_that_makes_rounds_longer_changes_little() {
    let model = CpuModel::preset("zen3").unwrap();
    let curves = curves(&model, 0.10);
    let found = find(&curves);
    assert!(!found.is_noisy(), "{}", found.spread);
    assert_found(&model, &found, 0.10);
}

/// Curves by hand: 4 cycles up to 512 lines, 14 up to 8192, 50 up to 2^19, then 300.
fn by_hand(median_over_least: f64) -> Curves {
    let plan = Plan { most: 1 << 30, rounds: 1, seed: 1 };
    let point = |lines| {
        let cycles = match lines {
            0..=512 => 4.0,
            513..=8192 => 14.0,
            8193..=524_288 => 50.0,
            _ => 300.0,
        };
        Point { lines, least: cycles * 0.5, median: cycles * 0.5 * median_over_least }
    };
    let points = plan.lines(Stride::Line).into_iter().map(point).collect();
    let all = vec![Curve { stride: Stride::Line, pages: Pages::Huge, points }];
    Curves { cycle: 0.5, cycle_spread: 0.01, all }
}

#[test]
fn the_file_is_a_cpu_and_says_of_every_constant_where_it_comes_from() {
    let facts = Facts { name: "A CPU".into(), is_amd: true, in_vm: true, ..Facts::default() };
    let found = find(&by_hand(1.0));
    let description = describe("here", &found, &facts).unwrap();
    let model = CpuModel::from_toml(&description.toml).unwrap();
    assert_eq!(model, description.model);
    assert_eq!(model.core.frequency_mhz, 2000);
    assert_eq!((model.cache.l1d.bytes, model.cache.l1d.cycles), (32 << 10, 4));
    assert_eq!((model.cache.l2.cycles, model.cache.llc.cycles), (14, 50));
    assert_eq!(model.cache.memory_cycles, 300);
    let mut section = "";
    for line in description.toml.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name;
        } else if line.contains(" = ") && !section.is_empty() && section != "sources]" {
            let origin = line.rsplit_once(" # ").map_or("", |(_, origin)| origin);
            let known = ["measured: ", "from CPUID", "assumed: "];
            assert!(known.iter().any(|start| origin.starts_with(start)), "{section} {line}");
        }
    }
    // What nothing was measured of is assumed, and what was measured is not.
    assert!(model.unconfirmed.iter().any(|name| name == "walk.pd_entries"), "{model:?}");
    assert!(!model.unconfirmed.iter().any(|name| name == "cache.memory_cycles"));
    assert!(description.remarks.iter().any(|remark| remark.starts_with("this is a VM")));
}

/// Rounds of memory and of nothing else are apart, so that its constant alone is uncertain.
#[test]
fn each_constant_has_the_spread_of_what_it_is_read_from() {
    let mut curves = by_hand(1.0);
    for point in &mut curves.all[0].points {
        if point.lines > 524_288 {
            point.median = point.least * 1.25;
        }
    }
    let description = describe("here", &find(&curves), &Facts::default()).unwrap();
    let origin = |name: &str| description.model.sources[name].clone();
    assert!(origin("cache.memory_cycles").ends_with("(spread 25 %)"));
    assert!(origin("cache.l1d.cycles").ends_with("(spread 0 %)"));
    assert!(origin("core.frequency_mhz").ends_with("(spread 1.0 %)"));
}

#[test]
fn a_size_that_cpuid_tells_is_taken_only_if_it_is_what_was_measured() {
    let model = CpuModel::preset("zen3").unwrap();
    let found = find(&curves(&model, 0.0));
    let tlb = |entries| TlbFact { level: 1, huge: false, entries, ways: Some(entries) };
    let with = |entries| {
        let facts = Facts { is_amd: true, tlbs: vec![tlb(entries)], ..Facts::default() };
        let description = describe("here", &found, &facts).unwrap();
        let origin = description.model.sources["tlb.l1.4k"].clone();
        (description.model.tlb.l1.0["4k"].entries, origin)
    };
    let (entries, origin) = with(72);
    assert_eq!(entries, 72, "it lies between 64 and 96");
    assert!(origin.starts_with("from CPUID"), "{origin}");
    let (entries, origin) = with(512);
    assert_eq!(entries, 64);
    assert!(origin.starts_with("measured") && origin.contains("CPUID says 512"), "{origin}");
}

#[test]
fn a_noisy_machine_is_called_so() {
    let found = find(&by_hand(1.5));
    assert!(found.is_noisy());
    let description = describe("here", &found, &Facts::default()).unwrap();
    assert!(description.toml.contains("too noisy to tell"), "{}", description.toml);
}
