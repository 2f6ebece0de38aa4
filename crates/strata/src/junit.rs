//! What a run of the lab did, for continuous integration: JUnit's XML.

use crate::failure::Failure;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use std::time::Duration;
use strata_lab::{LabError, LabReport, StepReport};

/// The first test: what a step needs.
const BOOT: &str = "all layers boot";

/// A suite of the scenario's name with a test that all layers boot and one for each step. A program that ends with
/// another status than 0, or takes longer than it may, is a failure; a machine that does not do what it should is an
/// error.
///
/// # Errors
/// When XML cannot hold it.
pub fn of(scenario: &str, result: Result<&LabReport, &LabError>) -> Result<String, Failure> {
    let mut suite = TestSuite::new(scenario);
    match result {
        Ok(report) => {
            let mut boot = TestCase::new(BOOT, TestCaseStatus::success());
            boot.set_classname(scenario);
            let last = report.layers.iter().map(|layer| layer.booted.since_start);
            boot.set_time(Duration::from_secs_f64(last.fold(0.0, f64::max)));
            suite.add_test_case(boot);
            let steps = report.steps.iter().enumerate();
            suite.add_test_cases(steps.map(|(number, step)| of_step(scenario, number, step)));
        }
        Err(error) => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
            status.set_message(error.to_string());
            let mut machine = TestCase::new(BOOT, status);
            machine.set_classname(scenario);
            suite.add_test_case(machine);
        }
    }
    let mut report = Report::new("strata lab");
    report.add_test_suite(suite);
    let cannot = |error| Failure::failed(format!("cannot write JUnit XML: {error}"));
    report.to_string().map_err(cannot)
}

/// Steps are told apart by their numbers: one may be done twice.
fn of_step(scenario: &str, number: usize, step: &StepReport) -> TestCase {
    let why = match step.status {
        _ if step.timed_out => Some("killed: its time was over".to_owned()),
        Some(status) if status < 0 => Some(format!("killed by signal {}", -status)),
        Some(status) if status > 0 => Some(format!("ended with status {status}")),
        _ => None,
    };
    let status = why.map_or_else(TestCaseStatus::success, |why| {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
        status.set_message(why);
        status
    });
    let name = step.id.as_ref().unwrap_or(&step.what);
    let mut case = TestCase::new(format!("{} {name}", number + 1), status);
    case.set_classname(scenario);
    case.set_time(Duration::from_secs_f64(step.seconds.max(0.0)));
    if !step.output.is_empty() {
        case.set_system_out(step.output.join("\n"));
    }
    if !step.errors.is_empty() {
        case.set_system_err(step.errors.join("\n"));
    }
    case
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_pass_fail_and_are_escaped() {
        let step = |what: &str, status, timed_out| StepReport {
            what: what.to_owned(),
            status,
            timed_out,
            seconds: 1.5,
            output: vec!["<&\u{1b}[1m".to_owned()],
            ..StepReport::default()
        };
        let text = |step: &StepReport| {
            let mut suite = TestSuite::new("x");
            suite.add_test_case(of_step("x", 0, step));
            let mut report = Report::new("strata lab");
            report.add_test_suite(suite);
            report.to_string().unwrap()
        };
        let passed = text(&step("L2: a < b", Some(0), false));
        assert!(
            passed.contains("name=\"1 L2: a &lt; b\"") && passed.contains("failures=\"0\""),
            "{passed}"
        );
        assert!(passed.contains("&lt;&amp;") && !passed.contains('\u{1b}'), "{passed}");
        assert!(passed.contains("time=\"1.500\""), "{passed}");
        for (status, timed_out, why) in [
            (Some(3), false, "ended with status 3"),
            (Some(-11), false, "killed by signal 11"),
            (Some(-9), true, "killed: its time was over"),
        ] {
            let failed = text(&step("s", status, timed_out));
            assert!(failed.contains(why) && failed.contains("failures=\"1\""), "{failed}");
        }
    }

    #[test]
    fn a_machine_that_fails_is_an_error() {
        let error = LabError::NoLayer { layer: 4, last: 2 };
        let text = of("clean", Err(&error)).unwrap();
        assert!(text.contains("errors=\"1\"") && text.contains("there is no L4"), "{text}");
    }
}
