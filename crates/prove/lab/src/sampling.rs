//! Reading what the layers' kernels count.

use crate::counters::Counters;
use crate::error::LabError;
use crate::journal::Journal;
use crate::link::{Link, ORDER_LIMIT};
use crate::scenario::Scenario;
use strata_protocol::{Command, Reply};

/// Milliseconds between samples of a layer's counters.
const SAMPLE_EVERY: u64 = 2_000;

/// Has a layer tell its counters from now on.
pub(crate) fn sample(link: &mut Link, scenario: &Scenario, layer: u8) -> Result<(), LabError> {
    let command = Command::Sample { paths: Counters::files(scenario, layer), every: SAMPLE_EVERY };
    link.order(layer, "sample its counters", command, ORDER_LIMIT).map(drop)
}

/// Counters of all layers, outermost last: reading one adds to the exits of those below.
pub(crate) fn read_all(link: &mut Link, scenario: &Scenario) -> Result<Vec<Counters>, LabError> {
    let mut all = Vec::new();
    for layer in (0..scenario.layers.len() as u8).rev() {
        let paths = Counters::files(scenario, layer);
        let command = Command::Read { paths };
        let reply = link.order(layer, "read its counters", command, ORDER_LIMIT)?;
        if let Reply::Texts { at, texts } = reply {
            all.insert(0, Counters::parse(scenario.make(), at, &texts));
        }
    }
    Ok(all)
}

/// Ends the run if a kernel of ours warned, which no console shows unless the kernel checks itself.
pub(crate) fn look_for_warnings(
    journal: &Journal,
    scenario: &Scenario,
    counters: &[Counters],
) -> Result<(), LabError> {
    for (number, (layer, counters)) in scenario.layers.iter().zip(counters).enumerate() {
        if layer.kernel.is_patched() && counters.warnings > 0 {
            let what = format!(
                "its kernel warned of itself {} times: run it with the parameter loglevel=5 to \
                 see of what",
                counters.warnings
            );
            return Err(journal.layers[number].error(format!("L{number}"), what));
        }
    }
    Ok(())
}
