//! `strata record`: a program, a generator or another trace becomes a recording.

use crate::args::RecordArgs;
use crate::defaults::DEFAULT_SEED;
use crate::failure::{FAILED, Failure};
use crate::interrupt::Interrupt;
use crate::output::{self, Target};
use crate::sample::{self, Choice, Sample};
use crate::workload::{nothing_left, part_taken, unopened};
use crate::{given, phases, unsampled};
use std::path::Path;
use strata_hardware::CpuModel;
use strata_stream::{Batch, Fill, SourceError};
use strata_text::number::{bytes, count};
use strata_workloads::Before;
use strata_workloads::record::{Outcome, Writer};

/// Records. Gives the exit status: a live program's own.
///
/// # Errors
/// When the stream cannot be opened or read, or the recording not be written.
pub fn record(args: RecordArgs) -> Result<u8, Failure> {
    if args.output == Path::new("-") {
        return Err(Failure::usage(
            "a recording is written at both its ends, which standard output cannot be; name a file",
        ));
    }
    let target = Target::File(args.output.clone());
    output::apart(&[("--output", &target)], &args.input.files())?;
    unsampled::check_recording(args.sample, &args.input)?;
    let choice = args.sample.map(|sample| choice(sample, args.seed)).transpose()?;
    let part = given::part(&args.input);
    let input = given::input(args.input)?;
    let path = &args.output;
    let cannot = |error: SourceError| Failure::failed(error.to_string());
    let mut writer = Writer::create(path).map_err(cannot)?;
    let interrupt = Interrupt::watch_all();
    if input.is_live() {
        interrupt.pass_on();
    }
    if let Some(Choice::Phases(_)) = choice.as_ref().filter(|_| input.is_live()) {
        crate::complain::complain(&format!("note: {}", phases::TWICE));
    }
    let found = choice.as_ref().map(|choice| phases::parts(choice, &input, &interrupt)).transpose();
    let parts = found.map_err(|error| unopened(&error, &interrupt))?.flatten();
    let source = input.open_sampled(part, Before::Nothing, parts.as_ref(), &interrupt.flag);
    let mut source = source.map_err(|error| unopened(&error, &interrupt))?;
    let mut batch = Batch::new();
    let mut accesses = 0;
    let mut failed = None;
    loop {
        let filled = source.fill(&mut batch);
        accesses += batch.len() as u64;
        source.news().iter().for_each(|news| crate::complain::complain(news));
        writer.push(&batch).map_err(cannot)?;
        match filled {
            // A pipe ends early when somebody asks.
            _ if !input.is_live() && interrupt.happened() => break,
            Ok(Fill::More) => {}
            Ok(Fill::End) => break,
            Err(error) => {
                failed = Some(error.to_string());
                break;
            }
        }
    }
    let info = source.info();
    // A copy is what its source is, be it nothing.
    let copies = part.is_whole() && choice.is_none() && info.recorded.is_some();
    if accesses == 0 && !copies && failed.is_none() && !interrupt.happened() {
        return Err(Failure::failed(nothing_left(part, 0)));
    }
    // A program that was not disturbed by it ended as it would have.
    let undisturbed = input.is_live() && info.exit_status == Some(0);
    let pressed = (interrupt.happened() && !undisturbed).then(|| interrupt.reason());
    let mut outcome = match info.recorded {
        // A copy says what its source says, damage included, and what was found when it was sampled.
        Some(recorded) => Outcome { partial: pressed.or(recorded.partial), ..recorded },
        None => Outcome {
            tables: None,
            command: if info.argv.is_empty() { vec![info.name] } else { info.argv },
            exit_status: info.exit_status,
            partial: failed.clone().or(pressed),
            notes: info.notes,
        },
    };
    outcome.notes.extend(part_taken(part));
    outcome.notes.extend(args.sample.map(|lengths| match &parts {
        Some(_) => format!("{}{lengths}", sample::NOTE),
        None => sample::NOT_SAMPLED.to_owned(),
    }));
    writer.finish(outcome).map_err(cannot)?;
    let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let (number, size) = (count(accesses), bytes(size));
    crate::complain::complain(&format!("{number} accesses in {size}: {}", path.display()));
    Ok(match (failed, info.exit_status.filter(|_| input.is_live())) {
        (Some(message), _) => {
            crate::complain::complain(&format!("{message}; what came before is recorded"));
            FAILED
        }
        (None, Some(status)) => u8::try_from(status).unwrap_or(FAILED),
        (None, None) if interrupt.happened() => interrupt.status(),
        (None, None) => 0,
    })
}

/// Warming has to fill what the CPU has that `strata run` models if nothing is said.
fn choice(sample: Sample, seed: Option<u64>) -> Result<Choice, Failure> {
    let cpu = CpuModel::preset(CpuModel::DEFAULT);
    let cpu = cpu.map_err(|error| Failure::failed(error.to_string()))?;
    Ok(sample.choice(seed.unwrap_or(DEFAULT_SEED), &cpu))
}
