//! Runs a program under capture and counts what it does: `count [--events] PROGRAM [ARGS...]`.
//!
//! The consumer does nothing else, so the time it takes is that of the capture alone.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;
use strata_capture::{Capture, Options};
use strata_stream::{Batch, Fill, Source, Step};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let show = words.first().is_some_and(|word| word == "--events");
    words.drain(..usize::from(show));
    let (program, args) = words.split_first().ok_or("usage: count [--events] PROGRAM [ARGS...]")?;
    let start = Instant::now();
    let mut capture = Capture::spawn(program, args, Options::default())?;
    let (mut accesses, mut stores, mut instructions, mut events) = (0u64, 0u64, 0u64, 0u64);
    let mut batch = Batch::new();
    loop {
        let fill = capture.fill(&mut batch)?;
        for step in batch.steps() {
            match step {
                Step::Run { accesses: run, instructions: count, .. } => {
                    accesses += run.len() as u64;
                    stores += run.iter().filter(|access| access.is_store()).count() as u64;
                    instructions += count;
                }
                Step::Event(event) => {
                    events += 1;
                    if show {
                        eprintln!("{accesses:>12} {event:?}");
                    }
                }
            }
        }
        if fill == Fill::End {
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let info = capture.info();
    eprintln!(
        "{accesses} accesses ({stores} stores), {instructions} instructions, {events} events, \
         {seconds:.2} s, {:.1} M accesses/s, exit status {:?}",
        accesses as f64 / seconds / 1e6,
        info.exit_status
    );
    info.notes.iter().for_each(|note| eprintln!("note: {note}"));
    Ok(ExitCode::from(info.exit_status.unwrap_or(0) as u8))
}
