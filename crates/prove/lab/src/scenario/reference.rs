//! The scenario reference of the documentation, made of the comments of the types.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Pages of the documentation that have scenarios; the first one there with a mark has the reference.
pub(super) const PAGES: [&str; 2] = ["lab-scenarios.md", "lab.md"];
const BEGIN: &str = "<!-- scenario reference -->\n";
const END: &str = "<!-- end -->\n";
const STALE: &str = "the scenario reference is out of date: run \
                     UPDATE_DOCS=1 cargo test -p strata-lab --lib reference";

/// Where the types are, what heads their table, and what a key is written in front of.
const TYPES: [(&str, &str, &str); 7] = [
    (include_str!("mod.rs"), "Scenario", "Keys of the file itself"),
    (include_str!("layer.rs"), "Layer", "Keys of each `[[layer]]`"),
    (include_str!("layer.rs"), "Fragmentation", "Keys of `fragmentation`"),
    (include_str!("kernel.rs"), "Kernel", "Kernels"),
    (include_str!("layer.rs"), "Backend", "Values of `backend`"),
    (include_str!("step.rs"), "Step", "Each `[[step]]`, by its `do`"),
    (include_str!("stress.rs"), "Stress", "Keys of each `[[stress]]`"),
];

/// A field of a struct, or a variant of an enum with its fields.
#[derive(Debug, Default)]
struct Item {
    name: String,
    /// Empty for a variant.
    kind: String,
    about: String,
    /// What `serde` is told.
    serde: String,
    fields: Vec<Item>,
}

/// The items of a type in a source that is formatted as `rustfmt` does.
fn items(source: &str, of: &str) -> Vec<Item> {
    let is_head = |line: &&str| {
        ["pub struct", "pub enum"].iter().any(|kind| **line == format!("{kind} {of} {{"))
    };
    let body = source.lines().skip_while(|line| !is_head(line)).skip(1);
    let mut items: Vec<Item> = Vec::new();
    let mut next = Item::default();
    for line in body.take_while(|line| *line != "}") {
        let inner = line.starts_with("        ");
        let text = line.trim();
        if let Some(comment) = text.strip_prefix("///") {
            next.about += comment;
        } else if let Some(told) = text.strip_prefix("#[serde(") {
            next.serde = told.trim_end_matches(")]").into();
        } else if text != "}," && !text.starts_with("#[") {
            let (name, kind) = text.split_once(": ").unwrap_or((text, ""));
            next.name = name.trim_start_matches("pub ").trim_end_matches([',', '{', ' ']).into();
            next.kind = kind.trim_end_matches(',').into();
            let item = std::mem::take(&mut next);
            match items.last_mut().filter(|_| inner) {
                Some(variant) => variant.fields.push(item),
                None => items.push(item),
            }
        }
    }
    assert!(!items.is_empty(), "{of} is not there");
    items
}

/// What a value of this type is in TOML.
fn value(kind: &str) -> &str {
    match kind {
        "String" | "PathBuf" => "text",
        "Memory" => "size",
        "bool" => "true or false",
        "u8" | "u32" | "u64" => "whole number",
        "f64" => "number",
        "Kernel" => "kernel",
        "Backend" => "backend",
        "Fragmentation" => "table",
        "Vmm" => "text, list or table",
        kind if kind.starts_with("BTreeMap") => "table",
        kind if kind.starts_with("Vec<") => "list",
        kind => panic!("{kind} has no name in the reference"),
    }
}

/// What a key is if it is not given.
fn otherwise(item: &Item, bare: &str) -> &'static str {
    match item.serde.split('"').nth(1).filter(|_| item.serde.starts_with("default")) {
        Some("one") => "1",
        Some("ten_minutes") => "600",
        _ if bare != item.kind => "none",
        _ if !item.serde.starts_with("default") => "must be given",
        _ => match value(bare) {
            "true or false" => "false",
            "number" => "0",
            "backend" => "`\"ram\"`",
            _ => "none",
        },
    }
}

fn row(item: &Item) -> String {
    let bare = item.kind.strip_prefix("Option<").and_then(|kind| kind.strip_suffix('>'));
    let bare = bare.unwrap_or(&item.kind);
    let renamed = item.serde.split("rename = \"").nth(1).and_then(|rest| rest.split('"').next());
    let name = renamed.unwrap_or(&item.name);
    format!("| `{name}` | {} | {} | {} |\n", value(bare), otherwise(item, bare), item.about.trim())
}

const HEAD: &str = "| key | value | otherwise | |\n| --- | --- | --- | --- |\n";

fn reference() -> String {
    let mut text =
        "Sizes are written as `\"1600M\"` or `\"2G\"`. Layers are numbers: 0 is L0.\n".to_owned();
    for (source, of, heading) in TYPES {
        let items = items(source, of);
        let _ = write!(text, "\n**{heading}**\n\n");
        if items.iter().all(|item| !item.kind.is_empty()) {
            text += HEAD;
            text.extend(items.iter().map(row));
            continue;
        }
        for item in items {
            // Kernels have several names, which their comments say.
            let name = match of {
                "Kernel" => String::new(),
                _ => format!("`{}`: ", item.name.to_lowercase()),
            };
            let _ = writeln!(text, "- {name}{}", item.about.trim());
            if !item.fields.is_empty() {
                let _ = write!(text, "\n{HEAD}");
                text.extend(item.fields.iter().map(row));
                text += "\n";
            }
        }
    }
    text
}

#[test]
fn the_documentation_has_the_reference() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs");
    let page = |page: &&str| {
        let path = docs.join(page);
        Some((fs::read_to_string(&path).ok().filter(|text| text.contains(BEGIN))?, path))
    };
    let (text, path) = PAGES.iter().find_map(page).expect("a page has the mark of the reference");
    let (before, rest) = text.split_once(BEGIN).expect("the mark is there");
    let (shown, after) = rest.split_once(END).expect("the reference has an end");
    let expected = format!("\n{}\n", reference().trim_end());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
    } else {
        assert_eq!(shown, expected, "{STALE}");
    }
}

#[test]
fn keys_are_told_with_what_they_are_and_what_they_are_otherwise() {
    let source = "/// Not this.\npub struct A {\n    /// First.\n    /// More.\n    pub a: u8,\n}\n\
                  pub enum B {\n    /// Of B.\n    One {\n        /// A field.\n        \
                  #[serde(default = \"one\")]\n        f: u8,\n        /// Maybe.\n        \
                  g: Option<String>,\n    },\n    /// Two.\n    #[default]\n    Two,\n}\n";
    assert_eq!(
        row(&items(source, "A")[0]),
        "| `a` | whole number | must be given | First. More. |\n"
    );
    let variants = items(source, "B");
    let names: Vec<&str> = variants.iter().map(|item| item.name.as_str()).collect();
    assert_eq!(names, ["One", "Two"]);
    assert_eq!(row(&variants[0].fields[0]), "| `f` | whole number | 1 | A field. |\n");
    assert_eq!(row(&variants[0].fields[1]), "| `g` | text | none | Maybe. |\n");
}
