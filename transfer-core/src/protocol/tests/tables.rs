//! Compares the tables of docs/protocol.md with the code.

use crate::op::FailureCode;

pub(super) const DOCUMENT: &str = include_str!("../../../../docs/protocol.md");

/// Returns the rows of the first table behind a line that begins with `after`, as cells, the header first.
pub(super) fn table(after: &str) -> Vec<Vec<String>> {
    let start = DOCUMENT.lines().position(|line| line.starts_with(after));
    let start = start.unwrap_or_else(|| panic!("docs/protocol.md has no line that begins with {after:?}"));
    let rows = DOCUMENT.lines().skip(start + 1).skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).filter(|line| !line.starts_with("|---"));
    rows.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
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
