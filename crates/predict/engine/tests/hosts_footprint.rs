//! What a host with several VMs takes of this computer's memory is what its VMs take.
#![cfg(target_os = "linux")]

use std::env;
use std::num::NonZeroUsize;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use strata_engine::{
    HostSetup, Hosts, LayerFmfi, OpenError, PagePlacement, Progress, Setup, StackKind, Stop,
    VmSetup, run_hosts,
};
use strata_hardware::CpuModel;
use strata_stream::{Batch, Fill, Source, SourceError, WorkloadInfo};
use strata_workloads::Generator;

const GIB: u64 = 1 << 30;

/// Name, stack, policy and workload of each VM. Every page is touched, so that tables and states of frames are
/// most of what is taken; but for one that has next to nothing, whose host shows what any host takes.
const VMS: [(&str, StackKind, &str, &str); 3] = [
    ("nested", StackKind::Nested, "base", "random:size=2GiB,touch=yes,accesses=300k"),
    ("one", StackKind::Vm, "xgemini", "random:size=3GiB,touch=yes,accesses=300k"),
    (TINY, StackKind::Vm, "base", "random:size=1MiB,touch=yes,accesses=300k"),
];
const TINY: &str = "tiny";

/// Says of which VMs a process measures a host; others start such processes.
const MEASURED: &str = "STRATA_MEASURED_VMS";

/// Resident bytes of this process (proc(5), statm, second field, in pages of 4 KiB).
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = statm.split(' ').nth(1).and_then(|field| field.parse::<u64>().ok());
    pages.expect("a number") * 4096
}

/// A stream that notes the most that is resident when more of it is wanted.
struct Watched {
    source: Generator,
    most: Arc<AtomicU64>,
}

impl Source for Watched {
    fn info(&self) -> WorkloadInfo {
        self.source.info()
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Fill, SourceError> {
        self.most.fetch_max(resident(), Relaxed);
        self.source.fill(batch)
    }
}

/// A host with the VMs that have something. Its memory is as large whatever is on it.
fn both() -> HostSetup {
    let mut host = all();
    host.vms.retain(|vm| vm.name != TINY);
    host
}

fn all() -> HostSetup {
    let common = Setup {
        memory: Some(4 * GIB),
        // In a fragmented host base pages go to the smallest holes first: what VMs take alone lies in the
        // same regions then, whose state is kept once.
        fragmentation: LayerFmfi { host: 0.0, ..LayerFmfi::everywhere(0.8) },
        ..Setup::new(StackKind::Vm, "base", CpuModel::preset(CpuModel::DEFAULT).unwrap())
    };
    let vm = |(name, stack, policy, workload): (&str, _, &str, &str)| VmSetup {
        name: name.to_owned(),
        stack,
        policy: policy.to_owned(),
        memory: Some(4 * GIB),
        cores: Vec::new(),
        start: 0.0,
        repeat: false,
        placement: PagePlacement::Linux,
        balloon: None,
        llc_ways: None,
        vllc: None,
        within: None,
        seed: 0,
        workload: Some(Generator::parse(workload).expect("a workload").info()),
    };
    HostSetup::shared(common, Some(24 * GIB), VMS.map(vm).to_vec())
        .expect("they can be on one host")
}

/// Bytes that a host takes at most while it runs.
fn taken(host: HostSetup) -> u64 {
    let before = resident();
    let most = Arc::new(AtomicU64::new(before));
    let open = |name: &str| -> Result<Box<dyn Source>, OpenError> {
        let (.., workload) = VMS.iter().find(|vm| vm.0 == name).expect("it is one of these");
        let source = Generator::parse(workload).expect("it was parsed before");
        Ok(Box::new(Watched { source, most: Arc::clone(&most) }))
    };
    let hosts = Hosts {
        setups: &[host],
        open: &open,
        at_once: NonZeroUsize::MIN,
        stop: &Stop::default(),
        progress: &Progress::default(),
    };
    run_hosts(&hosts).expect("it runs");
    most.load(Relaxed) - before
}

/// The same in a process of its own, which has nothing left of a host before.
fn measured(what: &str) -> u64 {
    let output = Command::new(env::current_exe().expect("a test has a path"))
        .args(["--exact", "two_vms_take_what_each_takes_alone", "--nocapture"])
        .env(MEASURED, what)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let bytes = said.lines().find_map(|line| line.strip_prefix("taken: ")?.parse().ok());
    bytes.unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn two_vms_take_what_each_takes_alone() {
    if let Ok(what) = env::var(MEASURED) {
        let host = if what == "both" { both() } else { all().alone(&what) };
        return println!("\ntaken: {}", taken(host));
    }
    let [nested, one, tiny, whole] = ["nested", "one", TINY, "both"].map(measured);
    println!("{nested} and {one} alone, {whole} together; {tiny} of any host");
    for (taken, host) in
        [(nested, all().alone("nested")), (one, all().alone("one")), (whole, both())]
    {
        let need = host.need().expect("it can be built");
        assert!(need.least <= taken && taken <= need.likely + need.likely / 10, "{taken} {need:?}");
    }
    // Within 3 %: the host has one table of each kind for all of its VMs.
    let sum = nested + one - tiny;
    assert!(whole.abs_diff(sum) <= sum * 3 / 100, "{whole} of {sum}");
}
