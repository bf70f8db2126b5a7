//! Draws the state machines: a line for each state, and an arrow for each transition, with the event beside it.

use std::fmt::Write;

const LEFT: usize = 150;
const LANE: usize = 26;
const ROW: usize = 44;
/// Space for the names of the events, which are written upwards.
const HEAD: usize = 150;

/// Draws the machines below each other, from the rows of their tables.
pub(super) fn draw(machines: &[(&str, Vec<Vec<String>>)]) -> String {
    let mut body = String::new();
    let (mut y, mut width) = (0, 0);
    for (title, rows) in machines {
        let (height, wide) = machine(&mut body, y, title, rows);
        y += height;
        width = width.max(wide);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{y}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\">\
         <path d=\"M0 0L8 4L0 8z\"/></marker></defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

/// Draws one machine. Returns its height and width.
fn machine(out: &mut String, top: usize, title: &str, rows: &[Vec<String>]) -> (usize, usize) {
    let states: Vec<&str> = rows[1..].iter().map(|row| row[0].as_str()).chain(["gone"]).collect();
    let mut arrows = Vec::new();
    for (column, event) in rows[0].iter().enumerate().skip(1) {
        for (from, row) in rows[1..].iter().enumerate() {
            if let Some(to) = states.iter().position(|s| *s == row[column]) {
                arrows.push((from, to, event));
            }
        }
    }
    let line_y = |state: usize| top + HEAD + state * ROW;
    let right = LEFT + (arrows.len() + 1) * LANE;
    let _ = writeln!(out, "<text x=\"10\" y=\"{}\" font-size=\"16\" font-weight=\"bold\">{title}</text>", top + 30);
    for (i, state) in states.iter().enumerate() {
        let y = line_y(i);
        let _ = writeln!(out, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{state}</text>", LEFT - 8, y + 4);
        let _ = writeln!(out, "<line x1=\"{LEFT}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\" stroke=\"#bbb\"/>");
    }
    for (lane, (from, to, event)) in arrows.iter().enumerate() {
        let (x, y1, y2) = (LEFT + (lane + 1) * LANE, line_y(*from), line_y(*to));
        let _ = writeln!(out, "<circle cx=\"{x}\" cy=\"{y1}\" r=\"3\"/>");
        let _ = writeln!(
            out,
            "<line x1=\"{x}\" y1=\"{y1}\" x2=\"{x}\" y2=\"{y2}\" stroke=\"black\" marker-end=\"url(#tip)\"/>"
        );
        let (text_x, text_y) = (x + 4, top + HEAD - 14);
        let _ = writeln!(
            out,
            "<text x=\"{text_x}\" y=\"{text_y}\" font-size=\"10\" transform=\"rotate(-70 {text_x} {text_y})\">{event}</text>"
        );
    }
    (HEAD + states.len() * ROW + 20, right + 70)
}
