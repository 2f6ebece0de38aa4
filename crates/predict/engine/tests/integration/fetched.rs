//! Pages of code fault when they are executed first, as pages of data do when they are read, and no access is made.

use strata_addr::{Gva, Range};
use strata_engine::{LayerFmfi, RunResult, Setup, StackKind, Stop, catalogue};
use strata_hardware::CpuModel;
use strata_stream::{Access, Backing, Batch, Event, Pid, Protection, Tid, WorkloadInfo};

const CODE: u64 = 0x5555_5555_4000;
const PAGE: u64 = 4096;

/// A program with 64 pages of code, which does this.
fn run(stack: StackKind, act: impl Fn(&mut Batch)) -> RunResult {
    let setup = Setup {
        memory: Some(64 << 20),
        fragmentation: LayerFmfi::everywhere(0.0),
        ..Setup::new(stack, "base", CpuModel::preset("broadwell-e5-2620v4").unwrap())
    };
    let info = WorkloadInfo::default();
    let mut run = (catalogue().build)(&setup, &info, &Stop::default()).unwrap();
    let (pid, tid) = (Pid(0), Tid(0));
    let mut batch = Batch::new();
    batch.event(Event::ProcessStart { pid });
    batch.event(Event::ThreadStart { pid, tid });
    let range = Range::sized(Gva::new(CODE), 64 * PAGE);
    let protection = Protection { read: true, write: false, execute: true };
    batch.event(Event::Map { pid, range, backing: Backing::File, protection, fixed: true });
    act(&mut batch);
    run.consume(&batch);
    run.finish()
}

fn fetch(page: u64) -> Event {
    Event::Fetched { pid: Pid(0), range: Range::sized(Gva::new(CODE + page * PAGE), PAGE) }
}

fn read(batch: &mut Batch, page: u64) {
    batch.run(Tid(0), 1, |out| out.push(Access::load(Gva::new(CODE + page * PAGE), 1)));
}

#[test]
fn a_fetch_faults_in_every_layer_as_a_read_does() {
    for stack in StackKind::ALL {
        let fetched = run(stack, |batch| batch.event(fetch(3)));
        let read = run(stack, |batch| read(batch, 3));
        assert_eq!((fetched.faults.guest, fetched.accesses), (1, 0), "{stack:?}");
        assert_eq!((read.faults.guest, read.accesses), (1, 1), "{stack:?}");
        assert_eq!(fetched.exits_by_layer, read.exits_by_layer, "{stack:?}");
        assert_eq!(fetched.cycles_by_kind.exits, read.cycles_by_kind.exits, "{stack:?}");
        assert_eq!(fetched.tlb.l1_misses, 0, "no TLB of data has it");
    }
}

#[test]
fn what_is_mapped_is_fetched_without_a_fault() {
    let found = run(StackKind::Nested, |batch| {
        batch.event(fetch(3));
        // One page of a file is mapped with those around it, for code and data alike.
        batch.event(fetch(3));
        batch.event(fetch(5));
        read(batch, 7);
        batch.event(fetch(40));
    });
    assert_eq!(found.faults.guest, 2);
}

#[test]
fn a_fetch_from_nowhere_is_left_alone() {
    let pid = Pid(0);
    let anywhere =
        |start, bytes| Event::Fetched { pid, range: Range::sized(Gva::new(start), bytes) };
    let found = run(StackKind::Nested, |batch| {
        batch.event(anywhere(u64::MAX << 47, PAGE));
        batch.event(anywhere((1 << 47) - PAGE, 1 << 60));
        batch.event(Event::Fetched { pid: Pid(9), range: Range::sized(Gva::new(CODE), PAGE) });
    });
    assert!(found.faults.guest <= 1);
}
