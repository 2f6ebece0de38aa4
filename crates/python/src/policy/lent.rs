//! A reference that is lent to Python while a hook runs.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::cell::Cell;
use std::ptr::NonNull;

/// A reference, for as long as it is lent. It stays on the thread that lends it.
pub struct Lent<T> {
    to: Cell<Option<NonNull<T>>>,
    /// It may be changed.
    whole: bool,
}

impl<T> Lent<T> {
    /// What may be changed.
    pub fn mutable(to: &mut T) -> Self {
        Self { to: Cell::new(Some(to.into())), whole: true }
    }

    /// What may be looked at.
    pub fn shared(to: &T) -> Self {
        Self { to: Cell::new(Some(to.into())), whole: false }
    }

    /// Ends it. Must be called before the reference ends that it was made of.
    pub fn end(&self) {
        self.to.set(None);
    }

    fn there(&self) -> PyResult<NonNull<T>> {
        self.to.get().ok_or_else(|| {
            PyRuntimeError::new_err(
                "this was lent to a hook that has ended, or that waits for another one: use what the hook \
                 that runs was given",
            )
        })
    }

    /// Looks at it. `look` may not call Python.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> PyResult<R> {
        let to = self.there()?;
        // SAFETY: until `end` the reference is there, and nobody else uses it: the engine waits for the
        // hook, and whoever changes it takes it out first.
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
        self.to.set(None);
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
        self.lent.to.set(Some(self.to));
    }
}
