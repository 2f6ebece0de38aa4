//! `strata run --tables`: the stream against page tables captured from a real machine.

use crate::args::RunArgs;
use crate::failure::Failure;
use std::path::Path;
use strata_engine::StackKind;
use strata_engine::report::{CapturedTables, Report};
use strata_stream::WorkloadInfo;
use strata_tables::variant::TableVariant;
use strata_tables::{Capture, file};

/// The variants compared, as stacks and policies of the report: what was captured comes first.
pub fn pairs(capture: &Capture) -> Vec<(StackKind, String)> {
    let stack = CapturedTables::stack(capture);
    let differs =
        |variant: &TableVariant| *variant != TableVariant::Ideal || stack != StackKind::Native;
    let variants = TableVariant::ALL.into_iter().filter(differs);
    variants.map(|variant| (stack, variant.name().to_owned())).collect()
}

/// The variant that stands for a policy of the report.
pub fn variant(policy: &str) -> TableVariant {
    let named = TableVariant::ALL.into_iter().find(|variant| variant.name() == policy);
    named.expect("the plan's policies are names of variants")
}

/// Reads the tables and checks that the other options go with them.
///
/// # Errors
/// When they cannot be read, or an option is given that has no effect with them.
pub fn read(path: &Path, args: &RunArgs) -> Result<Capture, Failure> {
    let idle = [
        ("--stack", args.stack.is_some()),
        ("--policy", args.policy.is_some()),
        ("--levels", args.levels.is_some()),
        ("--memory", args.memory.is_some()),
        ("--fragmentation", args.fragmentation.is_some()),
        ("--reused", args.reused.is_some()),
        ("--paging", args.paging.is_some()),
        ("--placement", args.placement.is_some()),
        ("--explain", args.explain.is_some()),
        ("--detail", args.detail.is_some()),
        ("--workload", args.input.workload.is_some()),
    ];
    if let Some((option, _)) = idle.into_iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!(
            "{option} is for modelled stacks; with --tables the stack is the captured one: leave \
             it out"
        )));
    }
    if args.input.trace.is_none() {
        return Err(Failure::usage(
            "--tables needs the recording that was made with them; give it as the trace",
        ));
    }
    file::read(path).map_err(|error| Failure::failed(error.to_string()))
}

/// Whether the stream was recorded with these tables.
///
/// # Errors
/// When it was not: nothing computed from both would mean anything.
pub fn check(capture: &Capture, workload: &WorkloadInfo) -> Result<(), Failure> {
    match workload.tables {
        Some(id) if id == capture.id => Ok(()),
        _ => Err(Failure::usage(format!(
            "{} was not recorded with these tables; give the FILE and the FILE.tables of one \
             'strata lab run --trace'",
            workload.name
        ))),
    }
}

/// What is real and what is modelled, in words.
pub fn sentences(report: &Report) -> Vec<String> {
    let Some(tables) = &report.tables else { return Vec::new() };
    let check = &tables.check;
    let mut text = vec![
        format!("Real: {}. Modelled: {}.", tables.real.join(", "), tables.modelled.join(", ")),
        format!(
            "Of {} accesses recorded, {} translate through the captured tables to where the \
             machine found them, {} went to pages that were moved later, {} do not.",
            check.accesses,
            check.matched,
            check.changed,
            check.mismatched + check.not_ram
        ),
    ];
    if let Some(made) = tables.composition {
        text.push(format!(
            "Of {} pages in L0's shadow table, {} are what L1's table and L0's make of them.",
            made.equal + made.different + made.only_shadow,
            made.equal
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use strata_addr::Frame;
    use strata_tables::{Check, Entries, Role, Table};

    fn capture(layers: u8) -> Capture {
        let check = Check { accesses: 7, matched: 7, ..Check::default() };
        let guest = Table::new((Role::Guest, Entries::X86), Frame::new(0), BTreeMap::new());
        Capture { check, ..Capture::of_guest(layers, guest) }
    }

    #[test]
    fn natively_nothing_can_be_misaligned() {
        let names = |layers| {
            let pairs = pairs(&capture(layers));
            pairs.into_iter().map(|(stack, policy)| format!("{stack} {policy}")).collect::<Vec<_>>()
        };
        assert_eq!(names(1), ["native captured", "native base"]);
        assert_eq!(names(3), ["nested captured", "nested base", "nested aligned"]);
        assert!(TableVariant::ALL.into_iter().all(|known| variant(known.name()) == known));
    }

    #[test]
    fn another_recording_is_refused() {
        let info = |tables| WorkloadInfo { tables, ..WorkloadInfo::default() };
        let capture = Capture { id: 7, ..capture(2) };
        assert_eq!(check(&capture, &info(Some(7))), Ok(()));
        for other in [None, Some(8)] {
            let message = check(&capture, &info(other)).unwrap_err().message;
            assert!(message.contains("was not recorded with these tables"), "{message}");
        }
    }

    #[test]
    fn what_is_not_modelled_cannot_be_chosen() {
        let with = |args: RunArgs| read(Path::new("none"), &args).unwrap_err().message;
        let stack = Some(vec![StackKind::Vm]);
        assert!(with(RunArgs { stack, ..RunArgs::default() }).starts_with("--stack"));
        assert!(with(RunArgs::default()).contains("needs the recording"));
    }
}
