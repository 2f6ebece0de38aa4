//! Hardware's counters of a program's TLB misses, where the kernel lets them be read.
//!
//! The kernel's own names are used where it has one (`perf_event_open(2)`, `PERF_TYPE_HW_CACHE`): its misses of the data
//! TLB are those of the last level, each a walk, on Intel's processors (`DTLB_LOAD_MISSES.MISS_CAUSES_A_WALK`) and on AMD's
//! from family 17h on (`ls_l1_d_tlb_miss.all_l2_miss`). For cycles of walks it has none.

use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Raw};
use perf_event::{Builder, Counter, ReadFormat};
use std::io;

/// Cycles in which a page walk for a load is under way, and for a store: `DTLB_LOAD_MISSES.WALK_ACTIVE` and
/// `DTLB_STORE_MISSES.WALK_ACTIVE`, event, umask and a threshold of 1 (SDM volume 3, performance-monitoring events,
/// Skylake and later).
const INTEL_WALKS: [u64; 2] = [0x0100_1008, 0x0100_1049];

/// Models of Intel's family 6 that count cycles of walks like this: Skylake, Kaby Lake, Comet Lake, Ice Lake, Tiger Lake,
/// Rocket Lake, Sapphire, Emerald and Granite Rapids. Atoms have other events, and processors with cores of two
/// kinds two counters of each.
const WITH_WALKS: [u8; 18] = [
    0x4e, 0x55, 0x5e, 0x6a, 0x6c, 0x7d, 0x7e, 0x8c, 0x8d, 0x8e, 0x8f, 0x9e, 0xa5, 0xa6, 0xa7, 0xad,
    0xae, 0xcf,
];

/// What a program did by hardware's counters, in its own code and not in the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Loads and stores that missed every level of the data TLB.
    pub tlb_misses: f64,
    /// Cycles in walks for them, where it is known how the processor counts them.
    pub walk_cycles: Option<f64>,
}

/// Counters of the programs that this thread starts from now on, and of all that these start.
pub(crate) struct Counters {
    misses: Vec<Counter>,
    walks: Vec<Counter>,
}

impl Counters {
    /// Opens them.
    ///
    /// # Errors
    /// When the kernel does not let them be read, or there is no such hardware, as in most VMs.
    pub(crate) fn open() -> io::Result<Self> {
        let misses = [CacheOp::READ, CacheOp::WRITE].map(|operation| {
            let event = Cache { which: CacheId::DTLB, operation, result: CacheResult::MISS };
            counter(Builder::new(event))
        });
        let [loads, stores] = misses;
        // Some processors count those of loads alone under this name, or all of them.
        let misses = [loads?].into_iter().chain(stores.ok()).collect();
        let walks = if counts_walks() {
            INTEL_WALKS.iter().map(|event| counter(Builder::new(Raw::new(*event)))).collect()
        } else {
            Ok(Vec::new())
        };
        Ok(Self { misses, walks: walks.unwrap_or_default() })
    }

    /// What they have counted of programs that have ended.
    ///
    /// # Errors
    /// When that cannot be read.
    pub(crate) fn read(&mut self) -> io::Result<Counts> {
        let tlb_misses = sum(&mut self.misses)?;
        let walk_cycles = if self.walks.is_empty() { None } else { Some(sum(&mut self.walks)?) };
        Ok(Counts { tlb_misses, walk_cycles })
    }
}

impl Counts {
    /// What came since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        let walk_cycles = self.walk_cycles.zip(before.walk_cycles);
        Self {
            tlb_misses: self.tlb_misses - before.tlb_misses,
            walk_cycles: walk_cycles.map(|(now, before)| now - before),
        }
    }
}

fn counter(mut builder: Builder<'_>) -> io::Result<Counter> {
    let times = ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING;
    builder.read_format(times).inherit(true).enabled(true).build()
}

/// The sum, each for the whole time where several took turns in one register.
fn sum(counters: &mut [Counter]) -> io::Result<f64> {
    let mut sum = 0.0;
    for counter in counters {
        let data = counter.read_full()?;
        let seconds = |time: Option<std::time::Duration>| time.unwrap_or_default().as_secs_f64();
        let (enabled, running) = (seconds(data.time_enabled()), seconds(data.time_running()));
        if running > 0.0 {
            sum += data.count() as f64 * enabled / running;
        }
    }
    Ok(sum)
}

/// Whether the processor is one of Intel's that count cycles of walks by [`INTEL_WALKS`].
fn counts_walks() -> bool {
    let cpuid = raw_cpuid::CpuId::new();
    let intel = cpuid.get_vendor_info().is_some_and(|vendor| vendor.as_str() == "GenuineIntel");
    let known =
        |of: raw_cpuid::FeatureInfo| of.family_id() == 6 && WITH_WALKS.contains(&of.model_id());
    intel && cpuid.get_feature_info().is_some_and(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event::events::Software;
    use std::process::Command;

    #[test]
    fn what_a_program_did_that_has_ended_is_counted_once() {
        // Page faults any kernel counts for whoever asks, if it lets anything be counted.
        let Ok(faults) = counter(Builder::new(Software::PAGE_FAULTS)) else { return };
        let mut counters = Counters { misses: vec![faults], walks: Vec::new() };
        let before = counters.read().unwrap();
        assert!(Command::new("true").status().unwrap().success());
        let one = counters.read().unwrap().since(before);
        assert!(one.tlb_misses >= 10.0, "{one:?}");
        assert_eq!(one.walk_cycles, None);
        let more = counters.read().unwrap().since(before);
        assert!(more.tlb_misses < one.tlb_misses + 10.0, "{more:?} {one:?}");
    }

    #[test]
    fn without_hardware_the_kernel_says_why() {
        if let Err(error) = Counters::open() {
            assert!(error.raw_os_error().is_some(), "{error}");
        }
    }
}
