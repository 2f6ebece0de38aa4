//! Whether machines fit into this computer's memory.

use crate::failure::Failure;
use std::num::NonZeroUsize;
use strata_engine::memory::Need;
use strata_engine::{HostSetup, memory};
use strata_text::number::bytes;

/// Machines that are to be run.
pub struct Machines {
    /// How many.
    pub number: usize,
    /// What each needs, where that can be told.
    pub needs: Vec<Need>,
    /// Bytes that the stream touches, if known.
    pub footprint: Option<u64>,
    /// How many the user wants to hold at once.
    pub chosen: Option<NonZeroUsize>,
    /// Whether the stream can be read again.
    pub repeatable: bool,
}

impl Machines {
    /// How many to hold at once: as many as fit into memory, unless the user chose. Says so if not all
    /// do, or if one may not.
    ///
    /// # Errors
    /// When what is to be held at once is certain not to fit: it would be killed half way.
    pub fn at_once(self) -> Result<Option<NonZeroUsize>, Failure> {
        let Self { number: runs, needs, footprint, chosen, repeatable } = self;
        let chosen = if repeatable { chosen.map(NonZeroUsize::get) } else { Some(runs) };
        if let Some(available) = memory::available() {
            let mut certain: Vec<u64> = needs.iter().map(|need| need.least).collect();
            certain.sort_unstable_by(|a, b| b.cmp(a));
            let at_once = chosen.unwrap_or(1).min(certain.len());
            let together = certain[..at_once].iter().sum::<u64>();
            if together > available {
                let fewer = match certain.first() {
                    Some(&one) if one > available => {
                        "lower --memory, make the workload smaller, or leave out what fills memory \
                         before it starts (--reused, fragmentation.backed)"
                    }
                    _ if !repeatable => "name fewer policies and stacks",
                    _ => "hold fewer at once: lower --jobs, or leave it out",
                };
                let machines =
                    if at_once > 1 { format!("{at_once} machines") } else { "a machine".into() };
                let (need, have) = (bytes(together), bytes(available));
                return Err(Failure::failed(format!(
                    "{machines} would need at least {need} of this computer's memory, and {have} are \
                     available; {fewer}"
                )));
            }
        }
        let usable = memory::usable();
        let needed = match (needs.iter().map(|need| need.likely).max(), footprint) {
            (None, Some(footprint)) => Some(memory::estimate(footprint)),
            (likely, _) => likely,
        };
        let fitting = memory::runs_at_once(runs, needed, usable);
        let at_once = chosen.unwrap_or(fitting).min(runs);
        if let (Some(needed), Some(usable)) = (needed, usable) {
            let (each, all) = (bytes(needed), bytes(usable));
            if at_once > fitting || needed > usable {
                crate::complain::complain(&format!(
                    "note: a machine may need {each} of memory and {all} can be used: {at_once} at a \
                     time may not fit"
                ));
            } else if chosen.is_none() && at_once < runs {
                let readings = runs.div_ceil(at_once);
                crate::complain::complain(&format!(
                    "note: a machine needs about {each} of memory and {all} can be used: \
                     {at_once} at a time, so the stream is read {readings} times"
                ));
            }
        }
        Ok(NonZeroUsize::new(at_once))
    }
}

/// How many hosts to run at once: one on each thread, if they fit.
///
/// # Errors
/// As [`Machines::at_once`].
pub fn hosts(
    hosts: &[HostSetup],
    chosen: Option<NonZeroUsize>,
    threads: NonZeroUsize,
) -> Result<NonZeroUsize, Failure> {
    let fitting = Machines {
        number: hosts.len(),
        needs: hosts.iter().filter_map(HostSetup::need).collect(),
        footprint: None,
        chosen: Some(chosen.map_or(threads, |chosen| chosen.min(threads))),
        repeatable: true,
    };
    Ok(fitting.at_once()?.unwrap_or(threads))
}
