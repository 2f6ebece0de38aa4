//! Phases of live programs: blocks are counted in a first run, and windows lie where they were chosen.

use crate::sampling::{instructions, places};
use crate::support::{Linked, Program};
use std::sync::Arc;
use strata_capture::{Capture, Options};
use strata_phases::{Profiled, Settings, Windows};
use strata_stream::{Batch, Edge, Event, Fill, Source};
use strata_workloads::{Aimed, Marker, Phases};

const SETTINGS: Settings = Settings { interval: 50_000, warm: 30_000, most: 10, seed: 1 };

fn spawn(program: &Program, how: &str, options: Options) -> Capture {
    Capture::spawn(program.path.as_os_str(), &program.arguments(&[how]), options).unwrap()
}

/// What a first run counts.
fn profiled(program: &Program, how: &str) -> Profiled {
    let options = Options { counting: Some(SETTINGS.interval), ..Options::default() };
    let (mut capture, mut batch) = (spawn(program, how, options), Batch::new());
    while capture.fill(&mut batch).unwrap() == Fill::More {
        assert_eq!(batch.len(), 0, "no access is seen");
    }
    assert_eq!(capture.info().exit_status, Some(4));
    capture.profiled().unwrap()
}

#[test]
fn blocks_are_counted_in_intervals_of_one_clock() {
    let program = Program::build("phases", Linked::Pie);
    for how in ["alone", "processes", "threads"] {
        let found = profiled(&program, how);
        let all = instructions(&program.run(&[how]));
        let counted = found.instructions();
        assert!(all.abs_diff(counted) < all / 100, "{how}: {counted} of {all}");
        assert_eq!(found.length, SETTINGS.interval);
        let expected = all / SETTINGS.interval;
        let number = found.intervals.len() as u64;
        assert!(expected.abs_diff(number) <= 2 + expected / 50, "{how}: {number} of {expected}");
        // One of several processes may not have told of what it did.
        let most = SETTINGS.interval * 5;
        assert!(found.intervals.iter().all(|interval| interval.instructions < most), "{how}");
    }
    assert_eq!(profiled(&program, "alone"), profiled(&program, "alone"), "the same each time");
}

#[test]
fn pieces_of_code_that_run_in_turn_are_phases() {
    let program = Program::build("phases", Linked::Static);
    for how in ["alone", "processes", "threads"] {
        let found = Windows::choose(&profiled(&program, how), &SETTINGS).unwrap();
        let all: u64 = found.phases.iter().map(|phase| phase.instructions).sum();
        let share = |at: usize| found.phases[at].instructions as f64 / all as f64;
        // Five instructions a round of one, eight of the other, four times as many rounds of the first: what
        // lies between is intervals that saw both.
        assert!(found.phases.len() >= 2, "{how}: {:?}", found.phases);
        if how == "alone" {
            assert!((0.5..0.8).contains(&share(0)), "{how}: {:?}", found.phases);
            assert!((0.1..0.4).contains(&share(1)), "{how}: {:?}", found.phases);
        }
        assert!(found.windows.len() >= 4, "{how}");
    }
}

#[test]
fn windows_lie_where_they_were_chosen() {
    let program = Program::build("phases", Linked::Static);
    let windows = Windows::choose(&profiled(&program, "alone"), &SETTINGS).unwrap();
    let phases = Phases { windows: windows.clone(), marker: Marker::Code };
    let options = || {
        let sampling = Some(phases.sampling());
        let aimed = Some(Aimed::Phases(Arc::new(phases.clone())));
        Options { sampling, aimed, ..Options::default() }
    };
    let found = places(spawn(&program, "alone", options()));
    assert_eq!(found.len(), windows.windows.len());
    for ((start, length), window) in found.into_iter().zip(&windows.windows) {
        // An edge is passed where a block ends that may loop.
        assert!(start.abs_diff(window.start) < 500, "{start} {window:?}");
        assert!(length.abs_diff(SETTINGS.interval) < 500, "{length} {window:?}");
    }
    let mut capture = spawn(&program, "alone", options());
    let (mut batch, mut told) = (Batch::new(), Vec::new());
    loop {
        let fill = capture.fill(&mut batch).unwrap();
        told.extend(batch.steps().filter_map(|step| match step {
            strata_stream::Step::Event(event @ Event::Phase { .. }) => Some(Some(*event)),
            strata_stream::Step::Event(Event::Sampling(Edge::Window)) => Some(None),
            _ => None,
        }));
        if fill == Fill::End {
            break;
        }
    }
    let event = |number: usize| Event::Phase {
        phase: number as u32,
        intervals: windows.phases[number].intervals,
        instructions: windows.phases[number].instructions,
    };
    let all = (0..windows.phases.len()).map(|number| Some(event(number)));
    let each = windows.windows.iter().flat_map(|window| [Some(event(window.phase)), None]);
    assert_eq!(told, all.chain(each).collect::<Vec<_>>());
    let notes = capture.info().notes;
    assert!(
        notes.iter().any(|note| note.contains("by the blocks of code that they run")),
        "{notes:?}"
    );
}
