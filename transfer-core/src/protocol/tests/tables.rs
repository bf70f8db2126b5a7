//! Reads the tables of docs/protocol.md, to compare them with the code, and writes those that the code makes.

use crate::op::FailureCode;

const DOCUMENT: &str = include_str!("../../../../docs/protocol.md");

/// Returns the rows of the first table behind a line that begins with `after`, as cells, the header first.
pub(super) fn table(after: &str) -> Vec<Vec<String>> {
    let start = DOCUMENT.lines().position(|line| line.starts_with(after));
    let start = start.unwrap_or_else(|| panic!("docs/protocol.md has no line that begins with {after:?}"));
    let rows = DOCUMENT.lines().skip(start + 1).skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).filter(|line| !line.starts_with("|---"));
    rows.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

fn markdown(rows: &[Vec<String>]) -> String {
    let line = |row: &Vec<String>| format!("| {} |\n", row.join(" | ")).replace("|  |", "| |").replace("|  |", "| |");
    let mut out = line(&rows[0]);
    out.push_str(&format!("|{}\n", "---|".repeat(rows[0].len())));
    rows[1..].iter().for_each(|row| out.push_str(&line(row)));
    out
}

/// Rewrites the tables and the picture.
pub(super) fn update(found: &[(&str, Vec<Vec<String>>)], drawn: &str) {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
    let mut text = DOCUMENT.to_owned();
    for (title, rows) in found {
        let heading = format!("### {title}\n");
        let at = text.find(&heading).unwrap() + heading.len();
        let rest = &text[at..];
        let start = at + rest.find("\n|").map_or(0, |n| n + 1);
        let end = start + text[start..].find("\n\n").map_or(0, |n| n + 1);
        text.replace_range(start..end, &markdown(rows));
    }
    std::fs::write(format!("{docs}/protocol.md"), text).unwrap();
    std::fs::write(format!("{docs}/protocol-states.svg"), drawn).unwrap();
}

#[test]
fn table_of_failures_matches_the_code() {
    let rows: Vec<[String; 4]> = table("## Failures")[1..]
        .iter()
        .map(|row| [row[0].clone(), row[1].clone(), row[2].clone(), row[3].clone()])
        .collect();
    let codes = FailureCode::ALL.into_iter().chain([FailureCode::Unknown]);
    let code: Vec<[String; 4]> = codes
        .map(|code| {
            let retry = if code.can_retry() { "yes" } else { "no" };
            [(code as u16).to_string(), format!("{code:?}"), code.fault().name().to_owned(), retry.to_owned()]
        })
        .collect();
    assert_eq!(rows, code);
}
