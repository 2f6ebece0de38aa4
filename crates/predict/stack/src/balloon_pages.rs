//! What a balloon has, and how large it gets.

use strata_addr::{Frame, space::Lower};

strata_params::parameters! {
    /// Balloons.
    pub struct BalloonParameters {
        /// Memory that the host takes of every guest; 0 for no balloons.
        size: u64 = 0, "balloon.size", "MiB";
        /// It is taken when the guest starts, given back after this time, and so on in turn. `?`
        period: f64 = 1.0, "balloon.period", "s";
        /// The exit by which the driver tells the host of pages, up to 256 of them at once (Linux 6.12,
        /// `VIRTIO_BALLOON_ARRAY_PFNS_MAX`): as any exit that L0 handles, `exit.second_stage_violation`.
        exit: u64 = 2000, "balloon.exit", "cycles";
    }
}

/// The balloon of one guest.
#[derive(Debug, Default)]
pub(crate) struct Balloon {
    /// Its pages by colour; all in one where colours do not matter.
    pub(crate) pages: Vec<Vec<Frame<Lower>>>,
    /// By colour, where the search for a free frame goes on in a memory that does not know its colours.
    pub(crate) searched: Vec<u64>,
    /// Bytes that it has when it is filled, if those are its own.
    pub(crate) size: Option<u64>,
    /// When it is filled or emptied next, in seconds.
    pub(crate) next: f64,
}

impl Balloon {
    pub(crate) fn len(&self) -> u64 {
        self.pages.iter().map(|pages| pages.len() as u64).sum()
    }
}
