//! What all layers counted around a program.

use crate::counters::Counters;
use serde::Serialize;

/// Counters of all layers, L0 first, before and after a program.
#[derive(Clone, Debug, Serialize)]
pub struct Readings {
    /// Before `before`, with nothing between the two: the difference is what reading costs.
    pub idle: Vec<Counters>,
    /// When it began.
    pub before: Vec<Counters>,
    /// When it rested, or was held at its end.
    pub after: Vec<Counters>,
}

impl Readings {
    /// What a layer counted meanwhile, without what reading the counters costs.
    pub fn counted(&self, layer: usize, count: impl Fn(&Counters) -> u64) -> u64 {
        let readings = [&self.idle, &self.before, &self.after];
        let [idle, before, after] = readings.map(|all| count(&all[layer]));
        after.saturating_sub(before).saturating_sub(before.saturating_sub(idle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reading_the_counters_costs_is_taken_off() {
        let at = |npf: u64, huge: u64| Counters {
            exits: [("NPF".to_owned(), npf)].into(),
            vmstat: [("thp_fault_alloc".to_owned(), huge)].into(),
            ..Counters::default()
        };
        let (idle, before, after) = (vec![at(100, 5)], vec![at(130, 5)], vec![at(1160, 53)]);
        let readings = Readings { idle, before, after };
        let exits = |name: &'static str| {
            move |counters: &Counters| counters.exits.get(name).copied().unwrap_or(0)
        };
        assert_eq!(readings.counted(0, exits("NPF")), 1000);
        assert_eq!(readings.counted(0, exits("HLT")), 0);
        assert_eq!(readings.counted(0, |counters| counters.vmstat("thp_fault_alloc")), 48);
    }
}
