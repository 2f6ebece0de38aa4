//! Processes that end with the lab.

use nix::libc;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Makes a process end when the thread that starts it does, whatever the reason, and leaves Ctrl-C
/// to the lab, which then ends the process itself.
pub(crate) fn ends_with_us(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.process_group(0).pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // The parent may have died before the request took effect.
            if libc::getppid() != parent as libc::pid_t {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        })
    }
}

/// Ends a process started by [`ends_with_us`] and all that it started.
pub(crate) fn end_group(child: &Child) {
    // SAFETY: the child has not been waited for, so its number is its own.
    unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGTERM) };
}
