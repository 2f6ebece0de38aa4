//! What the sequences cost: the model's own constants, the same for all configurations.

use strata_hardware::CpuModel;
use strata_nested::ExitCosts;
use strata_params::Parameters;
use strata_stack::Costs;

/// Constants.
#[derive(Clone, Debug)]
pub(super) struct Constants {
    pub(super) exits: ExitCosts,
    pub(super) faults: Costs,
    /// Cycles of a reference of a walk: of the second-level cache.
    pub(super) reference: f64,
    /// Cycles in a second.
    pub(super) frequency: f64,
}

impl Constants {
    /// The model's.
    pub(super) fn of_model() -> Self {
        let cpu = CpuModel::preset("i7-920").expect("it is a preset");
        Self {
            exits: ExitCosts::default(),
            faults: Costs::default(),
            reference: cpu.cache.l2.cycles.into(),
            frequency: f64::from(cpu.core.frequency_mhz) * 1e6,
        }
    }

    /// Cycles of a page fault in a kernel, with the page zeroed.
    pub(super) fn fault(&self) -> f64 {
        (self.faults.fault + self.faults.zero) as f64
    }

    /// The names of those that are cycles and that the sequences depend on.
    pub(super) fn names() -> Vec<String> {
        let exits = ExitCosts::default().parameters();
        let of_vmx = |name: &str| {
            !["vmrun", "vmload", "vmsave", "stgi", "clgi", "invalidation"]
                .iter()
                .any(|other| name.ends_with(other))
        };
        let exits = exits.into_iter().filter(|parameter| parameter.unit.starts_with("cycles"));
        let exits = exits.map(|parameter| parameter.name.to_string()).filter(|name| of_vmx(name));
        let others = ["fault.cycles", "zero.cycles", "cache.l2.cycles"];
        exits.chain(others.map(str::to_owned)).collect()
    }

    /// With one of them multiplied.
    pub(super) fn with(&self, name: &str, factor: f64) -> Self {
        let mut changed = self.clone();
        let mut is_known = false;
        if name == "cache.l2.cycles" {
            changed.reference *= factor;
            return changed;
        }
        for set in [&mut changed.exits as &mut dyn Parameters, &mut changed.faults] {
            let now = set.parameters().into_iter().find(|parameter| parameter.name == name);
            if let Some(now) = now {
                let cycles: f64 = now.value.parse().expect("cycles are a number");
                let value = ((cycles * factor).round() as u64).to_string();
                set.set(name, &value).expect("a few times as many cycles are within bounds");
                is_known = true;
            }
        }
        assert!(is_known, "{name} is no constant");
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_can_be_varied() {
        let model = Constants::of_model();
        let names = Constants::names();
        assert!(names.len() >= 15, "{names:?}");
        for name in names {
            let changed = model.with(&name, 4.0);
            assert_ne!(format!("{changed:?}"), format!("{model:?}"), "{name}");
        }
    }
}
