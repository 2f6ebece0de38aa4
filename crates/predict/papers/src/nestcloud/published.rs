//! What the paper prints: `reference/published/nestcloud-*.csv`.

/// A row of Tables II, IV, V (seconds) and VI (transactions a second).
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) cpu: Option<f64>,
    pub(super) memory: Option<f64>,
    pub(super) faults: Option<f64>,
    pub(super) oltp: Option<f64>,
}

const fn row(name: &'static str, cpu: f64, memory: f64, faults: f64, oltp: f64) -> Row {
    Row { name, cpu: Some(cpu), memory: Some(memory), faults: Some(faults), oltp: Some(oltp) }
}

/// The rows in the paper's order.
pub(super) const ROWS: [Row; 9] = [
    Row { name: "L0", cpu: None, memory: None, faults: Some(1.37), oltp: None },
    row("L1", 36.0535, 54.1131, 23.85, 535.0),
    row("Basic", 38.2076, 57.6744, 501.01, 13.92),
    row("Bypass", 38.7977, 57.3680, 470.25, 16.34),
    row("Host EPT", 40.7520, 57.3903, 358.98, 16.19),
    row("Host EPT + Virtual EPT", 38.4142, 57.3920, 2.39, 44.38),
    row("PV VMCS", 37.8735, 56.6564, 71.01, 19.12),
    row("PV VMCS + Host EPT + Virtual EPT", 37.9351, 56.5042, 5.6, 48.96),
    row("QEMU", 785.7888, 647.9132, 35.90, 13.23),
];

/// Table I: events of L1 during a kernel build, percent.
pub(super) const EVENTS: [(&str, f64); 5] =
    [("VMREAD", 67.0), ("VMWRITE", 19.0), ("Exception", 7.0), ("VMRESUME", 6.0), ("Others", 1.0)];

/// Section V.A: of the page faults of L2 that exit during a kernel build, those that are L2's own, percent;
/// how many fewer they are with bypass; what the build gains.
pub(super) const OWN_FAULTS: f64 = 13.13;
pub(super) const FEWER_BY_BYPASS: f64 = 35.0;
pub(super) const GAIN_BY_BYPASS: f64 = 5.0;

/// What the text says the best rows of Tables II and IV are over L1, percent.
pub(super) const CPU_OVERHEAD: f64 = 5.22;
pub(super) const MEMORY_OVERHEAD: f64 = 5.69;

/// The row of this name.
pub(super) fn of(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}
