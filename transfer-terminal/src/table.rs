//! Text in columns.

use std::fmt;
use transfer_core::text::printable;

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table: a line of headings, and lines of cells below them.
#[derive(Debug, Clone)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table without lines. A heading that starts with `>` stands for a column of numbers.
    #[must_use]
    pub fn new(headings: &[&str]) -> Table {
        let column = |heading: &&str| match heading.strip_prefix('>') {
            Some(rest) => (rest.to_owned(), Align::Right),
            None => ((*heading).to_owned(), Align::Left),
        };
        Table { columns: headings.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a line.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(printable).collect());
    }

    /// Whether it has no lines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// The widest column. A longer cell does not widen its column; it only shifts the rest of its line.
const MAX_COLUMN_WIDTH: usize = 64;

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |text: &str| text.chars().count();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|i| {
                let cells = self.rows.iter().filter_map(|row| row.get(i)).map(|cell| width(cell));
                let cells = cells.filter(|width| *width <= MAX_COLUMN_WIDTH);
                cells.chain([width(&self.columns[i].0)]).max().unwrap_or(0)
            })
            .collect();
        let mut line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut text = String::from(" ");
            for ((cell, width), (_, align)) in cells.zip(&widths).zip(&self.columns) {
                match align {
                    Align::Left => text.push_str(&format!(" {cell:<width$} ")),
                    Align::Right => text.push_str(&format!(" {cell:>width$} ")),
                }
            }
            writeln!(f, "{}", text.trim_end())
        };
        line(&mut self.columns.iter().map(|(heading, _)| heading.as_str()))?;
        self.rows.iter().try_for_each(|row| line(&mut row.iter().map(String::as_str)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: escaped-names
    #[test]
    fn control_characters_are_escaped() {
        let mut table = Table::new(&["NAME"]);
        table.row(["a\u{1b}[2Jb\nc".to_owned()]);
        let text = table.to_string();
        assert!(text.contains(r"a\u{1b}[2Jb\nc") && text.lines().count() == 2, "{text:?}");
    }

    #[test]
    fn direction_characters_are_escaped() {
        let shown = |text: &str| printable(text.to_owned());
        assert_eq!(shown("a\u{202e}gpj.exe\u{2066}\u{200b}"), r"a\u{202e}gpj.exe\u{2066}\u{200b}");
        for text in ["plain", "ümläut", "日本語", "שלום", "👩", "a b"] {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn long_key_widens_no_other_line() {
        let mut table = Table::new(&["key", ">bytes"]);
        table.row(["k".repeat(512), "1".into()]);
        table.row(["b".into(), "2".into()]);
        let text = table.to_string();
        assert_eq!(text.lines().map(|line| line.chars().count()).collect::<Vec<_>>(), [12, 521, 12], "{text}");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["key", ">bytes", "µs"]);
        table.row(["a/long/key".into(), "1".into(), "x".into()]);
        table.row(["b".into(), "1,000".into(), String::new()]);
        assert_eq!(table.to_string(), "  key         bytes  µs\n  a/long/key      1  x\n  b           1,000\n");
    }
}
