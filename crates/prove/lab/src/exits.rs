//! Counts of a guest's exits by their names.

use crate::intel;
use crate::make::Make;

/// Histograms of exits by reason: those of the guest a layer runs, and those reflected from its
/// nested guest.
pub(crate) const EXIT_TRACES: [&str; 2] =
    ["/sys/kernel/tracing/events/kvm/kvm_exit", "/sys/kernel/tracing/events/kvm/kvm_nested_vmexit"];

/// The name of an intercept code of AMD's (AMD64 APM volume 2, appendix C).
fn amd_name(code: u64) -> String {
    let named = match code {
        0x60 => "INTR",
        0x61 => "NMI",
        0x62 => "SMI",
        0x63 => "INIT",
        0x64 => "VINTR",
        0x65 => "CR0_SEL_WRITE",
        0x66 => "IDTR_READ",
        0x67 => "GDTR_READ",
        0x6e => "RDTSC",
        0x6f => "RDPMC",
        0x72 => "CPUID",
        0x74 => "IRET",
        0x75 => "SWINT",
        0x76 => "INVD",
        0x77 => "PAUSE",
        0x78 => "HLT",
        0x79 => "INVLPG",
        0x7a => "INVLPGA",
        0x7b => "IOIO",
        0x7c => "MSR",
        0x7f => "SHUTDOWN",
        0x80 => "VMRUN",
        0x81 => "VMMCALL",
        0x82 => "VMLOAD",
        0x83 => "VMSAVE",
        0x84 => "STGI",
        0x85 => "CLGI",
        0x87 => "RDTSCP",
        0x89 => "WBINVD",
        0x8a => "MONITOR",
        0x8b => "MWAIT",
        0x8d => "XSETBV",
        0x400 => "NPF",
        0x401 => "AVIC_INCOMPLETE_IPI",
        0x402 => "AVIC_NOACCEL",
        0x00..=0x0f => return format!("CR{code}_READ"),
        0x10..=0x1f => return format!("CR{}_WRITE", code - 0x10),
        0x20..=0x2f => return format!("DR{}_READ", code - 0x20),
        0x30..=0x3f => return format!("DR{}_WRITE", code - 0x30),
        // Page faults are those of a guest whose tables are shadowed.
        0x4e => "PF",
        0x40..=0x5f => return format!("EXCEPTION_{}", code - 0x40),
        _ => return format!("{code:#x}"),
    };
    named.into()
}

/// Counts by name, of a kernel's histogram of exits (Documentation/trace/histogram.rst): lines such
/// as `{ exit_reason:        120 } hitcount:       7`.
pub(crate) fn parse(text: &str, make: Make) -> impl Iterator<Item = (String, u64)> + '_ {
    let name = match make {
        Make::Amd => amd_name,
        Make::Intel => intel::exit_name,
    };
    text.lines().filter_map(move |line| {
        let (key, count) = line.trim().strip_prefix("{ exit_reason:")?.split_once('}')?;
        let count = count.trim().strip_prefix("hitcount:")?.trim();
        Some((name(key.trim().parse().ok()?), count.parse().ok()?))
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
