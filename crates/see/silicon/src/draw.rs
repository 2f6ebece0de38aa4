//! Curves as text: a line for each size, a bar as long as the logarithm of the cycles.

use crate::curve::{Curves, Pages, Stride};
use std::fmt::Write;

/// Columns of a bar for a doubling.
const DOUBLING: f64 = 4.0;

/// Draws a table with bars for each stride: cycles of a load in base pages and in huge ones.
pub fn draw(curves: &Curves) -> String {
    let mut text = String::new();
    for stride in [Stride::Line, Stride::BasePage, Stride::HugePage] {
        let base = curves.points(stride, Pages::Base);
        let huge = curves.points(stride, Pages::Huge);
        if huge.is_empty() {
            continue;
        }
        let _ = writeln!(
            text,
            "cycles of a load, lines {} apart (# base pages, = huge pages)",
            stride.name()
        );
        for (base, huge) in base.iter().zip(huge) {
            let cycles = [base.least, huge.least].map(|nanoseconds| nanoseconds / curves.cycle);
            let long = cycles.map(|cycles| (cycles.max(1.0).log2() * DOUBLING).round() as usize);
            let bar = "=".repeat(long[1]) + &"#".repeat(long[0].saturating_sub(long[1]));
            let size = strata_text::number::bytes(base.lines * stride.bytes());
            let [base, huge] = cycles;
            let _ = writeln!(text, "{size:>10} {base:8.1} {huge:8.1} {bar}");
        }
        text.push('\n');
    }
    text
}
