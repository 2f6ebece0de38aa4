//! Service times, as a machine finds them.

use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use strata_hardware::CpuId;
use strata_stream::Tid;

/// Requests in a block, which is kept or left out as a whole: requests in a row depend on each other.
const BLOCK: usize = 1 << 12;

/// Service times kept at most, in whole blocks: 8 MiB. Of more requests every second block is left out,
/// and so on.
const MOST: usize = 1 << 20;

/// Service times of requests in the order in which they ended: of all, or of blocks that are evenly spread.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceTimes {
    kept: Vec<u64>,
    /// One block in so many is kept.
    pace: u64,
    served: u64,
    /// Cycles of all.
    cycles: u128,
    dropped: u64,
    servers: u64,
    frequency: f64,
}

impl ServiceTimes {
    fn new(frequency: f64) -> Self {
        let (served, cycles, dropped, servers) = (0, 0, 0, 0);
        Self { kept: Vec::new(), pace: 1, served, cycles, dropped, servers, frequency }
    }

    #[cfg(test)]
    pub(super) fn of(frequency: f64, cycles: impl IntoIterator<Item = u64>) -> Self {
        let mut times = Self { servers: 1, ..Self::new(frequency) };
        cycles.into_iter().for_each(|cycles| times.push(cycles));
        times
    }

    fn push(&mut self, cycles: u64) {
        if self.kept.len() == MOST {
            let mut at = 0;
            self.kept.retain(|_| {
                at += 1;
                ((at - 1) / BLOCK).is_multiple_of(2)
            });
            self.pace *= 2;
        }
        if (self.served / BLOCK as u64).is_multiple_of(self.pace) {
            self.kept.push(cycles);
        }
        self.served += 1;
        self.cycles += u128::from(cycles);
    }

    /// Those kept, in cycles.
    pub fn kept(&self) -> &[u64] {
        &self.kept
    }

    /// Requests served.
    pub fn served(&self) -> u64 {
        self.served
    }

    /// Requests that began and did not end.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// CPUs that served any.
    pub fn servers(&self) -> u64 {
        self.servers
    }

    /// Cycles of one, on average over all; `None` when there was none.
    pub fn mean(&self) -> Option<f64> {
        (self.served > 0).then(|| self.cycles as f64 / self.served as f64)
    }

    /// Cycles per second.
    pub fn frequency(&self) -> f64 {
        self.frequency
    }
}

/// Requests that are being served, and those that were.
#[derive(Debug)]
pub(crate) struct Served {
    /// When the request of each thread began, on the clock of its CPU.
    open: FxHashMap<Tid, u64>,
    cpus: BTreeSet<CpuId>,
    times: ServiceTimes,
}

impl Served {
    /// None yet, on CPUs of this frequency in Hz.
    pub(crate) fn new(frequency: f64) -> Self {
        let (open, cpus) = Default::default();
        Self { open, cpus, times: ServiceTimes::new(frequency) }
    }

    /// Forgets all, those that are being served included.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.times.frequency);
    }

    /// A thread begins to serve a request at a time in cycles.
    pub(crate) fn begin(&mut self, tid: Tid, now: u64) {
        let before = self.open.insert(tid, now);
        self.times.dropped += u64::from(before.is_some());
    }

    /// A thread has served its request, on this CPU. Without one nothing happens.
    pub(crate) fn end(&mut self, tid: Tid, cpu: CpuId, now: u64) {
        let Some(begun) = self.open.remove(&tid) else { return };
        self.cpus.insert(cpu);
        // A thread that went on on another CPU may have found an earlier clock there.
        self.times.push(now.saturating_sub(begun));
    }

    /// All service times, at the end; `None` when the stream has no request.
    pub(crate) fn times(&self) -> Option<ServiceTimes> {
        let dropped = self.times.dropped + self.open.len() as u64;
        let servers = self.cpus.len() as u64;
        let any = self.times.served + dropped > 0;
        any.then(|| ServiceTimes { dropped, servers, ..self.times.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_kept_and_evenly_spread() {
        let mut times = ServiceTimes::new(1.0);
        let count = 5 * MOST as u64 + 77;
        (0..count).for_each(|number| times.push(number));
        assert_eq!((times.served(), times.mean()), (count, Some((count - 1) as f64 / 2.0)));
        assert!(times.kept().len() <= MOST && times.kept().len() >= MOST / 2);
        // Whole blocks, one in eight.
        let block = BLOCK as u64;
        let expected = (0..count).filter(|number| (number / block).is_multiple_of(8));
        assert!(times.kept().iter().copied().eq(expected));
    }

    #[test]
    fn all_are_kept_while_they_are_few() {
        let mut times = ServiceTimes::new(1.0);
        (0..MOST as u64).for_each(|number| times.push(number));
        assert!(times.kept().iter().copied().eq(0..MOST as u64));
    }

    #[test]
    fn requests_without_an_end_or_a_beginning_are_none() {
        let mut served = Served::new(1e9);
        assert_eq!(served.times(), None);
        served.end(Tid(0), CpuId(0), 5);
        served.begin(Tid(0), 10);
        served.begin(Tid(0), 20);
        served.begin(Tid(1), 25);
        served.end(Tid(0), CpuId(3), 50);
        served.end(Tid(0), CpuId(3), 60);
        let times = served.times().unwrap();
        assert_eq!((times.kept(), times.served(), times.dropped()), (&[30][..], 1, 2));
        assert_eq!(times.servers(), 1);
        served.reset();
        served.end(Tid(1), CpuId(0), 99);
        assert_eq!(served.times(), None);
    }
}
