//! Timers, devices and waiting on whole machines: counted, charged, and on the bill.

use strata_engine::{LayerFmfi, RunResult, Setup, StackKind, Stop, catalogue};
use strata_hardware::CpuModel;
use strata_nested::{ExitCosts, Happening, Nesting};
use strata_stream::{Batch, Call, Event, Fill, Source, Tid};
use strata_workloads::Generator;

const CPU: &str = "broadwell-e5-2620v4";
const WORKLOAD: &str = "random:size=16MiB,accesses=2M";

fn setup(stack: StackKind, set: &[(&str, &str)]) -> Setup {
    let overrides = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Setup {
        memory: Some(256 << 20),
        fragmentation: LayerFmfi::everywhere(0.0),
        overrides: overrides.collect(),
        ..Setup::new(stack, "thp", CpuModel::preset(CPU).unwrap())
    }
}

/// What a machine makes of the workload, with these calls of its thread in the middle of it, so often each.
fn run(setup: &Setup, calls: &[(Call, usize)]) -> RunResult {
    let mut source = Generator::parse(WORKLOAD).unwrap();
    let mut run = (catalogue().build)(setup, &source.info(), &Stop::default()).unwrap();
    let (mut batch, mut batches) = (Batch::new(), 0);
    loop {
        let fill = source.fill(&mut batch).unwrap();
        run.consume(&batch);
        batches += 1;
        if batches == 3 {
            let mut told = Batch::new();
            for (call, times) in calls {
                let event = Event::Called { tid: Tid(0), call: *call };
                (0..*times).for_each(|_| told.event(event));
            }
            run.consume(&told);
        }
        if fill == Fill::End {
            return run.finish();
        }
    }
}

/// Cycles that something takes once for a guest so many levels above the host.
fn once(what: Happening, vm: u8, direct_timers: bool) -> u64 {
    let cpu = CpuModel::preset(CPU).unwrap().virtualization;
    let nesting = Nesting::new(cpu, ExitCosts::default(), vm);
    let exits = what.exits(vm, 1, direct_timers).into_iter();
    exits.map(|exit| exit.times * nesting.exit(exit.vm, exit.handler, exit.reason).cycles).sum()
}

fn on_bill(run: &RunResult, name: &str, level: &str) -> u64 {
    let lines = run.bill.iter().filter(|item| item.name == name && item.level == level);
    lines.map(|item| item.cycles).sum()
}

fn bill_is_whole(run: &RunResult) {
    assert_eq!(run.bill.iter().map(|item| item.cycles).sum::<u64>(), run.cycles);
}

#[test]
fn a_timer_ticks_as_often_as_it_is_said_and_costs_what_its_exits_do() {
    for (stack, vm) in [(StackKind::Vm, 1), (StackKind::Nested, 2), (StackKind::Deeper(4), 3)] {
        let without = run(&setup(stack, &[]), &[]);
        let with = run(&setup(stack, &[("rate.tick", "1000")]), &[]);
        assert!(without.happened.is_empty());
        let ticks = with.happened["ticks"];
        let expected = with.elapsed_seconds * 1000.0;
        assert!((ticks as f64 - expected).abs() <= 1.5, "{stack}: {ticks} of {expected}");
        let exits = with.cycles_by_kind.exits - without.cycles_by_kind.exits;
        assert_eq!(exits, ticks * once(Happening::Tick, vm, false), "{stack}");
        assert_eq!(with.cycles - without.cycles, exits, "{stack}: nothing else changes");
        bill_is_whole(&with);
        assert!(on_bill(&with, "exits: external interrupt", "guest") > 0);
        assert_eq!(on_bill(&without, "exits: external interrupt", "guest"), 0);
        assert_eq!(with.exits["external_interrupt"], ticks * u64::from(vm + 1), "{stack}");
        // What is reflected is memory's.
        assert_eq!(with.exits["reflected"], without.exits["reflected"], "{stack}");
    }
}

#[test]
fn direct_timers_spare_what_l1_does_for_them() {
    let set = |direct| [("rate.tick", "1000"), ("nested.direct_timers", direct)];
    let plain = run(&setup(StackKind::Nested, &set("false")), &[]);
    let direct = run(&setup(StackKind::Nested, &set("true")), &[]);
    assert!(direct.cycles_by_kind.exits < plain.cycles_by_kind.exits);
    let each = |direct| once(Happening::Tick, 2, direct);
    let memory = |run: &RunResult, each| run.cycles_by_kind.exits - run.happened["ticks"] * each;
    assert_eq!(memory(&direct, each(true)), memory(&plain, each(false)));
}

#[test]
fn system_calls_lead_to_the_exits_of_what_they_were() {
    let calls = [(Call::Request, 5), (Call::AwaitedRequest, 7), (Call::Wait, 11), (Call::Wake, 13)];
    let happened = [
        ("device_requests", Happening::Request, 5),
        ("awaited_device_requests", Happening::AwaitedRequest, 7),
        ("halts", Happening::Halt, 11),
        ("ipis", Happening::Ipi, 13),
    ];
    for (stack, vm) in [(StackKind::Vm, 1), (StackKind::Nested, 2)] {
        let without = run(&setup(stack, &[]), &[]);
        let with = run(&setup(stack, &[]), &calls);
        let mut cycles = 0;
        for (name, what, times) in happened {
            assert_eq!(with.happened[name], times, "{stack} {name}");
            cycles += times * once(what, vm, false);
        }
        assert_eq!(with.cycles - without.cycles, cycles, "{stack}");
        assert_eq!(with.exits["io"], 5 + 7);
        assert_eq!(with.exits["halt"], 7 + 11);
        let of_l1 = with.exits.get("l1_io").copied();
        assert_eq!(of_l1, (vm == 2).then_some(5 + 7), "L1 asks its own device");
        bill_is_whole(&with);
        let io = on_bill(&with, "exits: io", if vm == 1 { "guest" } else { "l1" });
        assert_eq!(io, 12 * ExitCosts::default().io, "of those that L0 handles");
    }
    let native = run(&setup(StackKind::Native, &[]), &calls);
    assert_eq!(native, run(&setup(StackKind::Native, &[]), &[]), "in no VM nothing exits");
}

#[test]
fn rates_take_the_place_of_calls() {
    let set = [("rate.io", "20000"), ("rate.halt", "none"), ("rate.ipi", "none")];
    let calls = [(Call::AwaitedRequest, 50), (Call::Wait, 50), (Call::Wake, 50)];
    let with = run(&setup(StackKind::Vm, &set), &calls);
    assert_eq!(with, run(&setup(StackKind::Vm, &set), &[]));
    let expected = with.elapsed_seconds * 20_000.0;
    let requests = with.happened["device_requests"];
    assert!((requests as f64 - expected).abs() <= 1.5, "{requests} of {expected}");
    assert_eq!(with.happened.len(), 1);
}

#[test]
fn what_happens_before_counting_begins_is_not_counted() {
    let warm = Setup { warmup: 1_900_000, ..setup(StackKind::Nested, &[("rate.tick", "1000")]) };
    let with = run(&warm, &[(Call::Wait, 10)]);
    assert!(!with.happened.contains_key("halts"), "{:?}", with.happened);
    let ticks = with.happened["ticks"] as f64;
    assert!((ticks - with.elapsed_seconds * 1000.0).abs() <= 1.5, "{ticks}");
    bill_is_whole(&with);
}

#[test]
fn rates_that_leave_no_time_for_the_program_are_refused() {
    let greedy = setup(StackKind::Nested, &[("rate.tick", "20000")]);
    let source = Generator::parse(WORKLOAD).unwrap();
    let built = (catalogue().build)(&greedy, &source.info(), &Stop::default());
    let error = built.err().expect("it is refused").to_string();
    assert!(error.contains("% of a CPU's time on a nested stack: lower --tick-hz"), "{error}");
    // A VM's are cheap enough.
    run(&setup(StackKind::Vm, &[("rate.tick", "20000")]), &[]);
}
