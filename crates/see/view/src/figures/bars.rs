//! Stacked bars below each other on one axis, which most figures are.

use crate::scale::Scale;
use crate::svg::{Anchor, Svg};

/// Width of a part from which something can stand in it.
const ROOM: f64 = 40.0;

/// Bars and what stands between them.
#[derive(Debug, Default)]
pub struct Bars {
    lines: Vec<Line>,
}

#[derive(Debug)]
enum Line {
    Head(String),
    Bar(Bar),
}

/// A bar.
#[derive(Debug, Default)]
pub struct Bar {
    /// What it is of.
    pub label: String,
    /// Its parts, from the left.
    pub parts: Vec<Part>,
    /// What stands in it where there is room: where its middle is, in units of the axis, how many of
    /// these it may take, and the text.
    pub inside: Vec<(f64, f64, String)>,
    /// What stands at its end.
    pub note: String,
    /// The note stands where the axis ends, not where the bar does.
    pub note_apart: bool,
}

/// A part of a bar.
#[derive(Debug)]
pub struct Part {
    /// Its class.
    pub class: &'static str,
    /// What it says when it is asked.
    pub words: String,
    /// Its length.
    pub value: f64,
}

/// Where bars stand.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    /// Where the axis begins.
    pub left: f64,
    /// Where it ends.
    pub right: f64,
    /// From one bar to the next.
    pub pitch: f64,
    /// The longest bar, where the axis is to end there and not at a round number.
    pub exact: Option<f64>,
    /// What the axis counts.
    pub unit: &'static str,
}

impl Bars {
    /// Adds a title for the bars that follow.
    pub fn head(&mut self, title: &str) {
        self.lines.push(Line::Head(title.to_owned()));
    }

    /// Adds a bar.
    pub fn bar(&mut self, bar: Bar) {
        self.lines.push(Line::Bar(bar));
    }

    /// The picture; `label` says it to who cannot see.
    pub fn draw(&self, label: &str, plot: Plot) -> String {
        let mut svg = Svg::new(label);
        let bars = self.lines.iter().filter_map(|line| match line {
            Line::Bar(bar) => Some(bar.parts.iter().map(|part| part.value).sum::<f64>()),
            Line::Head(_) => None,
        });
        let scale = match plot.exact {
            Some(most) => Scale::exact(most, 4, plot.left, plot.right),
            None => Scale::new(bars.fold(0.0, f64::max), 5, plot.left, plot.right),
        };
        let bottom = self.places(plot).last().map_or(0.0, |(y, line)| match line {
            Line::Bar(_) => y + plot.pitch + 4.0,
            Line::Head(_) => y + 22.0,
        });
        svg.bottom_axis(&scale, 0.0, bottom, plot.unit);
        for (y, line) in self.places(plot) {
            match line {
                Line::Head(title) => svg.text((0.0, y + 13.0), Anchor::Start, "head", title),
                Line::Bar(bar) => one(&mut svg, bar, y, plot, &scale),
            }
        }
        svg.finish(bottom + 40.0, true)
    }

    fn places(&self, plot: Plot) -> impl Iterator<Item = (f64, &Line)> {
        let mut y = 4.0;
        self.lines.iter().enumerate().map(move |(index, line)| {
            if index > 0 && matches!(line, Line::Head(_)) {
                y += 10.0;
            }
            let here = y;
            y += match line {
                Line::Head(_) => 22.0,
                Line::Bar(_) => plot.pitch,
            };
            (here, line)
        })
    }
}

fn one(svg: &mut Svg, bar: &Bar, y: f64, plot: Plot, scale: &Scale) {
    let height = plot.pitch - 6.0;
    let line = y + height / 2.0 + 4.0;
    svg.text((plot.left - 10.0, line), Anchor::End, "", &bar.label);
    let mut before = 0.0;
    for part in &bar.parts {
        let (x, width) = (scale.at(before), scale.length(part.value));
        before += part.value;
        if width >= 0.15 {
            // A gap between parts tells them apart without colour; none is too thin to be seen.
            svg.rect([x, y, (width - 1.0).max(0.6), height], part.class, &part.words);
        }
    }
    for (middle, length, text) in &bar.inside {
        if scale.length(*length) >= ROOM {
            let (x, width) = (scale.at(*middle), text.chars().count() as f64 * 6.2 + 6.0);
            let place = [x - width / 2.0, y + 3.0, width, height - 6.0];
            svg.rect(place, "plate", "");
            svg.text((x, line), Anchor::Middle, "in", text);
        }
    }
    let end = if bar.note_apart { plot.right + 12.0 } else { scale.at(before) + 8.0 };
    svg.text((end, line), Anchor::Start, "note", &bar.note);
}
