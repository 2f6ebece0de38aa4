//! `strata calibrate`: a CPU model of the processor at hand.

use crate::args::CalibrateArgs;
use crate::failure::Failure;
use crate::output::Target;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use strata_silicon::{Facts, Plan, describe, draw, find, measure};

/// Measures, writes the CPU, draws the curves and says what it could not see.
///
/// # Errors
/// When nothing can be measured, what was measured makes no CPU, or the file cannot be written.
pub fn calibrate(args: &CalibrateArgs) -> Result<(), Failure> {
    let target = Target::named(&args.output);
    target.check()?;
    let failed = |error: strata_silicon::MeasureError| Failure::failed(error.to_string());
    let mut plan = Plan::of_this_machine().map_err(failed)?;
    plan.most = args.most.unwrap_or(plan.most);
    plan.rounds = args.rounds.get();
    let bar = bar();
    let measured = measure(plan, |share| bar.set_position((share * 100.0) as u64));
    bar.finish_and_clear();
    let measured = measured.map_err(failed)?;
    let (findings, facts) = (find(&measured.curves), Facts::of_this_processor());
    let description = describe(&args.name, &findings, &facts).map_err(|error| {
        Failure::failed(format!(
            "what was measured makes no CPU ({error}); measure again when nothing else runs"
        ))
    })?;
    let mut text = draw(&measured.curves);
    let _ = writeln!(text, "measured on processor {}, {}", measured.processor, facts.name);
    for remark in &description.remarks {
        let _ = writeln!(text, "note: {remark}");
    }
    target.plain(description.toml.as_bytes())?;
    // Whoever closed standard error wants none of it.
    let _ = io::stderr().write_all(text.as_bytes());
    Ok(())
}

/// How much is measured, on the terminal.
fn bar() -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("measuring {wide_bar} {percent:>3} %  {eta} left");
    ProgressBar::with_draw_target(Some(100), target)
        .with_style(style.expect("the template is right"))
}
