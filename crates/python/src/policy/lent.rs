//! A reference that is lent to Python while a hook runs.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::thread::{self, ThreadId};

/// A reference, for as long as it is lent, to the thread that lends it. What holds it may go anywhere.
pub struct Lent<T> {
    /// Null when it is not there. Only `owner` looks.
    to: AtomicPtr<T>,
    owner: ThreadId,
    /// It may be changed.
    whole: bool,
}

impl<T> Lent<T> {
    /// What may be changed.
    pub fn mutable(to: &mut T) -> Self {
        Self { to: AtomicPtr::new(to), owner: thread::current().id(), whole: true }
    }

    /// What may be looked at.
    pub fn shared(to: &T) -> Self {
        let to = AtomicPtr::new(ptr::from_ref(to).cast_mut());
        Self { to, owner: thread::current().id(), whole: false }
    }

    /// Ends it. Must be called before the reference ends that it was made of.
    pub fn end(&self) {
        self.to.store(ptr::null_mut(), Relaxed);
    }

    fn there(&self) -> PyResult<NonNull<T>> {
        let own = thread::current().id() == self.owner;
        NonNull::new(self.to.load(Relaxed)).filter(|_| own).ok_or_else(|| {
            PyRuntimeError::new_err(
                "this was lent to a hook that has ended, that waits for another one, or that runs on another \
                 thread: use what the hook that runs was given",
            )
        })
    }

    /// Looks at it. `look` may not call Python.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> PyResult<R> {
        let to = self.there()?;
        // SAFETY: until `end` the reference is there, and nobody else uses it: the engine waits for the
        // hook, which is on this thread, and whoever changes it takes it out first.
        Ok(look(unsafe { to.as_ref() }))
    }

    /// Changes it. What calls Python meanwhile finds it gone here, and is lent it anew.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> PyResult<R> {
        let mut to = self.there()?;
        if !self.whole {
            return Err(PyRuntimeError::new_err(
                "this hook is only asked: it may look at the stack and not change it",
            ));
        }
        self.end();
        let back = Back { lent: self, to };
        // SAFETY: it was lent as a mutable reference, and nobody else can reach it now.
        let result = change(unsafe { to.as_mut() });
        drop(back);
        Ok(result)
    }
}

/// Puts the reference back, whatever happens.
struct Back<'a, T> {
    lent: &'a Lent<T>,
    to: NonNull<T>,
}

impl<T> Drop for Back<'_, T> {
    fn drop(&mut self) {
        self.lent.to.store(self.to.as_ptr(), Relaxed);
    }
}
