//! L0's kernel with alignment makes huge pages of what L1 scatters, and leaves everything alone until it
//! is switched on.

use crate::common::scene::{Scene, Steps, counts, numbers, step, steps, three_layers};
use crate::common::{alone, asked_for, machine, rise, tell_alignment};
use strata_lab::{KernelVariant, LabReport, Make, Memory};

/// L0's kernel, and the parameters of its KVM.
type Kernel = (KernelVariant, &'static str);
const VANILLA: Kernel = (KernelVariant::Vanilla, "");
const OURS: Kernel = (KernelVariant::Aligned, "nested_align=1 nested_align_cpu_percent=100");
/// Huge pages of L1 and of L2: L1 maps its guest with base pages only.
const SCATTERED: [&str; 2] = ["never", "always"];

/// Runs these steps.
fn run((kernel, parameters): Kernel, thp: [&str; 2], steps: Steps) -> LabReport {
    three_layers(kernel, parameters, thp).then(steps).run(&kernel.to_string())
}

/// A program of L2 that touches memory.
fn touch() -> Steps {
    steps().run("strata-agent touch --size=96M --accesses=100000 --stay").stay().scan()
}

/// Share of L2's huge pages that are well aligned: mapped huge by L0, whatever L1 has.
fn well_aligned(report: &LabReport) -> f64 {
    let join = report.alignment.as_ref().expect("all layers were scanned");
    let totals = join.totals;
    assert!(totals.huge >= 40, "{totals:?}");
    // The kernel with alignment tells what it maps huge, and no other does.
    let lists = report.layers[0].after.kvm.contains_key("nested_align_pseudo_huge");
    assert_eq!(join.mappings_visible, lists);
    assert!(lists || totals.pseudo_huge == 0, "{totals:?}");
    totals.well_aligned as f64 / totals.huge as f64
}

/// Share of L2's huge pages that lie on one aligned block of HPA, mapped huge or not.
fn in_a_row(report: &LabReport) -> f64 {
    let totals = report.alignment.as_ref().expect("all layers were scanned").totals;
    well_aligned(report) + totals.one_block as f64 / totals.huge as f64
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn scattered_memory_is_put_in_a_row_and_mapped_huge() {
    let _machine = machine();
    let vanilla = run(VANILLA, SCATTERED, touch());
    assert!(in_a_row(&vanilla) < 0.05, "{}", in_a_row(&vanilla));
    let ours = run(OURS, SCATTERED, touch());
    assert!(well_aligned(&ours) >= 0.95, "{}", well_aligned(&ours));
    // 2 MiB entries stand for it, and one exit filled most of each.
    let regions = 96 / 2;
    assert!(rise(&ours, "nested_align_promoted") >= regions * 95 / 100);
    assert!(ours.layers[0].after.kvm("nested_align_pseudo_huge") >= regions * 95 / 100);
    assert!(rise(&ours, "nested_align_populated") > regions * 400);
    // Of vanilla's faults those remain that L1 has to answer, one for each page; L0 hardly adds to them.
    let faults = |report: &LabReport| [rise(report, "pf_taken"), rise(report, "pf_fixed")];
    let ([vanilla_taken, vanilla_fixed], [taken, fixed]) = (faults(&vanilla), faults(&ours));
    println!("faults taken: {vanilla_taken} and {taken}; fixed: {vanilla_fixed} and {fixed}");
    let answered = regions * 512;
    let added = [vanilla_taken, taken].map(|taken| taken.saturating_sub(answered));
    assert!(added[1] * 4 < added[0], "{added:?} besides {answered}");
    assert!(fixed * 4 < vanilla_fixed, "{vanilla_fixed} and {fixed}");
}

/// More than this share is not in a row by chance: what L1 frees after its memory was fragmented makes up to 23 huge pages, of the
/// program's 49.
const BY_CHANCE: f64 = 0.75;

/// A scenario of the documentation, with less memory: no huge page is free in L1, and few in L0.
fn fragmented(name: &str, kernel: KernelVariant) -> Scene {
    let in_l0 = strata_lab::Kernel::Lab(kernel);
    Scene::shipped(name).layer(0, |l0| l0.kernel = in_l0).touching("96M")
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn fragmented_memory_is_put_in_a_row_within_ten_seconds() {
    let run = |kernel| fragmented("scattered", kernel).reading_on().run("scattered");
    let machine = machine();
    let vanilla = run(KernelVariant::Vanilla);
    drop(machine);
    let _machine = alone();
    let ours = run(KernelVariant::Aligned);
    let entries = ours.layers[0].after.kvm("nested_align_pseudo_huge");
    let (by_chance, whole) = (in_a_row(&vanilla), well_aligned(&ours));
    println!("in a row: {by_chance}; well aligned: {whole}; {entries} entries");
    for report in [&vanilla, &ours] {
        let fmfi: Vec<f64> = report.layers.iter().map(|layer| layer.before.fmfi).collect();
        let counts = ["pf_taken", "pf_fixed", "exits"].map(|name| (name, rise(report, name)));
        println!("FMFI {fmfi:?}; {counts:?}");
        assert!(fmfi[0] >= 0.5 && fmfi[1] >= 0.9, "{fmfi:?}");
    }
    assert!(by_chance < BY_CHANCE, "{by_chance}");
    assert!(whole >= 0.95, "{whole}");
    assert!(entries >= 96 / 2 * 95 / 100);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn fragmented_memory_that_l1_has_backed_is_mapped_huge_at_once() {
    let _machine = machine();
    // What the second touch of the memory takes: "FILE:COUNT" of exits and faults, before and after.
    let second = |kernel| {
        let report = fragmented("refill", kernel).run("refill");
        let [before, after] = ["before the second touch", "after the second touch"]
            .map(|id| counts(&report, id).into_iter().map(|(_, count)| count).collect::<Vec<_>>());
        let taken: Vec<u64> = before.iter().zip(after).map(|(before, now)| now - before).collect();
        println!("exits, faults fixed and taken: {taken:?}; in a row: {}", in_a_row(&report));
        (taken, report)
    };
    let (vanilla, by_chance) = second(KernelVariant::Vanilla);
    let (ours, report) = second(KernelVariant::Aligned);
    assert!(in_a_row(&by_chance) < BY_CHANCE, "{}", in_a_row(&by_chance));
    assert!(well_aligned(&report) >= 0.9, "{}", well_aligned(&report));
    let [[exits, fixed, taken], [vanilla_exits, vanilla_fixed, vanilla_taken]] =
        [ours, vanilla].map(|counts| <[u64; 3]>::try_from(counts).expect("three counts"));
    // A region of 512 pages takes a fault or two, and L1 none.
    assert!(fixed * 3 < vanilla_fixed, "{fixed} and {vanilla_fixed}");
    assert!(taken * 3 < vanilla_taken, "{taken} and {vanilla_taken}");
    // Other exits come by the clock, by the thousand on a slow machine: how many of faults are gone, the
    // faults say.
    assert!(exits < vanilla_exits, "{exits} and {vanilla_exits} exits");
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn tables_of_five_levels_lead_to_the_same() {
    if asked_for() == Some(Make::Intel) {
        return println!("not run: Bochs's processor has tables of four levels");
    }
    let _machine = machine();
    let (kernel, parameters) = OURS;
    // L1's kernel has the flag only if it uses five levels, and then KVM in it gives L2 as many.
    let flag = steps().run("/bin/busybox grep -c la57 /proc/cpuinfo").layer(1).id("flag");
    let scene = three_layers(kernel, parameters, SCATTERED)
        .layer(0, |l0| {
            l0.vmm.arguments = ["-cpu", "EPYC,+svm,+npt,+vgif,+la57"].map(Into::into).into()
        })
        .then(touch())
        .then(flag);
    let report = scene.run(&kernel.to_string());
    assert_eq!(step(&report, "flag").output, ["1"]);
    assert!(well_aligned(&report) >= 0.95, "{}", well_aligned(&report));
    assert!(report.layers[0].after.kvm("nested_align_pseudo_huge") >= 96 / 2 * 95 / 100);
}

/// What makes KVM in L0 drop all its tables, and how much it fills them while a program touches the
/// memory that others left. There are two of these and they have more: L2's kernel need not give the second
/// what the first had, and L1 is to have backed all that the last one gets. What L1 and L2 need themselves
/// to start a program comes back with a small one before.
fn dropped() -> Steps {
    let counts = "cd /sys/kernel/debug/kvm; grep -s . pf_fixed nested_align_filled";
    let drop =
        "cd /sys/module/kvm/parameters; echo force > nx_huge_pages; echo off > nx_huge_pages";
    steps()
        .run("strata-agent touch --size=288M")
        .run("strata-agent touch --size=288M")
        .sleep(5.0)
        .shell(0, drop)
        .run("strata-agent touch --size=4M")
        .sleep(3.0)
        .shell(0, counts)
        .id("before")
        .run("strata-agent touch --size=256M --stay")
        .stay()
        .shell(0, counts)
        .id("after")
        .run("/bin/busybox cat /sys/kernel/debug/kvm/nested_align_pseudo_huge")
        .layer(0)
        .id("entries")
        .scan()
}

/// Faults while the last program touched its memory, and the report. Those on pages that L1 had not backed
/// are left out: L2's kernel may need some more for itself, and L1 with huge pages has backed them with others.
fn refill(kernel: Kernel, l1_thp: &str) -> (u64, LabReport) {
    let report = run(kernel, [l1_thp, "always"], dropped());
    let count = |id: &str, name: &str| {
        let counts = counts(&report, id);
        counts.into_iter().find(|(file, _)| *file == name).map_or(0, |(_, count)| count)
    };
    let [(before, filled_before), (after, filled)] =
        ["before", "after"].map(|id| (count(id, "pf_fixed"), count(id, "nested_align_filled")));
    println!("{kernel:?}: {} fixed, {} of them new", after - before, filled - filled_before);
    assert!(before > 0);
    (after - before - (filled - filled_before), report)
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn memory_that_l1_has_backed_takes_no_more_faults_than_huge_pages_of_l1() {
    let _machine = machine();
    let (huge, _) = refill(VANILLA, "always");
    let (base, _) = refill(VANILLA, "never");
    let (ours, report) = refill(OURS, "never");
    println!("faults: {huge} with huge pages in L1, {base} without, {ours} without and aligned");
    assert!(ours * 10 <= huge * 12, "{ours} and {huge}");
    assert!(base > 3 * huge, "{base} and {huge}");
    // At once, and not when the worker comes by: 2 MiB entries as soon as all is touched.
    assert!(well_aligned(&report) >= 0.9, "{}", well_aligned(&report));
    let [entries] = numbers(&report, "entries")[..] else { panic!("one number") };
    println!("{entries} entries of 2 MiB right after the touch of 128");
    assert!(entries * 100 >= 128 * 90, "{entries}");
}

/// Two guests of L1, then one after one of them died.
fn guests() -> Steps {
    let guest = steps().guest(1, Memory::mib(400), "strata-agent touch --size=48M --stay");
    let one_after_the_other = guest.die(45.0).times(2);
    // A sample or two after the second death, too.
    let first = steps().run("strata-agent touch --size=96M --stay").stay();
    first.then(one_after_the_other).sleep(3.0).scan()
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn guests_beside_and_after_each_other_are_aligned() {
    let _machine = alone();
    let report = run(OURS, SCATTERED, guests());
    // The first guest, all the time.
    assert!(well_aligned(&report) >= 0.95, "{}", well_aligned(&report));
    // The second as well: 2 MiB entries for its program, until it dies and takes them along; and the same
    // once more.
    let entries: Vec<u64> = report.layers[0]
        .samples
        .iter()
        .map(|sample| sample.kvm("nested_align_pseudo_huge"))
        .collect();
    let whole = 48 / 2 * 95 / 100;
    let (mut lives, mut peak) = (0, 0);
    for &now in &entries {
        peak = peak.max(now);
        if peak - now >= whole {
            lives += 1;
            peak = now;
        }
    }
    assert_eq!(lives, 2, "{entries:?}");
}

/// Two machines of L0 that each have a guest. The first one's worker may move nothing from when its guest's
/// memory is in a row; the second one comes then, and dies.
fn machines() -> Steps {
    let touch = |size| format!("strata-agent touch --size={size} --accesses=100000 --stay");
    steps()
        .run(&touch("96M"))
        .stay()
        .sleep(10.0)
        .write(0, "/sys/kernel/debug/kvm/*/nested_align_cpu_percent", "0")
        .guest(0, Memory::mib(700), &touch("48M"))
        .nested(Memory::mib(400))
        .die(90.0)
        .scan()
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn machines_beside_each_other_are_aligned_each_within_its_budget() {
    let _machine = machine();
    let (kernel, parameters) = OURS;
    // The second machine's L1 comes up by itself: its kernel has KVM built in.
    let scene = three_layers(kernel, parameters, SCATTERED)
        .layer(1, |l1| l1.kernel = strata_lab::Kernel::Lab(KernelVariant::Vanilla))
        .then(machines());
    let report = scene.run(&kernel.to_string());
    let samples = &report.layers[0].samples;
    let entries: Vec<u64> =
        samples.iter().map(|sample| sample.kvm("nested_align_pseudo_huge")).collect();
    println!("{entries:?}");
    let [first_whole, second_whole] = [96, 48].map(|mib| mib / 2 * 95 / 100);
    let (first, most) =
        (report.layers[0].after.kvm("nested_align_pseudo_huge"), entries.iter().max());
    assert!(first >= first_whole, "{entries:?}");
    assert!(most >= Some(&(first + second_whole)), "{first} of {entries:?}");
    assert!(well_aligned(&report) >= 0.95, "{}", well_aligned(&report));
}

/// What a run counted, by name.
type Counts = Vec<(&'static str, u64)>;

/// Runs of each kernel until two are taken to differ.
const RUNS: usize = 4;

/// Compares what both kernels count. Ticks of L1 and L2 come by the clock, and runs of one kernel differ in what L1
/// happens to touch of its memory, and L2 by a region of 512 pages: no two are equal in all. So the kernels differ where no
/// run of the one is like one of the other in all counts. All but the first of each boot anew: machines that go on from a
/// kept one have the same boot in their counts.
fn compare(
    ours: Kernel,
    (thp, steps): ([&str; 2], Steps),
    count: impl Fn(&LabReport) -> Counts,
    differ: impl Fn(u64, u64) -> bool,
) {
    let run = |known: &mut Vec<Counts>, (kernel, parameters): Kernel| {
        let scene = three_layers(kernel, parameters, thp).then(steps.clone());
        let name = kernel.to_string();
        let report = if known.is_empty() { scene.run(&name) } else { scene.run_afresh(&name) };
        let counts = count(&report);
        println!("{name}: {counts:?}");
        known.push(counts);
    };
    let alike = |vanilla: &Counts, ours: &Counts| {
        let pairs = vanilla.iter().zip(ours);
        pairs.into_iter().all(|((_, vanilla), (_, ours))| !differ(*vanilla, *ours))
    };
    let (mut vanilla, mut aligned) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        run(&mut vanilla, VANILLA);
        run(&mut aligned, ours);
        if vanilla.iter().any(|one| aligned.iter().any(|other| alike(one, other))) {
            return;
        }
    }
    panic!("no two of {RUNS} runs of each are alike");
}

/// Counters of KVM that do not go by the clock.
const STEADY: [&str; 4] = ["pf_fixed", "pf_taken", "mmu_shadow_zapped", "pages_4k"];

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn switched_off_it_does_nothing() {
    let _machine = machine();
    let count = |report: &LabReport| {
        for (name, count) in &report.layers[0].after.kvm {
            if name.starts_with("nested_align_") {
                assert_eq!(*count, 0, "{name}");
            }
        }
        STEADY.iter().map(|name| (*name, rise(report, name))).collect()
    };
    let off = (KernelVariant::Aligned, "nested_align=0");
    compare(off, (SCATTERED, touch()), count, |vanilla, off| {
        vanilla.abs_diff(off) * 100 > vanilla.min(off) * 2
    });
}

/// What L0 does while a program's memory is in a row: the entries are counted, taken away for this VM, and
/// made once more without any means to move a page.
fn switched() -> Steps {
    let counts = "\
set -e
cd /sys/kernel/debug/kvm
echo 0 > /sys/module/kvm/parameters/nested_align_cpu_percent
count() { cat nested_align_pseudo_huge nested_align_steered; }
count
for vm in *-*/nested_align; do echo 0 > $vm; done
sleep 3
count
for vm in *-*/nested_align; do echo 1 > $vm; done
sleep 3
count
echo 0 > /sys/module/kvm/parameters/nested_align
sleep 3
count
";
    steps()
        .run("strata-agent touch --size=96M --stay")
        .stay()
        .sleep(3.0)
        .shell(0, counts)
        .id("counts")
        .scan()
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn switching_off_takes_entries_away_and_leaves_frames_in_a_row() {
    let _machine = machine();
    let report = run(OURS, SCATTERED, switched());
    let step = step(&report, "counts");
    assert_eq!(step.status, Some(0), "{step:?}");
    let counts = numbers(&report, "counts");
    println!("{counts:?}");
    let [entries, moved, none, moved_2, again, moved_3, over, _] = counts[..] else {
        panic!("{counts:?}")
    };
    assert!(entries >= 96 / 2 * 95 / 100, "{counts:?}");
    assert_eq!([none, over], [0, 0], "{counts:?}");
    assert!(again >= 96 / 2 * 95 / 100, "{counts:?}");
    assert_eq!([moved, moved_2], [moved_3; 2], "{counts:?}");
    // The join tells the two apart.
    assert!(well_aligned(&report) < 0.05 && in_a_row(&report) >= 0.95, "{}", in_a_row(&report));
}

/// No VM may move a page of memory that a program touches, and then this one may.
fn own_budget() -> Steps {
    let counts = "\
set -e
cd /sys/kernel/debug/kvm/*-*
refused() { if echo $1 > nested_align_cpu_percent; then exit 1; fi; }
count() { cat nested_align_cpu_percent nested_align_steered; }
sleep 3
count
sleep 3
refused -2
refused 4294967296
count
before=$(cat nested_align_steered)
echo 50 > nested_align_cpu_percent
for second in $(seq 40); do
    sleep 1
    [ $(($(cat nested_align_steered) - before)) -lt 20480 ] || break
done
count
echo -1 > nested_align_cpu_percent
count
cat /sys/module/kvm/parameters/nested_align_cpu_percent
";
    steps()
        .shell(0, "echo 0 > /sys/module/kvm/parameters/nested_align_cpu_percent")
        .run("strata-agent touch --size=96M --stay")
        .stay()
        .shell(0, counts)
        .id("counts")
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn a_vm_may_have_a_budget_of_its_own() {
    let _machine = machine();
    let report = run(OURS, SCATTERED, own_budget());
    let step = step(&report, "counts");
    assert_eq!(step.status, Some(0), "{step:?}");
    let counts = numbers(&report, "counts");
    println!("{counts:?}");
    let [none, moved, none_2, moved_2, own, moved_3, none_3, _, everyone] = counts[..] else {
        panic!("{counts:?}")
    };
    assert_eq!([none, none_2, own, none_3, everyone], [-1, -1, 50, -1, 0], "{counts:?}");
    assert_eq!(moved, moved_2, "{counts:?}");
    // The program's 48 regions, but for what was in a row by chance.
    assert!(moved_3 - moved_2 >= 40 * 512, "{counts:?}");
}

/// L1 maps its guest with huge pages, and L0 has none for it until a program has touched its memory; then it
/// may, and its tables are dropped.
fn small_below() -> Steps {
    let allow = "\
echo 600000 > /sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs
echo always > /sys/kernel/mm/transparent_hugepage/enabled
cd /sys/module/kvm/parameters; echo force > nx_huge_pages; echo off > nx_huge_pages
";
    steps()
        .run("strata-agent touch --size=96M")
        .shell(0, allow)
        .run("strata-agent touch --size=96M --accesses=100000 --stay")
        .stay()
        .sleep(10.0)
        .scan()
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn memory_that_l1_maps_huge_is_made_huge_below() {
    let _machine = machine();
    let below = |(kernel, parameters): Kernel| {
        let scene = three_layers(kernel, parameters, ["always", "always"])
            .layer(0, |l0| l0.thp = Some("never".into()))
            .then(small_below());
        let report = scene.run(&kernel.to_string());
        println!("{}: {}", kernel, in_a_row(&report));
        report
    };
    assert!(in_a_row(&below(VANILLA)) < 0.2);
    let ours = below(OURS);
    tell_alignment(&ours);
    assert!(well_aligned(&ours) >= 0.9, "{}", well_aligned(&ours));
    assert!(rise(&ours, "nested_align_collapsed") >= 40);
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn tracepoints_tell_what_counters_count() {
    let _machine = machine();
    let (kernel, parameters) = OURS;
    let counted = [("promote", "promoted"), ("book", "bookings"), ("fill", "filled")];
    let events = counted.map(|(event, _)| format!("kvm_nested_align:nested_align_{event}"));
    let scene = three_layers(kernel, parameters, SCATTERED)
        .layer(0, |l0| {
            l0.trace_events = toml::Value::from(events.to_vec()).try_into().unwrap();
        })
        .then(touch());
    let report = scene.run(&kernel.to_string());
    let (before, after) = (&report.layers[0].before, &report.layers[0].after);
    println!("{:?}", after.events);
    for (event, (_, counter)) in events.iter().zip(counted) {
        let seen = after.events[event] - before.events.get(event).unwrap_or(&0);
        assert_eq!(seen, rise(&report, &format!("nested_align_{counter}")), "{event}");
        assert!(seen > 0, "{event}");
    }
}

/// A small program of L2.
fn small() -> Steps {
    steps().run("strata-agent touch --size=16M")
}

#[test]
#[ignore = "boots real kernels: make lab-test"]
fn where_nothing_is_to_be_gained_it_costs_nothing() {
    let _machine = machine();
    // L1 has huge pages for its guest, and L2 none for its programs.
    let count = |report: &LabReport| {
        let after = &report.layers[0].after;
        tell_alignment(report);
        // From the boot of L0 on: L1's and L2's are in it. Pages of 2 MiB are no cost, what they
        // hold is in the memory. Most other exits come by the clock.
        let mut counts: Counts = STEADY.iter().map(|name| (*name, after.kvm(name))).collect();
        let violation = match report.machine.make {
            Make::Amd => "NPF",
            Make::Intel => "EPT_VIOLATION",
        };
        counts.push(("exits by second-stage violations", after.exits[violation]));
        // How many free pages processors keep on lists of their own, the kernel learns from what comes and goes.
        let free = after.free_bytes + after.listed_bytes;
        counts.push(("used bytes", after.memory_bytes - free));
        counts
    };
    // Less is no cost.
    let scene = (["always", "never"], small());
    compare(OURS, scene, count, |vanilla, ours| ours * 100 > vanilla * 102);
}
