//! Arrivals that do not wait for answers, and servers that take them in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use strata_workloads::generate::SplitMix64;

/// Whom random numbers are for, so that arrivals do not follow those of a generator with the same seed.
const ARRIVALS: u64 = u64::from_le_bytes(*b"arrivals");

/// A queue of several servers: Poisson arrivals, first come, first served by whoever is free first.
#[derive(Debug)]
pub struct Queue {
    random: SplitMix64,
    /// Cycles from one arrival to the next, on average.
    gap: f64,
    /// When the last request arrived. Kept with its fraction, so that rounding does not add up.
    arrival: f64,
    /// When each server is free.
    free: BinaryHeap<Reverse<u64>>,
}

impl Queue {
    /// A queue in which nobody waits, with at least one server.
    pub fn new(servers: usize, gap: f64, seed: u64) -> Self {
        Self {
            random: SplitMix64::new(seed, ARRIVALS),
            gap,
            arrival: 0.0,
            free: (0..servers.max(1)).map(|_| Reverse(0)).collect(),
        }
    }

    /// When the next request arrives, in cycles.
    fn arrive(&mut self) -> u64 {
        self.arrival -= libm::log(1.0 - self.random.unit()) * self.gap;
        self.arrival as u64
    }

    /// The next request arrives and is served for so many cycles. Gives the cycles from its arrival to
    /// its end (Kiefer and Wolfowitz's recursion; with one server Lindley's).
    pub fn serve(&mut self, service: u64) -> u64 {
        let arrival = self.arrive();
        let mut first = self.free.peek_mut().expect("there is a server");
        let end = first.0.max(arrival) + service;
        *first = Reverse(end);
        end - arrival
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// The same queue event by event: arrivals and ends of service in the order of time.
    fn event_by_event(services: &[u64], arrivals: &[u64], servers: usize) -> Vec<u64> {
        let mut latencies = vec![0; services.len()];
        let mut waiting: VecDeque<usize> = VecDeque::new();
        // Who is served by each server, and until when.
        let mut busy: Vec<Option<(usize, u64)>> = vec![None; servers];
        let mut next = 0;
        loop {
            let ends =
                busy.iter().enumerate().filter_map(|(at, who)| who.map(|(_, end)| (end, at)));
            let end = ends.min();
            let arrival = arrivals.get(next).copied();
            let now = match (end, arrival) {
                (None, None) => return latencies,
                // Whoever ends at the moment of an arrival makes room for it.
                (Some((end, server)), arrival) if arrival.is_none_or(|arrival| end <= arrival) => {
                    let (who, _) = busy[server].take().unwrap();
                    latencies[who] = end - arrivals[who];
                    end
                }
                (_, arrival) => {
                    waiting.push_back(next);
                    next += 1;
                    arrival.unwrap()
                }
            };
            while let Some(idle) = busy.iter().position(Option::is_none) {
                let Some(who) = waiting.pop_front() else { break };
                busy[idle] = Some((who, now + services[who]));
            }
        }
    }

    proptest! {
        #[test]
        fn the_recursion_is_the_queue(
            services in prop::collection::vec(0u64..500, 0..300), servers in 1usize..6,
            gap in 1.0f64..400.0, seed: u64,
        ) {
            let mut queue = Queue::new(servers, gap, seed);
            let found: Vec<u64> = services.iter().map(|service| queue.serve(*service)).collect();
            let mut again = Queue::new(servers, gap, seed);
            let arrivals: Vec<u64> = services.iter().map(|_| again.arrive()).collect();
            prop_assert_eq!(found, event_by_event(&services, &arrivals, servers));
        }
    }

    #[test]
    fn arrivals_are_poisson() {
        let mut queue = Queue::new(1, 1000.0, 7);
        let arrivals: Vec<u64> = (0..200_000).map(|_| queue.arrive()).collect();
        // Arrivals in windows of five gaps: mean and variance are five.
        let mut counts = vec![0f64; 39_000];
        for arrival in arrivals {
            if let Some(count) = counts.get_mut(arrival as usize / 5000) {
                *count += 1.0;
            }
        }
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        let squares = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>();
        let variance = squares / (counts.len() - 1) as f64;
        assert!((mean - 5.0).abs() < 0.05, "{mean}");
        assert!((variance - 5.0).abs() < 0.2, "{variance}");
    }
}
