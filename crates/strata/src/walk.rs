//! `strata walk`.

use crate::args::WalkArgs;
use crate::failure::Failure;
use crate::output::{Target, to_stdout};
use serde::Serialize;
use strata_addr::PageSize;
use strata_hardware::{WalkTrace, draw, native_walk_diagram, walk_diagram};

/// Version of the JSON, its first field.
const VERSION: u32 = 1;

/// Draws the walk, or writes it as JSON.
///
/// # Errors
/// For pages of a second stage that there is not, and when the result cannot be written.
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
    match &args.json {
        Some(path) => {
            let mut json = serde_json::to_vec(&Walk::new(&trace)).expect("a walk is plain data");
            json.push(b'\n');
            Target::named(path).plain(&json)
        }
        None => to_stdout(draw(&trace).as_bytes()),
    }
}

/// A walk in the JSON; `docs/json.md` describes every field.
#[derive(Serialize)]
struct Walk {
    strata_walk: u32,
    guest_levels: u8,
    guest_page: String,
    host_levels: Option<u8>,
    host_page: Option<String>,
    count: usize,
    references: Vec<Reference>,
}

/// One memory reference of it.
#[derive(Serialize)]
struct Reference {
    position: String,
    table: &'static str,
    level: u8,
    address: u64,
}

impl Walk {
    fn new(trace: &WalkTrace) -> Self {
        let references = trace.references.iter().map(|reference| Reference {
            position: reference.position.to_string(),
            table: if reference.is_guest() { "guest" } else { "host" },
            level: reference.level(),
            address: reference.hpa.get(),
        });
        Self {
            strata_walk: VERSION,
            guest_levels: trace.guest_levels,
            guest_page: trace.guest_page.to_string(),
            host_levels: trace.second.map(|(levels, _)| levels),
            host_page: trace.second.map(|(_, page)| page.to_string()),
            count: trace.references.len(),
            references: references.collect(),
        }
    }
}

fn page(name: &str) -> PageSize {
    match name {
        "1g" => PageSize::Giant,
        "2m" => PageSize::Huge,
        _ => PageSize::Base,
    }
}
