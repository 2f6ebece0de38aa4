//! A paper's figures beside ours: two marks on one line for each, and how far ours range over seeds.

use crate::input::paper::Table;
use crate::scale::Scale;
use crate::svg::{Anchor, Svg, key};

/// Where the axis begins and ends.
const PLOT: [f64; 2] = [340.0, 900.0];
/// From one line to the next.
const PITCH: f64 = 22.0;
/// The column that a paper's figures are in.
const PUBLISHED: &str = "published";

/// A figure of ours: its mean, and the least and the most.
type Ours = (f64, f64, f64);

/// A line.
struct Line {
    label: String,
    published: f64,
    ours: Ours,
    texts: [String; 2],
}

/// The picture of a table that has published figures as numbers; nothing of any other.
pub fn figure(table: &Table) -> String {
    let Some(column) = table.columns.iter().position(|name| name == PUBLISHED) else {
        return String::new();
    };
    let line = |row: &Vec<String>| {
        let ours = row.get(column + 1)?;
        Some(Line {
            label: label(&table.columns, &row[..column]),
            published: row.get(column)?.trim().parse().ok().filter(|value: &f64| *value >= 0.0)?,
            ours: with_range(ours)?,
            texts: [row[column].clone(), ours.clone()],
        })
    };
    let lines: Vec<Line> = table.rows.iter().filter_map(line).collect();
    if lines.is_empty() {
        return String::new();
    }
    let name = table.columns.get(column + 1).map_or("", String::as_str);
    let most = lines.iter().map(|line| line.published.max(line.ours.2)).fold(0.0, f64::max);
    let scale = Scale::new(most, 5, PLOT[0], PLOT[1]);
    let mut svg = Svg::new(&format!("{}: published, and {name}", table.title));
    let bottom = 6.0 + PITCH * lines.len() as f64;
    svg.bottom_axis(&scale, 0.0, bottom, "the figure, as the table has it");
    for (index, line) in lines.iter().enumerate() {
        let y = 6.0 + PITCH * (index as f64 + 0.5);
        svg.text((PLOT[0] - 12.0, y + 4.0), Anchor::End, "", &line.label);
        let (mean, least, most) = line.ours;
        let [published, ours] = &line.texts;
        let words = format!("{}: published {published}, {name} {ours}", line.label);
        svg.line([scale.at(line.published), y, scale.at(mean), y], "zero");
        svg.rect(
            [scale.at(least), y - 2.0, scale.length(most - least).max(1.0), 4.0],
            "range",
            &words,
        );
        svg.circle((scale.at(mean), y), 4.5, "ours", &words);
        svg.circle((scale.at(line.published), y), 4.5, "published", &words);
    }
    format!(
        "<div class=keys>{}{}</div>{}",
        key("published", "published"),
        key("ours", &format!("{name}, and its range over seeds")),
        svg.finish(bottom + 40.0, true)
    )
}

/// The cells that say what a row is of; numbers with the name of their column.
fn label(columns: &[String], cells: &[String]) -> String {
    let named = columns.iter().zip(cells).map(|(column, cell)| match cell.parse::<f64>() {
        Ok(_) => format!("{column} {cell}"),
        Err(_) => cell.clone(),
    });
    named.collect::<Vec<_>>().join(", ")
}

/// `1.02 (1.01-1.03)`, or a number alone.
fn with_range(text: &str) -> Option<Ours> {
    let (mean, range) = match text.split_once('(') {
        Some((mean, range)) => (mean, Some(range.trim_end().strip_suffix(')')?)),
        None => (text, None),
    };
    let mean: f64 = mean.trim().parse().ok().filter(|mean| *mean >= 0.0)?;
    let (least, most) = match range {
        Some(range) => {
            let (least, most) = range.split_once('-')?;
            (least.trim().parse().ok()?, most.trim().parse().ok()?)
        }
        None => (mean, mean),
    };
    Some((mean, least, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_with_their_range() {
        assert_eq!(with_range("1.02 (1.01-1.03)"), Some((1.02, 1.01, 1.03)));
        assert_eq!(with_range("0.7"), Some((0.7, 0.7, 0.7)));
        for none in ["-", "as published", "-6.66 (-8.38--5.27)", "1.0 (x"] {
            assert_eq!(with_range(none), None, "{none}");
        }
    }
}
