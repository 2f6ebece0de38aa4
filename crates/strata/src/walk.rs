//! `strata walk`.

use crate::args::WalkArgs;
use crate::failure::Failure;
use crate::output::to_stdout;
use strata_addr::PageSize;
use strata_hardware::{draw, native_walk_diagram, walk_diagram};

/// Draws the walk.
///
/// # Errors
/// For pages of a second stage that there is not, and when standard output cannot be written.
pub fn walk(args: &WalkArgs) -> Result<(), Failure> {
    let (guest, host) = (page(&args.guest_page), page(args.host_page.as_deref().unwrap_or("4k")));
    let trace = match args.host_levels.as_str() {
        "0" if args.host_page.is_some() => {
            return Err(Failure::usage(
                "--host-page is of a second stage, and --host-levels 0 walks without one; leave \
                 one of them out",
            ));
        }
        "0" => native_walk_diagram(args.guest_levels, guest),
        "5" => walk_diagram(args.guest_levels, 5, guest, host),
        _ => walk_diagram(args.guest_levels, 4, guest, host),
    };
    to_stdout(draw(&trace).as_bytes())
}

fn page(name: &str) -> PageSize {
    match name {
        "1g" => PageSize::Giant,
        "2m" => PageSize::Huge,
        _ => PageSize::Base,
    }
}
