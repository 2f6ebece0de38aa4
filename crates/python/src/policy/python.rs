//! A policy that is an object of Python.

use crate::error;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use strata::failure::Failure;
use strata_engine::{Catalogue, OwnPolicy, catalogue};
use strata_stack::{KernelOutOfMemory, Policy};

/// Every hook.
pub const HOOKS: [&str; 19] = [
    "settings",
    "vm_memory",
    "place",
    "wants_backs",
    "mapped_at_once",
    "mapped",
    "second_stage_written",
    "may_move",
    "balloon_colours",
    "may_merge",
    "freed_huge",
    "ended",
    "memory_short",
    "wake",
    "placement",
    "trade",
    "told_of_cache",
    "refuses",
    "next_wake",
];

/// A name, what it does in one line, and what makes an object of it for each machine.
pub type Given = (String, String, Py<PyAny>);

/// The first exception of any policy.
pub struct Trouble {
    first: Mutex<Option<PyErr>>,
    there: AtomicBool,
    /// Ends the run.
    stop: Arc<AtomicBool>,
}

impl Trouble {
    pub fn set(&self, error: PyErr) {
        self.first.lock().expect("nothing panics with it").get_or_insert(error);
        self.there.store(true, Relaxed);
        self.stop.store(true, Relaxed);
    }
}

/// The policies of a run.
pub struct Policies {
    given: Vec<Given>,
    trouble: Arc<Trouble>,
}

impl Policies {
    /// `stop` is set when one raises an exception.
    pub fn new(given: Vec<Given>, stop: Arc<AtomicBool>) -> Self {
        Self {
            given,
            trouble: Arc::new(Trouble {
                first: Mutex::new(None),
                there: AtomicBool::new(false),
                stop,
            }),
        }
    }

    /// Everything machines can be made of, and these.
    pub fn catalogue(&self) -> PyResult<Catalogue> {
        self.given.iter().try_fold(catalogue(), |all, (name, about, factory)| {
            let factory = Python::attach(|py| factory.clone_ref(py));
            let trouble = self.trouble.clone();
            let own = OwnPolicy {
                name: name.clone(),
                about: about.clone(),
                make: Arc::new(move || PythonPolicy::made(&factory, &trouble)),
            };
            all.with(own).map_err(|name| {
                let why = format!("there is a policy called '{name}'; give yours another name");
                error::failed(Failure::usage(why))
            })
        })
    }

    /// Raises what a policy raised, if one did.
    pub fn trouble(&self, _py: Python<'_>) -> PyResult<()> {
        self.trouble.first.lock().expect("nothing panics with it").take().map_or(Ok(()), Err)
    }
}

/// A policy that asks an object of Python; for hooks that it has not, as stock Linux does.
#[derive(Clone)]
pub struct PythonPolicy {
    /// `None` when it could not be made: then the run ends.
    object: Option<Arc<Py<PyAny>>>,
    hooks: Arc<BTreeSet<&'static str>>,
    trouble: Arc<Trouble>,
    /// A kernel ran out of memory within a hook.
    short: Arc<Mutex<Option<KernelOutOfMemory>>>,
}

impl PythonPolicy {
    fn made(factory: &Py<PyAny>, trouble: &Arc<Trouble>) -> Box<dyn Policy> {
        let made = Python::attach(|py| -> PyResult<_> {
            let object = factory.call0(py)?;
            let has =
                HOOKS.into_iter().filter(|hook| object.bind(py).hasattr(*hook).unwrap_or(false));
            Ok((Arc::new(object.clone_ref(py)), has.collect()))
        });
        let (object, hooks) = match made {
            Ok((object, hooks)) => (Some(object), hooks),
            Err(error) => {
                trouble.set(error);
                (None, BTreeSet::new())
            }
        };
        Box::new(Self {
            object,
            hooks: Arc::new(hooks),
            trouble: trouble.clone(),
            short: Arc::default(),
        })
    }

    /// Whether the object has a hook, and is to be asked still.
    pub fn has(&self, hook: &str) -> bool {
        self.hooks.contains(hook) && !self.trouble.there.load(Relaxed)
    }

    /// Asks the object. `None` when it raised an exception, which ends the run.
    pub fn ask<T>(
        &self,
        ask: impl for<'py> FnOnce(&Bound<'py, PyAny>) -> PyResult<T>,
    ) -> Option<T> {
        let object = self.object.as_ref()?;
        Python::attach(|py| ask(object.bind(py))).map_err(|error| self.trouble.set(error)).ok()
    }

    /// Asks the object of what may run out of memory.
    pub fn attempt(
        &self,
        ask: impl for<'py> FnOnce(&Bound<'py, PyAny>) -> PyResult<()>,
    ) -> Result<(), KernelOutOfMemory> {
        let Some(object) = self.object.as_ref() else { return Ok(()) };
        let done = Python::attach(|py| {
            let done = ask(object.bind(py));
            done.map_err(|error| (error.is_instance_of::<PyMemoryError>(py), error))
        });
        let short = self.short.lock().expect("nothing panics with it").take();
        match (done, short) {
            // Whoever caught the exception has dealt with it.
            (Ok(()), _) => Ok(()),
            (Err((true, _)), Some(short)) => Err(short),
            (Err((_, error)), _) => {
                self.trouble.set(error);
                Ok(())
            }
        }
    }

    /// What an operation gave; that a kernel is out of memory is an exception until the hook ends.
    pub fn result<T>(&self, done: Result<T, KernelOutOfMemory>) -> PyResult<T> {
        done.map_err(|short| {
            let error = PyMemoryError::new_err("a kernel has no memory left");
            *self.short.lock().expect("nothing panics with it") = Some(short);
            error
        })
    }
}
