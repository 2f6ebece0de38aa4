//! What machines estimate of sampled streams, against what they find on the whole ones.
//!
//! | file | subject |
//! | --- | --- |
//! | `bounds` | how often bounds hold the truth, and how wide they are |
//! | `estimates` | what is estimated by what windows saw, and how it is marked |
//! | `gaps` | what a machine does in gaps |
//! | `relative` | one policy beside another |
//! | `same` | what must not make a difference |
//! | `threads` | several threads |
//! | `phases` | windows that stand for phases |
//! | `sources` | the streams of these tests |
//! | `machine` | the machine they run on |

mod bounds;
mod estimates;
mod gaps;
pub mod machine;
mod phases;
mod relative;
mod same;
mod sources;
mod threads;

use strata_stream::Sampling;
use strata_workloads::Generator;

fn made(spec: &str) -> Generator {
    Generator::parse(spec).unwrap()
}

const SAMPLING: Sampling = Sampling {
    interval: 200_000,
    window: 10_000,
    warm: 50_000,
    whole: 600_000,
    adaptive: false,
    seed: 1,
};
