//! What a machine found, as a result.

use super::{Simulation, layer_name};
use crate::report::{
    Alignment, Cause, CpuTotals, Cycles, LayerExits, LayerMemory, Memory, PerLayer, RunResult,
    Sample, Tlb, WalkPosition,
};
use crate::{Run, StackKind};
use std::collections::BTreeMap;
use strata_addr::PageSize;
use strata_frames::HUGE_ORDER;
use strata_hardware::{Charge, Counters, CpuId, Machine};
use strata_stack::{ExitReason, KernelCounters, NodeId};

/// What the result repeats of the setup.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) stack: StackKind,
    pub(crate) policy: String,
    pub(crate) cpu: String,
    pub(crate) explain: bool,
    pub(crate) footprint: Option<u64>,
    pub(crate) memory: Vec<u64>,
    /// Of each layer.
    pub(crate) fragmented: Vec<bool>,
    pub(crate) parameters: BTreeMap<String, String>,
}

/// What memory looks like at one moment.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Frames of the guest in use.
    frames: u64,
    alignment: Alignment,
    fmfi: PerLayer<f64>,
    causes: Vec<Cause>,
}

impl Simulation {
    /// Keeps the present state if the guest has never used more memory.
    pub(super) fn note_state(&mut self) {
        let frames = self.stack.kernel(self.guest).memory().used_frames();
        if frames < self.fullest.frames {
            return;
        }
        self.peak_guest_frames = self.peak_guest_frames.max(frames);
        self.fullest = State {
            frames,
            alignment: self.alignment(),
            fmfi: self.per_layer(|node| self.stack.fmfi(node)),
            causes: if self.outcome.explain { self.causes() } else { Vec::new() },
        };
    }

    /// The same, for what happens often: only if the workload uses noticeably more than when its
    /// state was last noted, so that there are few looks at all tables however often it is asked.
    pub(super) fn note_state_if_grown(&mut self) {
        let before = self.guest_frames_before;
        let frames = self.stack.kernel(self.guest).memory().used_frames();
        self.peak_guest_frames = self.peak_guest_frames.max(frames);
        let now = frames.saturating_sub(before);
        let noted = self.fullest.frames.saturating_sub(before);
        if now > noted + noted / 64 {
            self.note_state();
        }
    }

    pub(super) fn sample_if_due(&mut self) {
        let accesses = self.machine.totals().accesses;
        if self.samples.is_due(accesses) {
            self.take_sample();
        }
    }

    pub(super) fn take_sample(&mut self) {
        let totals = self.machine.totals();
        let breakdown = self.machine.total_breakdown();
        let frames = self.stack.kernel(self.guest).memory().used_frames();
        self.peak_guest_frames = self.peak_guest_frames.max(frames);
        let used_bytes = (frames.saturating_sub(self.guest_frames_before)) << PageSize::BASE_SHIFT;
        self.samples.push(Sample {
            seconds: self.clock.now(),
            accesses: totals.accesses,
            l1_misses: totals.l1_misses,
            l2_misses: totals.l2_misses,
            walk_cycles: totals.walk_cycles,
            cycles: breakdown.total() as u64,
            alignment: self.alignment(),
            fmfi: self.per_layer(|node| self.stack.fmfi(node)),
            used_bytes,
        });
    }

    fn per_layer<T>(&self, value: impl Fn(NodeId) -> T) -> PerLayer<T> {
        let below = self.stack.below(self.guest);
        PerLayer {
            guest: value(self.guest),
            l1: below.filter(|below| *below != NodeId::HOST).map(&value),
            host: below.map(|_| value(NodeId::HOST)),
        }
    }

    fn alignment(&self) -> Alignment {
        let found = self.stack.alignment(self.guest);
        Alignment {
            guest_huge: found.guest_huge,
            well_aligned: found.well_aligned,
            type1: found.type1,
            type2: found.type2,
            pseudo_huge: found.pseudo_huge,
        }
    }

    /// The result at the end.
    pub(super) fn outcome(self) -> RunResult {
        let counters = self.machine.totals();
        let kernels: Vec<KernelCounters> =
            self.stack.nodes().map(|node| *self.stack.kernel(node).counters()).collect();
        let sum = |count: fn(&KernelCounters) -> u64| kernels.iter().map(count).sum::<u64>();
        let (shadow_promotions, shadow_demotions) = self.stack.shadow_promotions();
        let elapsed_cycles = self.clock.elapsed(&self.machine);
        let cycles_by_kind = cycles(&self.machine);
        RunResult {
            stack: self.outcome.stack,
            policy: self.outcome.policy.clone(),
            cpu: self.outcome.cpu.clone(),
            partial: self.ran_out_of_memory(),
            out_of_memory: self.ran_out_of_memory(),
            killed: self.killed(),
            accesses: counters.accesses,
            instructions: counters.instructions,
            tlb: tlb(&counters),
            walks: counters.walks,
            walk_refs: counters.walk_refs,
            walk_positions: walk_positions(&counters),
            walk_cycles: counters.walk_cycles,
            cycles: cycles_by_kind.total(),
            elapsed_cycles,
            elapsed_seconds: elapsed_cycles as f64 / self.clock.frequency(),
            cycles_by_kind,
            alignment: self.fullest.alignment,
            faults: self.per_layer(|node| kernels[node.index()].faults),
            exits: self.exits(),
            exits_by_layer: self.exits_by_layer(),
            migrated_pages: sum(|kernel| kernel.migrated_pages),
            promotions: sum(|kernel| kernel.promotions) + shadow_promotions,
            demotions: sum(|kernel| kernel.demotions) + shadow_demotions,
            fmfi: self.fullest.fmfi,
            memory: self.memory(),
            layers: self.layers(),
            relative_throughput: None,
            counters: perf_counters(&counters, &kernels, (shadow_promotions, shadow_demotions)),
            cpus: cpu_totals(&self.machine),
            notes: self.notes(),
            explained: self.outcome.explain,
            explain: self.fullest.causes,
            parameters: self.outcome.parameters.clone(),
            samples: self.samples.into_series(),
        }
    }

    /// Exits of the guest and, together, of the hypervisors between it and the host.
    fn exits(&self) -> BTreeMap<String, u64> {
        if self.guest == NodeId::HOST {
            return BTreeMap::new();
        }
        let of_guest = |reason| self.stack.exits().of(self.guest, reason);
        let of_l1 = |reason| {
            let between = self.stack.nodes().filter(|node| !self.stack.position(*node).guest);
            between.map(|node| self.stack.exits().of(node, reason)).sum()
        };
        let by_reason = [
            ("ept_violation", of_guest(ExitReason::SecondStageViolation)),
            ("reflected", of_guest(ExitReason::HandedOn)),
            ("l1_ept_write", of_l1(ExitReason::SecondStageWrite)),
            ("l1_ept_violation", of_l1(ExitReason::SecondStageViolation)),
            ("l1_invept", of_l1(ExitReason::Invalidation)),
        ];
        by_reason.map(|(reason, count)| (reason.to_owned(), count)).into()
    }

    fn exits_by_layer(&self) -> Vec<LayerExits> {
        let vms = self.stack.path_down(self.guest).filter(|node| *node != NodeId::HOST);
        vms.map(|vm| LayerExits {
            layer: layer_name(self.stack.position(vm)).to_owned(),
            exits: ExitReason::ALL
                .map(|reason| (reason.name().to_owned(), self.stack.exits().of(vm, reason)))
                .into(),
        })
        .collect()
    }

    fn memory(&self) -> Memory {
        let used = self.peak_guest_frames - self.guest_frames_before;
        Memory {
            touched_bytes: self.outcome.footprint.unwrap_or(0),
            used_bytes: used << PageSize::BASE_SHIFT,
        }
    }

    fn layers(&self) -> Vec<LayerMemory> {
        let layers = self.stack.path_down(self.guest).enumerate();
        layers
            .map(|(layer, node)| {
                let kernel = self.stack.kernel(node);
                let memory = kernel.memory();
                let mut huge_pages = 0;
                for (_, space) in kernel.spaces() {
                    space.table().for_each_huge(|_, _| huge_pages += 1);
                }
                LayerMemory {
                    layer: layer_name(self.stack.position(node)).to_owned(),
                    size_bytes: self.outcome.memory[layer],
                    free_bytes: memory.free_frames() << PageSize::BASE_SHIFT,
                    table_bytes: (self.stack.table_pages(node) as u64) << PageSize::BASE_SHIFT,
                    huge_pages,
                    booked_regions: memory.reserved_regions(),
                    extfrag: memory.extfrag(HUGE_ORDER),
                    fragmented: self.outcome.fragmented[layer],
                    free_huge_before: self.free_huge_before[layer],
                    free_huge_least: memory.least_free_regions(),
                }
            })
            .collect()
    }

    fn causes(&self) -> Vec<Cause> {
        self.stack
            .blame(self.guest)
            .into_iter()
            .map(|blame| {
                let mut ranges: Vec<_> =
                    blame.ranges.iter().map(|range| [range.start.get(), range.end.get()]).collect();
                ranges.sort_by_key(|[start, end]| (std::cmp::Reverse(end - start), *start));
                Cause {
                    layer: layer_name(self.stack.position(blame.node)).to_owned(),
                    cause: blame.cause.to_owned(),
                    huge_pages: blame.huge_pages,
                    ranges,
                }
            })
            .collect()
    }

    /// What the layers killed when they ran out of memory.
    fn killed(&self) -> Vec<String> {
        let processes = self.stack.killed(self.guest).iter();
        let processes = processes.map(|pid| format!("the guest killed process {}", pid.0));
        self.dead.iter().cloned().chain(processes).collect()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.lost_accesses > 0 {
            notes.push(format!(
                "{} accesses of killed or unknown threads were left out",
                self.lost_accesses
            ));
        }
        if self.kernel_accesses > 0 {
            notes.push(format!(
                "{} accesses to addresses that no program has with page tables of {} levels were \
                 left out",
                self.kernel_accesses,
                self.stack.levels()
            ));
        }
        if self.unresolved_accesses > 0 {
            notes.push(format!(
                "{} accesses kept faulting and were left out",
                self.unresolved_accesses
            ));
        }
        if self.stack.inferred_pages() > 0 {
            notes.push(format!(
                "{} pages were touched outside every known mapping; they count as base pages",
                self.stack.inferred_pages()
            ));
        }
        if !self.warmup.is_over() {
            notes.push("the stream ended before the warm-up was over: nothing counts".to_owned());
        }
        notes
    }
}

/// Where the cycles of all CPUs went.
pub(crate) fn cycles(machine: &Machine) -> Cycles {
    let total = machine.total_breakdown();
    let charged = |kind: Charge| total.charged[kind as usize] as u64;
    Cycles {
        execution: total.base as u64,
        data: total.data as u64,
        walks: (total.walk + total.faulted_walk + total.tlb) as u64,
        faults: charged(Charge::Fault),
        exits: charged(Charge::Exit),
        shootdowns: charged(Charge::Shootdown),
        background: charged(Charge::Background),
    }
}

/// What each CPU did.
pub(crate) fn cpu_totals(machine: &Machine) -> Vec<CpuTotals> {
    (0..machine.cpus() as u32)
        .map(|cpu| {
            let counters = machine.counters(CpuId(cpu));
            CpuTotals {
                cpu,
                accesses: counters.accesses,
                instructions: counters.instructions,
                cycles: machine.cycles(CpuId(cpu)),
                walk_cycles: counters.walk_cycles,
                l2_misses: counters.l2_misses,
            }
        })
        .collect()
}

/// References by position.
pub(crate) fn walk_positions(counters: &Counters) -> Vec<WalkPosition> {
    let positions = counters.positions();
    positions
        .map(|(position, references)| WalkPosition { position: position.to_string(), references })
        .collect()
}

/// TLB misses and fills.
pub(crate) fn tlb(counters: &Counters) -> Tlb {
    let mut fills: BTreeMap<String, u64> = PageSize::ALL
        .iter()
        .zip(counters.fills)
        .map(|(size, count)| (size.to_string(), count))
        .collect();
    fills.insert("none".to_owned(), counters.unfilled_walks);
    Tlb { l1_misses: counters.l1_misses, l2_misses: counters.l2_misses, fills }
}

/// Counters under perf's names, and Strata's own that have none.
fn perf_counters(
    counters: &Counters,
    kernels: &[KernelCounters],
    (shadow_promotions, shadow_demotions): (u64, u64),
) -> BTreeMap<String, u64> {
    let sum = |count: fn(&KernelCounters) -> u64| kernels.iter().map(count).sum::<u64>();
    let mut named = hardware_counters(counters);
    let software = [
        ("strata.huge_faults", sum(|k| k.huge_faults)),
        ("strata.cow_faults", sum(|k| k.cow_faults)),
        ("strata.promotions_in_place", sum(|k| k.promotions_in_place)),
        ("strata.compacted_regions", sum(|k| k.compacted_regions)),
        ("strata.zeroed_pages", sum(|k| k.zeroed_pages)),
        ("strata.copied_pages", sum(|k| k.copied_pages)),
        ("strata.scanned_entries", sum(|k| k.scanned_pages)),
        ("strata.shadow_promotions", shadow_promotions),
        ("strata.shadow_demotions", shadow_demotions),
    ];
    named.extend(software.map(|(name, count)| (name.to_owned(), count)));
    named
}

/// The same of the hardware alone.
pub(crate) fn hardware_counters(counters: &Counters) -> BTreeMap<String, u64> {
    let mut named: BTreeMap<String, u64> = [
        ("instructions", counters.instructions),
        ("mem_uops_retired.all_loads", counters.loads),
        ("mem_uops_retired.all_stores", counters.stores),
        ("dtlb_load_misses.walk_duration", counters.dtlb_load_misses_walk_duration),
        ("dtlb_store_misses.walk_duration", counters.dtlb_store_misses_walk_duration),
        ("ept.walk_cycles", counters.ept_walk_cycles),
        ("strata.tlb_l2_hits", counters.l2_hits),
        ("strata.page_crossings", counters.page_crossings),
        ("strata.dirty_walks", counters.dirty_walks),
        ("strata.faulted_walks", counters.faulted_walks),
        ("strata.faulted_walk_refs", counters.faulted_walk_refs),
        ("strata.faulted_walk_cycles", counters.faulted_walk_cycles),
        ("strata.splintered_fills", counters.splintered_fills),
        ("strata.pwc_hits", counters.pwc.hits),
        ("strata.pwc_misses", counters.pwc.misses),
        ("strata.nested_pwc_hits", counters.npwc.hits),
        ("strata.nested_pwc_misses", counters.npwc.misses),
        ("strata.ntlb_hits", counters.ntlb.hits),
        ("strata.ntlb_misses", counters.ntlb.misses),
        ("strata.guest_flag_writes", counters.guest_flag_writes),
        ("strata.second_stage_flag_writes", counters.second_stage_flag_writes),
    ]
    .into_iter()
    .map(|(name, count)| (name.to_owned(), count))
    .collect();
    for (table, loads) in [
        ("dtlb", &counters.page_walker_loads_dtlb),
        ("ept_dtlb", &counters.page_walker_loads_ept_dtlb),
    ] {
        for (level, count) in
            [("l1", loads.l1), ("l2", loads.l2), ("l3", loads.l3), ("memory", loads.memory)]
        {
            named.insert(format!("page_walker_loads.{table}_{level}"), count);
        }
    }
    let data = &counters.data;
    for (level, count) in
        [("l1", data.l1), ("l2", data.l2), ("l3", data.l3), ("memory", data.memory)]
    {
        named.insert(format!("strata.data_{level}"), count);
    }
    named
}
