//! The scenarios that come with Strata.

use include_dir::{Dir, include_dir};

static SHIPPED: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/scenarios");

/// The text of a shipped scenario.
pub(super) fn text(name: &str) -> Option<&'static str> {
    SHIPPED.get_file(format!("{name}.toml"))?.contents_utf8()
}

/// Names of the shipped scenarios: those that show what stacks do, then those below `causes/` and `levels/`, each
/// kind in alphabetical order.
pub fn names() -> impl Iterator<Item = &'static str> {
    let below = SHIPPED.dirs().flat_map(|directory| directory.files());
    SHIPPED.files().chain(below).filter_map(|file| file.path().to_str()?.strip_suffix(".toml"))
}

/// Names of shipped scenarios beside this one: of its own directory only, for nobody reads the names of
/// all.
pub(super) fn beside(name: &str) -> Vec<&'static str> {
    let kind = |name: &str| name.rsplit_once('/').map(|(kind, _)| kind.to_owned());
    let of = |wanted: Option<String>| names().filter(|known| kind(known) == wanted).collect();
    let all: Vec<_> = of(kind(name));
    if all.is_empty() { of(None) } else { all }
}
