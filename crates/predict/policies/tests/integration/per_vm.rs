//! Policies side by side on one host: what concerns a VM is the affair of its own, and the host does what all of
//! them need.

use crate::made;
use crate::world::{Op, PAGES, World};
use strata_colours::{Colours, VirtualCache};
use strata_policies::PerVm;
use strata_stack::{NodeId, Policy, Position};

const HOST: Position = Position { node: NodeId::HOST, level: 0, vms: 2, vm: NodeId::HOST };

/// Two policies for the two VMs of a host, and for the guest of the first one, if that is a guest hypervisor.
fn two(policies: [Box<dyn Policy>; 2]) -> PerVm {
    PerVm::new(policies.into(), vec![0, 1], vec![0, 0, 1, 0])
}

/// The two VMs, and the guest of the first.
fn vms() -> [NodeId; 3] {
    let mut vms = NodeId::all().skip(1);
    [(); 3].map(|()| vms.next().unwrap())
}

/// Only the upper bound goes without fragmentation; whoever is beside it has the host as it is.
#[test]
fn the_hosts_memory_is_fragmented_if_a_policy_lets_it_be() {
    let is_fragmented = |names: [&str; 2]| {
        let mut policies = two(names.map(|name| made(name, &[])));
        policies.settings(HOST).fragmented
    };
    assert!(!is_fragmented(["aligned", "aligned"]));
    for names in [["aligned", "base"], ["base", "aligned"], ["base", "base"]] {
        assert!(is_fragmented(names), "{names:?}");
    }
}

#[test]
fn the_host_maps_as_many_pages_at_once_as_the_policy_of_the_vm_wants() {
    let mut policies = two(["strata", "base"].map(|name| made(name, &[])));
    let [l1, vm, l2] = vms();
    policies.settings(HOST);
    policies.settings(Position { node: l1, level: 1, vms: 1, vm: l1 });
    policies.settings(Position { node: vm, level: 1, vms: 0, vm });
    policies.settings(Position { node: l2, level: 2, vms: 0, vm: l1 });
    assert_eq!([l1, vm].map(|vm| policies.mapped_at_once(vm)), [16, 1]);
}

#[test]
fn a_vm_may_have_a_cache_of_its_own_where_its_policy_can_work_with_that() {
    let mut policies = two(["coplace", "xgemini+xplace"].map(|name| made(name, &[])));
    let cache = VirtualCache { colours: Colours::counted(4).unwrap(), first: 0 };
    let [can, cannot, _] = vms();
    assert_eq!(policies.told_of_cache(can, cache), None);
    let why = policies.told_of_cache(cannot, cache).unwrap();
    assert!(why.contains("leave out the VM's own cache"), "{why}");
}

/// Huge bucket: huge pages that a VM has freed are kept whole in it if that is what its policy does.
#[test]
fn what_a_vm_frees_is_kept_whole_if_its_policy_does_so() {
    let gemini =
        |bucket| made("gemini", &[("gemini.bucket", bucket), ("booking.enabled", "false")]);
    let policies = two([gemini("true"), gemini("false")]);
    let tree = [(None, 128), (Some(0), 40), (Some(0), 40)];
    let mut world = World::tree(&tree, Box::new(policies));
    let kept = [0, 1].map(|guest| {
        world.act_in(guest);
        (0..PAGES).for_each(|page| world.touch(0, page, true));
        assert!(world.stack.alignment(world.guest).well_aligned > 0);
        world.apply(&Op::Unmap { pid: 0, page: 0, pages: PAGES });
        world.check();
        world.stack.kernel(world.guest).memory().reserved_regions()
    });
    assert!(kept[0] > 0 && kept[1] == 0, "{kept:?}");
    world.finish();
}
