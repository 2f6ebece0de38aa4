//! Small things that a program does again and again.

use crate::lab_parts::AGENT;
use strata_lab::Step;

/// A small thing, done so often in a first program and so often in a second one. What the second counts more,
/// by how much more often it does it, is what one costs: starting and warming up are in both.
#[derive(Clone, Copy, Debug)]
pub struct Chore {
    /// As `strata-agent chore` calls it.
    pub name: &'static str,
    /// One of them, in words.
    pub one: &'static str,
    /// How many stores, or whatever the program counts, that is.
    pub piece: u64,
    /// How often the program does what it counts.
    pub times: [u64; 2],
}

/// All of them: in the manner of NestCloud's PF-Bench, of kernbench and lmbench (fork, execute, map), and of
/// SysBench's tests of CPU and memory (NestCloud, section VI).
pub const CHORES: [Chore; 4] = [
    Chore { name: FAULTS, one: "a page fault", piece: 1, times: [4096, 12_288] },
    Chore { name: PROCESSES, one: "a process", piece: 1, times: [20, 60] },
    Chore { name: "compute", one: "a search for primes", piece: 1, times: [20, 120] },
    Chore { name: "stores", one: "1000 stores of 1 KiB", piece: 1000, times: [100_000, 600_000] },
];

/// The chores that the model does as well.
pub const FAULTS: &str = "faults";
pub const PROCESSES: &str = "processes";

impl Chore {
    /// The steps that do it.
    pub fn steps(&self, limit: u64) -> impl Iterator<Item = Step> {
        self.times.into_iter().map(move |times| Step::Run {
            id: Some(self.step(times)),
            layer: None,
            program: vec![
                AGENT.into(),
                "chore".into(),
                self.name.into(),
                format!("--times={times}"),
            ],
            stay: false,
            stress: false,
            count: true,
            limit,
        })
    }

    /// What the step is called that does it so often.
    pub fn step(&self, times: u64) -> String {
        format!("{} {times}", self.name)
    }
}
