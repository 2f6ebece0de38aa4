//! Which standard streams were closed when the program started.

use nix::libc;

/// Called by the C library before Rust's own start, which opens closed streams on `/dev/null`.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for stream in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: the call touches no memory.
        if unsafe { libc::fcntl(stream, libc::F_GETFD) } < 0 {
            strata::output::was_closed(stream);
        }
    }
}
