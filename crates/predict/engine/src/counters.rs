//! The counters of a result, by name.

use std::collections::BTreeMap;
use strata_counters::Counter;
use strata_hardware::HardwareCounters;
use strata_stack::{HostWork, KernelCounters, PlacementCounts, TradeCounts};

/// Every counter that a result can have, with its meaning; the values are 0.
pub fn counters() -> Vec<Counter> {
    let hardware = HardwareCounters::default().named();
    let software = KernelCounters::default().named().into_iter();
    let host = HostWork::default().named().into_iter().chain(PlacementCounts::default().named());
    let trade = TradeCounts::default().named();
    hardware.into_iter().chain(software).chain(host).chain(trade).collect()
}

/// Those of a modelled machine: of its hardware, of its kernels together, of the host's, of a policy of
/// cache colours, of one that chooses between them and huge pages.
pub(crate) fn of_machine<'a>(
    hardware: &HardwareCounters,
    kernels: impl Iterator<Item = &'a KernelCounters>,
    host: &HostWork,
    placement: Option<&PlacementCounts>,
    trade: Option<&TradeCounts>,
) -> BTreeMap<String, u64> {
    let mut software = KernelCounters::default();
    kernels.for_each(|kernel| software += kernel);
    let mut all = of_hardware(hardware);
    all.extend(by_name(software.named()));
    all.extend(by_name(host.named()));
    if let Some(placement) = placement {
        all.extend(by_name(placement.named()));
    }
    if let Some(trade) = trade {
        all.extend(by_name(trade.named()));
    }
    all
}

/// Those of the hardware alone.
pub(crate) fn of_hardware(hardware: &HardwareCounters) -> BTreeMap<String, u64> {
    by_name(hardware.named()).collect()
}

fn by_name(counters: Vec<Counter>) -> impl Iterator<Item = (String, u64)> {
    counters.into_iter().map(|counter| (counter.name, counter.value))
}
