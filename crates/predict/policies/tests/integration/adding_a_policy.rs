//! The worked example of `docs/adding-a-policy.md`, step by step: the code between the marks is the code
//! in the document, to the letter, and does what the document says.

// The first step.

use crate::utilization::{Utilization, UtilizationParameters};
use strata_policies::{Entry, ParameterSet, PolicyParameters};
use strata_stack::Policy;

/// The second step: what stands in the registry.
const REGISTRY: &[Entry] = &[
    // [line]
    Entry::new(
        "utilization",
        "promotes a region once most of it is in use, in every layer on its own",
        "Ingens (OSDI 2016) section 5",
        |parameters| Box::new(Utilization::new(parameters.get())),
    )
    .reads(&[ParameterSet::of::<UtilizationParameters>()]),
    // [/line]
];

use crate::world::{Op, PAGES, World, op};
use proptest::prelude::*;
use strata_params::Parameters;

/// What stands between two marks, as the document has it: without what it is indented by.
fn marked(name: &str) -> String {
    let own = [include_str!("adding_a_policy.rs"), include_str!("utilization/mod.rs")];
    let mark = format!("// [{name}]\n");
    let (_, rest) = own.iter().find_map(|text| text.split_once(&mark)).unwrap();
    let code = rest.split_once(&format!("// [/{name}]")).unwrap().0.trim_end();
    let indentation = if code.starts_with("    ") { "    " } else { "" };
    let lines = code.lines().map(|line| line.strip_prefix(indentation).unwrap_or(line));
    lines.map(|line| line.to_owned() + "\n").collect()
}

const DOCUMENT: &str = include_str!("../../../../../docs/adding-a-policy.md");

#[test]
fn the_document_shows_this_code() {
    for name in ["file", "line", "test"] {
        let code = marked(name);
        assert!(DOCUMENT.contains(&code), "docs/adding-a-policy.md shows another {name}:\n{code}");
    }
}

/// The rows of the table of hooks are the methods of the trait, with their signatures.
#[test]
fn the_document_lists_every_hook_as_the_trait_has_it() {
    let source = include_str!("../../../stack/src/policy.rs");
    let (_, body) = source.split_once("pub trait Policy: Send {").unwrap();
    let mut hooks = Vec::new();
    for rest in body.split("\n    fn ").skip(1) {
        let end = rest.find([';', '{']).unwrap();
        let words: Vec<&str> = rest[..end].split_whitespace().collect();
        // One line, without the marks of what a default leaves unused.
        let line = words.join(" ").replace("( ", "(").replace(", )", ")").replace(" _", " ");
        hooks.push(line.trim_end().to_owned());
    }
    let rows = DOCUMENT.lines().filter_map(|line| line.strip_prefix("| `"));
    let shown: Vec<&str> = rows.filter_map(|row| Some(row.split_once('`')?.0)).collect();
    assert_eq!(shown, hooks);
}

/// The policy as the program would make it, with this threshold.
fn policy(threshold: &str) -> Box<dyn Policy> {
    let mut parameters = PolicyParameters::of(REGISTRY);
    parameters.set("utilization.threshold", threshold).unwrap();
    (REGISTRY[0].make)(&parameters)
}

// [test]
#[test]
fn it_promotes_what_is_used_and_nothing_else() {
    let mut world = World::new(2, 0.0, policy("0.9"));
    for page in 0..PAGES / 2 {
        world.touch(0, page, true);
    }
    for page in (PAGES / 2..PAGES).step_by(2) {
        world.touch(0, page, true);
    }
    let alignment = world.stack.alignment(world.guest);
    // Of the densely used half, the first region is not wholly inside the area.
    assert_eq!(alignment.guest_huge, PAGES / 2 / 512 - 1);
    world.finish();
}
// [/test]

#[test]
fn its_parameter_has_an_effect() {
    let huge = |threshold| {
        let mut world = World::new(2, 0.0, policy(threshold));
        for page in (0..PAGES).step_by(2) {
            world.touch(0, page, true);
        }
        world.stack.alignment(world.guest).guest_huge
    };
    assert_eq!(huge("0.9"), 0);
    assert!(huge("0.4") > 0);
}

#[test]
fn its_parameters_are_listed_and_judged() {
    let mut parameters = PolicyParameters::of(REGISTRY);
    let listed = parameters.parameters();
    assert_eq!(listed.len(), 1);
    assert_eq!((&*listed[0].name, listed[0].value.as_str()), ("utilization.threshold", "0.9"));
    assert!(parameters.set("utilization.threshold", "1.5").is_err(), "a share");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn nothing_is_lost(layers in 1usize..=4, ops in prop::collection::vec(op(), 1..30)) {
        let mut world = World::new(layers, 0.5, policy("0.2"));
        for op in &ops {
            world.apply(op);
            world.check();
        }
        world.finish();
    }
}

/// A guest hypervisor over another copies pages into memory whose frames the host took since: hardware
/// translates through all layers, so the host gives frames again.
#[test]
fn a_guest_hypervisor_can_write_where_the_host_took_frames() {
    let mut world = World::new(4, 0.5, policy("0.2"));
    let sweep = |region| Op::Sweep { pid: 0, region };
    for op in [sweep(6), Op::Balloon { pages: 969 }, sweep(5)] {
        world.apply(&op);
        world.check();
    }
    world.finish();
}
