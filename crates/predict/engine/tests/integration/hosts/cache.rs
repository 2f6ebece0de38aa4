//! The last-level cache that VMs share: ways set apart for them, whose lines they put out, causes of misses.

use super::world::{Vm, common, host, of, together, vm};
use strata_engine::report::LastLevel;
use strata_engine::{Colours, GuestOutcome, HostOutcome, HostSetup, LlcSetup, Setup, StackKind};
use strata_hardware::{CacheGeometry, Caches, CpuModel, SliceHash, WayMask};

const WAYS: u32 = 8;

/// The common setup with a last-level cache of 8 ways and 256 KiB and no others.
fn cached(llc: LlcSetup) -> Setup {
    let common = common();
    let cpu = common.cpu.clone();
    let geometry = CacheGeometry { bytes: 256 << 10, ways: WAYS, ..cpu.cache.llc };
    Setup { cpu: CpuModel { cache: Caches { llc: geometry, ..cpu.cache }, ..cpu }, llc, ..common }
}

fn mask(bits: u64) -> Option<WayMask> {
    Some(WayMask::new(bits).expect("it is a mask"))
}

/// Two VMs that each read more than the cache holds, with these ways.
fn two(ways: [Option<WayMask>; 2]) -> [Vm; 2] {
    let mut vms =
        ["a", "b"].map(|name| vm(name, StackKind::Vm, "base", "random:size=1MiB,accesses=40k"));
    for (vm, ways) in vms.iter_mut().zip(ways) {
        vm.setup.llc_ways = ways;
    }
    vms
}

fn llc(guest: &GuestOutcome) -> &LastLevel {
    guest.run.llc.as_ref().expect("the cache is modelled in detail")
}

fn of_both(outcome: &HostOutcome) -> [&LastLevel; 2] {
    ["a", "b"].map(|vm| llc(of(outcome, vm)))
}

#[test]
fn vms_with_ways_of_their_own_put_nothing_of_each_other_out() {
    // Side by side, and in turn on one core, which then fills for whoever has it.
    for one_core in [false, true] {
        let mut vms = two([mask(0b11), mask(0b1111_1100)]);
        if one_core {
            vms = vms.map(|vm| vm.on(0));
        }
        let outcome = together(cached(LlcSetup::default()), None, &vms);
        for (llc, ways) in of_both(&outcome).into_iter().zip([2, 6]) {
            assert!(llc.evicted_others.is_empty(), "{llc:?}");
            assert!(llc.evicted_own > 0 && llc.misses < llc.reads, "{llc:?}");
            assert_eq!(llc.held_bytes, u64::from(ways) * (256 << 10) / u64::from(WAYS));
            assert_eq!(llc.ways, ways);
        }
        let [few, many] = of_both(&outcome);
        assert!(few.misses > many.misses, "{} {}", few.misses, many.misses);
    }
}

#[test]
fn vms_that_share_ways_put_out_lines_of_each_other() {
    let outcome = together(
        cached(LlcSetup { classify: true, ..LlcSetup::default() }),
        None,
        &two([None, None]),
    );
    let [a, b] = of_both(&outcome);
    assert!(a.evicted_others["b"] > 1000 && b.evicted_others["a"] > 1000, "{a:?} {b:?}");
    for llc in [a, b] {
        assert!((1..=256 << 10).contains(&llc.held_bytes), "{llc:?}");
        let causes = llc.data_misses.unwrap().total() + llc.walk_misses.unwrap().total();
        assert_eq!(causes, llc.misses);
    }
}

/// The host gives each VM's colours real ones of its own, as long as there are some: a cache divided by colour.
/// What is left are the lines of page tables, which nobody colours.
#[test]
fn vms_told_of_a_part_of_the_cache_keep_to_it_where_the_host_cares() {
    let others = |policy: &str, vllc: Option<u32>| {
        let vms = two([None, None]).map(|mut vm| {
            vm.setup.policy = policy.to_owned();
            vm.setup.vllc = vllc.and_then(Colours::counted);
            vm
        });
        let outcome =
            together(cached(LlcSetup { classify: true, ..LlcSetup::default() }), None, &vms);
        let of_both = of_both(&outcome);
        for vm in ["a", "b"] {
            let violations = of(&outcome, vm).run.counters.get("strata.colour_violations").copied();
            assert_eq!(violations, (policy == "coplace").then_some(0));
        }
        of_both.iter().flat_map(|llc| llc.evicted_others.values()).sum::<u64>()
    };
    // The cache has 8 colours.
    let (apart, together, ignored) =
        (others("coplace", Some(4)), others("coplace", None), others("base", Some(4)));
    assert!(20 * apart < together, "{apart} {together}");
    assert!(20 * apart < ignored, "{apart} {ignored}");
}

#[test]
fn who_is_named_first_matters_to_nobody() {
    let [a, b] = two([mask(0b111), None]);
    let setup = || cached(LlcSetup { as_cpu: true, classify: true, ..LlcSetup::default() });
    let one = together(setup(), None, &[a.clone(), b.clone()]);
    let other = together(setup(), None, &[b, a]);
    for vm in ["a", "b"] {
        assert_eq!(of(&one, vm).run, of(&other, vm).run);
    }
}

/// As in resctrl, where a class of service is of the threads of the VM that the host sees.
#[test]
fn vms_in_a_vm_have_its_ways() {
    let [mut a, mut b] = two([None, None]);
    let mut hypervisor = a.clone();
    hypervisor.setup.name = "h".to_owned();
    hypervisor.setup.workload = None;
    hypervisor.setup.memory = None;
    hypervisor.setup.llc_ways = mask(0b1000);
    for vm in [&mut a, &mut b] {
        vm.setup.within = Some("h".to_owned());
    }
    let vms = [a.clone(), b, hypervisor.clone()];
    let outcome = together(cached(LlcSetup::default()), None, &vms);
    for llc in of_both(&outcome) {
        assert_eq!((llc.mask.as_str(), llc.ways), ("0x8", 1));
    }
    a.setup.llc_ways = mask(1);
    let setups = vec![a.setup, hypervisor.setup];
    let why = HostSetup::shared(cached(LlcSetup::default()), None, setups).unwrap_err().to_string();
    assert!(why.contains("give llc-ways to 'h'"), "{why}");
}

#[test]
fn what_no_cache_can_be_is_refused_with_the_vms_name() {
    let wide = two([mask(0x1ff), None]);
    let setup = host(cached(LlcSetup::default()), None, &wide);
    let open = |_: &str| unreachable!("it is refused before");
    let why = strata_engine::Host::new(&setup, &open, &Default::default()).err().unwrap();
    let why = why.to_string();
    assert!(why.starts_with("VM 'a'") && why.contains("beyond the 8 ways"), "{why}");

    let mut odd = cached(LlcSetup { as_cpu: true, ..LlcSetup::default() });
    odd.cpu.cache.llc_design.slices = 20;
    odd.cpu.cache.llc_design.hash = SliceHash::Intel;
    let setup = host(odd, None, &two([None, None]));
    let why = strata_engine::Host::new(&setup, &open, &Default::default()).err().unwrap();
    assert!(why.to_string().contains("take hash even"), "{why}");
}
