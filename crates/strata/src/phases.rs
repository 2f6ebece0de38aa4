//! `--sample phases`: a first run finds phases and windows, before the one that is looked at in detail.

use crate::interrupt::Interrupt;
use crate::sample::{Choice, Parts};
use crate::stdin::Stdin;
use crate::workload::Input;
use std::ffi::OsString;
use std::sync::Arc;
use strata_capture::{Capture, Options};
use strata_engine::OpenError;
use strata_phases::{Profiled, Settings, Windows};
use strata_stream::{Batch, Fill, Source};
use strata_workloads::{Aimed, Before, Marker, Part, Phases, profile};

/// What is said before a program runs twice.
pub const TWICE: &str = "the program runs twice: what it does and writes the first time, when its phases are \
                         looked for, is not seen";

/// The parts of a stream that are run in detail, as was chosen. `None` for all of it: it is too short to be
/// sampled by phases.
///
/// # Errors
/// When the stream cannot be read twice, or not be read, or was interrupted meanwhile.
pub fn parts(
    choice: &Choice,
    input: &Input,
    interrupt: &Interrupt,
) -> Result<Option<Parts>, OpenError> {
    let settings = match choice {
        Choice::Given(sampling) => return Ok(Some(Parts { sampling: *sampling, aimed: None })),
        Choice::Auto(sampling, aim) => {
            let aimed = Some(Aimed::Auto(aim.clone()));
            return Ok(Some(Parts { sampling: *sampling, aimed }));
        }
        Choice::Phases(settings) => settings,
    };
    let (profiled, marker) = match input {
        Input::Live(command) => (counted(command, settings, interrupt)?, Marker::Code),
        _ => (read(input, settings, interrupt)?, Marker::Memory),
    };
    if interrupt.happened() {
        return Err(OpenError(interrupt.reason()));
    }
    let windows = profiled.and_then(|profiled| Windows::choose(&profiled, settings));
    Ok(windows.map(|windows| {
        let phases = Phases { windows, marker };
        Parts { sampling: phases.sampling(), aimed: Some(Aimed::Phases(Arc::new(phases))) }
    }))
}

/// Runs a program for the first time.
fn counted(
    command: &[OsString],
    settings: &Settings,
    interrupt: &Interrupt,
) -> Result<Option<Profiled>, OpenError> {
    let stdin = Stdin::read_twice().map_err(OpenError)?;
    let failed = |error: &dyn std::fmt::Display| OpenError(error.to_string());
    let (program, arguments) = command.split_first().expect("chosen as not empty");
    let options = Options {
        interrupted: Some(interrupt.flag.clone()),
        counting: Some(settings.interval),
        ..Options::default()
    };
    let mut capture =
        Capture::spawn(program, arguments, options).map_err(|error| failed(&error))?;
    let mut batch = Batch::new();
    // Ctrl-C reaches the program itself, unless somebody else looks after it.
    while !(interrupt.is_told() && interrupt.happened())
        && capture.fill(&mut batch).map_err(|error| failed(&error))? == Fill::More
    {
        capture.news().iter().for_each(|news| crate::complain::complain(news));
    }
    stdin.rewind().map_err(|error| failed(&error))?;
    Ok(capture.profiled())
}

/// Reads a stream for the first time.
fn read(
    input: &Input,
    settings: &Settings,
    interrupt: &Interrupt,
) -> Result<Option<Profiled>, OpenError> {
    if !input.is_repeatable() {
        return Err(OpenError(
            "--sample phases reads a stream twice, which cannot be done with a pipe: keep it in a file first"
                .to_owned(),
        ));
    }
    let mut source = input.open(Part::default(), Before::Nothing, &interrupt.flag)?;
    crate::workload::refuse_sampled(&source.info())?;
    profile(&mut *source, settings.interval, &|| interrupt.happened())
        .map_err(|error| OpenError(error.to_string()))
}
