//! Both counts side by side, in words.

use super::count::Count;
use super::report::{Cost, Stack};
use std::fmt::Write;
use strata_nested::ExitReason;

/// What was found of one stack.
pub fn render(stack: &Stack) -> String {
    let mut out = String::new();
    of_stack(&mut out, stack);
    out
}

fn of_stack(out: &mut String, stack: &Stack) {
    let Stack { scenario, about, machine, .. } = stack;
    let _ = writeln!(
        out,
        "{scenario}: {about}\nMachine: {}, processor {}, emulated by {}",
        machine.make, machine.processor, machine.emulator
    );
    for cost in &stack.chores {
        let _ = writeln!(out, "\n{}", head(cost));
        if cost.exits.is_empty() {
            let why = if stack.layers < 2 { ": there is no VM" } else { "" };
            let _ = writeln!(out, "    no exits{why}");
            continue;
        }
        counts(out, &cost.exits);
    }
    if !stack.handled.is_empty() {
        let _ = writeln!(
            out,
            "\nWhat L1 executes for an exit of L2 that it is handed, of all exits of the processes:"
        );
        counts(out, &stack.handled);
    }
}

fn counts(out: &mut String, exits: &[Count]) {
    let widest = exits.iter().map(|count| what(count).chars().count()).max().unwrap_or(0);
    let _ = writeln!(out, "    {:widest$}  {:>9}  {:>9}", "exits", "measured", "predicted");
    let mut vm = "";
    for count in exits {
        let shown = if count.vm == vm { "" } else { &count.vm };
        vm = &count.vm;
        let _ = writeln!(out, "{shown:2}  {}", line(count, widest));
    }
}

/// What is counted; what is a part of the rows above stands further in.
fn what(count: &Count) -> String {
    match count.reason {
        Some(ExitReason::HandedOn) => format!("  {}", count.what),
        _ => count.what.clone(),
    }
}

fn head(cost: &Cost) -> String {
    let faults = match cost.faults {
        none if none < 0.005 => String::new(),
        faults => format!(", {faults:.2} page faults in the innermost layer"),
    };
    let instructions =
        cost.instructions.map_or(String::new(), |all| format!(", {all:.0} instructions in all"));
    let mut one = cost.one.clone();
    one[..1].make_ascii_uppercase();
    format!("{one}{faults}{instructions}:")
}

fn line(count: &Count, widest: usize) -> String {
    let predicted = count.predicted.map_or("-".to_owned(), |predicted| format!("{predicted:.2}"));
    let off = if count.is_alike() == Some(false) { "  off" } else { "" };
    format!("{:widest$}  {:>9.2}  {predicted:>9}{off}", what(count), count.measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_both_counts_and_whether_they_are_apart() {
        let line = |measured, predicted| {
            let count =
                Count { vm: "L1".into(), what: "PF".into(), measured, predicted, reason: None };
            line(&count, 4).split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line(2.01, Some(2.02)), "PF 2.01 2.02");
        assert_eq!(line(0.04, Some(0.0)), "PF 0.04 0.00", "hardly ever");
        assert_eq!(line(614.0, Some(460.0)), "PF 614.00 460.00 off");
        assert_eq!(line(614.0, None), "PF 614.00 -");
    }

    #[test]
    fn a_part_of_the_rows_above_stands_further_in() {
        let of = |reason| {
            let count = Count {
                vm: "L2".into(),
                what: "told".into(),
                measured: 1.0,
                predicted: None,
                reason,
            };
            line(&count, 6)
        };
        assert!(of(Some(ExitReason::HandedOn)).starts_with("  told"));
        assert!(of(None).starts_with("told  "));
    }

    #[test]
    fn what_one_is_and_costs_stands_above() {
        let cost = Cost {
            chore: "faults".into(),
            one: "a page fault".into(),
            times: [1, 2],
            faults: 1.0,
            instructions: Some(1234.4),
            exits: Vec::new(),
        };
        assert_eq!(
            head(&cost),
            "A page fault, 1.00 page faults in the innermost layer, 1234 instructions in all:"
        );
        let none = Cost { faults: 0.0, instructions: None, ..cost };
        assert_eq!(head(&none), "A page fault:");
    }
}
