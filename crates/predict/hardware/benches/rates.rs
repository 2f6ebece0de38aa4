//! Rates of the hardware model, on one core: `cargo bench -p strata-hardware`.
//!
//! `cargo bench -p strata-hardware -- llc` measures the last-level cache in detail alone.
//!
//! Prints accesses per second, the best of several rounds, and the ratio to the rate to reach.

use std::hint::black_box;
use std::time::Instant;
use strata_addr::space::{GuestPhysical, HostPhysical, Virtual};
use strata_addr::{Frame, Gva, PageSize};
use strata_hardware::{
    Asid, CpuId, CpuModel, LlcDesign, LlcOptions, Machine, Misaligned, Replacement, Request,
    SliceHash, Tables, VmTag,
};
use strata_paging::{Ept, FrameSource, Radix, Rights, X86};
use strata_stream::Access;

const FOOTPRINT: u64 = 1 << 30;
const START: u64 = 0x7f00_0000_0000;
const ASID: Asid = Asid(1);

struct Upwards(u64);

impl<L> FrameSource<L> for Upwards {
    fn table_frame(&mut self) -> Option<Frame<L>> {
        self.0 += 1;
        Some(Frame::new(self.0 - 1))
    }
    fn free_table_frame(&mut self, _: Frame<L>) {}
}

/// SplitMix64: fast enough not to show.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

type Guest = Radix<X86, Virtual, GuestPhysical>;
type Second = Radix<Ept, GuestPhysical, HostPhysical>;

/// `FOOTPRINT` bytes at `START`, in pages of these sizes; frames in scattered order.
fn tables(guest_page: PageSize, host_page: PageSize) -> (Guest, Second) {
    let data_pages = FOOTPRINT >> PageSize::BASE_SHIFT;
    let mut guest_frames = Upwards(data_pages);
    let mut guest = Guest::new(4, guest_frames.table_frame().unwrap());
    let pages = FOOTPRINT / guest_page.bytes();
    for page in 0..pages {
        // An odd factor permutes.
        let frame = page.wrapping_mul(0x9e37_79b1) % pages * guest_page.base_pages();
        let vpn = Gva::new(START).page() + page * guest_page.base_pages();
        guest
            .map(vpn, guest_page, Frame::new(frame), Rights::READ_WRITE, &mut guest_frames)
            .unwrap();
    }
    let pages = (2 * FOOTPRINT) / host_page.bytes();
    let mut host_frames = Upwards(1 << 30 >> 2);
    let mut second = Second::new(4, host_frames.table_frame().unwrap());
    for page in 0..pages {
        let frame = page.wrapping_mul(0x85eb_ca6b) % pages * host_page.base_pages();
        let gpa = Frame::new(page * host_page.base_pages());
        second
            .map(gpa, host_page, Frame::new(frame), Rights::READ_WRITE, &mut host_frames)
            .unwrap();
    }
    (guest, second)
}

struct Setup {
    machine: Machine,
    cpu: CpuId,
    guest: Guest,
    second: Second,
}

fn setup(preset: &str, guest_page: PageSize, host_page: PageSize) -> Setup {
    let model = CpuModel::preset(preset).unwrap();
    let mut machine = Machine::new(&model, Misaligned::Splinter);
    let cpu = machine.add_cpu();
    let (guest, second) = tables(guest_page, host_page);
    Setup { machine, cpu, guest, second }
}

/// How the accesses reach the machine.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// In runs of 256, as an engine has them.
    Runs,
    /// One at a time.
    Ones,
}

/// Accesses per second, in the best of `ROUNDS` rounds: short ones, so that some fall into moments
/// when nobody else uses the computer.
fn rate(setup: &mut Setup, by: By, accesses: u64, mut addr: impl FnMut(u64) -> u64) -> f64 {
    const ROUNDS: u64 = 200;
    let mut best = f64::INFINITY;
    let per_round = accesses / ROUNDS;
    for round in 0..ROUNDS {
        let mut tables =
            Tables { vm: VmTag(0), guest: &mut setup.guest, second: Some(&mut setup.second) };
        let accesses: Vec<_> = (round * per_round..(round + 1) * per_round)
            .map(|i| Access::load(Gva::new(START + addr(i)), 8))
            .collect();
        let start = Instant::now();
        if by == By::Runs {
            for run in accesses.chunks(256) {
                let done = setup.machine.access_run(setup.cpu, ASID, run, &mut tables);
                assert!(black_box(done).is_ok());
            }
        } else {
            for access in &accesses {
                let request = Request::load(ASID, access.addr(), access.size());
                let done = setup.machine.access(setup.cpu, request, &mut tables);
                assert!(black_box(done).is_ok());
            }
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    per_round as f64 / best
}

fn report(name: &str, setup: &Setup, rate: f64, goal: f64) {
    let counters = setup.machine.counters(setup.cpu);
    println!(
        "{name:<48} {:>6.1} M/s  {:>5.2} x goal  {:>5.1} % L1 TLB misses  {:>5.1} % walks  \
         {:>4.1} refs/walk",
        rate / 1e6,
        rate / goal,
        100.0 * counters.l1_misses as f64 / counters.accesses as f64,
        100.0 * counters.walks as f64 / counters.accesses as f64,
        counters.refs_per_walk(),
    );
}

/// Random loads over all of the footprint.
fn random(preset: &str, guest_page: PageSize, host_page: PageSize, by: By, accesses: u64) {
    let mut setup = setup(preset, guest_page, host_page);
    let mut random = Random(1);
    let huge = (guest_page, host_page) == (PageSize::Huge, PageSize::Huge);
    let goal = if huge { 25e6 } else { 8e6 };
    let rate = rate(&mut setup, by, accesses, |_| random.next() & (FOOTPRINT - 8));
    let ones = if by == By::Ones { ", one by one" } else { "" };
    let name = format!("{preset} random {guest_page} on {host_page}{ones}");
    report(&name, &setup, rate, goal);
}

/// Loads that hit the TLBs, and mostly the first-level cache.
fn stream(name: &str, page: PageSize, by: By, addr: impl FnMut(u64) -> u64) {
    let mut setup = setup(CpuModel::DEFAULT, page, page);
    let rate = rate(&mut setup, by, 40_000_000, addr);
    let ones = if by == By::Ones { ", one by one" } else { "" };
    report(&format!("{name}{ones}"), &setup, rate, 100e6);
}

/// The last-level cache in detail: random loads over all of the footprint, beside the rate of the same
/// machine without, round by round in turn.
fn last_level(name: &str, page: PageSize, options: &LlcOptions) {
    const TURNS: u64 = 5;
    let mut plain = setup(CpuModel::DEFAULT, page, page);
    let mut detailed = setup(CpuModel::DEFAULT, page, page);
    let model = CpuModel::preset(CpuModel::DEFAULT).unwrap();
    detailed.machine = Machine::with_llc(&model, Misaligned::Splinter, options).unwrap();
    detailed.cpu = detailed.machine.add_cpu();
    let (mut random, mut best) = (Random(3), [0.0, 0.0f64]);
    for _ in 0..TURNS {
        for (setup, best) in [&mut plain, &mut detailed].into_iter().zip(&mut best) {
            let rate = rate(setup, By::Runs, 2_000_000, |_| random.next() & (FOOTPRINT - 8));
            *best = rate.max(*best);
        }
    }
    println!(
        "{:<48} {:>6.1} M/s  {:>5.2} x goal  {:>5.2} x without",
        format!("random {page} on {page}, {name}"),
        best[1] / 1e6,
        best[1] / 8e6,
        best[1] / best[0],
    );
}

fn last_levels() {
    let plain = LlcOptions::default;
    let of = |design| LlcOptions { design, ..LlcOptions::default() };
    let hash = of(LlcDesign { hash: SliceHash::Intel, slices: 8, ..LlcDesign::default() });
    let quad: Replacement = "QLRU_H11_M1_R0_U0".parse().expect("it is one");
    let masked = LlcOptions { masks: vec!["5".parse().ok()], ..plain() };
    let options = [
        ("five ways", masked.clone()),
        ("hash", hash.clone()),
        ("tree-PLRU", of(LlcDesign { replacement: Replacement::TreePlru, ..LlcDesign::default() })),
        ("quad-age LRU", of(LlcDesign { replacement: quad, ..LlcDesign::default() })),
        ("misses told apart", LlcOptions { classify: true, ..plain() }),
        ("misses told apart, hash, five ways", LlcOptions { classify: true, ..hash.clone() }),
        ("inclusive", of(LlcDesign { inclusive: true, ..LlcDesign::default() })),
    ];
    for (name, mut options) in options {
        if name.contains("hash, five") {
            options.masks = masked.masks.clone();
        }
        for page in [PageSize::Huge, PageSize::Base] {
            last_level(name, page, &options);
        }
    }
}

fn main() {
    if std::env::args().any(|word| word == "llc") {
        return last_levels();
    }
    use PageSize::{Base, Huge};
    let default = CpuModel::DEFAULT;
    for by in [By::Runs, By::Ones] {
        random(default, Huge, Huge, by, 20_000_000);
        random(default, Base, Base, by, 4_000_000);
    }
    random(default, Huge, Base, By::Runs, 4_000_000);
    random(default, Base, Huge, By::Runs, 4_000_000);
    for preset in ["skylake-gold-6138", "zen2", "phenom-9550"] {
        random(preset, Huge, Huge, By::Runs, 4_000_000);
        random(preset, Base, Base, By::Runs, 2_000_000);
    }
    for by in [By::Runs, By::Ones] {
        let mut random = Random(2);
        stream("sequential in 16 KiB, 4k on 4k", Base, by, |i| i * 8 % (16 << 10));
        stream("random in 16 KiB, 4k on 4k", Base, by, |_| random.next() & ((16 << 10) - 8));
        stream("sequential in 1 GiB, 2m on 2m", Huge, by, |i| i * 8 % FOOTPRINT);
    }
    last_levels();
}
