//! The command over counting machines, to try options and reports without a model.
use std::process::ExitCode;
use strata_engine::{Catalogue, PolicyInfo, Run, RunResult, Setup, StackKind};
use strata_stream::Batch;

struct Counting {
    setup: Setup,
    accesses: u64,
    instructions: u64,
}

impl Run for Counting {
    fn consume(&mut self, batch: &Batch) {
        self.accesses += batch.len() as u64;
        for step in batch.steps() {
            if let strata_stream::Step::Run { instructions, .. } = step {
                self.instructions += instructions;
            }
        }
    }

    fn finish(self: Box<Self>) -> RunResult {
        RunResult {
            stack: self.setup.stack,
            policy: self.setup.policy.clone(),
            cpu: self.setup.cpu.name.clone(),
            accesses: self.accesses,
            instructions: self.instructions,
            cycles: self.instructions,
            elapsed_cycles: self.instructions,
            ..RunResult::default()
        }
    }

    fn memory_estimate(&self) -> u64 {
        0
    }
}

fn main() -> ExitCode {
    let policy = |name, stacks| PolicyInfo { name, about: "counts", paper: "none", stacks };
    let catalogue = Catalogue {
        policies: vec![
            policy("base", &StackKind::ALL[..]),
            policy("thp", &StackKind::ALL[..]),
            policy("gemini", &StackKind::ALL[1..]),
            policy("xgemini", &StackKind::ALL[2..]),
            policy("aligned", &StackKind::ALL[..]),
        ],
        parameters: Vec::new(),
        build: |setup, _| {
            Ok(Box::new(Counting { setup: setup.clone(), accesses: 0, instructions: 0 }))
        },
    };
    strata::main(&catalogue, std::env::args_os())
}
