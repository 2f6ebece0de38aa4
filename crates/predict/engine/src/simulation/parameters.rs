//! Every parameter of a machine that is not its CPU's.

use super::rates::RateParameters;
use strata_nested::ExitCosts;
use strata_params::{Parameter, ParameterError, Parameters};
use strata_policies::PolicyParameters;
use strata_stack::{
    BalloonParameters, ColouredParameters, Costs, KsmParameters, MemoryParameters, ThpParameters,
};

strata_params::parameters! {
    /// Time.
    pub struct TimeParameters {
        /// How much faster time passes for background work than for the program, above 0. 1 is the
        /// truth; more lets a short stream stand for a long one.
        scale: f64 = 1.0, "time.scale", "";
    }
}

strata_params::parameters! {
    /// Cores that several VMs have in turn.
    pub struct SchedulerParameters {
        /// Time that a vCPU has a core for when others want it too: the base slice of Linux 6.12's
        /// fair scheduler on 8 or more CPUs, 0.75 ms times 1 + log2(8) (`kernel/sched/fair.c`,
        /// `sysctl_sched_base_slice`).
        slice: f64 = 0.003, "host.time_slice", "s";
    }
}

/// Every parameter that is not the CPU's.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelParameters {
    pub(super) costs: Costs,
    pub(super) exits: ExitCosts,
    pub(super) thp: ThpParameters,
    pub(super) memory: MemoryParameters,
    pub(super) policies: PolicyParameters,
    pub(super) time: TimeParameters,
    pub(super) scheduler: SchedulerParameters,
    pub(super) coloured: ColouredParameters,
    pub(super) balloon: BalloonParameters,
    pub(super) ksm: KsmParameters,
    pub(super) rates: RateParameters,
}

/// All sets, borrowed as `self` is. One that is left out does not compile.
macro_rules! every_set {
    ($all:expr) => {{
        let Self {
            costs,
            exits,
            thp,
            memory,
            policies,
            time,
            scheduler,
            coloured,
            balloon,
            ksm,
            rates,
        } = $all;
        [costs, exits, thp, memory, policies, time, scheduler, coloured, balloon, ksm, rates]
    }};
}

impl ModelParameters {
    fn sets(&self) -> [&dyn Parameters; 11] {
        every_set!(self)
    }

    fn sets_mut(&mut self) -> [&mut dyn Parameters; 11] {
        every_set!(self)
    }
}

impl Parameters for ModelParameters {
    fn parameters(&self) -> Vec<Parameter> {
        self.sets().iter().flat_map(|set| set.parameters()).collect()
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ParameterError> {
        for set in self.sets_mut() {
            match set.set(name, value) {
                Err(ParameterError::Unknown(_)) => {}
                done => return done,
            }
        }
        Err(ParameterError::Unknown(name.to_owned()))
    }
}
