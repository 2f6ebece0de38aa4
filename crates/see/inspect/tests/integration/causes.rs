//! Every cause on a synthetic snapshot, refusals, and the account of a three-layer stack.

use strata_addr::Frame;
use strata_inspect::snapshot::model::{GuestArea, HugePage, Process, Slot, Vm, VmmArea};
use strata_inspect::snapshot::pseudo::PseudoHuge;
use strata_inspect::snapshot::region::{Class, Region, Run};
use strata_inspect::snapshot::usage::Usage;
use strata_inspect::text::buddy::Zone;
use strata_inspect::text::maps::Kind;
use strata_inspect::{
    BackedVm, Cause, Join, Options, Snapshot, Verdict, join, join::prometheus, verdicts,
};

const HVA: u64 = 0x7f00_0000_0000;
const MIB: u64 = 1 << 20;

/// A guest with one process whose huge pages are in these frames, and 64 MiB of memory.
fn guest(frames: &[u64]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let machine = &mut snapshot.head.machine;
    machine.host = "guest".to_owned();
    machine.boot_id = Some("guest".to_owned());
    machine.virtual_machine = Some(true);
    machine.ram = vec![(0, 64 * MIB)];
    machine.wall_ns = 1_000_000_000_000_000;
    machine.uptime_ms = 1000;
    let huge = (100..).zip(frames);
    let huge = huge.map(|(region, &frame)| HugePage { region, frame, uncertain: false });
    let area = GuestArea { huge: huge.collect(), ..GuestArea::default() };
    let process =
        Process { pid: 7, name: "db".to_owned(), areas: vec![area], ..Process::default() };
    snapshot.processes.push(process);
    snapshot
}

/// A host that permits everything, with a VM of 64 MiB, all huge.
fn host() -> Snapshot {
    let mut snapshot = Snapshot::default();
    let machine = &mut snapshot.head.machine;
    machine.host = "host".to_owned();
    machine.boot_id = Some("host".to_owned());
    machine.virtual_machine = Some(false);
    machine.wall_ns = 1_000_000_500_000_000;
    machine.uptime_ms = 100_000_000;
    let settings = &mut snapshot.head.settings;
    settings.thp.insert("enabled".to_owned(), "always".to_owned());
    settings.thp.insert("shmem_enabled".to_owned(), "always".to_owned());
    settings.zones.push(Zone {
        node: 0,
        name: "Normal".to_owned(),
        free: [vec![0; 10], vec![9]].concat(),
    });
    let vm = Vm {
        pid: 99,
        comm: "qemu".to_owned(),
        slots: vec![Slot { gpa: 0, hva: HVA, size: 64 * MIB }],
        areas: vec![VmmArea { start: HVA, end: HVA + 64 * MIB, ..VmmArea::default() }],
        ..Vm::default()
    };
    let regions = (0..32).map(|index| block(index, Class::Huge, 512 * (1000 + index))).collect();
    snapshot.vms.push(BackedVm { vm, regions, ..BackedVm::default() });
    snapshot
}

fn block(index: u64, class: Class, frame: u64) -> Region {
    Region { index, class, present: 512, runs: vec![Run::new(0, 512, frame)], ..Region::default() }
}

fn base(region: &mut Region) {
    *region = block(region.index, Class::Contiguous, 512 * 5000 + 1);
}

fn joined(host: Snapshot) -> Join {
    join(&[guest(&[512 * 3]), host], &Options::default()).unwrap()
}

/// The cause after `change`, which gets the VM's settings with region 3 in base pages.
fn cause(change: impl FnOnce(&mut Snapshot)) -> Cause {
    let mut host = host();
    base(&mut host.vms[0].regions[3]);
    change(&mut host);
    let report = joined(host);
    let found = match report.causes.as_slice() {
        [only] => only,
        other => panic!("one cause expected: {other:?}"),
    };
    assert_eq!((found.pages, found.layer.as_str()), (1, "L0"));
    assert_eq!(found.ranges, [[6 * MIB, 8 * MIB]]);
    assert_eq!(found.remedy, found.cause.remedy());
    assert!(report.totals.misaligned == 1 && report.totals.well_aligned == 0);
    found.cause
}

fn area(host: &mut Snapshot) -> &mut VmmArea {
    &mut host.vms[0].vm.areas[0]
}

fn set(host: &mut Snapshot, name: &str, value: &str) {
    host.head.settings.thp.insert(name.to_owned(), value.to_owned());
}

#[test]
fn a_huge_page_on_huge_pages_is_well_aligned() {
    let report = joined(host());
    assert_eq!((report.totals.huge, report.totals.well_aligned), (1, 1));
    assert!(report.causes.is_empty() && report.composite.huge == 1.0);
    assert_eq!(report.pairs[0].lower_unused, 31);
}

#[test]
fn settings_that_forbid() {
    assert_eq!(cause(|host| set(host, "enabled", "never")), Cause::ThpDisabled);
    assert_eq!(cause(|host| host.head.settings.thp.clear()), Cause::ThpDisabled);
    assert_eq!(cause(|host| set(host, "enabled", "madvise")), Cause::MadviseOnly);
    assert_eq!(cause(|host| set(host, "hugepages-2048kB/enabled", "never")), Cause::ThpDisabled);
    let inherits = |host: &mut Snapshot| set(host, "hugepages-2048kB/enabled", "inherit");
    assert_eq!(cause(inherits), Cause::NotYetCollapsed);
    assert_eq!(cause(|host| host.vms[0].vm.thp_disabled = Some(true)), Cause::ProcessDisabled);
    assert_eq!(cause(|host| area(host).flags.push("nh".to_owned())), Cause::NoHugepage);
    let advised = |host: &mut Snapshot| {
        set(host, "enabled", "madvise");
        area(host).flags.push("hg".to_owned());
    };
    assert_eq!(cause(advised), Cause::NotYetCollapsed);
}

#[test]
fn memory_that_cannot_be_huge() {
    let shmem = |setting: &'static str, flag: &'static str| {
        cause(move |host| {
            set(host, "shmem_enabled", setting);
            area(host).kind = Kind::Shmem;
            area(host).flags.push(flag.to_owned());
        })
    };
    for (setting, flag) in [("never", "hg"), ("deny", "hg"), ("advise", "rd")] {
        assert_eq!(shmem(setting, flag), Cause::ShmemWithoutThp, "{setting} {flag}");
    }
    for (setting, flag) in
        [("always", "rd"), ("within_size", "rd"), ("force", "rd"), ("advise", "hg")]
    {
        assert_eq!(shmem(setting, flag), Cause::NotYetCollapsed, "{setting} {flag}");
    }
    let tmpfs = |huge: Option<&'static str>| {
        cause(move |host| {
            area(host).kind = Kind::Tmpfs;
            area(host).mount_huge = huge.map(str::to_owned);
        })
    };
    assert_eq!(tmpfs(None), Cause::ShmemWithoutThp);
    assert_eq!(tmpfs(Some("always")), Cause::NotYetCollapsed);
    assert_eq!(cause(|host| area(host).kind = Kind::File), Cause::FileWithoutThp);
}

#[test]
fn what_happened_to_the_memory() {
    let class = |class| cause(move |host| host.vms[0].regions[3].class = class);
    assert_eq!(class(Class::Swapped), Cause::Swap);
    assert_eq!(class(Class::Ksm), Cause::Ksm);
    assert_eq!(class(Class::Zero), Cause::ZeroPage);
    for flag in ["um", "uw", "ui"] {
        assert_eq!(cause(|host| area(host).flags.push(flag.to_owned())), Cause::Userfaultfd);
    }
    let hole = |balloon| {
        cause(move |host| {
            host.vms[0].vm.vmm.balloon = balloon;
            let runs = vec![Run::new(0, 100, 7000)];
            let class = Class::Scattered;
            host.head.settings.khugepaged.insert("max_ptes_none".to_owned(), "64".to_owned());
            host.vms[0].regions[3] =
                Region { index: 3, class, present: 100, runs, ..Region::default() };
        })
    };
    assert_eq!(hole(true), Cause::BalloonHole);
    let told = |bytes| {
        cause(move |host| {
            host.vms[0].vm.vmm.balloon = true;
            host.vms[0].vm.ballooned = Some(bytes);
        })
    };
    assert_eq!(told(0), Cause::NotYetCollapsed);
    assert_eq!(told(MIB), Cause::BalloonHole, "taken and given back");
    assert_eq!(hole(false), Cause::NotBacked);
    let absent = |host: &mut Snapshot| {
        host.vms[0].regions[3] = Region { index: 3, ..Region::default() };
    };
    assert_eq!(cause(absent), Cause::NotBacked);
}

#[test]
fn slots_that_do_not_fit_two_mebibytes() {
    assert_eq!(cause(|host| host.vms[0].vm.slots[0].hva += 4096), Cause::SlotMisaligned);
    assert_eq!(cause(|host| host.vms[0].regions[3].partial = true), Cause::SlotMisaligned);
    let outside = |host: &mut Snapshot| {
        let vm = &mut host.vms[0];
        vm.vm.slots = vec![
            Slot { gpa: 0, hva: HVA, size: 6 * MIB },
            Slot { gpa: 8 * MIB, hva: HVA + 8 * MIB, size: 56 * MIB },
        ];
        vm.regions.remove(3);
    };
    let mut host = host();
    outside(&mut host);
    let forced = Options { force: true, vms: vec!["99".to_owned()], taken_at: None };
    let report = join(&[guest(&[512 * 3]), host], &forced).unwrap();
    assert_eq!(report.causes[0].cause, Cause::OutsideMemory);
}

#[test]
fn what_remains_when_the_cause_is_mended_is_named_too() {
    let mut both = host();
    both.vms[0].vm.slots[0].hva += 4096;
    area(&mut both).kind = Kind::File;
    let report = joined(both);
    let cause = &report.causes[0];
    assert_eq!((cause.cause, cause.behind), (Cause::SlotMisaligned, Some(Cause::FileWithoutThp)));
    assert_eq!(cause.behind_remedy, Some(Cause::FileWithoutThp.remedy()));
    let mut one = host();
    base(&mut one.vms[0].regions[3]);
    set(&mut one, "enabled", "never");
    assert_eq!(joined(one).causes[0].behind, None, "the same is not named twice");
}

#[test]
fn fragmentation_or_time() {
    assert_eq!(cause(|_| ()), Cause::NotYetCollapsed);
    assert_eq!(
        cause(|host| host.head.settings.zones[0].free = vec![1000; 9]),
        Cause::Fragmentation
    );
    let mostly = |host: &mut Snapshot| host.head.settings.zones[0].free[0] = 100_000;
    assert_eq!(cause(mostly), Cause::Fragmentation);
    assert_eq!(cause(|host| host.head.settings.zones.clear()), Cause::NotYetCollapsed);
}

#[test]
fn what_kvm_splits() {
    let mut logging = host();
    logging.vms[0].vm.dirty_logging = Some(true);
    assert_eq!(joined(logging).causes[0].cause, Cause::DirtyLogging);
    let stats = |small: u64, large: u64, nx: u64| {
        let mut host = host();
        let stats = &mut host.vms[0].vm.stats;
        for (name, value) in [("pages_4k", small), ("pages_2m", large), ("nx_lpage_splits", nx)] {
            stats.insert(name.to_owned(), value);
        }
        joined(host)
    };
    let concluded = stats(16_384, 0, 0);
    assert_eq!(concluded.causes[0].cause, Cause::DirtyLogging);
    assert!(concluded.notes[0].contains("dirty logging is concluded"), "{:?}", concluded.notes);
    assert_eq!(stats(16_384, 0, 5).causes[0].cause, Cause::NxHugePages);
    assert!(stats(200, 0, 0).causes.is_empty(), "hardly anything is mapped yet");
    let some = stats(16_384, 30, 2);
    assert!(some.causes.is_empty());
    assert!(some.notes[0].contains("nx_huge_pages has split 2 huge mappings"), "{:?}", some.notes);
}

#[test]
fn code_of_the_guest_is_what_nx_huge_pages_splits() {
    let judged = |splits: u64, executable: bool| {
        let mut top = guest(&[512 * 3, 512 * 4]);
        let mut code = top.processes[0].areas[0].clone();
        code.huge.remove(0);
        code.executable = executable;
        top.processes[0].areas[0].huge.remove(1);
        top.processes[0].areas.push(code);
        let mut host = host();
        for (name, value) in [("pages_4k", 2000), ("pages_2m", 9), ("nx_lpage_splits", splits)] {
            host.vms[0].vm.stats.insert(name.to_owned(), value);
        }
        join(&[top, host], &Options::default()).unwrap()
    };
    let report = judged(1, true);
    let cause = &report.causes[0];
    assert_eq!((cause.cause, cause.layer.as_str()), (Cause::NxHugePages, "L0"));
    assert_eq!((cause.ranges.as_slice(), report.totals.type2), (&[[8 * MIB, 10 * MIB]][..], 1));
    assert_eq!(report.totals.well_aligned, 1);
    assert_eq!(judged(0, true).totals.well_aligned, 2);
    assert_eq!(judged(1, false).totals.well_aligned, 2);
}

#[test]
fn the_guests_own_count_tells_what_its_balloon_did() {
    let judged = |taken: Option<u64>| {
        let mut top = guest(&[512 * 3]);
        top.head.settings.vmstat.extend(taken.map(|pages| ("balloon_inflate".to_owned(), pages)));
        let mut host = host();
        host.vms[0].vm.vmm.balloon = true;
        base(&mut host.vms[0].regions[3]);
        join(&[top, host], &Options::default()).unwrap().causes[0].cause
    };
    assert_eq!(judged(Some(512)), Cause::BalloonHole);
    assert_eq!(judged(Some(0)), Cause::NotYetCollapsed);
    assert_eq!(judged(None), Cause::NotYetCollapsed, "a balloon that may never have been used");
}

#[test]
fn every_cause_has_a_name_and_a_remedy_of_its_own() {
    let mut names: Vec<_> = Cause::ALL.iter().map(|cause| cause.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Cause::ALL.len());
    assert!(Cause::ALL.iter().all(|cause| !cause.remedy().contains('\n')));
}

#[test]
fn hidden_and_changing_pages_are_judged_by_nobody() {
    let mut host_uncertain = host();
    host_uncertain.vms[0].regions[3].uncertain = true;
    assert_eq!(joined(host_uncertain).totals.uncertain, 1);
    let mut hidden = host();
    hidden.vms[0].regions[3].runs.clear();
    assert_eq!(joined(hidden).totals.unknown, 1);
    let report = join(&[guest(&[0]), host()], &Options::default()).unwrap();
    assert_eq!((report.totals.unknown, report.processes[0].unjudged), (1, 1));
}

/// The huge pages of a nested guest in regions 3, 5 and 7, with L1 and L0. L0 has region 7 in base
/// pages, L1 region 5 in two halves, which L0 happens to put side by side again.
fn three_layers() -> [Snapshot; 3] {
    let mut l1 = host();
    l1.head.machine.virtual_machine = Some(true);
    l1.head.machine.boot_id = Some("l1".to_owned());
    l1.head.machine.ram = vec![(0, 64 * MIB)];
    l1.head.machine.uptime_ms = 2000;
    let l1_vm = &mut l1.vms[0];
    for (index, region) in (0u64..).zip(&mut l1_vm.regions) {
        region.runs = vec![Run::new(0, 512, 512 * ((index + 1) % 32))];
    }
    let halves = vec![Run::new(0, 256, 512 * 6), Run::new(256, 256, 512 * 20 + 256)];
    l1_vm.regions[5].class = Class::Scattered;
    l1_vm.regions[5].runs = halves;
    let mut l0 = host();
    l0.vms[0].regions[6].class = Class::Scattered;
    l0.vms[0].regions[6].runs = vec![Run::new(0, 256, 512 * 4000)];
    l0.vms[0].regions[20].class = Class::Scattered;
    l0.vms[0].regions[20].runs = vec![Run::new(256, 256, 512 * 4000 + 256)];
    base(&mut l0.vms[0].regions[8]);
    [guest(&[512 * 3, 512 * 5, 512 * 7]), l1, l0]
}

#[test]
fn three_layers_name_the_first_that_is_wrong_and_see_what_is_in_one_block() {
    let report = join(&three_layers(), &Options::default()).unwrap();
    let causes: Vec<_> =
        report.causes.iter().map(|c| (c.layer.as_str(), c.cause, c.ranges[0][0])).collect();
    assert_eq!(causes.len(), 2);
    assert!(causes.contains(&("L1", Cause::NotYetCollapsed, 10 * MIB)), "{causes:?}");
    assert!(causes.contains(&("L0", Cause::NotYetCollapsed, 14 * MIB)), "{causes:?}");
    let totals = report.totals;
    assert_eq!((totals.well_aligned, totals.pseudo_huge, totals.one_block), (1, 0, 1));
    assert!(!report.mappings_visible);
    assert_eq!((report.pairs[0].upper_huge, report.pairs[0].lower_huge), (3, 2));
    let names: Vec<_> = report.layers.iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!(names, ["L2", "L1", "L0"]);
}

#[test]
fn what_l0_says_it_maps_huge_is_well_aligned() {
    let mut layers = three_layers();
    let listing = |layers: &mut [Snapshot; 3], guest_frame, frame| {
        layers[2].vms[0].vm.lists_pseudo_huge = true;
        layers[2].vms[0].pseudo_huge = vec![PseudoHuge { guest_frame, frame, root: 7 }];
        join(&*layers, &Options::default()).unwrap()
    };
    let report = listing(&mut layers, 512 * 5, 512 * 4000);
    let totals = report.totals;
    assert_eq!((totals.well_aligned, totals.pseudo_huge, totals.one_block), (2, 1, 0));
    assert_eq!((totals.misaligned, report.causes.len()), (1, 1));
    assert_eq!((report.processes[0].well_aligned, report.processes[0].misaligned), (2, 1));
    assert_eq!(report.layers[2].vm.as_ref().unwrap().pseudo_huge, Some(1));
    assert!(report.mappings_visible);
    assert!((report.composite.huge - 2.0 / 3.0).abs() < 1e-9);
    assert!((report.composite.pseudo - 1.0 / 3.0).abs() < 1e-9);
    assert_eq!(report.composite.one_block, 0.0);
    let metrics = prometheus::text(&report);
    for line in [
        "strata_guest_huge_pages{guest=\"guest\",state=\"well_aligned\"} 2",
        "strata_pseudo_huge_pages{guest=\"guest\"} 1",
        "strata_one_block_pages{guest=\"guest\"} 0",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
    let judged = verdicts(&layers, &Options::default()).unwrap();
    assert_eq!(
        judged[1].verdict,
        Verdict::WellAligned { frame: Frame::new(512 * 4000), pseudo_huge: true }
    );

    // Another guest's page at this address, and another address: neither is this page.
    for (guest_frame, frame) in [(512 * 5, 512 * 4001), (512 * 4, 512 * 4000)] {
        let totals = listing(&mut layers, guest_frame, frame).totals;
        assert_eq!((totals.well_aligned, totals.pseudo_huge, totals.one_block), (1, 0, 1));
    }
    // It was listed, and then came apart.
    layers[2].vms[0].regions[20].runs[0] = Run::new(256, 256, 512 * 4001 + 256);
    let totals = listing(&mut layers, 512 * 5, 512 * 4000).totals;
    assert_eq!((totals.well_aligned, totals.pseudo_huge, totals.one_block), (1, 0, 0));
}

#[test]
fn a_page_that_two_processes_map_counts_once_in_the_totals() {
    let mut top = guest(&[512 * 3, 512 * 4]);
    let mut other = top.processes[0].clone();
    (other.pid, other.areas[0].huge) = (8, other.areas[0].huge[..1].to_vec());
    top.processes.push(other);
    top.usage = vec![Usage { index: 9, free: 512, ..Usage::default() }];
    let report = join(&[top, host()], &Options::default()).unwrap();
    assert_eq!((report.totals.huge, report.processes.len()), (2, 2));
    assert_eq!((report.pairs[0].lower_unused, report.pairs[0].lower_unused_free), (30, 1));
}

fn refusal(snapshots: &[Snapshot], options: &Options) -> String {
    let message = join(snapshots, options).unwrap_err().to_string();
    assert!(!message.contains('\n'));
    message
}

#[test]
fn snapshots_that_do_not_belong_together_are_refused() {
    let none = Options::default();
    let top = guest(&[512]);
    assert!(refusal(std::slice::from_ref(&top), &none).contains("two snapshots at least"));
    assert!(refusal(&[top.clone(), top.clone()], &none).contains("has no VM; give the snapshots"));
    let two = Options { vms: vec!["1".to_owned(), "2".to_owned()], force: false, taken_at: None };
    assert!(refusal(&[top.clone(), host()], &two).contains("2 VMs are chosen for 1 layers"));
    let wrong = Options { vms: vec!["1".to_owned()], force: false, taken_at: None };
    let message = refusal(&[top.clone(), host()], &wrong);
    assert!(message.contains("is '1'; choose with --vm PID|NAME|UUID: qemu (pid 99)"), "{message}");
    let mut same = host();
    same.head.machine.boot_id = Some("guest".to_owned());
    assert!(
        refusal(&[top.clone(), same.clone()], &none).contains("of the same machine; scan both")
    );
    let forced = Options { force: true, ..Options::default() };
    let notes = join(&[top.clone(), same], &forced).unwrap().notes;
    assert!(notes[0].contains("forced, although both snapshots"), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("concluded from the layout")), "{notes:?}");
    let mut real = top.clone();
    real.head.machine.virtual_machine = Some(false);
    assert!(refusal(&[real, host()], &none).contains("is no virtual machine"));
    let mut bigger = top.clone();
    bigger.head.machine.ram = vec![(0, 64 * MIB), (1 << 32, (1 << 32) + MIB)];
    assert!(refusal(&[bigger.clone(), host()], &none).contains("no VM of 'host' has the memory"));
    let only = join(&[bigger.clone(), host()], &forced).unwrap();
    assert!(only.notes.iter().any(|note| note.contains("forced, although the memory")));
    let chosen = Options { vms: vec!["99".to_owned()], force: false, taken_at: None };
    assert!(refusal(&[bigger, host()], &chosen).contains("not laid out as the guest's System RAM"));
    let mut later = host();
    later.vms[0].vm.started_ms = 100_000_000 + 200_000;
    assert!(refusal(&[top.clone(), later], &none).contains("after the guest's snapshot was taken"));
    let mut older = top;
    older.head.machine.uptime_ms = 10_000_000;
    let mut restarted = host();
    restarted.vms[0].vm.started_ms = 100_000_000 - 1000;
    assert!(refusal(&[older.clone(), restarted], &none).contains("guest had been up for 166 min"));
    // By their uptimes alone, whatever their clocks say.
    let mut young = host();
    young.vms[0].vm.started_ms = young.head.machine.uptime_ms - 60_000;
    let mut old = older;
    old.head.machine.uptime_ms = 65_000;
    assert!(
        join(&[old.clone(), young.clone()], &none).is_ok(),
        "clocks may differ by some seconds"
    );
    old.head.machine.uptime_ms = 90_000;
    let message = refusal(&[old, young], &none);
    assert!(message.contains("up for 90 s when qemu (pid 99) was 60 s old"), "{message}");
}

#[test]
fn vms_are_told_apart_by_uuid_name_or_not_at_all() {
    let mut two = host();
    let mut other = two.vms[0].clone();
    other.vm.pid = 100;
    other.vm.vmm.uuid = Some("12345678-1234-1234-1234-123456789abc".to_owned());
    other.vm.vmm.name = Some("vm2".to_owned());
    two.vms.push(other);
    let none = Options::default();
    let message = refusal(&[guest(&[512]), two.clone()], &none);
    assert!(
        message.contains("several VMs of 'host' could be 'guest'; choose with --vm"),
        "{message}"
    );
    assert!(message.contains("vm2 (pid 100) with 64 MiB, 12345678"), "{message}");
    let mut known = guest(&[512]);
    known.head.machine.product_uuid = two.vms[1].vm.vmm.uuid.clone();
    let by_uuid = join(&[known, two.clone()], &none).unwrap();
    assert!(by_uuid.layers[1].vm.as_ref().unwrap().matched.contains("by its UUID"));
    for wanted in ["vm2", "100", "12345678-1234-1234-1234-123456789ABC"] {
        let options = Options { vms: vec![wanted.to_owned()], force: false, taken_at: None };
        let report = join(&[guest(&[512]), two.clone()], &options).unwrap();
        assert_eq!(report.layers[1].vm.as_ref().unwrap().vm, "vm2 (pid 100)");
    }
}

#[test]
fn clocks_and_delays_are_told() {
    let mut late = host();
    late.head.machine.wall_ns += 600_000_000_000;
    let report = joined(late);
    assert!(
        report.notes[0].contains("are 600 s apart") || report.notes[0].contains("10 min"),
        "{:?}",
        report.notes
    );
    assert_eq!(report.layers[1].after_upper_ms, Some(600_500));
    assert!(report.layers[1].by_own_clocks);
    // Who took the snapshots knows better.
    let known = Options { taken_at: Some(vec![1.0, 3.5]), ..Options::default() };
    let mut late = host();
    late.head.machine.wall_ns += 600_000_000_000;
    let layer = join(&[guest(&[512]), late], &known).unwrap().layers.remove(1);
    assert_eq!((layer.after_upper_ms, layer.by_own_clocks), (Some(2500), false));
    let mut unset = guest(&[512]);
    unset.head.machine.wall_ns = 5;
    let report = join(&[unset, host()], &Options::default()).unwrap();
    assert!(report.notes[0].contains("the time between the snapshots is not known"));
    assert_eq!(report.layers[1].after_upper_ms, None);
}
