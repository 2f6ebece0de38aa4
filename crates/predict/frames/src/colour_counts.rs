//! What a memory that tells cache colours apart has besides: how many frames of each are free, the free runs,
//! and the page lists.

use crate::Frame;
use crate::runs::FreeRuns;
use strata_colours::Colours;

strata_params::parameters! {
    /// How frames of a wanted colour are found.
    pub struct ColouredParameters {
        /// Frames that a refill of the page lists takes at most. Linux 6.12, `zone_batchsize`: 63 for
        /// zones of 256 MiB and more.
        batch: u64 = 63, "colours.batch", "base pages";
        /// Frames that the page lists hold at most, in batches. Linux 6.12, `zone_highsize`: at least 4.
        high: u64 = 4, "colours.high", "batches";
        /// The shortest free run with the colour is taken (xPlace 5.3). Off: as a buddy allocator
        /// would, the smallest block that has it in it is split.
        contiguity: bool = true, "colours.contiguity", "";
    }
}

/// What a coloured memory has besides.
pub(crate) struct Coloured {
    pub colours: Colours,
    pub settings: ColouredParameters,
    /// Free, unreserved frames of each colour, those in lists not counted.
    pub free: Vec<u64>,
    pub runs: FreeRuns,
    /// Frames taken off the free lists for nobody yet, by colour.
    pub lists: Vec<Vec<u32>>,
    pub listed: u64,
}

impl Coloured {
    /// The number of a frame's colour.
    pub fn of(&self, frame: u64) -> usize {
        self.colours.of(Frame::new(frame)).index() as usize
    }

    /// Calls `change` for the colour of each frame of a row, with how often it is there.
    pub fn count(&mut self, first: u64, frames: u64, change: impl Fn(&mut u64, u64)) {
        let colours = u64::from(self.colours.count());
        if frames >= colours {
            self.free.iter_mut().for_each(|free| change(free, frames / colours));
        }
        let start = first + frames / colours * colours;
        for frame in start..first + frames {
            let colour = self.of(frame);
            change(&mut self.free[colour], 1);
        }
    }
}
