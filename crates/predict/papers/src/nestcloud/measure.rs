//! What follows from the sequences for a set of constants.

use super::conditions::{
    ALL, BASIC, BYPASS, Configuration, EPT_ON_EPT, HOST_EPT, L1, L1_EPT, NATIVE, PV_VMCS,
    configurations,
};
use super::constants::Constants;
use super::published;
use super::sequences::{self, Ran};
use std::collections::BTreeMap;
use strata_nested::SecondStageWrites;

/// A configuration's sequences.
pub(super) struct Measured {
    pub(super) faults: Ran,
    pub(super) seconds: Ran,
    pub(super) transactions: Ran,
    pub(super) compilations: Ran,
}

/// The sequences of every configuration, by its name.
pub(super) struct All(pub(super) BTreeMap<&'static str, Measured>);

impl All {
    pub(super) fn run(writes: SecondStageWrites, scale: f64) -> Self {
        let measure = |Configuration { name, setup }| {
            let measured = Measured {
                faults: sequences::page_faults(&setup, scale),
                seconds: sequences::seconds(&setup),
                transactions: sequences::transactions(&setup),
                compilations: sequences::compilations(&setup, scale),
            };
            (name, measured)
        };
        Self(configurations(writes).into_iter().map(measure).collect())
    }

    /// PF-Bench's time over that on bare metal.
    pub(super) fn faults(&self, name: &str, constants: &Constants) -> f64 {
        self.0[name].faults.cycles(constants) / self.0[NATIVE].faults.cycles(constants)
    }

    /// The share of time that exits of timers take.
    pub(super) fn ticking(&self, name: &str, constants: &Constants) -> f64 {
        self.0[name].seconds.cycles(constants) / constants.frequency
    }

    /// The time of a program that computes, over L1's.
    pub(super) fn computing(&self, name: &str, constants: &Constants) -> f64 {
        (1.0 - self.ticking(L1_EPT, constants)) / (1.0 - self.ticking(name, constants))
    }

    /// OLTP: transactions a second over L1's; `None` when L1's exits take longer than its transactions.
    pub(super) fn serving(&self, name: &str, constants: &Constants) -> Option<f64> {
        let of_l1 = published::of(L1).and_then(|row| row.oltp).expect("it is published");
        let exits = |name: &str| self.0[name].transactions.cycles(constants) / constants.frequency;
        let free = |name: &str| 1.0 - self.ticking(name, constants);
        let work = free(L1_EPT) / of_l1 - exits(L1_EPT);
        (work > 0.0).then(|| free(name) / (work + exits(name)) / of_l1)
    }

    /// A kernel build: time over L1's, given that a compilation takes its CPU time there.
    pub(super) fn building(&self, name: &str, constants: &Constants) -> f64 {
        let of = |name: &str| {
            let cycles = self.0[name].compilations.cycles(constants);
            super::conditions::COMPILATION.0 * constants.frequency + cycles
        };
        of(name) / of(L1_EPT)
    }
}

/// Something that the paper's numbers say, and whether the model's do.
pub(super) struct Conclusion {
    pub(super) text: &'static str,
    holds: fn(&All, &Constants) -> bool,
}

impl Conclusion {
    pub(super) fn holds(&self, all: &All, constants: &Constants) -> bool {
        (self.holds)(all, constants)
    }
}

const fn conclusion(text: &'static str, holds: fn(&All, &Constants) -> bool) -> Conclusion {
    Conclusion { text, holds }
}

/// Configurations of L2.
pub(super) const NESTED: [&str; 6] = [BASIC, BYPASS, HOST_EPT, EPT_ON_EPT, PV_VMCS, ALL];

/// What is concluded, all true of the paper's own numbers.
pub(super) const CONCLUSIONS: [Conclusion; 11] = [
    conclusion("PF-Bench: L2 on two EPTs is more than 100 times faster than basic", |all, c| {
        all.faults(BASIC, c) > 100.0 * all.faults(EPT_ON_EPT, c)
    }),
    conclusion("PF-Bench: L2 on two EPTs is faster than L1 with shadow paging", |all, c| {
        all.faults(EPT_ON_EPT, c) < all.faults(L1, c)
    }),
    conclusion("PF-Bench: basic takes more than 10 times as long as L1", |all, c| {
        all.faults(BASIC, c) > 10.0 * all.faults(L1, c)
    }),
    conclusion("PF-Bench: bypass gains less than 10 %", |all, c| {
        all.faults(BYPASS, c) > 0.9 * all.faults(BASIC, c)
    }),
    conclusion("PF-Bench: host EPT gains more than 20 %", |all, c| {
        all.faults(HOST_EPT, c) < 0.8 * all.faults(BASIC, c)
    }),
    conclusion("PF-Bench: PV VMCS gains more than host EPT", |all, c| {
        all.faults(PV_VMCS, c) < all.faults(HOST_EPT, c)
    }),
    conclusion("PF-Bench: PV VMCS takes less than a quarter of basic", |all, c| {
        all.faults(PV_VMCS, c) < 0.25 * all.faults(BASIC, c)
    }),
    conclusion("SysBench-CPU: L2 is less than 15 % over L1 in each configuration", |all, c| {
        NESTED.iter().all(|name| all.computing(name, c) < 1.15)
    }),
    conclusion("SysBench-CPU: PV VMCS is faster than basic", |all, c| {
        all.computing(PV_VMCS, c) < all.computing(BASIC, c)
    }),
    conclusion("OLTP: L2 serves less than half of what L1 does in each configuration", |all, c| {
        NESTED.iter().all(|name| all.serving(name, c).is_some_and(|ratio| ratio < 0.5))
    }),
    conclusion("OLTP: two EPTs gain more than PV VMCS", |all, c| {
        all.serving(EPT_ON_EPT, c) > all.serving(PV_VMCS, c)
    }),
];
