//! Measures the processor at hand, without privileges, and describes it as a model of a CPU.
//!
//! | file | subject |
//! | --- | --- |
//! | `curve` | what is measured: nanoseconds of a load over sizes, by stride and page size |
//! | `chain` | loads that wait for each other, in memory of one page size |
//! | `measure` | which chains are measured, in which order |
//! | `findings` | what curves say of caches and TLBs; knows nothing of how they were made |
//! | `facts` | what CPUID says |
//! | `describe` | findings and facts as a CPU model, every constant with its origin |
//! | `draw` | curves as text |
//! | `counters` | hardware's counters of a program, where the kernel lets them be read |
//! | `program` | a program run natively, in turns with huge pages and without |

mod chain;
mod counters;
mod curve;
mod describe;
mod draw;
mod facts;
mod findings;
mod measure;
mod program;

pub use chain::MeasureError;
pub use counters::Counts;
pub use curve::{Curve, Curves, Pages, Point, Stride};
pub use describe::{Description, describe};
pub use draw::draw;
pub use facts::{CacheFact, Facts, TlbFact};
pub use findings::{CacheLevel, Findings, Latency, Reach, Translation, find};
pub use measure::{Measured, Plan, measure};
pub use program::{Pairs, ProgramError, Ratio, Timed, run_pairs};
