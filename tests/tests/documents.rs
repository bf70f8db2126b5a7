//! Tests of the documents: every link has a target, and every failure code is explained.

use std::path::{Path, PathBuf};
use transfer_core::op::FailureCode;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn every_failure_code_is_explained() {
    let page = std::fs::read_to_string(root().join("docs/operations.md")).expect("it is there");
    let codes = (1..).map(FailureCode::from_wire).take_while(|code| *code != FailureCode::Unknown);
    let missing: Vec<_> = codes.filter(|code| !page.contains(&format!("\n| `{code:?}` | "))).collect();
    assert!(missing.is_empty(), "docs/operations.md says nothing about {missing:?}");
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_exist() {
    let mut pages = markdown(&root());
    for folder in [
        "docs",
        "docs/adr",
        "packaging",
        "tests/rdma-vm",
        "tests/fresh-machine",
        "examples/digits",
        "examples/epoch_shuffle",
    ] {
        pages.extend(markdown(&root().join(folder)));
    }
    assert!(pages.len() > 10, "only {pages:?} were found");
    let mut dead = Vec::new();
    for page in &pages {
        let text = std::fs::read_to_string(page).expect("it can be read");
        for link in links(&text) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let there = match path {
                "" => page.clone(),
                path => page.parent().expect("a file has a folder").join(path),
            };
            let found = match heading {
                "" => there.exists(),
                heading => std::fs::read_to_string(&there).is_ok_and(|text| headings(&text).any(|h| h == heading)),
            };
            if !found {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "these lead nowhere: {dead:#?}");
}

/// The first pages that somebody opens are read only if they are short.
#[test]
fn first_pages_are_short() {
    for (name, most) in [("README.md", 900), ("ARCHITECTURE.md", 3500)] {
        let words = std::fs::read_to_string(root().join(name)).expect("it is there").split_whitespace().count();
        assert!(
            words < most,
            "{name} has {words} words; move what is not for everybody to a page in docs, below {most}"
        );
    }
}

#[test]
fn files_that_are_named_exist() {
    for name in ["CONTRIBUTING.md", "docs/how-to-add.md"] {
        let page = std::fs::read_to_string(root().join(name)).expect("it is there");
        // Paths stand in code spans, such as `scripts/setup.sh`, and in indented lines.
        let spans = page.split('`').skip(1).step_by(2).chain(page.lines().filter(|line| line.starts_with("    ")));
        let words = spans.flat_map(|span| span.split([' ', '\n', ':', ';', '(', ')', ',', '`']));
        let named: Vec<_> = words.filter(|word| word.contains('/') && !word.starts_with(['/', '-'])).collect();
        assert!(named.len() > 10, "{name}: only {named:?} were found");
        let missing: Vec<_> = named.iter().filter(|path| !root().join(path).exists()).collect();
        assert!(missing.is_empty(), "{name} names these, and they are not there: {missing:#?}");
    }
}

fn markdown(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|e| e == "md")).collect()
}

/// Returns the targets of inline links, except for links to other sites.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(link, _)| link).filter(|link| !link.contains("://") && !link.contains([' ', '\n']))
}

/// Returns the anchors that GitHub makes of headings.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix('#'));
    lines.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}
