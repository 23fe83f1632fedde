//! What is printed: one JSON document, or text for people. No verb writes to stdout or stderr but through here.
//!
//! Everything that came from outside (names, labels, a service's words) is printed escaped, so that no file name can drive
//! a terminal: in text by [`clean`], in JSON by `\u` escapes for what JSON itself would let through.
//!
//! Errors of stdout are returned, never ignored: a script whose disk is full must not see success. Files are written by the
//! verbs.

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::fmt::Write as _;
use std::io::{self, Write};

/// The language of stdout. Chosen by `--json` alone, never by whether stdout is a terminal: output that changes under a
/// pipe breaks scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Human,
    Json,
}

/// Text with every control and direction-changing character as `\xNN` or `\u{NNNN}`.
///
/// Not reversible, since a backslash stays as it is. Width is not changed for plain text; other scripts pass unchanged.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if !is_unsafe(c) => out.push(c),
            c if u32::from(c) < 0x100 => _ = write!(out, "\\x{:02x}", u32::from(c)),
            c => _ = write!(out, "\\u{{{:x}}}", u32::from(c)),
        }
    }
    out
}

/// Control characters (C0, DEL, C1) and those that change the direction of the text around them.
///
/// ESC and CSI drive a terminal, line ends forge lines, and the direction characters show a name as another
/// (CVE-2021-42574).
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// JSON whose strings are safe to show on a terminal. The document is the same.
///
/// Any JSON parser gives back the same strings.
#[derive(Debug, Default)]
struct Safe;

impl Formatter for Safe {
    /// A fragment is what JSON itself would write raw; above U+FFFF it takes a surrogate pair, as RFC 8259 has it.
    fn write_string_fragment<W: Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(is_unsafe) {
            writer.write_all(&rest.as_bytes()[..at])?;
            let c = rest[at..].chars().next().expect("something was found there");
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &rest[at + c.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// One JSON value, compact, without a line feed. Fails only as the writer does, or for a value that is none (a map with odd
/// keys).
pub fn json<W: Write, T: Serialize + ?Sized>(writer: W, value: &T) -> io::Result<()> {
    value.serialize(&mut Serializer::with_formatter(writer, Safe)).map_err(io::Error::from)
}

/// A JSON array written item by item. Call [`Array::end`]; an array without its end tells a reader that it was cut.
///
/// Memory: one item. A line each, so that tools which read lines get on with it too.
#[derive(Debug)]
pub struct Array<W: Write> {
    writer: W,
    items: u64,
}

impl<W: Write> Array<W> {
    pub fn new(writer: W) -> Self {
        Self { writer, items: 0 }
    }

    /// Written at once; what was written stays when a later one fails.
    pub fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> io::Result<()> {
        self.writer.write_all(if self.items == 0 { b"[" } else { b",\n" })?;
        self.items += 1;
        json(&mut self.writer, value)
    }

    /// Flushes. An array of nothing is `[]`.
    pub fn end(mut self) -> io::Result<W> {
        self.writer.write_all(if self.items == 0 { b"[]\n" } else { b"]\n" })?;
        self.writer.flush()?;
        Ok(self.writer)
    }
}

/// Which side of its column a cell stands at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

/// Aligned columns. Cells are cleaned here.
///
/// All rows are in memory until it is written: for pages and small lists. Widths count characters, so wide ones stand
/// askew.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[(&'static str, Side)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// `cells` has one text for each column.
    pub fn row(&mut self, cells: &[&str]) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells.iter().map(|cell| clean(cell)).collect());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table with its head.
    pub fn write<W: Write>(&self, writer: &mut W) -> io::Result<()> {
        let width = |text: &str| text.chars().count();
        let mut widths: Vec<usize> = self.columns.iter().map(|(head, _)| width(head)).collect();
        for row in &self.rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = (*widest).max(width(cell));
            }
        }
        let head: Vec<String> = self.columns.iter().map(|(head, _)| (*head).to_owned()).collect();
        for row in std::iter::once(&head).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, widest), (_, side)) in row.iter().zip(&widths).zip(&self.columns) {
                let gap = " ".repeat(widest - width(cell));
                let _ = match side {
                    Side::Left => write!(line, "{cell}{gap}  "),
                    Side::Right => write!(line, "{gap}{cell}  "),
                };
            }
            writeln!(writer, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// `name: value` lines with the values in one column.
///
/// Names are ours, in ASCII; values are cleaned.
pub fn facts<W: Write + ?Sized>(writer: &mut W, facts: &[(&str, String)]) -> io::Result<()> {
    let widest = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    for (name, value) in facts {
        writeln!(writer, "{name:widest$}  {}", clean(value))?;
    }
    Ok(())
}

/// Prints one finished document: `human` writes the text, `document` is the JSON.
///
/// Stdout is locked and flushed here, so that an error of the last byte is seen. The closure is not called for JSON, nor
/// the other way round.
pub fn show<T: Serialize + ?Sized>(
    format: Format,
    document: &T,
    human: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match format {
        Format::Json => {
            json(&mut out, document)?;
            out.write_all(b"\n")?;
        }
        Format::Human => human(&mut out)?,
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_drives_a_terminal_gets_through() {
        let evil = "a\x1b]0;pwn\x07\u{9b}31m\u{202e}b\u{61c}\r\nö";
        assert_eq!(clean(evil), "a\\x1b]0;pwn\\x07\\x9b31m\\u{202e}b\\u{61c}\\x0d\\x0aö");
        let mut out = Vec::new();
        json(&mut out, &serde_json::json!({ "path": evil, "smile": "🙂" })).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.chars().any(is_unsafe), "{text}");
        let back: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((back["path"].as_str(), back["smile"].as_str()), (Some(evil), Some("🙂")));
    }

    #[test]
    fn arrays_are_one_document() {
        let mut array = Array::new(Vec::new());
        array.item(&1).unwrap();
        array.item("x").unwrap();
        assert_eq!(array.end().unwrap(), b"[1,\n\"x\"]\n");
        assert_eq!(Array::new(Vec::new()).end().unwrap(), b"[]\n");
    }

    #[test]
    fn tables_align() {
        let mut table = Table::new(&[("NAME", Side::Left), ("SIZE", Side::Right), ("NOTE", Side::Left)]);
        table.row(&["warehouse/aisle-cams", "2.24 GiB", "x"]);
        table.row(&["ö\x1b", "17 B", ""]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        NAME                      SIZE  NOTE
        warehouse/aisle-cams  2.24 GiB  x
        ö\x1b                     17 B
        ");
    }
}
