//! Hosts to test with.

use std::num::NonZeroUsize;
use strata_engine::{
    GuestOutcome, HostError, HostOutcome, HostSetup, Hosts, OpenError, Progress, RunResult, Setup,
    StackKind, Stop, VmSetup, catalogue, run_hosts,
};
use strata_hardware::CpuModel;
use strata_stream::{Batch, Fill, Source};
use strata_workloads::Generator;

pub const MIB: u64 = 1 << 20;

/// What VMs have in common where nothing else is said: memory that is not fragmented, and a CPU
/// without data caches, so that nothing depends on the numbers of the host's frames.
pub fn common() -> Setup {
    Setup {
        memory: Some(256 * MIB),
        ..Setup::new(
            StackKind::Vm,
            "thp",
            CpuModel { cache: preset().without_caches().cache, ..preset() },
        )
    }
}

pub fn preset() -> CpuModel {
    CpuModel::preset("broadwell-e5-2620v4").unwrap()
}

/// A VM and what it runs.
#[derive(Clone, Debug)]
pub struct Vm {
    pub setup: VmSetup,
    pub workload: String,
}

/// A VM in which a generator runs.
pub fn vm(name: &str, stack: StackKind, policy: &str, workload: &str) -> Vm {
    let info = Generator::parse(workload).expect("a workload").info();
    let setup = VmSetup {
        name: name.to_owned(),
        stack,
        policy: policy.to_owned(),
        memory: Some(256 * MIB),
        cores: Vec::new(),
        start: 0.0,
        repeat: false,
        placement: strata_engine::PagePlacement::Linux,
        balloon: None,
        llc_ways: None,
        vllc: None,
        within: None,
        seed: 0,
        workload: Some(info),
    };
    Vm { setup, workload: workload.to_owned() }
}

impl Vm {
    pub fn within(mut self, hypervisor: &str) -> Self {
        self.setup.within = Some(hypervisor.to_owned());
        self
    }

    pub fn on(mut self, core: u32) -> Self {
        self.setup.cores = vec![core];
        self
    }

    pub fn starting(mut self, seconds: f64) -> Self {
        self.setup.start = seconds;
        self
    }

    pub fn repeating(mut self) -> Self {
        self.setup.repeat = true;
        self
    }
}

/// A host for these VMs.
pub fn host(common: Setup, memory: Option<u64>, vms: &[Vm]) -> HostSetup {
    let setups = vms.iter().map(|vm| vm.setup.clone()).collect();
    HostSetup::shared(common, memory, setups).expect("they can be on one host")
}

/// Runs hosts, `at_once` of them at the same time.
pub fn run(
    setups: &[HostSetup],
    vms: &[Vm],
    at_once: usize,
) -> Result<Vec<HostOutcome>, HostError> {
    let open = |name: &str| -> Result<Box<dyn Source>, OpenError> {
        let vm = vms.iter().find(|vm| vm.setup.name == name).expect("it is one of these");
        Ok(Box::new(Generator::parse(&vm.workload).expect("it was parsed before")))
    };
    let hosts = Hosts {
        setups,
        open: &open,
        at_once: NonZeroUsize::new(at_once).unwrap(),
        stop: &Stop::default(),
        progress: &Progress::default(),
    };
    let outcomes = run_hosts(&hosts)?;
    Ok(outcomes.into_iter().map(|outcome| outcome.expect("nobody asked to stop")).collect())
}

/// A guest hypervisor, in another one or on the host.
pub fn hypervisor(name: &str, policy: &str, within: Option<&str>) -> Vm {
    let mut hypervisor = vm(name, StackKind::Vm, policy, "random:size=4MiB,accesses=1");
    hypervisor.setup.workload = None;
    hypervisor.setup.memory = None;
    hypervisor.setup.within = within.map(str::to_owned);
    hypervisor
}

/// What the path for one machine finds, which has no host and no other VMs to think of.
pub fn single(setup: &Setup, workload: &str) -> RunResult {
    let mut source = Generator::parse(workload).expect("a workload");
    let built = (catalogue().build)(setup, &source.info(), &Stop::default());
    let mut run = built.expect("it can be built");
    let mut batch = Batch::new();
    while source.fill(&mut batch).expect("generators go on") == Fill::More {
        run.consume(&batch);
    }
    run.consume(&batch);
    run.finish()
}

/// Runs VMs together.
pub fn together(common: Setup, memory: Option<u64>, vms: &[Vm]) -> HostOutcome {
    run(&[host(common, memory, vms)], vms, 1).expect("it runs").remove(0)
}

/// What was found of a VM.
pub fn of<'a>(outcome: &'a HostOutcome, vm: &str) -> &'a GuestOutcome {
    outcome.guests.iter().find(|guest| guest.vm == vm).expect("it was there")
}

/// What was found of it, without what tells of the whole host's memory, with its cores counted from 0.
pub fn own(run: &RunResult) -> RunResult {
    let mut own = run.clone();
    own.fmfi.host = None;
    own.layers.retain(|layer| layer.layer != "host");
    let first = own.cpus.first().map_or(0, |cpu| cpu.cpu);
    own.cpus.iter_mut().for_each(|cpu| cpu.cpu -= first);
    for sample in &mut own.samples {
        sample.fmfi.host = None;
    }
    own
}
