//! `docs/counters.md` names every counter of a result with its meaning.

use std::fmt::Write;

const BEGIN: &str = "<!-- counters: begin (checked by a test; \
                     UPDATE_DOCS=1 cargo test -p strata-engine --test integration counters) -->\n";
const END: &str = "<!-- counters: end -->";

#[test]
fn the_document_lists_every_counter() {
    let mut expected = String::from("\n| name | meaning |\n| --- | --- |\n");
    for counter in strata_engine::counters() {
        writeln!(expected, "| `{}` | {} |", counter.name, counter.about).unwrap();
    }
    expected.push('\n');
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/counters.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (before, rest) = document.split_once(BEGIN).expect("the begin mark");
    let (shown, after) = rest.split_once(END).expect("the end mark");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(shown, expected, "the table is out of date: run with UPDATE_DOCS=1");
}

#[test]
fn no_two_counters_have_one_name() {
    let mut names: Vec<_> = strata_engine::counters().into_iter().map(|c| c.name).collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
}
