//! What steps and stressors order of the agents.

use crate::boot::{self, QMP_SOCKET};
use crate::error::LabError;
use crate::journal::Program;
use crate::scenario::{Scenario, Step};
use nix::libc;
use std::collections::BTreeMap;
use strata_protocol::{ALONE_END, Command};

/// The command that writes a file.
pub(crate) fn write(path: &str, text: &str) -> Command {
    Command::Write { path: path.to_owned(), text: text.to_owned() }
}

/// The command for a VMM.
pub(crate) fn qmp(execute: &str, arguments: &BTreeMap<String, toml::Value>) -> Command {
    Command::Qmp {
        socket: QMP_SOCKET.into(),
        execute: execute.to_owned(),
        arguments: serde_json::to_value(arguments).expect("TOML is plain data"),
    }
}

/// The command that kills a program.
pub(crate) fn kill(name: &str) -> Command {
    Command::Signal { name: name.to_owned(), signal: libc::SIGKILL }
}

/// The command of a step that runs one more guest.
pub(crate) fn guest_argv(scenario: &Scenario, step: &Step) -> Result<Vec<String>, LabError> {
    let Step::Guest { layer, memory, nested, cpus, program, .. } = step else {
        unreachable!("only a guest's step has a guest's command")
    };
    let (number, layers) = (usize::from(*layer) + 1, &scenario.layers);
    match nested {
        Some(inner) => {
            let vmm = boot::guest(number + 1, layers, *inner, *cpus, program)?;
            boot::guest(number, layers, *memory, *cpus, &vmm)
        }
        None => boot::guest(number, layers, *memory, *cpus, program),
    }
}

/// Status of the program in one more guest, which its agent tells on the console. A guest that was
/// killed has none.
pub(crate) fn guest_status(vmm: &Program, killed: bool) -> Option<i32> {
    // A terminal ends its lines with a carriage return too.
    let status = |line: &String| line.strip_prefix(ALONE_END)?.trim_end().parse().ok();
    let told = vmm.output.iter().find_map(status);
    told.or(if killed { None } else { Some(-1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_tells_its_status_on_a_terminal() {
        let said = |lines: &[&str]| Program {
            output: lines.iter().map(|line| (*line).to_owned()).collect(),
            ..Program::default()
        };
        let whole = said(&["{}\r", "strata-agent: ended with status 3\r", "reboot: Power down\r"]);
        assert_eq!(guest_status(&whole, false), Some(3));
        assert_eq!(guest_status(&whole, true), Some(3));
        assert_eq!(guest_status(&said(&["strata-agent: ended"]), true), None);
        assert_eq!(guest_status(&said(&["strata-agent: ended with status \r"]), false), Some(-1));
    }
}
