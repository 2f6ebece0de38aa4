//! What the sweep tells while it runs: a bar on the terminal, and news.

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use strata_engine::Progress;
use strata_text::number::count;

const INTERVAL: Duration = Duration::from_millis(100);

/// Tells the news while `work` runs on machines of these names and, if `visible`, shows progress.
pub fn shown<T>(
    progress: &Progress,
    total: Option<u64>,
    machines: &[String],
    visible: bool,
    work: impl FnOnce() -> T,
) -> T {
    let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(total, target);
    let style = |template| ProgressStyle::with_template(template).expect("the template is right");
    let text = style("{spinner} {msg}");
    let share = style("{spinner} {wide_bar} {percent:>3} %  {msg}");
    bar.set_style(text.clone());
    let tell = || {
        for news in progress.news() {
            bar.suspend(|| crate::complain::complain(&news));
        }
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let display = scope.spawn(|| {
            let mut speed = Speed::new();
            let mut has_begun = false;
            while !over.load(Relaxed) {
                tell();
                let accesses = progress.accesses();
                // A share of what has not begun would be a guess.
                if total.is_some() && has_begun != (accesses > 0) {
                    has_begun = accesses > 0;
                    bar.set_style(if has_begun { share.clone() } else { text.clone() });
                }
                bar.set_position(accesses);
                bar.set_message(speed.message(progress, accesses, total, machines));
                thread::park_timeout(INTERVAL);
            }
            bar.finish_and_clear();
            tell();
        });
        // The display must end when the work panics, too, or the scope would wait for ever.
        let end = End(|| {
            over.store(true, Relaxed);
            display.thread().unpark();
        });
        let result = work();
        drop(end);
        result
    })
}

struct End<F: Fn()>(F);

impl<F: Fn()> Drop for End<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Shows on the terminal what is waited for while `work` runs.
pub fn while_waiting<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
    let visible = std::io::stderr().is_terminal();
    let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}");
    let bar = ProgressBar::with_draw_target(None, target)
        .with_style(style.expect("the template is right"))
        .with_message(what);
    bar.enable_steady_tick(INTERVAL);
    let done = work();
    bar.finish_and_clear();
    done
}

/// Accesses per second of this pass.
struct Speed {
    /// The pass, and whether its machines are set up.
    stage: (usize, bool),
    since: Instant,
}

impl Speed {
    fn new() -> Self {
        Self { stage: (0, false), since: Instant::now() }
    }

    fn message(
        &mut self,
        progress: &Progress,
        accesses: u64,
        total: Option<u64>,
        machines: &[String],
    ) -> String {
        let (pass, passes) = progress.pass();
        let setting_up = progress.setting_up();
        let stage = (pass, setting_up.is_none());
        if stage != self.stage {
            *self = Self { stage, since: Instant::now() };
        }
        let reading =
            if passes > 1 { format!("reading {pass} of {passes}  ") } else { String::new() };
        if let Some(machine) = setting_up {
            let name = machines.get(machine).map_or("", String::as_str);
            return format!("{reading}setting up {name} ({} of {})", machine + 1, machines.len());
        }
        let seconds = self.since.elapsed().as_secs_f64().max(0.001);
        let rate = accesses as f64 / seconds;
        let left = match total {
            Some(total) if accesses > 0 => {
                let left = Duration::from_secs_f64(total.saturating_sub(accesses) as f64 / rate);
                format!("  {:#} left", HumanDuration(left))
            }
            _ => String::new(),
        };
        let simulated = progress.simulated_seconds();
        let (accesses, rate) = (count(accesses), count(rate as u64));
        format!("{reading}{accesses} accesses  {rate}/s  {simulated:.2} s simulated{left}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strata_engine::{Open, OpenError, SetupError, Stop, Sweep, sweep};
    use strata_stream::WorkloadInfo;

    #[test]
    fn the_message_has_count_rate_and_time() {
        let mut speed = Speed { stage: (0, true), since: Instant::now() - Duration::from_secs(2) };
        let message = speed.message(&Progress::default(), 4_000_000, None, &[]);
        assert!(message.starts_with("4.00M accesses  "), "{message}");
        assert!(message.ends_with("/s  0.00 s simulated"), "{message}");
        let message = speed.message(&Progress::default(), 4_000_000, Some(400_000_000), &[]);
        assert!(message.ends_with("/s  0.00 s simulated  3m left"), "{message}");
    }

    #[test]
    fn nothing_is_said_of_the_time_left_before_the_first_access() {
        let message = Speed::new().message(&Progress::default(), 0, Some(1000), &[]);
        assert_eq!(message, "0 accesses  0/s  0.00 s simulated");
    }

    #[test]
    fn the_machine_that_is_set_up_is_named() {
        let (progress, stop) = (Progress::default(), Stop::default());
        let machines = ["vm/base", "nested/base", "nested/thp"].map(str::to_owned);
        let seen = std::sync::Mutex::new(Vec::new());
        let build = |_: &WorkloadInfo| {
            let message = Speed::new().message(&progress, 0, Some(1000), &machines);
            seen.lock().unwrap().push(message);
            Err(SetupError::Stopped)
        };
        let open: Open<'_> = Box::new(|| Err(OpenError("nothing is opened".to_owned())));
        let swept = sweep(Sweep {
            workload: WorkloadInfo::default(),
            open,
            replayable: true,
            builds: vec![Box::new(build), Box::new(build), Box::new(build)],
            at_once: None,
            threads: std::num::NonZeroUsize::new(1),
            memory_limit: None,
            stop: &stop,
            progress: &progress,
        });
        assert!(swept.unwrap().runs.is_empty());
        let expected = [
            "setting up vm/base (1 of 3)",
            "setting up nested/base (2 of 3)",
            "setting up nested/thp (3 of 3)",
        ];
        assert_eq!(seen.into_inner().unwrap(), expected);
    }

    #[test]
    fn work_gives_its_result_whether_shown_or_not() {
        let progress = Progress::default();
        assert_eq!(shown(&progress, Some(1), &[], false, || 7), 7);
        assert_eq!(shown(&progress, None, &[], true, || 8), 8);
    }
}
