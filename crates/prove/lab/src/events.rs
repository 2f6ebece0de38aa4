//! Events of a kernel that a scenario wants counted, by the kernel's own histograms
//! (Documentation/trace/histogram.rst).

use crate::exits::EXIT_TRACES;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;

/// Where the kernel has its events.
const EVENTS: &str = "/sys/kernel/tracing/events/";
/// What all events are told apart by when nothing else is asked for.
const ANY: &str = "common_cpu";

/// An event to count: `system:event`, or `system:event:field` to count each value of a field.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct TraceEvent {
    text: String,
    /// Where the kernel has it.
    directory: String,
    /// What to write into its `trigger`.
    trigger: String,
}

impl TraceEvent {
    /// The directory in which the kernel has it.
    pub(crate) fn directory(&self) -> &str {
        &self.directory
    }

    /// What has the kernel count it, written into its `trigger`.
    pub(crate) fn trigger(&self) -> &str {
        &self.trigger
    }
}

impl TryFrom<String> for TraceEvent {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mut parts = text.splitn(3, ':');
        let (system, event) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let keys = parts.next().unwrap_or(ANY);
        let is_name = |part: &str| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            !part.is_empty() && part.bytes().all(is_part)
        };
        if !is_name(system) || !is_name(event) || !keys.split(['.', ',']).all(is_name) {
            return Err(format!(
                "{text} is no event; write it as kvm:kvm_page_fault, or as \
                 kvm:kvm_msi_set_irq:address to count each value of a field"
            ));
        }
        let directory = format!("{EVENTS}{system}/{event}");
        if EXIT_TRACES.iter().any(|trace| trace.directory == directory) {
            return Err(format!("{text} is counted anyway, as exits"));
        }
        let trigger = format!("hist:keys={keys}");
        Ok(Self { text, directory, trigger })
    }
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// The file with an event's histogram.
pub(crate) fn histogram(directory: &str) -> String {
    format!("{directory}/hist")
}

/// Counts by event: `system:event` in all, `system:event{field=value}` for each value.
pub(crate) fn counts(texts: &BTreeMap<String, String>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for (path, text) in texts {
        let event = path.strip_prefix(EVENTS).and_then(|rest| rest.strip_suffix("/hist"));
        let Some((system, event)) = event.and_then(|event| event.split_once('/')) else { continue };
        if EXIT_TRACES.iter().any(|trace| histogram(trace.directory) == *path) {
            continue;
        }
        let total = counts.entry(format!("{system}:{event}")).or_insert(0);
        let rows: Vec<(String, u64)> = text.lines().filter_map(row).collect();
        *total += rows.iter().map(|(_, count)| count).sum::<u64>();
        for (values, count) in rows {
            if !values.starts_with(ANY) {
                *counts.entry(format!("{system}:{event}{{{values}}}")).or_insert(0) += count;
            }
        }
    }
    counts
}

/// Values and count in a line such as `{ cause:          3, level:          2 } hitcount:          5`.
fn row(line: &str) -> Option<(String, u64)> {
    let (values, count) = line.trim().strip_prefix("{ ")?.rsplit_once('}')?;
    let count = count.trim().strip_prefix("hitcount:")?.trim().parse().ok()?;
    let values: Vec<String> = values
        .split(',')
        .map(|value| match value.split_once(':') {
            Some((name, value)) => format!("{}={}", name.trim(), value.trim()),
            None => value.trim().to_owned(),
        })
        .collect();
    Some((values.join(","), count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_counted_in_all_or_by_a_field() {
        let parse = |text: &str| TraceEvent::try_from(text.to_owned());
        let event = parse("kvm:kvm_page_fault").unwrap();
        assert_eq!(event.directory(), format!("{EVENTS}kvm/kvm_page_fault"));
        assert_eq!(event.trigger(), "hist:keys=common_cpu");
        assert_eq!(parse("kvm:x:cause,level.hex").unwrap().trigger(), "hist:keys=cause,level.hex");
        for wrong in ["kvm", "kvm:", ":x", "kvm:x:", "kvm:../x", "kvm:x:a b", ""] {
            assert!(parse(wrong).unwrap_err().contains("is no event"), "{wrong}");
        }
        assert!(parse("kvm:kvm_exit").unwrap_err().contains("anyway"));
    }

    #[test]
    fn counts_are_read_in_all_and_by_value() {
        let texts = [
            (
                "kvm/demote",
                "# event histogram\n#\n\n{ cause:          3, level:          2 } hitcount:         12\n\
                 { cause:          1, level:          2 } hitcount:          3\n\n\
                 Totals:\n    Hits: 15\n    Entries: 2\n    Dropped: 0\n",
            ),
            ("kvm/promote", "\n{ common_cpu:          0 } hitcount:          7\n"),
            ("kvm/quiet", "# event histogram\n\nTotals:\n    Hits: 0\n"),
            ("kvm/kvm_exit", "{ exit_reason:        120 } hitcount:       7\n"),
        ];
        let mut texts: BTreeMap<String, String> = texts
            .map(|(event, text)| (histogram(&format!("{EVENTS}{event}")), text.to_owned()))
            .into();
        texts.insert("/proc/vmstat".into(), "x 1\n".into());
        let expected = [
            ("kvm:demote", 15),
            ("kvm:demote{cause=1,level=2}", 3),
            ("kvm:demote{cause=3,level=2}", 12),
            ("kvm:promote", 7),
            ("kvm:quiet", 0),
        ];
        assert_eq!(counts(&texts), expected.map(|(name, count)| (name.to_owned(), count)).into());
    }
}
