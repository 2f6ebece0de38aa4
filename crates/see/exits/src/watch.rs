//! Watching the exits of all VMs on a kernel for a while.

use crate::account::Account;
use crate::bill::{Bill, Source, VmBill};
use crate::statistics::{self, Counts};
use crate::tracefs::{Event, Instance, TraceError};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;
use strata_inspect::Tree;
use strata_inspect::text::{cmdline, pairs};

/// Time between two readings of the buffers.
const STEP: Duration = Duration::from_millis(20);

/// An event is in its buffer at most so many nanoseconds after its time.
const LATEST: u64 = 2_000_000;

/// Why nothing can be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Nothing can be traced, and KVM counts nothing either.
    #[error("{0}; and KVM's statistics are not in /sys/kernel/debug/kvm")]
    Blind(TraceError),
    /// Tracing broke off.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// A watch over all VMs of this kernel.
#[derive(Debug)]
pub struct Watching {
    tree: Tree,
    way: Way,
    /// VMMs of threads, as far as they were asked for.
    vmms: FxHashMap<u32, Option<u32>>,
}

#[derive(Debug)]
enum Way {
    Trace { instance: Box<Instance>, account: Account },
    Count { before: Counts },
}

impl Watching {
    /// Begins: by tracepoints, or by KVM's statistics where nothing can be traced.
    ///
    /// # Errors
    /// When there is neither.
    pub fn start(tree: &Tree) -> Result<Self, WatchError> {
        let way = match Instance::start(tree) {
            Ok(instance) => {
                Way::Trace { instance: Box::new(instance), account: Account::default() }
            }
            Err(error) => {
                let before = statistics::read(tree);
                if tree.names("sys/kernel/debug/kvm").is_empty() {
                    return Err(WatchError::Blind(error));
                }
                Way::Count { before }
            }
        };
        Ok(Self { tree: tree.clone(), way, vmms: FxHashMap::default() })
    }

    /// What happens from now on for so long, or until `stop` is set.
    ///
    /// # Errors
    /// [`WatchError::Trace`] when tracing breaks off.
    pub fn interval(&mut self, time: Duration, stop: &AtomicBool) -> Result<Bill, WatchError> {
        let (begun, cpu) = (now(), own_cpu());
        let end = begun + time.as_nanos() as u64;
        let (mut lost, mut bytes) = (0, 0);
        if let Way::Trace { instance, .. } = &self.way {
            (lost, bytes) = (instance.lost, instance.bytes);
        }
        let mut events: Vec<Event> = Vec::new();
        loop {
            let known = now();
            if let Way::Trace { instance, account } = &mut self.way {
                instance.read(&mut events)?;
                account.note(&mut events, known.saturating_sub(LATEST));
            }
            if known >= end || stop.load(Ordering::Relaxed) {
                break;
            }
            sleep(STEP.min(Duration::from_nanos(end - known)));
        }
        let seconds = (now() - begun) as f64 / 1e9;
        let mut bill = Bill {
            strata_exits: Bill::VERSION,
            seconds,
            source: Source::Tracepoints,
            lost_events: 0,
            event_bytes: 0,
            own_cpu_seconds: own_cpu() - cpu,
            vms: Vec::new(),
        };
        match &mut self.way {
            Way::Trace { instance, account } => {
                bill.lost_events = instance.lost - lost;
                bill.event_bytes = instance.bytes - bytes;
                let vcpus = account.take(now().saturating_sub(LATEST));
                let mut vms: BTreeMap<u32, Vec<_>> = BTreeMap::new();
                for (thread, vcpu) in vcpus {
                    let vmm = self.vmms.entry(thread).or_insert_with(|| vmm(&self.tree, thread));
                    match vmm {
                        Some(vmm) => vms.entry(*vmm).or_default().push(vcpu),
                        None => account.forget(thread),
                    }
                }
                // Numbers of threads are given out again.
                self.vmms.retain(|thread, _| self.tree.path(&format!("proc/{thread}")).exists());
                let tree = &self.tree;
                let bills = vms
                    .into_iter()
                    .map(|(pid, vcpus)| VmBill::of_vcpus(pid, name(tree, pid), &vcpus, seconds));
                bill.vms = bills.collect();
            }
            Way::Count { before } => {
                bill.source = Source::Statistics;
                let after = statistics::read(&self.tree);
                let tree = &self.tree;
                bill.vms = statistics::between(before, &after, seconds, |pid| name(tree, pid));
                *before = after;
            }
        }
        Ok(bill)
    }
}

/// Watches for so long, or until `stop` is set.
///
/// # Errors
/// When nothing can be watched.
pub fn watch(tree: &Tree, time: Duration, stop: &AtomicBool) -> Result<Bill, WatchError> {
    Watching::start(tree)?.interval(time, stop)
}

/// The process that a thread is of, while it lives.
fn vmm(tree: &Tree, thread: u32) -> Option<u32> {
    let status = tree.maybe(&format!("proc/{thread}/status"))?;
    pairs::field(&status, "Tgid")?.parse().ok()
}

/// What the VMM calls its VM.
fn name(tree: &Tree, pid: u32) -> Option<String> {
    let line = tree.maybe(&format!("proc/{pid}/cmdline"))?;
    let words: Vec<String> =
        line.split('\0').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    cmdline::parse(&words).name
}

/// Nanoseconds of the clock that events carry.
fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has this clock");
    time.num_nanoseconds() as u64
}

/// Seconds of processor time that this process has used.
fn own_cpu() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("one may ask for one's own");
    (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6
}
