//! Machines under every stack and policy, fed with random streams: odd events, odd addresses, memory
//! that runs out. Whatever comes, a machine finishes with a result that adds up.

use proptest::prelude::*;
use strata_addr::{Gva, Range, space::Virtual};
use strata_engine::{LayerFmfi, Run, RunResult, Setup, Simulation, StackKind, Stop};
use strata_hardware::{CpuModel, Misaligned};
use strata_policies::REGISTRY;
use strata_stream::{
    Access, AccessKind, Advice, Backing, Batch, Event, Pid, Protection, Tid, WorkloadInfo,
};

/// One thing in a stream.
#[derive(Clone, Debug)]
enum Op {
    Event(Event),
    /// Accesses one after the other, this far apart.
    Run {
        tid: u32,
        start: u64,
        stride: i64,
        accesses: u32,
        store: bool,
        size: u32,
    },
}

/// Where the streams live: across the border of a huge page, in several areas near each other.
const BASE: u64 = 0x5555_5540_0000 - 0x3000;
const PAGES: u64 = 8192;

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        30 => (0..PAGES, 0u64..4096).prop_map(|(page, offset)| BASE + (page << 12) + offset),
        4 => (0..PAGES / 512).prop_map(|region| 0x7fff_0000_0000 + (region << 21)),
        1 => prop_oneof![
            Just(0),
            Just(0xfff),
            Just((1 << 47) - 1),
            Just(1 << 47),
            Just((1 << 48) - 1),
            Just(1 << 55),
            Just(1 << 56),
            Just(0xffff_8000_0000_0000),
            Just(0xffff_ffff_ff60_0000),
            Just(u64::MAX - 7),
            any::<u64>(),
        ],
    ]
}

fn range() -> impl Strategy<Value = Range<Virtual>> {
    let pages = prop_oneof![
        10 => 1u64..64,
        5 => prop_oneof![Just(512u64), Just(1024), Just(4096)],
        10 => 1u64..6000,
        1 => prop_oneof![Just(0u64), Just(1 << 35), Just(1 << 52)],
    ];
    (address(), pages, 0..20u32).prop_map(|(start, pages, odd)| {
        // Ranges of a stream are whole pages; a damaged one may be anything.
        let start = if odd == 0 { start } else { start & !0xfff };
        Range::sized(Gva::new(start), pages.saturating_mul(4096))
    })
}

fn pid() -> impl Strategy<Value = Pid> {
    prop_oneof![20 => (0u32..3).prop_map(Pid), 1 => any::<u32>().prop_map(Pid)]
}

fn tid() -> impl Strategy<Value = u32> {
    prop_oneof![40 => 0u32..5, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

fn backing() -> impl Strategy<Value = Backing> {
    prop_oneof![
        6 => Just(Backing::Anonymous),
        2 => Just(Backing::Heap),
        1 => Just(Backing::Stack),
        1 => Just(Backing::SharedAnonymous),
        1 => Just(Backing::File),
    ]
}

fn advice() -> impl Strategy<Value = Advice> {
    prop_oneof![
        Just(Advice::HugePage),
        Just(Advice::NoHugePage),
        Just(Advice::DontNeed),
        Just(Advice::Free),
        Just(Advice::Populate),
        Just(Advice::Collapse),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let protection = || (0u32..8).prop_map(Protection::from_bits);
    prop_oneof![
        1 => pid().prop_map(|pid| Event::ProcessStart { pid }),
        2 => (pid(), pid()).prop_map(|(parent, child)| Event::Fork { parent, child }),
        1 => pid().prop_map(|pid| Event::Exec { pid }),
        1 => pid().prop_map(|pid| Event::ProcessExit { pid }),
        3 => (pid(), tid())
            .prop_map(|(pid, tid)| Event::ThreadStart { pid, tid: Tid(tid) }),
        1 => tid().prop_map(|tid| Event::ThreadExit { tid: Tid(tid) }),
        8 => (pid(), range(), backing(), protection(), any::<bool>()).prop_map(
            |(pid, range, backing, protection, fixed)| Event::Map {
                pid, range, backing, protection, fixed
            }
        ),
        2 => (pid(), range()).prop_map(|(pid, range)| Event::Fetched { pid, range }),
        2 => (pid(), range()).prop_map(|(pid, range)| Event::Unmap { pid, range }),
        3 => (pid(), range(), range())
            .prop_map(|(pid, from, to)| Event::Remap { pid, from, to }),
        2 => (pid(), range(), protection())
            .prop_map(|(pid, range, protection)| Event::Protect { pid, range, protection }),
        4 => (pid(), range(), advice())
            .prop_map(|(pid, range, advice)| Event::Advise { pid, range, advice }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let stride = prop_oneof![Just(8i64), Just(64), Just(4096), Just(-4096), Just(2 << 20)];
    let run = (tid(), address(), stride, 0u32..1500, any::<bool>(), 0u32..200).prop_map(
        |(tid, start, stride, accesses, store, size)| Op::Run {
            tid,
            start,
            stride,
            accesses,
            store,
            size,
        },
    );
    prop_oneof![3 => event().prop_map(Op::Event), 4 => run]
}

/// A life that most streams begin with: two threads of one process, an area, a heap.
fn prelude() -> Vec<Op> {
    let pid = Pid(0);
    let area = |backing, start, pages| {
        let range = Range::sized(Gva::new(start), pages << 12);
        let protection = Protection::READ_WRITE;
        Op::Event(Event::Map { pid, range, backing, protection, fixed: false })
    };
    vec![
        Op::Event(Event::ProcessStart { pid }),
        Op::Event(Event::ThreadStart { pid, tid: Tid(0) }),
        Op::Event(Event::ThreadStart { pid, tid: Tid(1) }),
        area(Backing::Anonymous, BASE, PAGES / 2),
        area(Backing::Heap, BASE + ((PAGES / 2) << 12), PAGES / 4),
    ]
}

/// The stream, a batch every `cut` operations.
fn batches(ops: &[Op], cut: usize) -> Vec<Batch> {
    ops.chunks(cut)
        .map(|ops| {
            let mut batch = Batch::new();
            for op in ops {
                match *op {
                    Op::Event(event) => batch.event(event),
                    Op::Run { tid, start, stride, accesses, store, size } => {
                        let kind = if store { AccessKind::Store } else { AccessKind::Load };
                        batch.run(Tid(tid), u64::from(accesses) * 3, |out| {
                            out.extend((0..i64::from(accesses)).map(|i| {
                                let at = start.wrapping_add_signed(i * stride);
                                Access::new(kind, Gva::new(at), size)
                            }));
                        });
                    }
                }
            }
            batch
        })
        .collect()
}

#[derive(Clone, Debug)]
struct Machine {
    stack: StackKind,
    policy: &'static str,
    memory: u64,
    levels: u8,
    fragmentation: f64,
    reused: bool,
    warmup: u64,
    scale: &'static str,
    slot: &'static str,
}

fn machine() -> impl Strategy<Value = Machine> {
    (
        prop::sample::select(StackKind::ALL.to_vec()),
        0..REGISTRY.len(),
        prop_oneof![Just(16u64), Just(24), Just(64)],
        4u8..=5,
        prop_oneof![Just(0.0), Just(0.6), Just(0.95)],
        prop::bool::weighted(0.2),
        prop_oneof![4 => Just(0u64), 1 => 0u64..5000],
        // A stream is some milliseconds: time passes fast enough for all background work.
        prop_oneof![Just("1"), Just("2000"), Just("50000")],
        prop_oneof![4 => Just("0"), 1 => Just("1")],
    )
        .prop_map(
            |(stack, policy, memory, levels, fragmentation, reused, warmup, scale, slot)| Machine {
                stack,
                policy: REGISTRY[policy].name,
                memory: memory << 20,
                levels,
                fragmentation,
                reused,
                warmup,
                scale,
                slot,
            },
        )
}

fn build(machine: &Machine) -> Option<Simulation> {
    let setup = Setup {
        stack: machine.stack,
        policy: machine.policy.to_owned(),
        cpu: CpuModel::preset(CpuModel::DEFAULT).unwrap(),
        memory: Some(machine.memory),
        levels: machine.levels,
        fragmentation: LayerFmfi::everywhere(machine.fragmentation),
        reused: machine.reused,
        misaligned: Misaligned::Splinter,
        warmup: machine.warmup,
        from_mark: false,
        seed: 3,
        explain: true,
        detail: false,
        own: Vec::new(),
        paging: strata_engine::Paging::Nested,
        placement: strata_engine::PagePlacement::Linux,
        llc: strata_engine::LlcSetup::default(),
        overrides: [("time.scale", machine.scale), ("slot.offset", machine.slot)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
    };
    // A memory too small for its guest is an error of the setup, not of the stream.
    Simulation::new(&setup, &WorkloadInfo::default(), &Stop::default()).ok()
}

fn run(machine: &Machine, batches: &[Batch]) -> Option<RunResult> {
    let mut simulation = Box::new(build(machine)?);
    for batch in batches {
        simulation.consume(batch);
    }
    let estimate = simulation.memory_estimate();
    assert!(estimate < 1 << 30, "a machine this small holds {estimate} bytes");
    Some(simulation.finish())
}

/// What adds up in every result.
fn check(machine: &Machine, batches: &[Batch], result: &RunResult) {
    let given: usize = batches.iter().map(Batch::len).sum();
    assert!(result.accesses <= given as u64);
    let alignment = &result.alignment;
    assert_eq!(
        alignment.guest_huge,
        alignment.well_aligned + alignment.type1 + alignment.type2,
        "{alignment:?}"
    );
    assert!(alignment.pseudo_huge <= alignment.well_aligned, "{alignment:?}");
    if machine.stack == StackKind::Native {
        assert_eq!(alignment.well_aligned, alignment.guest_huge);
        assert!(result.exits.is_empty());
        assert!(result.exits_by_layer.is_empty());
    }
    let billed: u64 = result.bill.iter().map(|item| item.cycles).sum();
    assert_eq!(billed, result.cycles, "{:?}", result.bill);
    // The same exits, told apart by who took them; those of L1's instructions are only there.
    let all: u64 = result.exits.values().sum();
    let of_memory = ["second_stage_violation", "handed_on", "second_stage_write", "invalidation"];
    let by_layer = result.exits_by_layer.iter().flat_map(|layer| &layer.exits);
    let by_layer = by_layer.filter(|(reason, _)| of_memory.contains(&reason.as_str()));
    let sum: u64 = by_layer.map(|(_, exits)| exits).sum();
    assert_eq!(all, sum, "{:?} {:?}", result.exits, result.exits_by_layer);
    if let [guest, l1] = &result.exits_by_layer[..] {
        // The default CPU shadows L1's VMCS, so each exit handed on costs L1 the entry back alone.
        assert_eq!(l1.exits["vmresume"], guest.exits["handed_on"]);
        assert_eq!((l1.exits["vmread"], l1.exits["vmrun"]), (0, 0));
    }
    for layer in &result.exits_by_layer {
        assert!(layer.exits["handed_on"] <= layer.exits["second_stage_violation"], "{layer:?}");
        assert!(layer.layer == "l1" || layer.exits["second_stage_write"] == 0, "{layer:?}");
    }
    assert!(result.tlb.l2_misses <= result.tlb.l1_misses);
    // A store through an entry that is not dirty walks again.
    assert!(result.walks >= result.tlb.l2_misses);
    let of_cpus: u64 = result.cpus.iter().map(|cpu| cpu.accesses).sum();
    assert_eq!(of_cpus, result.accesses);
    let kinds = &result.cycles_by_kind;
    assert_eq!(result.cycles, kinds.total());
    let index = |value: f64| assert!((0.0..=1.0).contains(&value), "{value}");
    index(result.fmfi.guest);
    result.fmfi.l1.into_iter().for_each(index);
    result.fmfi.host.into_iter().for_each(index);
    assert!(result.memory.used_bytes <= machine.memory);
    for layer in &result.layers {
        assert!(layer.free_bytes + layer.table_bytes <= layer.size_bytes, "{layer:?}");
    }
    assert!(
        result.samples.is_sorted_by_key(|sample| sample.accesses),
        "samples are in the order of accesses"
    );
    assert!(result.samples.iter().all(|sample| sample.accesses <= result.accesses));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, max_shrink_iters: 400, ..Default::default() })]

    #[test]
    fn whatever_comes_a_machine_finishes_and_its_result_adds_up(
        machine in machine(),
        ops in prop::collection::vec(op(), 1..80),
        cuts in (1usize..40, 1usize..40),
    ) {
        let ops = [prelude(), ops].concat();
        let (one, other) = (batches(&ops, cuts.0), batches(&ops, cuts.1));
        let Some(result) = run(&machine, &one) else { return Ok(()) };
        check(&machine, &one, &result);
        prop_assert_eq!(&run(&machine, &one).unwrap(), &result, "the same stream again");
        // Samples are taken between batches; nothing else depends on where a stream is cut.
        let cut_elsewhere = run(&machine, &other).unwrap();
        let without = |mut result: RunResult| {
            result.samples.clear();
            result
        };
        prop_assert_eq!(without(cut_elsewhere), without(result), "batches cut elsewhere");
    }
}

fn plain(stack: StackKind, policy: &'static str) -> Machine {
    Machine {
        stack,
        policy,
        memory: 64 << 20,
        levels: 4,
        fragmentation: 0.0,
        reused: false,
        warmup: 0,
        scale: "1",
        slot: "0",
    }
}

fn start(pid: u32, tid: u32) -> [Op; 2] {
    let pid = Pid(pid);
    [Event::ProcessStart { pid }, Event::ThreadStart { pid, tid: Tid(tid) }].map(Op::Event)
}

fn area(pid: u32) -> Op {
    let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
    let range = Range::sized(Gva::new(BASE), 4 << 20);
    Op::Event(Event::Map { pid: Pid(pid), range, backing, protection, fixed: true })
}

fn stores(tid: u32, accesses: u32) -> Op {
    Op::Run { tid, start: BASE, stride: 4096, accesses, store: true, size: 8 }
}

#[test]
fn a_process_that_ends_leaves_its_cpus_to_the_next() {
    let mut ops = Vec::new();
    for pid in 0..5 {
        ops.extend(start(pid, pid));
        ops.extend([area(pid), stores(pid, 100)]);
        ops.push(Op::Event(Event::ProcessExit { pid: Pid(pid) }));
    }
    let result = run(&plain(StackKind::Native, "base"), &batches(&ops, 3)).unwrap();
    assert_eq!(result.accesses, 500);
    assert_eq!(result.cpus.len(), 1, "one after the other");
    assert_eq!(result.elapsed_cycles, result.cycles, "their times add up");
}

#[test]
fn more_threads_than_the_cpu_has_cores_are_told() {
    let cores = CpuModel::preset(CpuModel::DEFAULT).unwrap().core.cores;
    for (threads, told) in [(cores, false), (cores + 1, true)] {
        let mut ops = start(0, 0).to_vec();
        let others = (1..threads).map(|tid| Event::ThreadStart { pid: Pid(0), tid: Tid(tid) });
        ops.extend(others.map(Op::Event));
        ops.push(area(0));
        ops.extend((0..threads).map(|tid| stores(tid, 10)));
        // Its core was free again: one more thread takes no more cores.
        ops.push(Op::Event(Event::ThreadExit { tid: Tid(1) }));
        ops.push(Op::Event(Event::ThreadStart { pid: Pid(0), tid: Tid(99) }));
        ops.push(stores(99, 10));
        let result = run(&plain(StackKind::Native, "base"), &batches(&ops, 100)).unwrap();
        assert_eq!(result.cpus.len() as u32, threads);
        let note = format!("takes {threads} cores, and {} has {cores}", result.cpu);
        assert_eq!(
            result.notes.iter().any(|told| told.contains(&note)),
            told,
            "{:?}",
            result.notes
        );
        assert_eq!(result.notes.len(), usize::from(told), "{:?}", result.notes);
    }
}

#[test]
fn only_threads_of_the_same_process_are_interrupted() {
    let unmap =
        Op::Event(Event::Unmap { pid: Pid(0), range: Range::sized(Gva::new(BASE), 1 << 20) });
    let apart = [start(0, 0), start(1, 1)].concat();
    let thread = Op::Event(Event::ThreadStart { pid: Pid(0), tid: Tid(1) });
    let together = [&start(0, 0)[..], &[thread]].concat();
    for (mut ops, shootdowns) in [(apart, 0), (together, 2000)] {
        ops.extend([area(0), area(1), stores(0, 256), stores(1, 10), unmap.clone()]);
        let result = run(&plain(StackKind::Native, "base"), &batches(&ops, 100)).unwrap();
        assert_eq!(result.cycles_by_kind.shootdowns, shootdowns, "once for the whole call");
    }
}

#[test]
fn threads_that_never_began_count_for_nothing() {
    let mut ops = start(0, 0).to_vec();
    ops.extend([area(0), stores(0, 10), stores(7, 1000)]);
    let result = run(&plain(StackKind::Vm, "thp"), &batches(&ops, 100)).unwrap();
    assert_eq!((result.accesses, result.instructions, result.cpus.len()), (10, 30, 1));
    assert!(result.notes.iter().any(|note| note.starts_with("1000 accesses of killed")));
}

#[test]
fn addresses_of_the_kernel_are_left_out_and_told() {
    let odd =
        |start, accesses| Op::Run { tid: 0, start, stride: 64, accesses, store: true, size: 8 };
    for (levels, left_out) in [(4, 64), (5, 10)] {
        let mut ops = start(0, 0).to_vec();
        ops.extend([odd(0xffff_8000_0000_0000, 10), odd(1 << 47, 54), odd(BASE, 5)]);
        let machine = Machine { levels, ..plain(StackKind::Nested, "xgemini") };
        let result = run(&machine, &batches(&ops, 100)).unwrap();
        assert_eq!(result.accesses, 69 - left_out);
        let note = format!("{left_out} accesses to addresses that no program has");
        assert!(result.notes.iter().any(|told| told.starts_with(&note)), "{:?}", result.notes);
    }
}

#[test]
fn samples_begin_with_counting() {
    let mut ops = start(0, 0).to_vec();
    ops.push(area(0));
    ops.extend((0..400).map(|_| stores(0, 1000)));
    let machine = Machine { warmup: 300_000, ..plain(StackKind::Native, "base") };
    let batches = batches(&ops, 10);
    let result = run(&machine, &batches).unwrap();
    check(&machine, &batches, &result);
    assert_eq!(result.accesses, 100_000);
    assert_eq!(result.samples.last().unwrap().accesses, 100_000);
    assert!(result.samples.len() > 1);
}

#[test]
fn memory_that_runs_out_ends_processes_and_not_the_machine() {
    let mut ops = Vec::new();
    for pid in 0..3 {
        let range = Range::sized(Gva::new(BASE), 128 << 20);
        let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
        ops.extend(start(pid, pid));
        ops.push(Op::Event(Event::Map { pid: Pid(pid), range, backing, protection, fixed: false }));
        ops.push(stores(pid, 30_000));
    }
    for stack in StackKind::ALL {
        for entry in REGISTRY {
            let machine = plain(stack, entry.name);
            let batches = batches(&ops, 2);
            let Some(result) = run(&machine, &batches) else { continue };
            check(&machine, &batches, &result);
            let told = |what| result.killed.iter().filter(|killed| killed.contains(what)).count();
            let (killed, dead) = (told("killed process"), told("killed the VM"));
            assert!(killed == 3 || dead == 1, "{machine:?}");
            assert!(result.partial, "what was killed did not run to its end: {machine:?}");
            assert!(result.accesses < 90_000);
        }
    }
}

#[test]
fn in_a_vm_whose_slot_is_not_aligned_no_huge_page_is_well_aligned() {
    let mut ops = start(0, 0).to_vec();
    let range = Range::sized(Gva::new(1 << 30), 32 << 20);
    let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
    ops.push(Op::Event(Event::Map { pid: Pid(0), range, backing, protection, fixed: false }));
    let sweep =
        Op::Run { tid: 0, start: 1 << 30, stride: 4096, accesses: 8192, store: true, size: 8 };
    ops.extend(std::iter::repeat_n(sweep, 10));
    for entry in REGISTRY {
        let aligned = Machine { scale: "2000", ..plain(StackKind::Vm, entry.name) };
        let machine = Machine { slot: "1", ..aligned.clone() };
        let batches = batches(&ops, 1);
        let result = run(&machine, &batches).unwrap();
        check(&machine, &batches, &result);
        if entry.words.upper_bound {
            assert!(result.alignment.well_aligned > 0, "it is what the offset costs the others");
            continue;
        }
        assert_eq!(result.alignment.well_aligned, 0, "{}", entry.name);
        if entry.name == "gemini" {
            assert!(run(&aligned, &batches).unwrap().alignment.well_aligned > 0);
        }
    }
}
