//! The counters of a result, by name.

use std::collections::BTreeMap;
use strata_counters::Counter;
use strata_hardware::HardwareCounters;
use strata_stack::{HostWork, KernelCounters};

/// Every counter that a result can have, with its meaning; the values are 0.
pub fn counters() -> Vec<Counter> {
    let hardware = HardwareCounters::default().named();
    let software = KernelCounters::default().named().into_iter();
    hardware.into_iter().chain(software).chain(HostWork::default().named()).collect()
}

/// Those of a modelled machine: of its hardware, of its kernels together, of the host's.
pub(crate) fn of_machine<'a>(
    hardware: &HardwareCounters,
    kernels: impl Iterator<Item = &'a KernelCounters>,
    host: &HostWork,
) -> BTreeMap<String, u64> {
    let mut software = KernelCounters::default();
    kernels.for_each(|kernel| software += kernel);
    let mut all = of_hardware(hardware);
    all.extend(by_name(software.named()));
    all.extend(by_name(host.named()));
    all
}

/// Those of the hardware alone.
pub(crate) fn of_hardware(hardware: &HardwareCounters) -> BTreeMap<String, u64> {
    by_name(hardware.named()).collect()
}

fn by_name(counters: Vec<Counter>) -> impl Iterator<Item = (String, u64)> {
    counters.into_iter().map(|counter| (counter.name, counter.value))
}
