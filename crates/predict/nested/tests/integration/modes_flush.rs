//! What a guest's kernel flushes as its program gives pages back: up to 33 pages one by one, more by a load of its page
//! table; and what that takes of a hypervisor that keeps a shadow.

use crate::machines::{INTEL, amd, ready, setup};
use ExitReason::{ControlRegister, HandedOn, Invalidation, PageFault};
use Level::{Nested, Shadow};
use strata_nested::SecondStageWrites::Unsync;
use strata_nested::modes::{Level, Machine};
use strata_nested::{ExitReason, Hypervisor, Virtualization};

const CPUS: [Virtualization; 2] = [INTEL, amd(false)];
const STACKS: [&[Level]; 5] =
    [&[Shadow], &[Nested], &[Shadow, Shadow], &[Nested, Shadow], &[Nested, Nested]];

/// INVLPG and loads of a page table that exit as the guest, in a VM at this level, gives pages back.
fn flushes(machine: &mut Machine, vm: usize, first: u64, pages: u64) -> [u64; 2] {
    machine.reset();
    machine.unmap(first, pages);
    (first..first + pages).for_each(|page| assert_eq!(machine.translation(page), None));
    [Invalidation, ControlRegister].map(|reason| machine.exits(vm, reason))
}

#[test]
fn up_to_33_pages_are_flushed_one_by_one_and_exit_where_there_is_a_shadow() {
    for cpu in CPUS {
        for levels in STACKS {
            let vm = levels.len();
            let is_shadowed = u64::from(levels.last() == Some(&Shadow));
            for pages in [1, 33, 34] {
                let mut machine = ready(setup(levels, cpu, Unsync));
                let expected = if pages <= 33 { [pages, 0] } else { [0, 1] };
                let found = flushes(&mut machine, vm, 100, pages);
                assert_eq!(found, expected.map(|count| count * is_shadowed), "{levels:?} {pages}");
                if vm == 2 {
                    // L1 handles each, and invalidates what hardware caches for its VM: INVLPGA or INVVPID.
                    let [one_by_one, at_once] = found;
                    // At a load it takes entries out of its shadow, and does so once; on AMD it says so in the VMCB.
                    let at_load = if cpu == INTEL { at_once } else { 0 };
                    assert_eq!(machine.exits(1, Invalidation), one_by_one + at_load);
                    assert!(machine.exits(2, HandedOn) >= one_by_one + at_once);
                }
            }
        }
    }
}

/// `struct mmu_gather` has the first page and the last, and a table that is freed from its own first page on.
#[test]
fn a_flush_reaches_from_the_first_page_to_the_last_and_over_tables_that_are_freed() {
    for cpu in CPUS {
        let apart = |pages: &[u64], first, count| {
            let mut machine = Machine::new(setup(&[Shadow], cpu, Unsync)).unwrap();
            pages.iter().for_each(|page| machine.touch(*page, true));
            flushes(&mut machine, 1, first, count)
        };
        assert_eq!(apart(&[3, 20, 52, 60], 20, 33), [33, 0], "and nothing in between");
        assert_eq!(apart(&[3, 20, 53, 60], 20, 34), [0, 1]);
        assert_eq!(apart(&[3, 20, 60], 10, 40), [1, 0], "one page of forty is there");
        assert_eq!(apart(&[3, 60], 10, 40), [0, 0], "none is");
        // The last pages of a leaf table.
        assert_eq!(apart(&[3, 512 + 10], 512 + 10, 1), [11, 0]);
        assert_eq!(apart(&[3, 512 + 40], 512 + 40, 1), [0, 1]);
    }
}

#[test]
fn kernels_of_2009_flush_all_by_a_load_of_the_page_table() {
    for cpu in CPUS {
        let mut setup = setup(&[Shadow], cpu, Unsync);
        setup.hypervisor = Hypervisor::Kvm84;
        assert_eq!(flushes(&mut ready(setup), 1, 100, 1), [0, 1]);
    }
}

/// A page fault takes an exit to be injected and one to be filled in, and one more if the leaf table is protected.
#[test]
fn a_leaf_table_stays_unsync_when_one_of_its_pages_is_invalidated() {
    for cpu in CPUS {
        let next_fault = |act: &dyn Fn(&mut Machine)| {
            let mut machine = ready(setup(&[Shadow], cpu, Unsync));
            act(&mut machine);
            machine.reset();
            machine.touch(256, true);
            machine.exits(1, PageFault)
        };
        assert_eq!(next_fault(&|_| ()), 2);
        assert_eq!(next_fault(&|machine| machine.unmap(100, 1)), 2);
        assert_eq!(next_fault(&|machine| machine.invalidate(100)), 2);
        assert_eq!(next_fault(&|machine| machine.unmap(100, 34)), 3);
        assert_eq!(next_fault(&Machine::flush), 3);
    }
}
