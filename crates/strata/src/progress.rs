//! A bar on the terminal, fed from what the sweep tells.

use crate::number::count;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use strata_engine::Progress;

const INTERVAL: Duration = Duration::from_millis(100);

/// Shows progress while `work` runs, if `visible`.
pub fn shown<T>(
    progress: &Progress,
    total: Option<u64>,
    visible: bool,
    work: impl FnOnce() -> T,
) -> T {
    if !visible {
        return work();
    }
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    let template = match total {
        Some(_) => "{spinner} {wide_bar} {percent:>3} %  {msg}  {eta} left",
        None => "{spinner} {msg}",
    };
    bar.set_style(ProgressStyle::with_template(template).expect("the template is right"));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let display = scope.spawn(|| {
            let mut speed = Speed::new();
            while !over.load(Relaxed) {
                let accesses = progress.accesses();
                bar.set_position(accesses);
                bar.set_message(speed.message(progress, accesses));
                thread::park_timeout(INTERVAL);
            }
            bar.finish_and_clear();
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

/// Accesses per second of this pass.
struct Speed {
    pass: usize,
    since: Instant,
}

impl Speed {
    fn new() -> Self {
        Self { pass: 0, since: Instant::now() }
    }

    fn message(&mut self, progress: &Progress, accesses: u64) -> String {
        let (pass, passes) = progress.pass();
        if pass != self.pass {
            *self = Self { pass, since: Instant::now() };
        }
        let seconds = self.since.elapsed().as_secs_f64().max(0.001);
        let rate = count((accesses as f64 / seconds) as u64);
        let simulated = progress.simulated_seconds();
        let reading =
            if passes > 1 { format!("reading {pass} of {passes}  ") } else { String::new() };
        let accesses = count(accesses);
        format!("{reading}{accesses} accesses  {rate}/s  {simulated:.2} s simulated")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_has_count_rate_and_time() {
        let mut speed = Speed::new();
        speed.since -= Duration::from_secs(2);
        let message = speed.message(&Progress::default(), 4_000_000);
        assert!(message.starts_with("4.00M accesses  "), "{message}");
        assert!(message.ends_with("/s  0.00 s simulated"), "{message}");
    }

    #[test]
    fn work_gives_its_result_whether_shown_or_not() {
        let progress = Progress::default();
        assert_eq!(shown(&progress, Some(1), false, || 7), 7);
        assert_eq!(shown(&progress, None, true, || 8), 8);
    }
}
