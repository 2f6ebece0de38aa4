//! Work beside Python: the interpreter is free for other threads meanwhile, and Ctrl-C is heard.

use crate::error::StrataError;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// How long it is until a signal is heard.
const LOOK: Duration = Duration::from_millis(50);

/// Python's main thread has as much, and policies may call each other as deep as in it.
const STACK: usize = 8 << 20;

/// Does the work on a thread of its own. The first Ctrl-C sets `stop`, upon which the work is to end with
/// what it has; the second leaves it alone and is raised. What other signals raise is raised when the work
/// has ended.
pub fn wait<T: Send + 'static>(
    py: Python<'_>,
    stop: &Arc<AtomicBool>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let slot = Arc::new((Mutex::new(None), Condvar::new()));
    let filled = slot.clone();
    thread::Builder::new().stack_size(STACK).spawn(move || {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        *filled.0.lock().expect("nothing panics with it") = Some(done);
        filled.1.notify_all();
    })?;
    let mut raised = None;
    loop {
        let done = py.detach(|| {
            let waiting = slot.0.lock().expect("nothing panics with it");
            let (mut done, _) = slot
                .1
                .wait_timeout_while(waiting, LOOK, |done| done.is_none())
                .expect("nothing panics with it");
            done.take()
        });
        match (done, raised.take()) {
            (Some(_), Some(error)) => return Err(error),
            (Some(Ok(done)), None) => return Ok(done),
            (Some(Err(_)), None) => {
                return Err(StrataError::new_err("the model failed; what it said is above"));
            }
            (None, before) => raised = before,
        }
        if let Err(error) = py.check_signals() {
            if stop.swap(true, Relaxed) {
                return Err(error);
            }
            raised = (!error.is_instance_of::<PyKeyboardInterrupt>(py)).then_some(error);
        }
    }
}
