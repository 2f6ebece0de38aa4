//! Counts of a guest's exits by their names.

use crate::make::Make;
use strata_exits::{Isa, Reason};

/// Histograms of exits by reason: those of the guest a layer runs, and those reflected from its
/// nested guest.
pub(crate) const EXIT_TRACES: [&str; 2] =
    ["/sys/kernel/tracing/events/kvm/kvm_exit", "/sys/kernel/tracing/events/kvm/kvm_nested_vmexit"];

/// Counts by name, of a kernel's histogram of exits (Documentation/trace/histogram.rst): lines such
/// as `{ exit_reason:        120 } hitcount:       7`.
pub(crate) fn parse(text: &str, make: Make) -> impl Iterator<Item = (String, u64)> + '_ {
    let isa = match make {
        Make::Amd => Isa::Svm,
        Make::Intel => Isa::Vmx,
    };
    text.lines().filter_map(move |line| {
        let (key, count) = line.trim().strip_prefix("{ exit_reason:")?.split_once('}')?;
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
        let counts: Vec<_> = parse(text, Make::Amd).collect();
        assert_eq!(counts, [("NPF".into(), 12), ("CR0_WRITE".into(), 3)]);
        let counts: Vec<_> = parse(text, Make::Intel).collect();
        assert_eq!(counts, [("0x400".into(), 12), ("RDTSC".into(), 3)]);
    }
}
