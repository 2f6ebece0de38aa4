//! The pages: what all have in common, and one file for each kind of result.

pub mod join;
pub mod lab;
pub mod paper;
pub mod run;

use crate::html::{embedded, escaped};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = concat!(include_str!("script.js"), include_str!("lanes.js"));

/// Fills of marks that are told apart without colour, too: lines over what the style sheet says.
const PATTERNS: &str = include_str!("patterns.svg");

/// A page before it is one.
#[derive(Debug, Default)]
pub struct Page {
    /// What it is about, as text.
    pub title: String,
    /// A line or two below, as markup.
    pub about: String,
    /// Its parts.
    pub sections: Vec<Section>,
}

/// A part of a page.
#[derive(Debug)]
pub struct Section {
    /// Its name in links.
    pub id: &'static str,
    /// Its title, as text.
    pub title: &'static str,
    /// How to read it, as text; empty where it speaks for itself.
    pub reading: &'static str,
    /// Its content, as markup.
    pub body: String,
}

impl Page {
    /// Adds a part, if it has something in it.
    pub fn add(
        &mut self,
        id: &'static str,
        title: &'static str,
        reading: &'static str,
        body: String,
    ) {
        if !body.is_empty() {
            self.sections.push(Section { id, title, reading, body });
        }
    }

    /// The whole of it, with the result that it was made of.
    pub fn finish(self, json: &str) -> String {
        let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
        let (style, script) = (minimal(STYLE), minimal(SCRIPT));
        let title = escaped(&self.title);
        let mut out = String::with_capacity(json.len() * 2);
        // Nothing is fetched, and nothing runs but our own script, whatever a name has in it.
        let _ = write!(
            out,
            "<!DOCTYPE html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n\
             <meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src {}; \
             script-src {}; img-src data:; base-uri 'none'; form-action 'none'\">\n\
             <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
             <meta name=color-scheme content=\"light dark\">\n\
             <link rel=icon href=\"data:,\">\n<title>{title} - Strata</title>\n<style>{style}</style>\n\
             </head>\n<body>\n<a class=skip href=\"#main\">To the content</a>\n{PATTERNS}\
             <header><p class=brand>Strata</p><h1>{title}</h1>{}</header>\n<nav aria-label=Contents>",
            hash(&style),
            hash(&script),
            self.about
        );
        for section in &self.sections {
            let _ = write!(out, "<a href=\"#{}\">{}</a>", section.id, escaped(section.title));
        }
        out += "</nav>\n<main id=main>\n";
        for section in &self.sections {
            let (id, title) = (section.id, escaped(section.title));
            let _ =
                writeln!(out, "<section id={id} aria-labelledby=h-{id}><h2 id=h-{id}>{title}</h2>");
            if !section.reading.is_empty() {
                let _ = writeln!(out, "<p class=reading>{}</p>", escaped(section.reading));
            }
            out += &section.body;
            out += "</section>\n";
        }
        let _ = write!(
            out,
            "</main>\n<footer><p id=tools hidden><button type=button id=save>Save the JSON</button> \
             <button type=button id=show>Show it here</button></p><pre id=raw hidden tabindex=0></pre>\
             <p class=hint>Arrow keys move through the marks of a picture that has the focus. The JSON \
             that this page was made of is in it.</p></footer>\n\
             <div id=tip hidden></div><div id=live class=unseen aria-live=polite></div>\n\
             <script type=application/json id=result>{}</script>\n<script>{script}</script>\n\
             </body>\n</html>\n",
            embedded(json)
        );
        out
    }
}

/// Without indentation, comment lines and empty lines.
fn minimal(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// A list of sentences; nothing of none.
fn list<'a>(items: impl IntoIterator<Item = &'a String>) -> String {
    let items: String =
        items.into_iter().map(|item| format!("<li>{}</li>", escaped(item))).collect();
    if items.is_empty() { String::new() } else { format!("<ul>{items}</ul>") }
}
