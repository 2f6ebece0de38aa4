//! What a machine found, as a result.

use super::cores::GuestId;
use super::guest::{Guest, State};
use super::{Simulation, layer_name, owner};
use crate::bill::{self, Account, Events, OfExits};
use crate::counters;
use crate::report::{
    Alignment, Cause, CpuTotals, Cycles, EntryCounts, LastLevel, LayerExits, LayerMemory, Memory,
    PerLayer, RunResult, Sample, Tlb, WalkPosition,
};
use crate::sampling::Strata;
use std::collections::BTreeMap;
use std::mem;
use strata_addr::PageSize;
use strata_frames::{HUGE_ORDER, MAX_ORDER};
use strata_hardware::{self as hardware, Charge, CpuId, HardwareCounters, LlcUse, Machine};
use strata_paging::{Format, Region, X86};
use strata_stack::{
    ExitReason, Happening, HostWork, KernelCounters, NodeId, PlacementCounts, Policy,
    SecondStageTable, Stack, TradeCounts,
};

/// Exits of a guest for memory that it touches or maps, which a hypervisor in a VM may be handed.
const MEMORY: [ExitReason; 4] = [
    ExitReason::SecondStageViolation,
    ExitReason::PageFault,
    ExitReason::ControlRegister,
    ExitReason::Invalidation,
];

impl Simulation {
    /// Keeps the present state of a guest if it has never used more memory.
    pub(super) fn note_state(&mut self, guest: GuestId) {
        let state = &self.guests[guest];
        let frames = self.used_frames(guest);
        if frames < state.fullest.frames {
            return;
        }
        let fullest = State {
            frames,
            alignment: self.alignment(state.node),
            fmfi: self.per_layer(state.node, |node| self.stack.fmfi(node)),
            causes: if state.context.explain { self.causes(state.node) } else { Vec::new() },
            regions: state.context.detail.then(|| self.regions(state.node)),
        };
        let state = &mut self.guests[guest];
        state.peak_frames = state.peak_frames.max(frames);
        state.fullest = fullest;
    }

    pub(super) fn used_frames(&self, guest: GuestId) -> u64 {
        let node = self.guests[guest].node;
        // What the balloon has is not the workload's.
        self.stack.kernel(node).memory().used_frames() - self.stack.ballooned(node)
    }

    /// What was counted for a guest on all its CPUs.
    pub(super) fn totals(&self, guest: GuestId) -> HardwareCounters {
        let mut totals = HardwareCounters::default();
        for cpu in &self.guests[guest].all_cpus {
            totals += &self.cores.counters(*cpu, guest, &self.machine);
        }
        totals
    }

    /// The same, for what happens often: only if the workload uses noticeably more than when its
    /// state was last noted, so that there are few looks at all tables however often it is asked.
    pub(super) fn note_state_if_grown(&mut self, guest: GuestId) {
        let frames = self.used_frames(guest);
        let state = &mut self.guests[guest];
        state.peak_frames = state.peak_frames.max(frames);
        let now = frames.saturating_sub(state.frames_before);
        let noted = state.fullest.frames.saturating_sub(state.frames_before);
        if now > noted + noted / 64 {
            self.note_state(guest);
        }
    }

    /// Takes a sample where enough accesses have passed since the last one.
    pub(super) fn sample_if_due(&mut self, guest: GuestId) {
        let sampling = &mut self.guests[guest].sampling;
        if sampling.is_sampled() && mem::replace(&mut sampling.seen, true) {
            return;
        }
        let accesses = self.estimated(guest).accesses;
        if self.guests[guest].samples.is_due(accesses) {
            self.take_sample(guest);
        }
    }

    pub(super) fn take_sample(&mut self, guest: GuestId) {
        let totals = self.estimated(guest);
        let breakdown = self.machine.explain(&totals);
        let frames = self.used_frames(guest);
        let node = self.guests[guest].node;
        let alignment = self.alignment(node);
        let fmfi = self.per_layer(node, |node| self.stack.fmfi(node));
        let state = &mut self.guests[guest];
        state.peak_frames = state.peak_frames.max(frames);
        let used = frames.saturating_sub(state.frames_before);
        state.samples.push(Sample {
            seconds: state.clock.now(),
            accesses: totals.accesses,
            l1_misses: totals.l1_misses,
            l2_misses: totals.l2_misses,
            walk_cycles: totals.walk_cycles,
            cycles: breakdown.total() as u64,
            alignment,
            fmfi,
            used_bytes: used << PageSize::BASE_SHIFT,
        });
    }

    fn per_layer<T>(&self, guest: NodeId, value: impl Fn(NodeId) -> T) -> PerLayer<T> {
        PerLayer::of_names(value(guest), |name| {
            let mut below = self.stack.path_down(guest).skip(1);
            below.find(|node| layer_name(self.stack.position(*node)) == name).map(&value)
        })
    }

    fn alignment(&self, guest: NodeId) -> Alignment {
        let found = self.stack.alignment(guest);
        Alignment {
            guest_huge: found.guest_huge,
            well_aligned: found.well_aligned,
            type1: found.type1,
            type2: found.type2,
            pseudo_huge: found.pseudo_huge,
        }
    }

    /// The result of a guest, at its end.
    pub(super) fn outcome(&mut self, guest: GuestId) -> RunResult {
        let counted = self.estimated(guest);
        let work = self.work_for(guest);
        let kernels = self.kernels(guest, &work);
        let sum = |count: fn(&KernelCounters) -> u64| kernels.values().map(count).sum::<u64>();
        let elapsed_cycles = self.estimated_elapsed(guest, &counted);
        let sampled = self.sampled(guest, &counted, elapsed_cycles);
        let breakdown = self.machine.explain(&counted);
        let cycles_by_kind = cycles(&breakdown);
        let bill = self.account(guest, &counted, breakdown, &kernels).bill(&cycles_by_kind);
        let placement = self.policies.placement(&self.stack, self.guests[guest].node);
        let trade = self.policies.trade(&self.stack, self.guests[guest].node);
        let samples = mem::take(&mut self.guests[guest].samples).into_series();
        let series = self.series(guest);
        let state = &self.guests[guest];
        RunResult {
            stack: state.context.stack,
            policy: state.context.policy.clone(),
            cpu: state.context.cpu.clone(),
            partial: self.is_out_of_memory(guest),
            out_of_memory: self.is_out_of_memory(guest),
            killed: self.killed(guest),
            accesses: counted.accesses,
            instructions: counted.instructions,
            tlb: tlb(&counted),
            walks: counted.walks,
            walk_refs: counted.walk_refs,
            walk_positions: walk_positions(&counted),
            walk_cycles: counted.walk_cycles,
            cycles: cycles_by_kind.total(),
            elapsed_cycles,
            elapsed_seconds: elapsed_cycles as f64 / state.clock.frequency(),
            cycles_by_kind,
            llc: self.shared_cache(guest, self.machine.llc_use(owner(guest))),
            l4: self.cache_at_memory(guest, &counted),
            bill,
            alignment: state.fullest.alignment,
            faults: self.per_layer(state.node, |node| kernels[&node].faults),
            exits: self.exits(state.node),
            exits_by_layer: self.exits_by_layer(state.node),
            happened: happened(state),
            migrated_pages: sum(|kernel| kernel.migrated_pages),
            promotions: sum(|kernel| kernel.promotions) + work.shadow_promotions,
            demotions: sum(|kernel| kernel.demotions) + work.shadow_demotions,
            fmfi: state.fullest.fmfi,
            memory: memory(state),
            layers: self.layers(state, &kernels),
            relative_throughput: None,
            counters: counters::of_machine(
                &counted,
                kernels.values(),
                &work,
                placement.as_ref(),
                trade.as_ref(),
            ),
            cpus: self.cpu_totals(guest, &counted),
            notes: self.notes(guest, counted.instructions, placement.as_ref(), trade.as_ref()),
            explained: state.context.explain,
            explain: state.fullest.causes.clone(),
            parameters: state.context.parameters.clone(),
            samples,
            series,
            regions: state.fullest.regions.clone(),
            // A request that begins or ends in a gap is not what it was.
            service_times: state.served.times().filter(|_| sampled.is_none()).map(Box::new),
            requests: None,
            sampled: sampled.as_ref().map(|(said, _)| said.clone()),
            windows: sampled.map(|(_, windows)| windows),
        }
    }

    /// What a guest did in the last-level cache, if that is modelled in detail.
    fn shared_cache(&self, guest: GuestId, found: Option<LlcUse<'_>>) -> Option<LastLevel> {
        let name = |other: usize| self.guests[other].context.vm.clone();
        Some(LastLevel::of(found?, owner(guest), name))
    }

    /// What a guest did in a cache at the memory, if there is one; estimated where its stream is sampled.
    fn cache_at_memory(&self, guest: GuestId, totals: &HardwareCounters) -> Option<LastLevel> {
        let seen = self.shared_cache(guest, self.machine.l4_use(owner(guest)))?;
        let is_sampled = self.guests[guest].sampling.is_sampled();
        Some(if is_sampled { seen.estimated(totals) } else { seen })
    }

    /// What the bill of a guest is made of.
    fn account(
        &self,
        guest: GuestId,
        counters: &HardwareCounters,
        hardware: hardware::Cycles,
        kernels: &BTreeMap<NodeId, KernelCounters>,
    ) -> Account {
        let node = self.guests[guest].node;
        let name = |node| layer_name(self.stack.position(node));
        let path = || self.stack.path_down(node);
        let exits = |vm| (name(vm), OfExits::of(self.stack.exits(), vm));
        Account {
            hardware,
            shadowed: self.stack.has_shadow_paging(node),
            second_stage: bill::second_stage(counters),
            kernels: path().map(|node| (name(node), kernels[&node])).collect(),
            exits: path().filter(|node| *node != NodeId::HOST).map(exits).collect(),
            events: Events::of(self.machine.model().virtualization),
            is_sampled: self.guests[guest].sampling.is_sampled(),
            exits_by_clock: self.guests[guest].sampling.is_sampled() && self.rates.has_clock(),
        }
    }

    /// What the kernels below a guest and its own did: the host's as far as it was for this guest.
    pub(super) fn kernels(
        &self,
        guest: GuestId,
        work: &HostWork,
    ) -> BTreeMap<NodeId, KernelCounters> {
        let guest = self.guests[guest].node;
        let counters = |node| match node == NodeId::HOST && node != guest {
            true => work.kernel,
            false => *self.stack.kernel(node).counters(),
        };
        self.stack.path_down(guest).map(|node| (node, counters(node))).collect()
    }

    /// Cycles that passed for a guest since counting began.
    pub(super) fn elapsed_cycles(&self, guest: GuestId) -> u64 {
        let state = &self.guests[guest];
        // On a core that others have now time goes on without it.
        let own = |cpu: &CpuId| self.cores.turn(*cpu).is_none_or(|turn| turn.guest == Some(guest));
        let cpus = state.all_cpus.iter().copied().filter(own);
        state.clock.elapsed(cpus, &self.cores, &self.machine)
    }

    /// What each CPU did.
    fn cpu_totals(&self, guest: GuestId, all: &HardwareCounters) -> Vec<CpuTotals> {
        let state = &self.guests[guest];
        if let Some(strata) = &state.sampling.strata {
            return self.estimated_cpu_totals(guest, strata, all);
        }
        let counters = |cpu: &CpuId| self.cores.counters(*cpu, guest, &self.machine);
        state.all_cpus.iter().map(|cpu| cpu_totals(*cpu, &counters(cpu), &self.machine)).collect()
    }

    /// The same of a sampled stream: each CPU's share of `all` that was estimated. Its instructions are known, and what it
    /// was charged.
    fn estimated_cpu_totals(
        &self,
        guest: GuestId,
        strata: &Strata,
        all: &HardwareCounters,
    ) -> Vec<CpuTotals> {
        let state = &self.guests[guest];
        let cpus = state.all_cpus.iter().enumerate();
        let estimated = cpus.map(|(at, cpu)| cpu_totals(*cpu, &strata.of_cpu(at), &self.machine));
        let mut totals: Vec<CpuTotals> = estimated.collect();
        let mut uncharged = all.clone();
        uncharged.charged = Default::default();
        let mut all = cpu_totals(CpuId(0), &uncharged, &self.machine);
        for figure in CPU_FIGURES {
            let sum: u64 = totals.iter_mut().map(|cpu| *figure(cpu)).sum();
            let scale = *figure(&mut all) as f64 / sum.max(1) as f64;
            totals.iter_mut().map(figure).for_each(|own| *own = (*own as f64 * scale) as u64);
        }
        for (own, cpu) in totals.iter_mut().zip(&state.all_cpus) {
            let seen = self.cores.counters(*cpu, guest, &self.machine);
            own.cycles += seen.charged.iter().sum::<u64>();
            let skipped = state.sampling.skipped_on.get(cpu).copied().unwrap_or(0);
            own.instructions = seen.instructions.saturating_add(skipped);
        }
        totals
    }

    /// Exits of the guest and, together, of the hypervisors between it and the host.
    fn exits(&self, guest: NodeId) -> BTreeMap<String, u64> {
        if guest == NodeId::HOST {
            return BTreeMap::new();
        }
        let exits = self.stack.exits();
        let of_guest = |reason| exits.of(guest, reason);
        let of_l1 = |reason| {
            let between = self.stack.path_down(guest).skip(1);
            between.map(|node| self.stack.exits().of(node, reason)).sum()
        };
        let by_reason = [
            ("ept_violation", of_guest(ExitReason::SecondStageViolation)),
            ("reflected", MEMORY.map(|reason| exits.handed_on(guest, reason)).iter().sum()),
            ("l1_ept_write", of_l1(ExitReason::SecondStageWrite)),
            ("l1_ept_violation", of_l1(ExitReason::SecondStageViolation)),
            ("l1_invept", of_l1(ExitReason::Invalidation)),
        ];
        let mut named: BTreeMap<String, u64> =
            by_reason.map(|(reason, count)| (reason.to_owned(), count)).into();
        let others = ExitReason::ALL
            .into_iter()
            .filter(|reason| reason.is_of_devices_and_time() || reason.is_of_shadow_paging());
        let others = others.flat_map(|reason| {
            let name = reason.name();
            [(name.to_owned(), of_guest(reason)), (format!("l1_{name}"), of_l1(reason))]
        });
        // A guest invalidates nothing but where its hypervisor keeps shadows.
        let invalidation = ExitReason::Invalidation;
        let others = others.chain([(invalidation.name().to_owned(), of_guest(invalidation))]);
        named.extend(others.filter(|(_, count)| *count > 0));
        named
    }

    fn exits_by_layer(&self, guest: NodeId) -> Vec<LayerExits> {
        let vms = self.stack.path_down(guest).filter(|node| *node != NodeId::HOST);
        vms.map(|vm| LayerExits {
            layer: layer_name(self.stack.position(vm)).to_owned(),
            exits: ExitReason::ALL
                .into_iter()
                .map(|reason| (reason, self.stack.exits().of(vm, reason)))
                .filter(|(reason, count)| reason.is_of_every_run() || *count > 0)
                .map(|(reason, count)| (reason.name().to_owned(), count))
                .collect(),
        })
        .collect()
    }

    fn layers(
        &self,
        guest: &Guest,
        kernels: &BTreeMap<NodeId, KernelCounters>,
    ) -> Vec<LayerMemory> {
        let layers = guest.layers.iter();
        layers
            .map(|layer| {
                let kernel = self.stack.kernel(layer.node);
                let memory = kernel.memory();
                let mut huge_pages = 0;
                for (_, space) in kernel.spaces() {
                    space.table().for_each_huge(|_, _| huge_pages += 1);
                }
                LayerMemory {
                    layer: layer_name(self.stack.position(layer.node)).to_owned(),
                    size_bytes: layer.memory,
                    free_bytes: memory.free_frames() << PageSize::BASE_SHIFT,
                    table_bytes: (self.stack.table_pages(layer.node) as u64)
                        << PageSize::BASE_SHIFT,
                    huge_pages,
                    huge_faults: kernels[&layer.node].huge_faults,
                    second_stage: entries_kept(&self.stack, layer.node),
                    second_stage_before: layer.entries,
                    booked_regions: memory.reserved_regions(),
                    extfrag: memory.extfrag(HUGE_ORDER),
                    fragmented: layer.is_fragmented,
                    free_huge_before: layer.free_huge,
                    free_huge_least: memory.least_free_regions(),
                    free_blocks: match guest.context.detail {
                        true => (0..=MAX_ORDER).map(|order| memory.free_blocks(order)).collect(),
                        false => Vec::new(),
                    },
                }
            })
            .collect()
    }

    fn causes(&self, guest: NodeId) -> Vec<Cause> {
        self.stack
            .blame(guest)
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
    fn killed(&self, guest: GuestId) -> Vec<String> {
        let guest = &self.guests[guest];
        let processes = self.stack.killed(guest.node).iter();
        let processes = processes.map(|pid| format!("the guest killed process {}", pid.0));
        guest.dead.iter().cloned().chain(processes).collect()
    }

    /// The cores that guests have run on so far.
    fn cores_taken(&self) -> u32 {
        let last = self.guests.iter().flat_map(|guest| &guest.all_cpus).max();
        last.map_or(0, |last| last.0 + 1)
    }

    fn notes(
        &self,
        guest: GuestId,
        instructions: u64,
        placement: Option<&PlacementCounts>,
        trade: Option<&TradeCounts>,
    ) -> Vec<String> {
        let guest = &self.guests[guest];
        let mut notes = Vec::new();
        let cores = self.machine.model().core.cores;
        if !guest.is_bound && self.cores_taken() > cores {
            notes.push(format!(
                "one core for each thread that runs at once takes {} cores, and {} has {cores}: no \
                 thread waits for its turn on a core, so programs look faster than they would be there",
                self.cores_taken(),
                guest.context.cpu
            ));
        }
        if let Some(counts) = placement {
            let PlacementCounts { checks, replaced, backed, violations, .. } = counts;
            notes.push(format!(
                "of {backed} pages of the guest's memory {violations} lie in another cache colour \
                 than theirs; the host looked at {checks} entries and replaced {replaced} frames"
            ));
        }
        if let Some(TradeCounts { rows, filling, coloured, row_gain, colour_gain }) = trade {
            notes.push(format!(
                "of the guest's memory {rows} regions of 2 MiB are rows, {filling} fill up as rows, and \
                 {coloured} are coloured page by page; where both were compared, the policy expected rows \
                 to save {row_gain} cycles and colours {colour_gain}: estimates, not measured"
            ));
        }
        notes.extend(guest.sampling.notes(instructions));
        if guest.context.plain_colours {
            notes.push(
                "cache colours are those of a last-level cache of one piece; that of this CPU has slices \
                 with a hash, which leaves more conflicts: --llc cpu models it"
                    .to_owned(),
            );
        }
        if guest.lost_accesses > 0 {
            notes.push(format!(
                "{} accesses of killed or unknown threads were left out",
                guest.lost_accesses
            ));
        }
        if guest.kernel_accesses > 0 {
            notes.push(format!(
                "{} accesses to addresses that no program has with page tables of {} levels were \
                 left out",
                guest.kernel_accesses,
                self.stack.levels()
            ));
        }
        if guest.unresolved_accesses > 0 {
            notes.push(format!(
                "{} accesses kept faulting and were left out",
                guest.unresolved_accesses
            ));
        }
        let inferred = self.stack.inferred_pages(guest.node);
        if inferred > 0 {
            notes.push(format!(
                "{inferred} pages were touched outside every known mapping; they count as base pages",
            ));
        }
        if !guest.warmup.is_over() {
            notes.push("the stream ended before the warm-up was over: nothing counts".to_owned());
        }
        notes
    }
}

fn memory(guest: &Guest) -> Memory {
    let used = guest.peak_frames - guest.frames_before;
    Memory {
        touched_bytes: guest.context.footprint.unwrap_or(0),
        used_bytes: used << PageSize::BASE_SHIFT,
    }
}

/// What happened besides the use of memory, if anything did.
fn happened(guest: &Guest) -> BTreeMap<String, u64> {
    let all = Happening::ALL.into_iter().zip(guest.happened.counts);
    let some = all.filter(|(_, count)| *count > 0);
    some.map(|(what, count)| (what.name().to_owned(), count)).collect()
}

/// Where cycles went, as reports have it.
pub(crate) fn cycles(total: &hardware::Cycles) -> Cycles {
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

/// The figures of a CPU that are estimated.
const CPU_FIGURES: [fn(&mut CpuTotals) -> &mut u64; 4] = [
    |cpu| &mut cpu.accesses,
    |cpu| &mut cpu.cycles,
    |cpu| &mut cpu.walk_cycles,
    |cpu| &mut cpu.l2_misses,
];

/// What a CPU did.
pub(crate) fn cpu_totals(cpu: CpuId, counters: &HardwareCounters, machine: &Machine) -> CpuTotals {
    CpuTotals {
        cpu: cpu.0,
        accesses: counters.accesses,
        instructions: counters.instructions,
        cycles: machine.explain(counters).total() as u64,
        walk_cycles: counters.walk_cycles,
        l2_misses: counters.l2_misses,
    }
}

/// What became of each position of the walks.
pub(crate) fn walk_positions(counters: &HardwareCounters) -> Vec<WalkPosition> {
    let positions = counters.positions();
    positions
        .map(|(position, found)| WalkPosition {
            position: position.to_string(),
            references: found.read.total(),
            l1: found.read.l1,
            l2: found.read.l2,
            llc: found.read.l3,
            memory: found.read.memory,
            pwc: found.pwc,
            nested_pwc: found.nested_pwc,
            ntlb: found.ntlb,
        })
        .collect()
}

/// TLB misses and fills.
pub(crate) fn tlb(counters: &HardwareCounters) -> Tlb {
    let mut fills: BTreeMap<String, u64> = PageSize::ALL
        .iter()
        .zip(counters.fills)
        .map(|(size, count)| (size.to_string(), count))
        .collect();
    fills.insert("none".to_owned(), counters.unfilled_walks);
    Tlb { l1_misses: counters.l1_misses, l2_misses: counters.l2_misses, fills }
}

/// Entries of the second stages that a kernel keeps, and, as the host, of the shadow tables.
pub(super) fn entries_kept(stack: &Stack, hypervisor: NodeId) -> EntryCounts {
    let mut counts = EntryCounts::default();
    let mut add = |table: &SecondStageTable| {
        table.for_each_region(|_, region| match region {
            Region::Huge(_) => counts.huge += 1,
            Region::Base { entries, .. } => {
                counts.base += entries.iter().filter(|bits| X86::is_present(**bits)).count() as u64;
            }
            Region::Absent => {}
        });
    };
    let on_it = |vm: &NodeId| stack.below(*vm) == Some(hypervisor);
    stack.nodes().filter(on_it).for_each(|vm| add(stack.second_stage(vm)));
    if hypervisor == NodeId::HOST {
        // With shadow paging a guest has no shadow table of second stages.
        let nested =
            stack.guests().filter(|guest| !on_it(guest) && !stack.has_shadow_paging(*guest));
        nested.filter_map(|vm| stack.hardware_second_stage(vm)).for_each(add);
    }
    counts
}
