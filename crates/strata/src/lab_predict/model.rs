//! The model of the machine that the lab ran, from the state in which the program found it.

use super::state::LayerState;
use crate::failure::{Failure, USAGE};
use crate::interrupt::Interrupt;
use crate::plan::cpu;
use crate::workload::{Input, unopened};
use nix::libc;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use strata_engine::{
    Found, HostError, HostSetup, Hosts, OpenError, OwnPolicy, Progress, RunResult, Setup,
    StackKind, Stop, ThpMode, VmSetup, run_hosts,
};
use strata_lab::Make;
use strata_workloads::{Before, Part};

/// The name of what governs its kernels.
const LINUX: &str = "linux";

/// Runs a program through the model of a machine of this make whose layers were in these states.
///
/// # Errors
/// When the program cannot be run, or the machine not be built.
pub fn run(
    (layers, make): (&[LayerState], Make),
    program: &[OsString],
    interrupt: &Interrupt,
) -> Result<RunResult, Failure> {
    let input = Input::Live(program.to_vec());
    let known = input.live_info().unwrap_or_default();
    let setup = host(layers, make, known)?;
    let open = |_: &str| input.open(Part::default(), Before::Touches, &interrupt.flag);
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

/// The machine.
fn host(
    layers: &[LayerState],
    make: Make,
    workload: strata_stream::WorkloadInfo,
) -> Result<HostSetup, Failure> {
    let mut cpu = cpu(match make {
        Make::Amd => "zen2",
        Make::Intel => "skylake-gold-6138",
    })?;
    // QEMU's AMD processors virtualise the global interrupt flag, and not VMLOAD and VMSAVE.
    if make == Make::Amd {
        cpu.virtualization.vls = false;
        cpu.virtualization.vgif = true;
    }
    let stack = StackKind::of_layers(layers.len()).expect("a scenario has at most three layers");
    let modes: Vec<ThpMode> = layers.iter().map(LayerState::mode).collect();
    let mut common = Setup::new(stack, LINUX, cpu);
    common.own.push(OwnPolicy::linux(LINUX, &modes));
    // What L1 runs, in which it reads few fields of a VMCS at an exit.
    common.overrides.push(("nested.hypervisor".to_owned(), "kvm-6.12".to_owned()));
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

#[cfg(test)]
mod tests {
    use super::*;
    use strata_engine::FoundRegion;

    fn layer(mib: u64, thp: &str) -> LayerState {
        LayerState {
            memory_bytes: mib << 20,
            used_bytes: 0,
            backed_bytes: 0,
            thp: thp.to_owned(),
            without_compaction: thp == "never",
            free_huge_pages: 0,
            regions: vec![FoundRegion { pinned: mib as u16, ..FoundRegion::default() }],
        }
    }

    #[test]
    fn every_layer_has_the_memory_that_it_was_found_with() {
        let layers = [layer(300, "always"), layer(200, "never"), layer(100, "madvise")];
        for count in 1..=3 {
            let layers = &layers[3 - count..];
            let host = host(layers, Make::Amd, Default::default()).unwrap();
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
}
