//! Replacing the process by another program. One of the crate's rooms for `unsafe`.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::ptr;

/// Arguments and environment for `execve`, in the form the kernel takes, so that nothing has to be
/// allocated between `fork` and `execve`.
#[derive(Debug)]
pub struct Execution {
    arguments: Vec<CString>,
    environment: Vec<CString>,
    argument_pointers: Vec<*const libc::c_char>,
    environment_pointers: Vec<*const libc::c_char>,
}

// SAFETY: the pointers are into the strings, which are owned and never changed.
unsafe impl Send for Execution {}
// SAFETY: as above.
unsafe impl Sync for Execution {}

impl Execution {
    /// Runs the file named by the first argument.
    ///
    /// # Errors
    /// When there is no argument, or a string holds a zero byte.
    pub fn new(arguments: Vec<OsString>, environment: Vec<OsString>) -> io::Result<Self> {
        let c_strings = |list: Vec<OsString>| -> io::Result<Vec<CString>> {
            Ok(list
                .into_iter()
                .map(|text| CString::new(text.into_vec()))
                .collect::<Result<_, _>>()?)
        };
        let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
            list.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
        };
        if arguments.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (arguments, environment) = (c_strings(arguments)?, c_strings(environment)?);
        let argument_pointers = pointers(&arguments);
        let environment_pointers = pointers(&environment);
        Ok(Self { arguments, environment, argument_pointers, environment_pointers })
    }

    /// Replaces the process. Returns only when the kernel refused, with its error.
    pub fn replace_process(&self) -> io::Error {
        debug_assert_eq!(self.arguments.len() + 1, self.argument_pointers.len());
        debug_assert_eq!(self.environment.len() + 1, self.environment_pointers.len());
        // SAFETY: both lists are null-terminated and, like what they point to, live as `self`.
        unsafe {
            libc::execve(
                self.argument_pointers[0],
                self.argument_pointers.as_ptr(),
                self.environment_pointers.as_ptr(),
            );
        }
        io::Error::last_os_error()
    }
}
