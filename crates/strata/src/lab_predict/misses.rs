//! TLB misses of the same accesses: on the true tables of the layers, and on those that the model makes.
//!
//! No layer counts TLB misses, and an emulator has no TLB of a processor's kind. So a recording of true accesses is
//! replayed on the page tables of the same moment, through the processor that the model has. What differs is only where
//! the layers have put memory.

use super::model::{self, Machine};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::workload::{Input, unopened};
use std::ffi::OsString;
use strata_engine::report::CapturedTables;
use strata_engine::{RunResult, Setup, replay};
use strata_lab::{Make, TraceReport};
use strata_stream::{Batch, Fill};
use strata_tables::file;
use strata_tables::variant::TableVariant;
use strata_workloads::{Before, Part};

/// A stretch of a program's accesses, of which the first half only fills TLBs and caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Accesses before it.
    pub skip: u64,
    /// Accesses in it.
    pub accesses: u64,
}

impl Stretch {
    fn warmup(self) -> u64 {
        self.accesses / 2
    }
}

/// The same accesses on both tables.
#[derive(Debug)]
pub struct Misses {
    /// On those of the layers.
    pub true_tables: RunResult,
    /// On those of the model.
    pub modelled: RunResult,
}

/// Replays what was recorded from the `skip`th access on, and has the model run the program as far.
///
/// # Errors
/// When the recording cannot be read, or the program cannot be run once more.
pub fn misses(
    machine: &Machine<'_>,
    program: &[OsString],
    (recorded, skip): (&TraceReport, u64),
    interrupt: &Interrupt,
) -> Result<Misses, Failure> {
    let stretch = Stretch { skip, accesses: recorded.accesses };
    let true_tables = on_true_tables(machine.make, recorded, stretch, interrupt)?;
    let counted = model::Counted {
        warmup: stretch.skip + stretch.warmup(),
        until: Some(stretch.skip + stretch.accesses),
    };
    let modelled = model::run(machine, program, counted, interrupt)?;
    Ok(Misses { true_tables, modelled })
}

fn on_true_tables(
    make: Make,
    recorded: &TraceReport,
    stretch: Stretch,
    interrupt: &Interrupt,
) -> Result<RunResult, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::failed(error.to_string());
    let capture = file::read(&recorded.tables).map_err(|error| failed(&error))?;
    let input = Input::Trace(recorded.recording.clone(), None);
    let mut source = input
        .open(Part::default(), Before::Touches, &interrupt.flag)
        .map_err(|error| unopened(&error, interrupt))?;
    let variant = TableVariant::Captured;
    let stack = CapturedTables::stack(&capture);
    let mut setup = Setup::new(stack, variant.name(), model::processor(make)?);
    setup.warmup = stretch.warmup();
    let mut run = replay(&capture, variant, &setup).map_err(|error| failed(&error))?;
    let mut batch = Batch::new();
    loop {
        let fill = source.fill(&mut batch).map_err(|error| failed(&error))?;
        run.consume(&batch);
        if fill == Fill::End {
            return Ok(run.finish());
        }
    }
}
