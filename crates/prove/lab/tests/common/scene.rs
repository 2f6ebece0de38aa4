//! Scenarios of the tests, put together from parts: what a test changes is named, not searched for in
//! text.

use super::run_scenario;
use serde::Deserialize;
use strata_lab::{LabReport, Layer, Scenario, Step, StepReport};

/// A scenario in the making.
#[derive(Clone)]
pub struct Scene(pub Scenario);

/// Steps as a scenario's file has them.
#[derive(Deserialize)]
struct Steps {
    step: Vec<Step>,
}

impl Scene {
    /// As a scenario's file has it.
    pub fn of(toml: &str) -> Self {
        Self(Scenario::parse(toml, "test").unwrap())
    }

    /// With a layer that is otherwise.
    pub fn layer(mut self, number: usize, change: impl FnOnce(&mut Layer)) -> Self {
        change(&mut self.0.layers[number]);
        self
    }

    /// With more steps at its end, as a scenario's file has them.
    pub fn then(mut self, toml: &str) -> Self {
        self.0.steps.extend(toml::from_str::<Steps>(toml).unwrap().step);
        self
    }

    /// With another value for an option of the program that the step of this name runs.
    pub fn option(mut self, step: &str, option: &str, value: &str) -> Self {
        let programs = self.0.steps.iter_mut().filter_map(|each| match each {
            Step::Run { id: Some(id), program, .. } if id == step => Some(program),
            _ => None,
        });
        let mut words = programs.flatten().filter(|word| word.starts_with(&format!("{option}=")));
        *words.next().expect("the step has the option") = format!("{option}={value}");
        self
    }

    /// Runs it to its end.
    pub fn run(self, name: &str) -> LabReport {
        run_scenario(name, self.0)
    }
}

/// Three layers: L0's kernel and the parameters of its KVM, and the huge pages of L1 and L2.
pub fn three_layers(kernel: &str, parameters: &str, [l1_thp, l2_thp]: [&str; 2]) -> Scene {
    Scene::of(&format!(
        r#"
about = "Three layers"
[[layer]]
kernel = "{kernel}"
memory = "3000M"
thp = "always"
parameters = "loglevel=5"
modules = {{ kvm = "{parameters}" }}
[[layer]]
kernel = "debian"
memory = "1900M"
thp = "{l1_thp}"
[[layer]]
kernel = "vanilla"
memory = "600M"
thp = "{l2_thp}"
"#
    ))
}

/// What a run's step of this name did.
pub fn step<'a>(report: &'a LabReport, id: &str) -> &'a StepReport {
    let found = report.steps.iter().find(|step| step.id.as_deref() == Some(id));
    found.unwrap_or_else(|| panic!("no step is called {id}: {:?}", report.steps))
}

/// The numbers that it printed, one a line.
pub fn numbers(report: &LabReport, id: &str) -> Vec<i64> {
    step(report, id).output.iter().map(|line| line.trim().parse().unwrap()).collect()
}

/// The counts that it printed as `FILE:COUNT`, one a line.
pub fn counts<'a>(report: &'a LabReport, id: &str) -> Vec<(&'a str, u64)> {
    let lines = step(report, id).output.iter().map(|line| line.rsplit_once(':').unwrap());
    lines.map(|(file, count)| (file, count.trim().parse().unwrap())).collect()
}
