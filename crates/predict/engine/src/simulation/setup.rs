//! From what the user chose to a machine.

use super::asids::Asids;
use super::clock::Clock;
use super::cores::Cores;
use super::guest::{Context, Guest, KernelBefore, State};
use super::host::{HostSetup, VmSetup};
use super::moments::Moments;
use super::outcome::entries_kept;
use super::parameters::ModelParameters;
use super::rates::{Happened, RateParameters};
use super::sizes::{LEAST_MEMORY, vm_memory};
use super::tree::{GuestPlan, Tree};
use super::{Relocation, Samples, Simulation, owner};
use crate::memory::{Extent, Need};
use crate::requests::Served;
use crate::warmup::Warmup;
use crate::{Catalogue, ColouredCache, PolicyInfo, Run, Setup, SetupError, StackKind, Stop};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use strata_addr::PageSize;
use strata_colours::Colours;
use strata_hardware::{Caches, CpuId, LlcOptions, Machine, PHYSICAL_LIMIT};
use strata_params::Parameters;
use strata_policies::{ParameterSet, PerVm, REGISTRY};
use strata_stack::{
    BuildError, Feedback, HostWork, KernelSettings, NodeId, PagePlacement, Policy, Stack,
    StackConfig, ThpMode,
};

/// Everything machines can be made of.
pub fn catalogue() -> Catalogue {
    Catalogue {
        policies: REGISTRY
            .iter()
            .map(|entry| PolicyInfo {
                name: entry.name.into(),
                about: entry.summary.into(),
                paper: entry.source.into(),
                stacks: &StackKind::EVERY,
                by_colour: entry.by_colour,
                parameters: entry.parameters.iter().flat_map(ParameterSet::names).collect(),
            })
            .collect(),
        parameters: ModelParameters::default().parameters(),
        own: Vec::new(),
        need: |setup, workload| need(&HostSetup::single(setup, workload)),
        build: |setup, workload, stop| {
            Ok(Box::new(Simulation::new(setup, workload, stop)?) as Box<dyn Run>)
        },
    }
}

/// What may happen by time alone takes less of a CPU's time than this: the time that it takes has more of it.
const MOST_OF_TIME: f64 = 0.9;

/// A host that can be built.
struct Blueprint<'a> {
    setup: &'a HostSetup,
    parameters: ModelParameters,
    policies: PerVm,
    config: StackConfig,
    guests: Vec<GuestPlan>,
    /// How each kernel is set up.
    settings: Vec<KernelSettings>,
    llc: LlcOptions,
}

impl<'a> Blueprint<'a> {
    /// Checks everything that can be checked before anything is built.
    fn new(setup: &'a HostSetup) -> Result<Self, SetupError> {
        let mut parameters = ModelParameters::default();
        for (name, value) in &setup.common.overrides {
            parameters.set(name, value).map_err(refused)?;
        }
        if parameters.time.scale <= 0.0 {
            return Err(refused(
                "time.scale=0: no time would pass for background work; give a number above 0",
            ));
        }
        let Tree { kernels, guests, policies, of_host, governs, .. } = Tree::new(setup);
        let make = |name: &String| -> Result<Box<dyn Policy>, SetupError> {
            if let Some(own) = setup.common.own.iter().find(|own| own.name == *name) {
                return Ok((own.make)());
            }
            let entry = strata_policies::find(name).map_err(refused)?;
            Ok((entry.make)(&parameters.policies))
        };
        let policies = policies.iter().map(make).collect::<Result<_, _>>()?;
        let mut policies = PerVm::new(policies, of_host, governs);
        for guest in &guests {
            let (vm, memory) = (&setup.vms[guest.vm], kernels[guest.path[0]].memory);
            check_guest_memory(vm, memory)?;
            if guest.path.len() > 1 {
                check_balloon(vm, parameters.balloon.size.saturating_mul(1 << 20), memory)?;
            }
        }
        let largest = kernels.iter().map(|kernel| kernel.memory).max().unwrap_or(0);
        if largest > PHYSICAL_LIMIT {
            let (need, most) = (largest >> 30, PHYSICAL_LIMIT >> 30);
            let by_size = setup.vms.iter().max_by_key(|vm| vm_memory(setup, vm));
            let remedy = match by_size.map(|vm| vm.name.as_str()) {
                _ if setup.memory == Some(largest) => "lower --host-memory".to_owned(),
                None | Some("") => "lower --memory or make the workload smaller".to_owned(),
                Some(name) => {
                    format!("lower the memory of VM '{name}' or make the workload smaller")
                }
            };
            return Err(refused(format!(
                "a layer would have {need} GiB of memory, and the model's caches tell {most} GiB \
                 apart: {remedy}"
            )));
        }
        let llc = llc_options(setup, &guests)?;
        let colours = colours(&setup.common);
        let mut config = StackConfig {
            kernels,
            levels: setup.common.levels,
            reused: setup.common.reused,
            paging: setup.common.paging,
            costs: parameters.costs.clone(),
            exits: parameters.exits.clone(),
            virtualization: setup.common.cpu.virtualization,
            thp: parameters.thp.clone(),
            start: parameters.memory.clone(),
            aligner: parameters.policies.get(),
            colours: None,
            coloured: parameters.coloured.clone(),
            balloon: parameters.balloon.clone(),
            ksm: parameters.ksm.clone(),
        };
        let positions = config.positions().map_err(refused)?;
        let settings: Vec<KernelSettings> =
            positions.iter().map(|at| policies.settings(*at)).collect();
        let placed = config.kernels.iter().any(|kernel| kernel.placement != PagePlacement::Linux);
        if placed || settings.iter().any(|settings| settings.coloured) {
            let colours = colours?;
            if colours.are_of_huge_pages() && settings.iter().any(|settings| settings.coloured) {
                return Err(refused(format!(
                    "coplace, xplace and xgemini+xplace place base pages, and the {} colours of the cache at \
                     the memory are those of huge pages, which do not say where in one a base page lies: \
                     choose other policies, another --colours-of, or ways of at most 2 MiB",
                    colours.count()
                )));
            }
            if colours.are_of_huge_pages()
                && config.kernels.iter().any(|kernel| kernel.cache.is_some())
            {
                return Err(refused(
                    "a VM's own last-level cache (vllc) has colours of base pages, and those of the cache at \
                     the memory are of huge pages: leave out one of the two",
                ));
            }
            if let Some(why) = policies.refuses(colours) {
                return Err(refused(why));
            }
            for (at, kernel) in positions.iter().zip(&config.kernels) {
                let told = kernel.cache.and_then(|cache| policies.told_of_cache(at.node, cache));
                if let Some(why) = told {
                    return Err(refused(why));
                }
            }
            config.colours = Some(colours);
        }
        Ok(Self { setup, parameters, policies, config, guests, settings, llc })
    }

    /// Bytes of memory of a kernel, by its place in [`StackConfig::kernels`].
    fn memory(&self, kernel: usize) -> u64 {
        self.config.kernels[kernel].memory
    }

    /// Whether its memory is fragmented.
    fn is_fragmented(&self, kernel: usize) -> bool {
        self.settings[kernel].fragmented && self.config.kernels[kernel].fragmentation > 0.0
    }

    /// The kernels below a guest and its own, which comes first, as they are before anything runs.
    fn layers(&self, guest: &GuestPlan, stack: &Stack) -> Vec<KernelBefore> {
        let layer = |(node, kernel): (NodeId, &usize)| KernelBefore {
            node,
            memory: self.memory(*kernel),
            is_fragmented: self.is_fragmented(*kernel),
            free_huge: stack.kernel(node).memory().free_regions(),
            entries: entries_kept(stack, node),
        };
        let nodes: Vec<NodeId> = stack.nodes().collect();
        stack.path_down(nodes[guest.path[0]]).zip(&guest.path).map(layer).collect()
    }

    /// What it needs of this computer's memory.
    fn need(&self) -> Need {
        let needs = self.guests.iter().map(|guest| self.extent(guest).need());
        needs.fold(Need::default(), |all, need| Need {
            least: all.least + need.least,
            likely: all.likely + need.likely,
        })
    }

    /// How much there will be to remember of a guest and what is below it.
    fn extent(&self, guest: &GuestPlan) -> Extent {
        let StackConfig { start, reused, .. } = &self.config;
        let own = guest.path[0];
        let depth = guest.path.len();
        let pages = |bytes: u64| bytes >> PageSize::BASE_SHIFT;
        // Each hypervisor's VM process and second stage; and the shadow table.
        let tables = 2 * (depth - 1) + usize::from(depth > 2);
        let thp = |kernel: &usize| self.settings[*kernel].thp != ThpMode::Never;
        let has_huge_pages = guest.path.iter().any(thp);
        // With huge pages nothing is certain but the owners of frames.
        let least =
            |layers: usize| (4 * layers + if has_huge_pages { 0 } else { 8 * tables }) as u64;

        // What is free at least is filled, but for the tables that takes.
        let free = if self.is_fragmented(own) { 1.0 - start.occupied.min(1.0) } else { 1.0 };
        let share = free * start.reused_share.min(1.0) * 0.99;
        let reused = if *reused { pages((self.memory(own) as f64 * share) as u64) } else { 0 };
        let is_backed = |kernel: &&usize| start.backed && self.is_fragmented(**kernel);
        let in_vms = guest.path[..depth - 1].iter();
        let backed = in_vms.filter(is_backed).map(|kernel| pages(self.memory(*kernel))).max();
        let guest_backed = if depth > 1 && is_backed(&&own) { pages(self.memory(own)) } else { 0 };

        let workload = self.setup.vms[guest.vm].workload.as_ref();
        let footprint = workload.and_then(|workload| workload.footprint_bytes);
        let pages_touched = pages(footprint.unwrap_or(0));
        // Of several VMs one may have ended before another touches its memory.
        let held = match self.guests[..] {
            [_] => pages(workload.map_or(0, |workload| workload.held_bytes).min(self.memory(own))),
            _ => 0,
        };
        // Free frames of a region whose buddies are taken: they are given out first.
        let holes = PageSize::Huge.base_pages() as f64 * start.occupied * (1.0 - start.occupied);
        let scattered = if guest.path.iter().any(|kernel| self.is_fragmented(*kernel)) {
            let all = self.memory(own) >> PageSize::Huge.shift();
            ((pages_touched as f64 / holes.max(1.0)) as u64).min(all)
        } else {
            0
        };
        Extent {
            regions: guest.path.iter().map(|kernel| self.memory(*kernel)).sum::<u64>()
                >> PageSize::Huge.shift(),
            pages_before: reused.max(backed.unwrap_or(0)),
            least: (reused.max(held) * least(depth)).max(guest_backed * least(depth - 1)),
            pages_touched,
            scattered,
            layers: depth as u64,
            tables: tables as u64,
        }
    }
}

impl HostSetup {
    /// What it needs of this computer's memory; `None` if it cannot be built.
    pub fn need(&self) -> Option<Need> {
        need(self)
    }

    /// Bytes of the host's memory.
    pub fn host_memory(&self) -> u64 {
        host_memory(self)
    }
}

/// The last-level cache of a host: guests are its owners, by their numbers.
fn llc_options(setup: &HostSetup, guests: &[GuestPlan]) -> Result<LlcOptions, SetupError> {
    let Setup { cpu, llc, .. } = &setup.common;
    // Owners and tags of VMs have 16 bits.
    if guests.len() > usize::from(u16::MAX) {
        let most = u16::MAX;
        return Err(refused(format!("{} VMs on one host: at most {most}", guests.len())));
    }
    let mask = |guest: &GuestPlan| {
        let vm = setup.outermost(&setup.vms[guest.vm]);
        let Some(own) = vm.llc_ways else { return Ok(llc.ways) };
        let wrong =
            |error| refused(format!("VM '{}': the ways of the last-level cache: {error}", vm.name));
        own.check(cpu.cache.llc.ways).map(|()| Some(own)).map_err(wrong)
    };
    let masks = guests.iter().map(mask).collect::<Result<_, _>>()?;
    let options = LlcOptions { design: llc.design(cpu), masks, classify: llc.classify };
    let Caches { l2, llc: geometry, l4, .. } = &cpu.cache;
    let checked = options.check(l2, geometry, l4);
    checked.map_err(|error| refused(format!("{}: {error}", cpu.name)))?;
    Ok(options)
}

/// The colours of the cache that pages are placed by.
fn colours(setup: &Setup) -> Result<Colours, SetupError> {
    let Setup { cpu, llc, .. } = setup;
    let index = llc.coloured(cpu);
    if llc.colours_of == ColouredCache::L4
        && let Some(colours) = Colours::of_huge_pages(&index)
    {
        return Ok(colours);
    }
    Colours::new(&index).map_err(|error| {
        refused(format!(
            "pages cannot be placed by the colours of the {} of {}: {error}",
            llc.colours_of.words(),
            cpu.name
        ))
    })
}

fn check_guest_memory(vm: &VmSetup, memory: u64) -> Result<(), SetupError> {
    let enough = vm.workload.as_ref().and_then(|workload| workload.footprint_bytes).unwrap_or(0);
    if memory >= LEAST_MEMORY && memory >= enough {
        return Ok(());
    }
    let (have, need) = (memory >> 20, enough.max(LEAST_MEMORY) >> 20);
    let (whose, remedy) = match vm.name.as_str() {
        "" => ("the guest's".to_owned(), "--memory"),
        name => (format!("VM '{name}': the guest's"), "its memory"),
    };
    Err(refused(format!(
        "{whose} {have} MiB of memory are too little for {need} MiB: raise {remedy}, or leave it out \
         to have it chosen"
    )))
}

/// A balloon takes memory that the guest has. `of_all` are the bytes of a balloon that no VM chose.
fn check_balloon(vm: &VmSetup, of_all: u64, memory: u64) -> Result<(), SetupError> {
    let bytes = vm.balloon.unwrap_or(of_all);
    if bytes < memory {
        return Ok(());
    }
    let (takes, have) = (bytes >> 20, memory >> 20);
    let (whose, option) = match (vm.name.as_str(), vm.balloon) {
        ("", _) => (String::new(), "balloon.size"),
        (name, None) => (format!("VM '{name}': "), "balloon.size"),
        (name, Some(_)) => (format!("VM '{name}': "), "balloon"),
    };
    Err(refused(format!(
        "{whose}a balloon of {takes} MiB cannot be taken of {have} MiB of memory: lower {option}"
    )))
}

fn refused(why: impl std::fmt::Display) -> SetupError {
    SetupError::Refused(why.to_string())
}

/// What a host needs of this computer's memory, if it can be built.
fn need(setup: &HostSetup) -> Option<Need> {
    Some(Blueprint::new(setup).ok()?.need())
}

/// Bytes of a host's memory.
fn host_memory(setup: &HostSetup) -> u64 {
    Tree::new(setup).kernels[0].memory
}

/// A host that was built.
pub(super) struct Built {
    pub(super) simulation: Simulation,
    /// The VM of each guest, by its place in [`HostSetup::vms`].
    pub(super) vms: Vec<usize>,
    /// Seconds of a time slice.
    pub(super) slice: f64,
}

impl Simulation {
    /// A host as `setup` says, whose guests are numbered in the order of the kernels.
    ///
    /// # Errors
    /// [`SetupError`], one line with cause and remedy, or that it was to stop.
    pub(super) fn build(setup: &HostSetup, stop: &Stop) -> Result<Built, SetupError> {
        let mut blueprint = Blueprint::new(setup)?;
        let Blueprint { config, policies, .. } = &mut blueprint;
        let stack = Stack::build(config, policies, &|| stop.requested());
        let mut stack = stack.map_err(|error| match error {
            BuildError::Stopped => SetupError::Stopped,
            error => refused(error),
        })?;
        let cpu = &setup.common.cpu;
        let machine = Machine::with_llc(cpu, setup.common.misaligned, &blueprint.llc);
        let mut machine = machine.map_err(refused)?;
        let mut cores = bound_cores(setup, &mut machine);
        let in_force: BTreeMap<String, String> = blueprint
            .parameters
            .parameters()
            .into_iter()
            .chain(cpu.parameters())
            .map(|parameter| (parameter.name.into_owned(), parameter.value))
            .collect();
        let nodes: Vec<NodeId> = stack.nodes().collect();
        for plan in &blueprint.guests {
            if let Some(bytes) = setup.vms[plan.vm].balloon {
                stack.set_balloon_size(nodes[plan.path[0]], bytes);
            }
        }
        let guests = blueprint.guests.iter().enumerate().map(|(guest, plan)| {
            let vm = &setup.vms[plan.vm];
            let node = nodes[plan.path[0]];
            let frames = stack.kernel(node).memory().used_frames();
            // The first CPU is there before any thread, for work that no thread asked for.
            let (all_cpus, mut idle_cpus) = match vm.cores.is_empty() {
                true => {
                    let first = machine.add_cpu();
                    (vec![first], vec![first])
                }
                false => {
                    let bound: Vec<_> = vm.cores.iter().map(|core| CpuId(*core)).collect();
                    (bound.clone(), bound)
                }
            };
            idle_cpus.sort_unstable_by(|a, b| b.cmp(a));
            all_cpus.iter().for_each(|cpu| machine.assign(*cpu, owner(guest)));
            let frequency = f64::from(cpu.core.frequency_mhz) * 1e6;
            let start = (vm.start * frequency) as u64;
            let scale = blueprint.parameters.time.scale;
            if vm.cores.is_empty() {
                cores.wait_until(all_cpus[0], &machine, start);
            }
            Guest {
                vm: stack.position(node).vm,
                node,
                clock: Clock::new(frequency, scale, all_cpus[0], start),
                cpus: FxHashMap::default(),
                idle_cpus,
                all_cpus,
                is_bound: !vm.cores.is_empty(),
                relocation: Relocation::default(),
                samples: Samples::default(),
                moments: Moments::default(),
                warmup: Warmup::new(&setup.common),
                sampling: Default::default(),
                served: Served::new(frequency),
                happened: Happened::default(),
                frames_before: frames,
                peak_frames: frames,
                layers: blueprint.layers(plan, &stack),
                fullest: State::default(),
                dead: None,
                lost_accesses: 0,
                kernel_accesses: 0,
                unresolved_accesses: 0,
                last_feedback: Feedback::default(),
                of_host: HostWork::default(),
                context: Context {
                    stack: stack_kind(plan),
                    vm: vm.name.clone(),
                    policy: vm.policy.clone(),
                    cpu: cpu.name.clone(),
                    explain: setup.common.explain,
                    detail: setup.common.detail,
                    plain_colours: blueprint.config.colours.is_some()
                        && setup.common.llc.colours_of == ColouredCache::Llc
                        && blueprint.llc.design.hash != cpu.cache.llc_design.hash,
                    footprint: vm.workload.as_ref().and_then(|known| known.footprint_bytes),
                    parameters: in_force.clone(),
                },
                result: None,
            }
        });
        let guests: Vec<Guest> = guests.collect();
        for guest in &guests {
            check_rates(&blueprint.parameters.rates, &stack, guest)?;
        }
        let acting = (0, stack.work_of_host());
        let simulation = Self {
            stack,
            policies: blueprint.policies,
            machine,
            cores,
            asids: Asids::default(),
            guests,
            acting,
            longest_step: u64::MAX,
            rates: blueprint.parameters.rates,
            flushes: Vec::new(),
        };
        let vms = blueprint.guests.iter().map(|guest| guest.vm).collect();
        Ok(Built { simulation, vms, slice: blueprint.parameters.scheduler.slice })
    }
}

/// What happens by time alone leaves a guest time for something else.
fn check_rates(rates: &RateParameters, stack: &Stack, guest: &Guest) -> Result<(), SetupError> {
    let once = |what| stack.cycles_of(guest.node, what, rates.accesses, rates.direct_timers);
    let share = rates.share_of_time(once, guest.clock.frequency());
    if share < MOST_OF_TIME {
        return Ok(());
    }
    Err(refused(format!(
        "exits of timers and devices at these rates would take {:.0} % of a CPU's time on a {} stack: lower \
         --tick-hz, --io-hz or the rates set",
        100.0 * share,
        guest.context.stack
    )))
}

/// The stack that a guest is on.
fn stack_kind(guest: &GuestPlan) -> StackKind {
    StackKind::of_layers(guest.path.len()).expect("the depth of every VM was checked")
}

/// Adds the cores that VMs are bound to, and all with a lower number.
fn bound_cores(setup: &HostSetup, machine: &mut Machine) -> Cores {
    let mut cores = Cores::default();
    let bound = || setup.vms.iter().flat_map(|vm| vm.cores.iter().copied());
    for _ in 0..bound().max().map_or(0, |last| last + 1) {
        let core = machine.add_cpu();
        if bound().filter(|other| *other == core.0).count() > 1 {
            cores.share(core);
        }
    }
    cores
}
