//! The model of the machine that the lab ran, from the state in which the program found it.

use super::state::LayerState;
use crate::cpu::cpu;
use crate::failure::{Failure, USAGE};
use crate::interrupt::Interrupt;
use crate::workload::{Input, unopened};
use nix::libc;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use strata_engine::{
    Found, HostError, HostSetup, Hosts, OpenError, OwnPolicy, Paging, Progress, RunResult, Setup,
    StackKind, Stop, ThpMode, VmSetup, run_hosts,
};
use strata_hardware::CpuModel;
use strata_lab::{Layer, Make};
use strata_workloads::{Before, Part};

/// The name of what governs its kernels.
const LINUX: &str = "linux";

/// What governs them where L0's is the kernel with alignment.
const ALIGNED: &str = "strata";

/// A machine that the layers were.
#[derive(Debug)]
pub struct Machine<'a> {
    /// What the program found, L0 first.
    pub layers: &'a [LayerState],
    /// The make of its processors.
    pub make: Make,
    /// How its hypervisors have memory for their VMs.
    pub paging: Paging,
    /// What the policy of L0's kernel is told, if that is the one with alignment, and it is on.
    pub aligned: Option<Vec<(String, String)>>,
}

/// What the policy of a layer's kernel is told, if that is the one with alignment, and it is on: its settings are the
/// module's (docs/kernel.md).
pub fn aligned(layer: &Layer) -> Option<Vec<(String, String)>> {
    let is_on =
        layer.parameter("kvm", "nested_align").is_some() && !layer.is_off("kvm", "nested_align");
    if !(layer.kernel.is_patched() && is_on) {
        return None;
    }
    let given = layer.modules.values().flat_map(|values| values.split_whitespace());
    let told = given.filter_map(|given| {
        let (name, value) = given.split_once('=')?;
        let number: f64 = value.parse().ok()?;
        let (name, value) = match name {
            "nested_align_cpu_percent" => ("strata.share", number / 100.0),
            "nested_align_period_ms" => (PERIOD.0, number / 1000.0),
            "nested_align_min_present" => ("strata.min_present", number),
            _ => return None,
        };
        Some((name.to_owned(), value.to_string()))
    });
    Some(told.collect())
}

/// How hypervisors have memory for their VMs, of which this says, L0 first, which keep shadows of page tables.
///
/// # Errors
/// When no processor does that.
pub fn paging(shadows: &[bool]) -> Result<Paging, Failure> {
    match shadows {
        [] | [false] | [false, false] => Ok(Paging::Nested),
        [true] | [false, true] => Ok(Paging::Shadow),
        [true, true] => Ok(Paging::ShadowOnShadow),
        _ => Err(Failure::usage(
            "L0 has nested paging off and L1 has it on, which KVM does not do: turn it off in L1, too",
        )),
    }
}

/// The parameter of the policy that says how far two scans are apart, and what that is unless the module is told.
const PERIOD: (&str, f64) = ("strata.period", 1.0);

/// Multiplies the time between two scans.
pub fn pace(told: &mut Vec<(String, String)>, factor: f64) {
    let (name, default) = PERIOD;
    let given = told.iter().find(|(known, _)| known == name);
    let given = given.and_then(|(_, value)| value.parse().ok()).unwrap_or(default);
    told.retain(|(known, _)| known != name);
    told.push((name.to_owned(), (given * factor).to_string()));
}

/// Of the exits that are handed on to L1, this share is interrupted meanwhile.
pub fn interrupt(told: &mut Vec<(String, String)>, share: f64) {
    told.push(("nested.interrupted".to_owned(), share.min(1.0).to_string()));
}

/// What is counted of a program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Accesses before.
    pub warmup: u64,
    /// The access at which it ends, if that is before the program's end.
    pub until: Option<u64>,
}

/// Runs a program through the model of a machine.
///
/// # Errors
/// When the program cannot be run, or the machine not be built.
pub fn run(
    machine: &Machine<'_>,
    program: &[OsString],
    counted: Counted,
    interrupt: &Interrupt,
) -> Result<RunResult, Failure> {
    let input = Input::Live(program.to_vec());
    let known = input.live_info().unwrap_or_default();
    let mut setup = host(machine, known)?;
    setup.common.warmup = counted.warmup;
    let part = Part { limit: counted.until, ..Part::default() };
    let open = |_: &str| input.open(part, Before::Touches, &interrupt.flag);
    let (stop, progress) = (Stop(interrupt.flag.clone()), Progress::default());
    // As in the layers, nothing comes in; what it prints they have printed.
    let _detached = Detached::begin()?;
    let setups = [setup];
    let one = NonZeroUsize::MIN;
    let hosts =
        Hosts { setups: &setups, open: &open, at_once: one, stop: &stop, progress: &progress };
    let outcomes = run_hosts(&hosts).map_err(|error| match error {
        HostError::Setup(error) => Failure { message: error.to_string(), status: USAGE },
        HostError::Open { .. } => unopened(&OpenError(error.to_string()), interrupt),
    })?;
    let guest = outcomes.into_iter().flatten().flat_map(|outcome| outcome.guests).next();
    let run = guest.map(|guest| guest.run).ok_or_else(|| Failure {
        message: format!("{} before the model ran", interrupt.reason()),
        status: interrupt.status(),
    })?;
    if run.instructions == 0 && !interrupt.happened() {
        let name = program.first().map(|name| name.to_string_lossy()).unwrap_or_default();
        return Err(Failure::failed(format!("{name} did not run under the model")));
    }
    Ok(run)
}

/// Standard input and output lead nowhere, for programs that are started, until this is dropped.
struct Detached {
    /// What they led to.
    before: [OwnedFd; 2],
}

impl Detached {
    fn begin() -> Result<Self, Failure> {
        let nowhere = || File::options().read(true).write(true).open("/dev/null");
        let kept = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
        let begin = || -> io::Result<Self> {
            let (stdin, stdout) = (io::stdin(), io::stdout());
            let before = [kept(stdin.as_fd())?, kept(stdout.as_fd())?];
            let nowhere = nowhere()?;
            lead(0, &nowhere)?;
            lead(1, &nowhere)?;
            Ok(Self { before })
        };
        begin().map_err(|error| {
            Failure::failed(format!("cannot set the program's input and output aside: {error}"))
        })
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        for (number, before) in (0..).zip(&self.before) {
            // They can be led back as they could be led away.
            let _ = lead(number, before);
        }
    }
}

/// Has a descriptor of this number lead where another one does.
fn lead(number: RawFd, to: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: both are open descriptors of this process, and nobody reads or writes these meanwhile.
    match unsafe { libc::dup2(to.as_raw_fd(), number) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The processor that the model has for a machine.
pub fn processor(make: Make) -> Result<CpuModel, Failure> {
    let mut cpu = cpu(match make {
        Make::Amd => "zen2",
        Make::Intel => "skylake-gold-6138",
    })?;
    // QEMU's AMD processors virtualise the global interrupt flag, and not VMLOAD and VMSAVE.
    if make == Make::Amd {
        cpu.virtualization.vls = false;
        cpu.virtualization.vgif = true;
    }
    Ok(cpu)
}

/// The machine.
fn host(
    machine: &Machine<'_>,
    workload: strata_stream::WorkloadInfo,
) -> Result<HostSetup, Failure> {
    let Machine { layers, make, paging, aligned } = machine;
    let (layers, make) = (*layers, *make);
    let cpu = processor(make)?;
    let stack = StackKind::of_layers(layers.len()).expect("a scenario has at most three layers");
    let modes: Vec<ThpMode> = layers.iter().map(LayerState::mode).collect();
    let mut common = if let Some(told) = aligned {
        let mut common = Setup::new(stack, ALIGNED, cpu);
        common.overrides.extend(told.iter().cloned());
        common.overrides.extend(l1_huge_pages(&modes)?);
        common
    } else {
        let mut common = Setup::new(stack, LINUX, cpu);
        common.own.push(OwnPolicy::linux(LINUX, &modes));
        common
    };
    // What L1 runs, in which it reads few fields of a VMCS at an exit.
    common.overrides.push(("nested.hypervisor".to_owned(), "kvm-6.12".to_owned()));
    common.paging = *paging;
    common.memory = layers.last().map(|guest| guest.memory_bytes);
    let mut host = HostSetup::single(&common, &workload);
    host.memory = layers.first().map(|host| host.memory_bytes);
    let found = |layer: &LayerState| Found {
        regions: Arc::from(&*layer.regions),
        without_compaction: layer.without_compaction,
    };
    host.found = layers.iter().map(found).collect();
    if let [_, l1, _] = layers {
        // A guest hypervisor of its own size.
        let inner = host.vms.pop().expect("there is one VM");
        let outer = VmSetup {
            name: "l1".to_owned(),
            stack: StackKind::Vm,
            memory: Some(l1.memory_bytes),
            workload: None,
            ..inner.clone()
        };
        let within = Some(outer.name.clone());
        let inner = VmSetup { name: "l2".to_owned(), stack: StackKind::Vm, within, ..inner };
        host.vms = vec![outer, inner];
    }
    Ok(host)
}

/// What the policy of the aligned kernel is told of these settings of huge pages: those of L0 and of the guest are
/// on for it.
pub fn l1_huge_pages(modes: &[ThpMode]) -> Result<Option<(String, String)>, Failure> {
    match modes {
        [ThpMode::Always, .., ThpMode::Never, ThpMode::Always] => {
            Ok(Some(("strata.l1_thp".to_owned(), "no".to_owned())))
        }
        modes if modes.iter().all(|mode| *mode == ThpMode::Always) => Ok(None),
        _ => Err(Failure::usage(
            "the model of the kernel with alignment has huge pages on in L0 and in the innermost layer, and either \
             on or off in L1: choose another scenario, or --kernel vanilla",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_engine::FoundRegion;

    fn layer(mib: u64, thp: &str) -> LayerState {
        LayerState {
            memory_bytes: mib << 20,
            thp: thp.to_owned(),
            without_compaction: thp == "never",
            regions: vec![FoundRegion { pinned: mib as u16, ..FoundRegion::default() }],
            ..LayerState::default()
        }
    }

    #[test]
    fn every_layer_has_the_memory_that_it_was_found_with() {
        let layers = [layer(300, "always"), layer(200, "never"), layer(100, "madvise")];
        for count in 1..=3 {
            let layers = &layers[3 - count..];
            let machine =
                Machine { layers, make: Make::Amd, paging: Paging::Nested, aligned: None };
            let host = host(&machine, Default::default()).unwrap();
            assert_eq!(host.memory, Some(layers[0].memory_bytes));
            let mut sizes: Vec<_> = host.vms.iter().filter_map(|vm| vm.memory).collect();
            sizes.reverse();
            // Natively the programs' memory is the host's.
            let above = if count == 1 { layers } else { &layers[1..] };
            let wanted: Vec<_> = above.iter().rev().map(|layer| layer.memory_bytes).collect();
            assert_eq!(sizes, wanted);
            let found: Vec<_> = host.found.iter().map(|found| found.regions[0].pinned).collect();
            let wanted: Vec<_> = layers.iter().map(|layer| layer.regions[0].pinned).collect();
            assert_eq!(found, wanted);
            let compacts = host.found.iter().map(|found| !found.without_compaction);
            assert!(compacts.eq(layers.iter().map(|layer| layer.thp != "never")));
        }
    }

    #[test]
    fn shadows_are_kept_from_the_top_down() {
        assert_eq!(paging(&[]).unwrap(), Paging::Nested);
        assert_eq!(paging(&[true]).unwrap(), Paging::Shadow);
        assert_eq!(paging(&[false, true]).unwrap(), Paging::Shadow);
        assert_eq!(paging(&[true, true]).unwrap(), Paging::ShadowOnShadow);
        assert!(paging(&[true, false]).unwrap_err().message.contains("L1"));
    }

    #[test]
    fn scans_are_as_much_nearer_as_the_program_is_faster() {
        let mut told = vec![("strata.share".to_owned(), "0.5".to_owned())];
        pace(&mut told, 0.25);
        assert_eq!(told[1], ("strata.period".to_owned(), "0.25".to_owned()));
        pace(&mut told, 0.5);
        assert_eq!(told.len(), 2);
        assert_eq!(told[1].1, "0.125");
    }

    #[test]
    fn the_kernel_with_alignment_is_a_policy_with_the_settings_of_its_module() {
        use strata_lab::{Kernel, KernelVariant, Scenario};
        let mut l0 = Scenario::load("scattered").unwrap().layers.swap_remove(0);
        assert_eq!(aligned(&l0), None, "the kernel is the vanilla one");
        l0.kernel = Kernel::Lab(KernelVariant::Aligned);
        let told = aligned(&l0).unwrap();
        assert_eq!(told, [("strata.share".to_owned(), "0.5".to_owned())]);
        l0.modules.clear();
        assert_eq!(aligned(&l0), None, "it is off by default");
        let setup = |l1: &str, guest: &str| {
            let layers = [layer(300, "always"), layer(200, l1), layer(100, guest)];
            let aligned = Some(told.clone());
            let paging = Paging::Nested;
            let machine = Machine { layers: &layers, make: Make::Amd, paging, aligned };
            host(&machine, Default::default())
        };
        let has_l1_thp = |host: HostSetup| {
            assert!(host.vms.iter().all(|vm| vm.policy == ALIGNED));
            assert!(host.common.overrides.contains(&told[0]));
            host.common.overrides.iter().any(|(name, _)| name == "strata.l1_thp")
        };
        assert!(!has_l1_thp(setup("always", "always").unwrap()));
        assert!(has_l1_thp(setup("never", "always").unwrap()));
        assert!(setup("never", "never").unwrap_err().message.contains("huge pages on"));
    }
}
