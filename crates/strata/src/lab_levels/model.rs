//! The same stack in the model: each exit follows from tables and control structures in memory
//! ([`strata_nested::modes`]), with what KVM of Linux 6.12 executes at an exit.

use strata_lab::{Layer, Make, Scenario};
use strata_nested::modes::{Level, Machine, Setup, Switches};
use strata_nested::{
    Access, ExitCosts, ExitReason, Hypervisor, Instructions, Nesting, SecondStageWrites,
    Virtualization,
};

/// Pages that `strata-agent chore faults` maps at a time.
const PAGES: u64 = 1024;

/// Rounds of them, or processes, that are counted; as many go before, which warm everything up.
const ROUNDS: u64 = 4;

/// Pages that a process of `strata-agent chore processes` maps, stores to and unmaps by itself.
const OF_PROCESS: u64 = 64;

/// What one of a chore costs.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// By VM, L1 first, and reason.
    exits: Vec<[f64; ExitReason::ALL.len()]>,
}

impl Predicted {
    /// Exits of a VM, 1 for L1. A write to a table of a second stage is a violation.
    pub fn exits(&self, vm: usize, reason: ExitReason) -> f64 {
        let of = |reason: ExitReason| {
            vm.checked_sub(1)
                .and_then(|at| self.exits.get(at))
                .map_or(0.0, |vm| vm[reason as usize])
        };
        match reason {
            ExitReason::SecondStageViolation => of(reason) + of(ExitReason::SecondStageWrite),
            _ => of(reason),
        }
    }
}

/// The stack of a scenario, as its layers' settings say; `None` where a layer is emulated.
pub fn setup(scenario: &Scenario) -> Option<Setup> {
    let (layers, make) = (&scenario.layers, scenario.make());
    let hypervisors = &layers[..layers.len() - 1];
    if layers.iter().any(Layer::is_emulated) {
        return None;
    }
    let level = |layer: &Layer| if layer.shadows(make) { Level::Shadow } else { Level::Nested };
    let enlightened = layers.iter().any(|layer| has_argument(layer, "hv-evmcs"));
    let cpu = match make {
        Make::Amd => Virtualization {
            instructions: Instructions::Svm,
            vmcs_shadowing: false,
            vls: has_argument(&layers[0], "+v-vmsave-vmload"),
            vgif: !layers[0].is_off("kvm_amd", "vgif"),
        },
        // KVM uses one of the two.
        Make::Intel => Virtualization {
            vmcs_shadowing: !enlightened && !layers[0].is_off("kvm_intel", "enable_shadow_vmcs"),
            ..Virtualization::default()
        },
    };
    Some(Setup {
        levels: hypervisors.iter().map(level).collect(),
        switches: Switches {
            access: if enlightened { Access::Enlightened } else { Access::Instructions },
            writes: SecondStageWrites::Unsync,
            ..Switches::default()
        },
        cpu,
        hypervisor: Hypervisor::Kvm612,
    })
}

/// Whether the VMM that runs a layer is told this of its processor.
fn has_argument(layer: &Layer, word: &str) -> bool {
    layer.vmm.arguments.iter().any(|argument| argument.split(',').any(|part| part == word))
}

/// Exits of one page fault: pages are touched, and given back all at once.
pub fn faults(setup: &Setup) -> Option<Predicted> {
    counted(setup, PAGES, |machine| {
        (0..PAGES).for_each(|page| machine.touch(page, true));
        machine.unmap(0, PAGES);
    })
}

/// Exits of one process that takes so many page faults. It loads a page table when it is forked, when it executes
/// a program, and its parent does when it goes on; what it has then is all new to it.
pub fn processes(setup: &Setup, faults: u64) -> Option<Predicted> {
    let before = faults.min(OF_PROCESS);
    counted(setup, 1, |machine| {
        machine.flush();
        (0..before).for_each(|page| machine.touch(page, true));
        machine.unmap(0, before);
        machine.flush();
        (0..faults - before).for_each(|page| machine.touch(page, true));
        machine.unmap(0, faults - before);
        machine.flush();
    })
}

/// What L1 executes for an exit of L2 that it handles: of an instruction that is no hypervisor's.
pub fn handled(setup: &Setup) -> Option<Predicted> {
    if setup.levels.len() < 2 {
        return None;
    }
    let costs = ExitCosts {
        hypervisor: setup.hypervisor,
        vmcs_access: setup.switches.access,
        ..ExitCosts::default()
    };
    let nesting = Nesting::new(setup.cpu, costs, 2);
    let mut exits = vec![[0.0; ExitReason::ALL.len()]; 2];
    for (vm, reason, count) in &nesting.exit(2, 1, ExitReason::Io).exits {
        exits[usize::from(*vm) - 1][*reason as usize] = *count as f64;
    }
    Some(Predicted { exits })
}

fn counted(setup: &Setup, pieces: u64, act: impl Fn(&mut Machine)) -> Option<Predicted> {
    let mut machine = Machine::new(setup.clone()).ok()?;
    (0..ROUNDS).for_each(|_| act(&mut machine));
    machine.reset();
    (0..ROUNDS).for_each(|_| act(&mut machine));
    let all = (ROUNDS * pieces) as f64;
    let of = |vm: usize| ExitReason::ALL.map(|reason| machine.exits(vm, reason) as f64 / all);
    Some(Predicted { exits: (1..=setup.levels.len()).map(of).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_nested::modes::Level::{Nested, Shadow};

    fn of(name: &str) -> Option<Setup> {
        setup(&Scenario::load(&format!("levels/{name}")).unwrap())
    }

    #[test]
    fn every_shipped_stack_has_a_model_but_the_emulated_one() {
        let levels = |name: &str| of(name).unwrap().levels;
        assert_eq!(levels("native"), []);
        assert_eq!(levels("vm-shadow"), [Shadow]);
        assert_eq!(levels("nested"), [Nested, Nested]);
        assert_eq!(levels("nested-shadow"), [Shadow, Shadow]);
        assert_eq!(levels("nested-shadow-on-ept"), [Nested, Shadow]);
        assert_eq!(of("emulated"), None);
        let cpu = |name: &str| of(name).unwrap().cpu;
        assert!(cpu("nested").vgif && !cpu("nested").vls);
        assert!(!cpu("nested-without-vgif").vgif && cpu("nested-with-vls").vls);
        assert!(cpu("nested-shadow-on-ept").vmcs_shadowing);
        assert!(!cpu("nested-without-vmcs-shadowing").vmcs_shadowing);
        assert_eq!(of("nested-evmcs").unwrap().switches.access, Access::Enlightened);
        for name in strata_lab::names().filter_map(|name| name.strip_prefix("levels/")) {
            if let Some(setup) = of(name) {
                let found = faults(&setup).unwrap_or_else(|| panic!("{name}: refused"));
                assert_eq!(found.exits.len(), setup.levels.len());
            }
        }
    }

    #[test]
    fn what_l1_executes_for_an_exit_is_what_its_processor_leaves_it() {
        let of =
            |name: &str, reason| handled(&of(name).unwrap()).map(|found| found.exits(1, reason));
        assert_eq!(of("nested", ExitReason::Vmload), Some(2.0));
        assert_eq!(of("nested-with-vls", ExitReason::Vmload), Some(0.0));
        assert_eq!(of("nested", ExitReason::Stgi), Some(0.0));
        assert_eq!(of("nested-without-vgif", ExitReason::Stgi), Some(1.0));
        assert_eq!(of("nested-without-vmcs-shadowing", ExitReason::Vmresume), Some(1.0));
        assert!(of("nested-without-vmcs-shadowing", ExitReason::Vmread) > Some(5.0));
        assert_eq!(of("nested-evmcs", ExitReason::Vmread), Some(0.0));
        assert_eq!(of("vm", ExitReason::Vmrun), None, "there is no L1 with a VM");
    }

    #[test]
    fn nested_paging_costs_page_faults_no_exits_and_shadow_paging_does() {
        let of = |name: &str| faults(&of(name).unwrap()).unwrap();
        let all = |found: &Predicted, vm| {
            ExitReason::ALL.iter().map(|reason| found.exits(vm, *reason)).sum::<f64>()
        };
        for name in ["vm", "nested"] {
            let found = of(name);
            assert!(all(&found, 1) + all(&found, 2) < 0.01, "{name}: {found:?}");
        }
        // One that L0 gives back to the VM's kernel, and one that it mends.
        let shadowed = of("vm-shadow").exits(1, ExitReason::PageFault);
        assert!((2.0..2.1).contains(&shadowed), "{shadowed}");
    }
}
