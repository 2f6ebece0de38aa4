//! Replays against captured tables: the same as the hardware over tables that were built here.

use std::collections::BTreeMap;
use std::sync::Arc;
use strata_addr::space::{GuestPhysical, HostPhysical, Space, Virtual};
use strata_addr::{Frame, Gva, PageSize, Vpn};
use strata_engine::report::RunResult;
use strata_engine::{Setup, StackKind, replay};
use strata_hardware::{Asid, CpuModel, Machine, Misaligned, Request, Tables, VmTag};
use strata_paging::{FrameSource, Radix, Rights, X86};
use strata_stream::{Access, Batch, Tid};
use strata_tables::Entries;
use strata_tables::capture::{Capture, Role, Table};
use strata_tables::variant::TableVariant;

type Guest = Radix<X86, Virtual, GuestPhysical>;
type Second = Radix<X86, GuestPhysical, HostPhysical>;

struct Upwards(u64);

impl<L> FrameSource<L> for Upwards {
    fn table_frame(&mut self) -> Option<Frame<L>> {
        self.0 += 1;
        Some(Frame::new(self.0))
    }
    fn free_table_frame(&mut self, _: Frame<L>) {}
}

/// Huge pages of the program.
const HUGE: u64 = 64;
const START: u64 = 0x6_0000_0000;

/// The program has huge pages; every second one is backed by base pages, one page has no backing.
fn built() -> (Guest, Second) {
    let mut tables = Upwards(0x10);
    let mut guest = Guest::new(4, Frame::new(0x10));
    for huge in 0..HUGE {
        let (page, frame) = (Vpn::new(START + 512 * huge), Frame::new(0x1000 + 512 * huge));
        guest.map(page, PageSize::Huge, frame, Rights::ALL, &mut tables).unwrap();
    }
    let mut pages = Upwards(0x20_0000);
    let mut second = Second::new(4, Frame::new(0x20_0000));
    for page in (0..0x40).chain(0x1000..0x1000 + 512 * HUGE) {
        let split = page < 0x1000 || page / 512 % 2 == 1;
        let (size, at) = match (split, page % 512) {
            (true, _) => (PageSize::Base, 0x40_0000 + page * 3),
            (false, 0) => (PageSize::Huge, 0x80_0000 + page),
            (false, _) => continue,
        };
        if page != 0x1000 + 512 * (HUGE - 1) + 7 {
            let frame = Frame::new(at);
            second.map(Frame::new(page), size, frame, Rights::ALL, &mut pages).unwrap();
        }
    }
    (guest, second)
}

fn table<U: Space, L: Space>(role: Role, radix: &Radix<X86, U, L>) -> Table<U, L> {
    let mut pages = BTreeMap::new();
    radix.for_each_table(|_, frame, entries| {
        pages.insert(frame, Arc::new(*entries));
    });
    Table::new((role, Entries::X86), radix.root_frame(), pages)
}

fn capture() -> Capture {
    let (guest, second) = built();
    let second = Some(table(Role::Second, &second));
    Capture { second, ..Capture::of_guest(2, table(Role::Guest, &guest)) }
}

fn setup(warmup: u64) -> Setup {
    Setup { warmup, ..Setup::new(StackKind::Vm, "", CpuModel::preset(CpuModel::DEFAULT).unwrap()) }
}

/// Accesses all over the program, none to the page without backing.
fn accesses() -> Vec<Access> {
    let mut state = 1u64;
    let random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 20
    };
    let at = std::iter::repeat_with(random).map(|at| (at % ((HUGE - 1) << 21)) & !7);
    let access = |at| {
        let addr = Gva::new((START << 12) + at);
        if at % 3 == 0 { Access::store(addr, 8) } else { Access::load(addr, 8) }
    };
    at.take(50_000).map(access).collect()
}

fn run(variant: TableVariant, warmup: u64, accesses: &[Access]) -> RunResult {
    let mut machine = replay(&capture(), variant, &setup(warmup)).unwrap();
    for piece in accesses.chunks(999) {
        let mut batch = Batch::new();
        batch.run(Tid(0), 3 * piece.len() as u64, |out| out.extend(piece));
        machine.consume(&batch);
    }
    machine.finish()
}

#[test]
fn a_replay_counts_what_the_hardware_does_over_the_same_tables() {
    let accesses = accesses();
    let result = run(TableVariant::Captured, 0, &accesses);
    let (mut guest, mut second) = built();
    let mut machine = Machine::new(&setup(0).cpu, Misaligned::Splinter);
    let cpu = machine.add_cpu();
    for access in &accesses {
        let mut tables =
            Tables { vm: VmTag::default(), guest: &mut guest, second: Some(&mut second) };
        let request = Request {
            asid: Asid(1),
            gva: access.addr(),
            bytes: access.size(),
            store: access.is_store(),
        };
        machine.access(cpu, request, &mut tables).unwrap();
    }
    let counters = machine.totals();
    assert!(counters.walks > 1000, "{}", counters.walks);
    assert_eq!(result.accesses, accesses.len() as u64);
    assert_eq!(result.instructions, 3 * result.accesses);
    assert_eq!(result.tlb.l1_misses, counters.l1_misses);
    assert_eq!((result.walks, result.walk_refs), (counters.walks, counters.walk_refs));
    assert_eq!(result.walk_cycles, counters.walk_cycles);
    assert_eq!(result.cycles, result.cycles_by_kind.total());
    assert_eq!((result.stack, result.policy.as_str()), (StackKind::Vm, "captured"));
    let alignment = result.alignment;
    assert_eq!((alignment.guest_huge, alignment.well_aligned), (HUGE, HUGE / 2));
    assert_eq!((alignment.type1, alignment.type2), (0, HUGE / 2));
    assert!(result.notes.is_empty(), "{:?}", result.notes);
}

#[test]
fn alignment_helps_and_its_absence_hurts() {
    let accesses = accesses();
    let [captured, base, aligned] = TableVariant::ALL.map(|variant| run(variant, 0, &accesses));
    assert!(aligned.tlb.l2_misses < captured.tlb.l2_misses);
    assert!(captured.walk_refs < base.walk_refs);
    assert_eq!(base.tlb.fills["2m"], 0);
    assert_eq!(aligned.tlb.fills["4k"], 0);
    assert_eq!((base.alignment.guest_huge, aligned.alignment.well_aligned), (0, HUGE));
}

#[test]
fn a_warm_up_is_not_counted_and_what_is_not_mapped_is_told() {
    let mut accesses = accesses();
    let whole = run(TableVariant::Captured, 0, &accesses);
    let late = run(TableVariant::Captured, 20_000, &accesses);
    assert_eq!(late.accesses, 30_000);
    assert_eq!(late.instructions, 90_000);
    assert!(late.walks < whole.walks);
    let hole = Gva::new((START + 512 * (HUGE - 1) + 7) << 12);
    accesses.push(Access::load(hole, 8));
    accesses.push(Access::load(Gva::new(0x1000), 8));
    let result = run(TableVariant::Captured, 0, &accesses);
    assert_eq!(result.accesses, 50_000);
    assert_eq!(result.notes.len(), 1);
    assert!(result.notes[0].starts_with("2 accesses went where"), "{:?}", result.notes);
}
