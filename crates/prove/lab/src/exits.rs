//! Counts of a guest's exits by their names.

use crate::make::Make;
use strata_exits::{Isa, Reason};

/// An event of KVM's whose histogram is of exits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExitTrace {
    /// Its directory.
    pub directory: &'static str,
    /// Its field with the reason.
    pub reason: &'static str,
}

/// All exits of the machine that a layer runs.
pub(crate) const ALL: ExitTrace =
    ExitTrace { directory: "/sys/kernel/tracing/events/kvm/kvm_exit", reason: "exit_reason" };
/// Those of machines nested in it.
pub(crate) const NESTED: ExitTrace = ExitTrace {
    directory: "/sys/kernel/tracing/events/kvm/kvm_nested_vmexit",
    reason: "exit_reason",
};
/// Those that its hypervisor is told of.
pub(crate) const REFLECTED: ExitTrace = ExitTrace {
    directory: "/sys/kernel/tracing/events/kvm/kvm_nested_vmexit_inject",
    reason: "exit_code",
};
pub(crate) const EXIT_TRACES: [ExitTrace; 3] = [ALL, NESTED, REFLECTED];

/// Counts by name, of a kernel's histogram of exits (Documentation/trace/histogram.rst): lines such
/// as `{ exit_reason:        120 } hitcount:       7`, the reason in this field.
pub(crate) fn parse<'a>(
    text: &'a str,
    field: &'static str,
    make: Make,
) -> impl Iterator<Item = (String, u64)> + 'a {
    let isa = match make {
        Make::Amd => Isa::Svm,
        Make::Intel => Isa::Vmx,
    };
    text.lines().filter_map(move |line| {
        let line = line.trim().strip_prefix("{ ")?.strip_prefix(field)?;
        let (key, count) = line.strip_prefix(':')?.split_once('}')?;
        let count = count.trim().strip_prefix("hitcount:")?.trim();
        let reason = Reason { isa, code: key.trim().parse().ok()? };
        Some((reason.name(), count.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_read() {
        let text = "# event histogram\n#\n\n{ exit_reason:       1024 } hitcount:         12\n\
                    { exit_reason:         16 } hitcount:          3\n\nTotals:\n    Hits: 15\n";
        let counts: Vec<_> = parse(text, "exit_reason", Make::Amd).collect();
        assert_eq!(counts, [("NPF".into(), 12), ("CR0_WRITE".into(), 3)]);
        let counts: Vec<_> = parse(text, "exit_reason", Make::Intel).collect();
        assert_eq!(counts, [("0x400".into(), 12), ("RDTSC".into(), 3)]);
        let text = "{ exit_code:         48 } hitcount:          5\n";
        let counts: Vec<_> = parse(text, "exit_code", Make::Intel).collect();
        assert_eq!(counts, [("EPT_VIOLATION".into(), 5)]);
        assert_eq!(parse(text, "exit_reason", Make::Intel).count(), 0);
    }
}
