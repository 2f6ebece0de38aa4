//! The program that runs a layer.

use serde::Deserialize;
use std::path::PathBuf;

/// The VMM of a layer: a path is a program, a list is more arguments of QEMU, a table has either.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Form")]
pub struct Vmm {
    /// A program of this computer in place of its QEMU, which takes QEMU's command line.
    pub program: Option<PathBuf>,
    /// More arguments.
    pub arguments: Vec<String>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected the path of a program, a list of arguments, or { program = PATH, arguments = [...] }"
)]
enum Form {
    Program(PathBuf),
    Arguments(Vec<String>),
    Both {
        program: PathBuf,
        #[serde(default)]
        arguments: Vec<String>,
    },
}

impl From<Form> for Vmm {
    fn from(form: Form) -> Self {
        match form {
            Form::Program(program) => Self { program: Some(program), arguments: Vec::new() },
            Form::Arguments(arguments) => Self { program: None, arguments },
            Form::Both { program, arguments } => Self { program: Some(program), arguments },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;
    use crate::scenario::mistakes::{LAYER, refused};

    #[test]
    fn it_is_a_program_or_arguments_or_both() {
        let vmm = |text: &str| {
            let inner = LAYER.replace("1G", "500M");
            let text = format!("about = 'x'\n{LAYER}{inner}vmm = {text}\n");
            Scenario::parse(&text, "x").unwrap().layers[1].vmm.clone()
        };
        let (program, arguments) = (PathBuf::from("/opt/vmm"), vec!["-s".to_owned()]);
        let of = |program: Option<&PathBuf>, arguments: &[String]| Vmm {
            program: program.cloned(),
            arguments: arguments.to_vec(),
        };
        assert_eq!(vmm("'/opt/vmm'"), of(Some(&program), &[]));
        assert_eq!(vmm("['-s']"), of(None, &arguments));
        assert_eq!(
            vmm("{ program = '/opt/vmm', arguments = ['-s'] }"),
            of(Some(&program), &arguments)
        );
        refused(&format!("{LAYER}vmm = 5\n"), "the path of a program");
        refused(&format!("{LAYER}vmm = '/opt/vmm'\n"), "L0 is run by no layer");
    }
}
