//! What cache colours cost a scan and a join: `cargo bench -p strata-inspect`.
//!
//! A made-up snapshot of a VM of 64 GiB in base pages, each in a frame of its own, so that every run is of one
//! page: the most that there can be. Prints what each step takes with the caches known and without, which is
//! without colours. Nothing here fails for being slow. Without `--bench`, as `cargo test` calls it, the VM is
//! small.

use std::hint::black_box;
use std::time::Instant;
use strata_inspect::snapshot::hot::{HotRegion, Pages, Watched};
use strata_inspect::snapshot::model::{CpuCache, Machine, Slot, Vm};
use strata_inspect::snapshot::region::{Class, Region, Run};
use strata_inspect::{BackedVm, Options, Snapshot, join, vm_accounts};

const REGIONS_OF_A_GIB: u64 = 512;

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let (gib, rounds) = if full { (64, 3) } else { (1, 1) };
    let guest = guest(gib);
    for (vms, hot) in [(1, false), (1, true), (4, false)] {
        let mut host = host(gib / vms, vms);
        if hot {
            watch(&mut host);
        }
        let what = format!("{vms} VMs of {} GiB{}", gib / vms, if hot { ", watched" } else { "" });
        let with = caches();
        let time = |name: &str, work: &dyn Fn(&[Snapshot; 2])| {
            let of = |caches: &[CpuCache]| {
                // The guest has the host's caches.
                let mut layers = [guest.clone(), host.clone()];
                for layer in &mut layers {
                    layer.head.settings.caches = caches.to_vec();
                }
                let rounds = (0..rounds).map(|_| {
                    let started = Instant::now();
                    work(&layers);
                    started.elapsed().as_secs_f64()
                });
                rounds.fold(f64::INFINITY, f64::min)
            };
            let (without, with) = (of(&[]), of(&with));
            println!(
                "{name:20} {what:22} {without:7.3} s without colours, {with:7.3} s with: {:6.3} s \
                 more, {:5.2} times",
                with - without,
                with / without
            );
        };
        time("accounts of a scan", &|[_, host]| drop(black_box(vm_accounts(host))));
        if vms == 1 {
            time("join", &|layers| {
                let options = Options { vms: Vec::new(), force: true, taken_at: None };
                drop(black_box(join(layers, &options).expect("it is one VM")));
            });
        }
    }
}

/// An L2 of 16 colours, and an L3 of 20 slices of 32.
fn caches() -> Vec<CpuCache> {
    let cache = |level, sets, ways| CpuCache {
        level,
        kind: "Unified".into(),
        sets,
        ways,
        line_bytes: 64,
        cpus: "0".into(),
        complex_index: None,
    };
    vec![cache(2, 1024, 16), cache(3, 20 * 2048, 11)]
}

fn guest(gib: u64) -> Snapshot {
    let mut guest = Snapshot::default();
    guest.head.machine =
        Machine { ram: vec![(0, gib << 30)], memory: gib << 30, ..Machine::default() };
    guest
}

/// VMs side by side, with frames that are nowhere neighbours.
fn host(gib: u64, vms: u64) -> Snapshot {
    let mut host = Snapshot::default();
    let mut bits = 1u64;
    for pid in 0..vms {
        let region = |index: u64| {
            let runs = (0..512).map(|page| {
                bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                Run::new(page, 1, bits >> 36 | 1)
            });
            let runs = runs.collect();
            Region { index, class: Class::Scattered, present: 512, runs, ..Region::default() }
        };
        let regions = (0..gib * REGIONS_OF_A_GIB).map(region).collect();
        let vm = Vm {
            pid: pid as u32 + 1,
            comm: "vmm".into(),
            slots: vec![Slot { gpa: 0, hva: 1 << 40, size: gib << 30 }],
            ..Vm::default()
        };
        host.vms.push(BackedVm { vm, regions, ..BackedVm::default() });
    }
    host
}

/// Half of all pages are hot, none beside another.
fn watch(host: &mut Snapshot) {
    for vm in &mut host.vms {
        vm.vm.watched = Some(Watched::default());
        let used = Pages([0x5555_5555_5555_5555; 8]);
        let hot = |region: &Region| HotRegion { index: region.index, watched: Pages::ALL, used };
        vm.hot = vm.regions.iter().map(hot).collect();
    }
}
