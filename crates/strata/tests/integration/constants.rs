//! `docs/model.md` names every constant with its default, unit and source.

use std::fmt::Write;
use strata_hardware::CpuModel;
use strata_params::{Parameter, Parameters};

const BEGIN: &str = "<!-- constants: begin (checked by a test; \
                     UPDATE_DOCS=1 cargo test -p strata --test integration constants) -->\n";
const END: &str = "<!-- constants: end -->";

fn table() -> String {
    let mut text = String::from("\n| name | default | unit | what, and from where |\n");
    text.push_str("| --- | --- | --- | --- |\n");
    rows(&mut text, &strata_engine::catalogue().parameters);
    text.push_str(
        "\nThe default CPU, `broadwell-e5-2620v4`; `?` marks a value no source confirms. ",
    );
    text.push_str("`strata list cpus` shows the other presets.\n\n");
    text.push_str("| name | value | unit | what, and from where |\n| --- | --- | --- | --- |\n");
    let cpu = CpuModel::preset("broadwell-e5-2620v4").unwrap();
    rows(&mut text, &cpu.parameters());
    text.push('\n');
    text
}

fn rows(text: &mut String, parameters: &[Parameter]) {
    for Parameter { name, value, unit, doc, confirmed } in parameters {
        let doubt = if *confirmed { "" } else { " `?`" };
        writeln!(text, "| `{name}` | {value} | {unit} | {doc}{doubt} |").unwrap();
    }
}

#[test]
fn the_document_lists_every_constant() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/model.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (before, rest) = document.split_once(BEGIN).expect("the begin mark");
    let (shown, after) = rest.split_once(END).expect("the end mark");
    let expected = table();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
        return;
    }
    for (shown, expected) in shown.lines().zip(expected.lines()) {
        assert_eq!(shown, expected, "the table is out of date: run with UPDATE_DOCS=1");
    }
    assert_eq!(shown.len(), expected.len(), "the table is out of date: run with UPDATE_DOCS=1");
}
