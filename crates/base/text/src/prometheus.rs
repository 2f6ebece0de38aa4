//! Prometheus's text format (exposition format 0.0.4), as its textfile collector reads it.

use std::fmt::Write;

/// Gauges, one after the other, each with its samples.
///
/// ```
/// let mut metrics = strata_text::prometheus::Metrics::default();
/// metrics.metric("strata_vms", "VMs that run in the layer");
/// metrics.sample(&[("layer", "a \"host\"")], 2.0);
/// let text = metrics.finish();
/// assert!(text.ends_with("strata_vms{layer=\"a \\\"host\\\"\"} 2\n"));
/// ```
#[derive(Debug, Default)]
pub struct Metrics {
    text: String,
    name: &'static str,
}

impl Metrics {
    /// Begins a gauge.
    pub fn metric(&mut self, name: &'static str, help: &str) {
        self.name = name;
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} gauge");
    }

    /// Adds a sample to the gauge begun last.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = match labels[..] {
            [] => String::new(),
            _ => format!("{{{}}}", labels.join(",")),
        };
        let _ = writeln!(self.text, "{}{labels} {value}", self.name);
    }

    /// The text.
    pub fn finish(self) -> String {
        self.text
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
