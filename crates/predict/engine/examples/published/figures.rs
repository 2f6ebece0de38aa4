//! What the papers report. Values of figures are measured from the bars.

/// Throughput of a micro-benchmark in a VM relative to base pages in both layers: huge pages in
/// the host only, in the guest only, in both (Gemini, Fig. 2).
pub const MICROBENCHMARK: [(&str, [f64; 3]); 2] =
    [("small", [0.87, 0.86, 1.03]), ("large", [1.20, 1.16, 2.02])];

/// Share of huge pages that are well aligned under THP and under Gemini, in a clean-slate VM,
/// fragmented (Gemini, Tables 1 and 3), and TLB misses of base pages and THP relative to Gemini's
/// (Fig. 11).
pub fn gemini(program: &str) -> ([f64; 2], [f64; 2]) {
    match program {
        "Canneal" => ([0.26, 0.51], [2.84, 2.12]),
        "SVM" => ([0.23, 0.81], [7.31, 4.76]),
        "Masstree" => ([0.22, 0.70], [4.48, 3.36]),
        "CG.D" => ([0.20, 0.80], [9.00, 5.98]),
        "Streamcl." => ([0.19, 0.50], [3.71, 2.65]),
        "Specjbb" => ([0.18, 0.81], [2.77, 1.71]),
        "Dedup" => ([0.18, 0.55], [3.82, 3.22]),
        "Silo" => ([0.12, 0.62], [2.04, 1.96]),
        _ => unreachable!("{program} is no program of Gemini's"),
    }
}

/// TLB misses and throughput, relative to base pages, of dual Gemini and of xGemini (xGemini,
/// Figs. 12 and 11), with memory fragmented or not.
pub fn xgemini(program: &str, fragmented: bool) -> ([f64; 2], [f64; 2]) {
    match (program, fragmented) {
        ("Canneal", false) => ([0.367, 0.295], [1.120, 1.271]),
        ("Raytrace", false) => ([0.841, 0.793], [1.009, 1.073]),
        ("Masstree", false) => ([0.912, 0.910], [0.976, 1.097]),
        ("FFT", false) => ([0.225, 0.189], [1.245, 1.362]),
        ("Streamcl.", false) => ([0.236, 0.210], [1.175, 1.260]),
        ("Specjbb", false) => ([0.907, 0.783], [1.052, 1.142]),
        ("Dedup", false) => ([0.823, 0.709], [1.058, 1.128]),
        ("x264", false) => ([0.558, 0.464], [1.022, 1.083]),
        ("Canneal", true) => ([0.715, 0.545], [1.024, 1.212]),
        ("Raytrace", true) => ([0.971, 0.533], [0.968, 1.251]),
        ("Masstree", true) => ([0.940, 0.466], [0.966, 1.122]),
        ("FFT", true) => ([0.842, 0.144], [1.071, 1.300]),
        ("Streamcl.", true) => ([0.625, 0.346], [1.110, 1.234]),
        ("Specjbb", true) => ([0.782, 0.423], [1.102, 1.126]),
        ("Dedup", true) => ([0.826, 0.403], [1.149, 1.477]),
        ("x264", true) => ([1.027, 0.363], [0.923, 1.107]),
        _ => unreachable!("{program} is no program of xGemini's"),
    }
}

/// Mean and 99th percentile of latency, relative to base pages in both layers, of THP and of Gemini in a
/// VM (Gemini, Figs. 9 and 10), with memory fragmented or not.
pub fn gemini_latency(program: &str, fragmented: bool) -> [[f64; 2]; 2] {
    match (program, fragmented) {
        ("Img-dnn", false) => [[0.91, 0.73], [0.88, 0.61]],
        ("Masstree", false) => [[0.88, 0.58], [0.85, 0.62]],
        ("Specjbb", false) => [[0.73, 0.60], [0.83, 0.51]],
        ("Silo", false) => [[0.90, 0.84], [0.91, 0.61]],
        ("Img-dnn", true) => [[0.94, 0.72], [0.94, 0.52]],
        ("Masstree", true) => [[0.94, 0.47], [0.84, 0.71]],
        ("Specjbb", true) => [[0.89, 0.71], [0.85, 0.62]],
        ("Silo", true) => [[0.45, 0.13], [0.85, 0.65]],
        _ => unreachable!("{program} has no latency in Gemini's figures"),
    }
}

/// The same, relative to nested VMs with base pages, of dual Gemini and of xGemini (xGemini, Fig. 13).
pub fn xgemini_latency(program: &str, fragmented: bool) -> [[f64; 2]; 2] {
    match (program, fragmented) {
        ("Img-dnn", false) => [[0.765, 0.877], [0.416, 1.003]],
        ("Masstree", false) => [[0.896, 0.771], [0.685, 0.650]],
        ("Specjbb", false) => [[0.687, 0.745], [0.923, 0.842]],
        ("Silo", false) => [[0.028, 0.016], [0.104, 0.067]],
        ("Img-dnn", true) => [[1.034, 0.719], [1.166, 0.596]],
        ("Masstree", true) => [[0.839, 0.727], [0.839, 0.717]],
        ("Specjbb", true) => [[1.117, 0.827], [1.081, 0.721]],
        ("Silo", true) => [[1.074, 0.751], [1.082, 0.750]],
        _ => unreachable!("{program} has no latency in xGemini's figures"),
    }
}

/// Averages over all programs of the papers: of the bars in their figures, unless said otherwise. Where the
/// text has other values, the page names them as the text's.
pub mod averages {
    /// Rates of well-aligned huge pages, of the text: at most, of all systems but Gemini; of Gemini (6.2).
    pub const RATES: [f64; 2] = [0.33, 0.66];
    /// TLB misses of base pages and of THP relative to Gemini's (Fig. 11).
    pub const GEMINI_TLB: [f64; 2] = [3.56, 2.73];
    /// TLB misses, then throughput, of dual Gemini and of xGemini relative to base pages (Figs. 12 and 11),
    /// not fragmented.
    pub const XGEMINI: [f64; 4] = [0.653, 0.625, 1.076, 1.178];
    /// The same, fragmented.
    pub const XGEMINI_FRAGMENTED: [f64; 4] = [0.839, 0.462, 1.035, 1.188];
}
