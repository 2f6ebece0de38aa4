//! Text in a page: nothing of a result is markup.

use std::borrow::Cow;
use std::fmt::Write;

/// Text as it may stand between tags and in quoted attributes. Control characters, which no document
/// may have, become replacement characters; so do those that turn the direction of what follows.
pub fn escaped(text: &str) -> Cow<'_, str> {
    let special = |c: char| matches!(c, '&' | '<' | '>' | '"' | '\'') || is_hidden(c);
    if !text.contains(special) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if is_hidden(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

fn is_hidden(c: char) -> bool {
    let turns =
        matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}');
    turns || (c.is_control() && c != '\n' && c != '\t') || matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// JSON as it may stand in a script element: no `<` ends it, and parsing it gives the same.
pub fn embedded(json: &str) -> String {
    // Outside of strings JSON has none of these characters.
    json.trim_end().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// A paragraph of text with `code` in backticks, as the tables of papers have it.
pub fn prose(text: &str) -> String {
    let mut out = String::new();
    for (index, part) in text.split('`').enumerate() {
        let part = escaped(part);
        let _ = match index % 2 {
            0 => write!(out, "{part}"),
            _ => write!(out, "<code>{part}</code>"),
        };
    }
    out
}

/// A table: the first row is its head, columns after the first `labels` hold numbers.
pub fn table(head: &[&str], rows: &[Vec<String>], labels: usize) -> String {
    let mut out = "<div class=scroll><table><thead><tr>".to_owned();
    for (column, name) in head.iter().enumerate() {
        let class = if column < labels { "" } else { " class=n" };
        let _ = write!(out, "<th scope=col{class}>{}</th>", escaped(name));
    }
    out += "</tr></thead><tbody>\n";
    for row in rows {
        out += "<tr>";
        for (column, cell) in row.iter().enumerate() {
            let _ = match column {
                0 => write!(out, "<th scope=row>{}</th>", escaped(cell)),
                _ if column < labels => write!(out, "<td>{}</td>", escaped(cell)),
                _ => write!(out, "<td class=n>{}</td>", escaped(cell)),
            };
        }
        out += "</tr>\n";
    }
    out + "</tbody></table></div>"
}

/// Raw numbers, a click away.
pub fn numbers(what: &str, table: &str) -> String {
    format!("<details><summary>{}</summary>{table}</details>\n", escaped(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_markup() {
        let hostile = "<script>alert('x')</script>\" onload=\"x & \u{202e}\u{0}";
        let shown = escaped(hostile);
        assert!(!shown.contains(['<', '>', '"', '\'', '\u{202e}', '\u{0}']), "{shown}");
        assert_eq!(escaped("plain"), "plain");
        assert_eq!(prose("a `b<c` d"), "a <code>b&lt;c</code> d");
    }

    #[test]
    fn json_in_a_page_is_the_same_json_and_ends_no_element() {
        let json = r#"{"name":"</script><!--<script>&"}"#;
        let shown = embedded(json);
        assert!(!shown.contains(['<', '>', '&']));
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&shown), read(json));
    }
}
