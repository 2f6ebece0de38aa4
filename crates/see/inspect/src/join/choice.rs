//! What a user may choose: above all the VM in each snapshot that the layer above runs in.

use super::matching;
use crate::error::Error;
use crate::snapshot::{BackedVm, Snapshot};

/// What a user may choose.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The VM in each snapshot below the guest's, from the top: a process id, name or UUID. Fewer
    /// than layers leave the rest to be found.
    pub vms: Vec<String>,
    /// Join even where the snapshots do not seem to belong together.
    pub force: bool,
    /// Who took the snapshots knows that they are of one stack, and when each was begun: seconds by
    /// one clock, in the order of the snapshots. Otherwise the layers' own clocks have to do.
    pub taken_at: Option<Vec<f64>>,
}

/// The VMs that [`join()`](crate::join()) chooses, the one that the guest runs in first: what
/// [`descend`](crate::join::compose::descend()) goes through.
///
/// # Errors
/// When a VM cannot be told. Whether the snapshots belong together is not checked.
pub fn chosen<'a>(
    snapshots: &'a [Snapshot],
    options: &Options,
) -> Result<Vec<&'a BackedVm>, Error> {
    let choose = |(number, pair): (usize, &'a [Snapshot])| {
        let wanted = options.vms.get(number).map(String::as_str);
        let found = matching::find(&pair[0].head.machine, &pair[1], wanted, options.force)?;
        Ok(&pair[1].vms[found.index])
    };
    snapshots.windows(2).enumerate().map(choose).collect()
}
