//! Both counts side by side, in words.

use super::report::Predicted;
use super::rows::Row;
use std::fmt::Write;
use strata_text::number::{bytes, count};

/// The report.
pub fn render(predicted: &Predicted) -> String {
    let mut out = format!(
        "{}: {}\nMachine: {}, processor {}, emulated by {}\n\nWhen it began:\n",
        predicted.scenario,
        predicted.program.join(" "),
        predicted.machine.make,
        predicted.machine.processor,
        predicted.machine.emulator,
    );
    for (number, layer) in predicted.layers.iter().enumerate() {
        let backed = match number {
            0 => String::new(),
            _ => format!(", {} backed below", bytes(layer.backed_bytes)),
        };
        let _ = writeln!(
            out,
            "L{number}  {}, {} in use besides its VM{backed}, huge pages {}{}",
            bytes(layer.memory_bytes),
            bytes(layer.used_bytes),
            layer.thp,
            if layer.without_compaction { ", no compaction" } else { "" },
        );
    }
    let widest = predicted.rows.iter().map(|row| row.what.len()).max().unwrap_or(0);
    let _ = writeln!(
        out,
        "\n    {:widest$}  {:>15}  {:>9}  predicted/measured",
        "", "measured", "predicted"
    );
    let mut layer = "";
    for row in &predicted.rows {
        let shown = if row.layer == layer { "" } else { &row.layer };
        layer = &row.layer;
        let _ = writeln!(out, "{shown:2}  {}", line(row, widest));
    }
    out
}

fn line(row: &Row, widest: usize) -> String {
    let [least, most] = row.measured;
    let measured = match least == most {
        true => count(least),
        false => format!("{} - {}", count(least), count(most)),
    };
    let predicted = row.predicted.map_or("-".to_owned(), count);
    let ratio = row.ratio().map_or(String::new(), |ratio| format!("{ratio:.2}"));
    let off = if row.is_alike() == Some(false) { "  off" } else { "" };
    format!("{:widest$}  {measured:>15}  {predicted:>9}  {ratio:>5}{off}", row.what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_both_counts_their_ratio_and_whether_they_are_apart() {
        let line = |measured, predicted| {
            let row = Row {
                layer: "L0".into(),
                what: "exits".into(),
                measured,
                steady: false,
                predicted,
            };
            line(&row, 6).split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line([100, 100], Some(105)), "exits 100 105 1.05");
        assert_eq!(line([100, 200], Some(300)), "exits 100 - 200 300 1.50 off");
        assert_eq!(line([100, 100], None), "exits 100 -");
        assert_eq!(line([0, 0], Some(50)), "exits 0 50 off");
    }
}
