//! Machines of several kernels: how their memory is before a program runs, and what hypervisors do.

use super::*;

/// A nested stack in the proportions of the xGemini testbed, its memory fragmented.
fn nested(backed: bool, huge_faults: bool) -> Stack {
    let kernels = [256, 220, 200].map(|mib| (mib * MIB, 0.8));
    let config = StackConfig {
        start: MemoryParameters { backed, ..MemoryParameters::default() },
        ..config(&kernels, ThpParameters::default())
    };
    Stack::build(&config, &mut Linux { huge_faults }, &|| false).unwrap()
}

#[test]
fn whoever_fragments_a_guest_has_it_backed_in_every_layer() {
    for huge_faults in [false, true] {
        let stack = nested(true, huge_faults);
        stack.check_composition();
        let guest = stack.guests().next().unwrap();
        let frames = stack.kernel(guest).memory().frames();
        for page in 0..frames {
            let page: Frame<Upper> = Frame::new(page);
            let mapped = stack.hardware_second_stage(guest).unwrap().mapping(page.addr());
            assert!(mapped.is_some(), "{page:?}");
        }
        // The guest looks as it would have without, and nothing of it was counted.
        assert_eq!(stack.fmfi(guest), nested(false, huge_faults).fmfi(guest));
        assert_eq!(stack.exits(), &ExitCounts::default());
        assert!(stack.nodes().all(|node| stack.kernel(node).counters().faults == 0));
        // Huge pages of the guest hypervisor were to be had for some of it only.
        let mut huge = 0;
        stack.second_stage(guest).for_each_huge(|_, _| huge += 1);
        let share = huge as f64 * 512.0 / frames as f64;
        let expected = if huge_faults { 0.1..0.4 } else { 0.0..0.001 };
        assert!(expected.contains(&share), "{share}");
    }
}

#[test]
fn nobody_fills_a_guest_that_is_merely_declared_fragmented() {
    let stack = nested(false, true);
    let guest = stack.guests().next().unwrap();
    let table = stack.hardware_second_stage(guest).unwrap();
    assert_eq!(table.mapped(table.everything()).count(), 0);
}

/// Linux with Huge Aligner.
struct Padding;

impl Policy for Padding {
    fn settings(&mut self, at: Position) -> KernelSettings {
        let linux = Linux { huge_faults: true }.settings(at);
        KernelSettings { align_areas: AlignAreas::Always, ..linux }
    }
}

#[test]
fn huge_aligner_can_be_left_out() {
    let bytes = |enabled| {
        let config = StackConfig {
            aligner: AlignerParameters { enabled, ..AlignerParameters::default() },
            ..config(&[(64 * MIB, 0.0)], ThpParameters::default())
        };
        let mut stack = Stack::build(&config, &mut Padding, &|| false).unwrap();
        let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
        for event in [
            Event::ProcessStart { pid: PARENT },
            Event::Map { pid: PARENT, range: range(3, 5), backing, protection, fixed: false },
        ] {
            stack.event(&mut Padding, NodeId::HOST, &event).unwrap();
        }
        let space = stack.process_space(NodeId::HOST, PARENT).unwrap();
        let vmas = stack.kernel(NodeId::HOST).space(space).unwrap().vmas();
        vmas.find(page(3).addr()).unwrap().range.bytes()
    };
    assert_eq!((bytes(true), bytes(false)), (2 * MIB, 5 * 4096));
}

/// A workload before that read files leaves pages of them in use, here and there; what it had itself is free.
#[test]
fn a_workload_before_leaves_what_it_is_told_to_leave() {
    let after = |reused_left: f64, huge_faults| {
        let config = StackConfig {
            reused: true,
            start: MemoryParameters { reused_left, ..MemoryParameters::default() },
            ..config(&[(128 * MIB, 0.0), (96 * MIB, 0.0)], ThpParameters::default())
        };
        let stack = Stack::build(&config, &mut Linux { huge_faults }, &|| false).unwrap();
        stack.check_composition();
        let guest = stack.guests().next().unwrap();
        let memory = stack.kernel(guest).memory();
        let table = stack.hardware_second_stage(guest).unwrap();
        let backed: u64 =
            table.mapped(table.everything()).map(|(_, mapping)| mapping.size.base_pages()).sum();
        (memory.used_frames() as f64 / memory.frames() as f64, stack.fmfi(guest), backed)
    };
    for huge_faults in [false, true] {
        let (used, fmfi, backed) = after(0.0, huge_faults);
        assert!(used < 0.01 && fmfi < 0.05, "{used}, {fmfi}");
        let (used, fmfi, backed_too) = after(0.1, huge_faults);
        // Nine tenths were used, and a tenth of that is left, with its page tables.
        assert!((0.088..0.1).contains(&used), "{used}");
        assert!(fmfi > if huge_faults { 0.05 } else { 0.8 }, "{fmfi}");
        let memory = 96 * MIB / 4096;
        assert!([backed, backed_too].into_iter().all(|pages| pages > memory * 8 / 10));
    }
}

/// Whoever sets up a machine is asked often whether to go on, and nothing is done after a no.
#[test]
fn setting_up_can_be_stopped_at_any_time() {
    let kernels = [96, 80, 64].map(|mib| (mib * MIB, 0.5));
    let config = |reused, backed| StackConfig {
        reused,
        start: MemoryParameters { backed, ..MemoryParameters::default() },
        ..config(&kernels, ThpParameters::default())
    };
    // A question for each layer, page of the process before, and region of the layers backed.
    for (reused, backed, least) in [(false, false, 3), (true, false, 8000), (false, true, 3 + 72)] {
        let build = |stops_at: usize| {
            let asked = std::cell::Cell::new(0);
            let stopped = || asked.replace(asked.get() + 1) == stops_at;
            let built =
                Stack::build(&config(reused, backed), &mut Linux { huge_faults: false }, &stopped);
            (built.map(drop), asked.get())
        };
        let (built, questions) = build(usize::MAX);
        assert!(built.is_ok() && questions >= least, "{questions}");
        for stops_at in [0, 2, questions / 2, questions - 1] {
            let (built, asked) = build(stops_at);
            assert!(matches!(built, Err(BuildError::Stopped)), "{built:?}");
            assert_eq!(asked, stops_at + 1);
        }
    }
}

/// A host with a VM on it. Every region of the host's memory has a page in it that can be moved, so that
/// it has no huge page to give; how many the VM's hypervisor gets, and how many regions were emptied for that.
fn huge_pages_of_a_fragmented_host(advice: VmAdvice, without_compaction: bool) -> (u64, u64) {
    let mut config = StackConfig {
        start: MemoryParameters { advice, movable: 1.0, ..MemoryParameters::default() },
        ..config(&[(128 * MIB, 1.0), (32 * MIB, 0.0)], ThpParameters::default())
    };
    config.kernels[0].found = Found { without_compaction, ..Found::default() };
    let mut policy = Linux { huge_faults: true };
    let mut stack = Stack::build(&config, &mut policy, &|| false).unwrap();
    let guest = stack.guests().next().unwrap();
    let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
    for event in [
        Event::ProcessStart { pid: PARENT },
        Event::Map { pid: PARENT, range: range(0, 4096), backing, protection, fixed: true },
    ] {
        stack.event(&mut policy, guest, &event).unwrap();
    }
    let space = stack.process_space(guest, PARENT).unwrap();
    for at in 0..4096 {
        stack.guest_fault(&mut policy, guest, space, page(at), true).unwrap();
    }
    (stack.alignment(guest).host_huge, stack.kernel(NodeId::HOST).counters().compacted_regions)
}

/// QEMU advises `MADV_HUGEPAGE` on a VM's memory. So hypervisors compact at a fault, where a program that
/// says nothing gets base pages.
#[test]
fn hypervisors_compact_at_faults_because_qemu_advises_huge_pages() {
    let (huge, compacted) = huge_pages_of_a_fragmented_host(VmAdvice::default(), false);
    assert!(huge >= 8 && compacted >= 8, "{huge}, {compacted}");
    assert_eq!(huge_pages_of_a_fragmented_host(VmAdvice::None, false), (0, 0));
    // Nor does one that was told not to (`never` in `transparent_hugepage/defrag`).
    assert_eq!(huge_pages_of_a_fragmented_host(VmAdvice::default(), true), (0, 0));
}

/// Two regions of a nested guest's memory filled page by page, then the first made huge by its hypervisor.
/// Exits of the hypervisor for writes to its second stage, for both.
fn writes_of_l1(second_stage_writes: SecondStageWrites, instructions: Instructions) -> [u64; 2] {
    let config = StackConfig {
        exits: ExitCosts { second_stage_writes, ..ExitCosts::default() },
        virtualization: Virtualization { instructions, ..Virtualization::default() },
        ..config(&[(128 * MIB, 0.0), (64 * MIB, 0.0), (32 * MIB, 0.0)], ThpParameters::default())
    };
    let mut policy = Linux { huge_faults: false };
    let mut stack = Stack::build(&config, &mut policy, &|| false).unwrap();
    let (guest, l1) = (stack.guests().next().unwrap(), stack.nodes().nth(1).unwrap());
    let (backing, protection) = (Backing::Anonymous, Protection::READ_WRITE);
    for event in [
        Event::ProcessStart { pid: PARENT },
        Event::Map { pid: PARENT, range: range(0, 1024), backing, protection, fixed: true },
    ] {
        stack.event(&mut policy, guest, &event).unwrap();
    }
    let space = stack.process_space(guest, PARENT).unwrap();
    let writes = |stack: &Stack| stack.exits().of(l1, ExitReason::SecondStageWrite);
    let before = writes(&stack);
    for at in 0..1024 {
        stack.guest_fault(&mut policy, guest, space, page(at), true).unwrap();
    }
    let filled = writes(&stack);
    let (process, hva) = (stack.vm_process(guest), stack.hva(guest, Frame::new(512)));
    assert!(stack.collapse(&mut policy, l1, process, hva, None).unwrap().is_huge());
    [filled - before, writes(&stack) - filled]
}

/// Real KVM lets the leaf tables that a hypervisor in a VM writes go unsync: the first write exits, until the
/// table is read anew. That is at the VM's next entry on AMD's instructions, so that a table filled
/// page by page exits as often as before; and at an invalidation on Intel's, of which there is none while
/// pages are only added. What is taken away in one go is one write or two.
#[test]
fn leaf_tables_that_go_unsync_save_exits() {
    let [filled, zapped] = writes_of_l1(SecondStageWrites::Trap, Instructions::Vmx);
    assert!(filled >= 1024 && zapped >= 512, "{filled}, {zapped}");
    assert_eq!(writes_of_l1(SecondStageWrites::Trap, Instructions::Svm), [filled, zapped]);
    let [on_amd, zapped] = writes_of_l1(SecondStageWrites::Unsync, Instructions::Svm);
    assert!((1000..filled).contains(&on_amd) && zapped <= 2, "{on_amd}, {zapped}");
    let [on_intel, zapped] = writes_of_l1(SecondStageWrites::default(), Instructions::Vmx);
    assert!((3..20).contains(&on_intel) && zapped <= 2, "{on_intel}, {zapped}");
}
