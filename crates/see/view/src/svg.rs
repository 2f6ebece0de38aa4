//! Pictures: what a figure is drawn with. Colours and fonts are classes, which the page's style sheet
//! has for light, dark and paper; marks that say something have a title, which a reader without
//! JavaScript gets by hovering.

use crate::html::escaped;
use crate::number::{attribute, short, tick};
use crate::scale::Scale;
use std::fmt::Write;

/// Width of every picture, in its own units: pixels where there is room.
pub const WIDTH: f64 = 960.0;

/// Where a text stands relative to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// It begins there.
    Start,
    /// It is in the middle there.
    Middle,
    /// It ends there.
    End,
}

/// A picture.
#[derive(Debug)]
pub struct Svg {
    body: String,
    label: String,
    width: f64,
}

impl Svg {
    /// An empty picture; `label` is read to who cannot see it.
    pub fn new(label: &str) -> Self {
        Self { body: String::new(), label: label.to_owned(), width: WIDTH }
    }

    /// A rectangle of a class. Marks with words can be asked for them.
    pub fn rect(&mut self, [x, y, width, height]: [f64; 4], class: &str, words: &str) {
        let (x, y) = (attribute(x), attribute(y));
        let (width, height) = (attribute(width), attribute(height));
        let _ = write!(
            self.body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\""
        );
        self.end(words, "rect");
    }

    /// Begins a group, for parts that belong together.
    pub fn open(&mut self, attributes: &str) {
        let _ = write!(self.body, "<g {attributes}>");
    }

    /// Ends it.
    pub fn close(&mut self) {
        self.body += "</g>";
    }

    /// A line through points.
    pub fn path(&mut self, points: &[(f64, f64)], class: &str, words: &str) {
        let mut d = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let letter = if index == 0 { 'M' } else { 'L' };
            let _ = write!(d, "{letter}{} {}", short(*x), short(*y));
        }
        let _ = write!(self.body, "<path class=\"{class}\" d=\"{d}\"");
        self.end(words, "path");
    }

    /// Rectangles of a class that have nothing to say one by one.
    pub fn boxes(&mut self, boxes: &[[f64; 4]], class: &str) {
        let mut d = String::new();
        for [x, y, width, height] in boxes.iter().map(|place| place.map(short)) {
            let _ = write!(d, "M{x} {y}h{width}v{height}h-{width}z");
        }
        let _ = write!(self.body, "<path class=\"{class}\" d=\"{d}\"/>");
    }

    /// A straight line.
    pub fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], class: &str) {
        let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(attribute);
        let _ = write!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>"
        );
    }

    /// A circle.
    pub fn circle(&mut self, (x, y): (f64, f64), radius: f64, class: &str, words: &str) {
        let [x, y, radius] = [x, y, radius].map(attribute);
        let _ = write!(self.body, "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{radius}\"");
        self.end(words, "circle");
    }

    /// Text.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let (x, y) = (attribute(x), attribute(y));
        let text = escaped(text);
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let _ = write!(self.body, "<text{class} x=\"{x}\" y=\"{y}\"{anchor}>{text}</text>");
    }

    /// An axis along the bottom, with lines of a grid from `top` and the name of its unit.
    pub fn bottom_axis(&mut self, scale: &Scale, top: f64, bottom: f64, unit: &str) {
        for value in scale.ticks() {
            let x = scale.at(value);
            let class = if value == 0.0 { "zero" } else { "grid" };
            self.line([x, top, x, bottom], class);
            self.text((x, bottom + 16.0), Anchor::Middle, "tick", &tick(value));
        }
        self.text((scale.to, bottom + 34.0), Anchor::End, "unit", unit);
    }

    /// An axis along the left side, with lines of a grid to `right`.
    pub fn left_axis(&mut self, scale: &Scale, left: f64, right: f64) {
        for value in scale.ticks() {
            let y = scale.at(value);
            let class = if value == 0.0 { "zero" } else { "grid" };
            self.line([left, y, right, y], class);
            self.text((left - 8.0, y + 4.0), Anchor::End, "tick", &tick(value));
        }
    }

    /// The picture as markup. `keys` has its marks reached by arrow keys.
    pub fn finish(self, height: f64, keys: bool) -> String {
        let label = escaped(&self.label);
        let keys = if keys { " data-keys" } else { "" };
        format!(
            "<svg role=\"img\" aria-label=\"{label}\" viewBox=\"0 0 {} {}\"{keys}>{}</svg>\n",
            attribute(self.width),
            attribute(height),
            self.body
        )
    }

    fn end(&mut self, words: &str, element: &str) {
        let _ = match words {
            "" => write!(self.body, "/>"),
            words => write!(self.body, "><title>{}</title></{element}>", escaped(words)),
        };
    }
}

/// A sample of a class beside its name, for legends.
pub fn key(class: &str, name: &str) -> String {
    let name = escaped(name);
    format!(
        "<span class=key><svg aria-hidden=\"true\" viewBox=\"0 0 14 14\"><rect class=\"{class}\" \
         width=\"14\" height=\"14\"/></svg>{name}</span>"
    )
}

/// The same for lines.
pub fn line_key(class: &str, name: &str) -> String {
    let name = escaped(name);
    format!(
        "<span class=key><svg class=wide aria-hidden=\"true\" viewBox=\"0 0 28 14\"><path \
         class=\"{class}\" d=\"M0 7L28 7\"/></svg>{name}</span>"
    )
}
