//! What is known of a terminal.

use nix::libc;

/// Columns it is taken to have when nothing is known.
pub const DEFAULT_WIDTH: usize = 80;

/// Rows and columns of the terminal that a file descriptor is of; `None` if it is none, or does not
/// tell.
#[allow(unsafe_code)]
pub fn size(fd: i32) -> Option<(u16, u16)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize, which `size` is, and keeps no pointer.
    let done = unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size) };
    (done == 0 && size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}
