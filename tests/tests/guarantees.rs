//! The promises of docs/guarantees.md, docs/security.md and docs/python-guarantees.md, and their tests. A comment above
//! a test names a promise that it holds:
//!
//! ```text
//! // Promise: slices
//! // Promise: slices, seen to fail
//! ```
//!
//! *Seen to fail*: it failed when the promise was broken on purpose. docs/guarantees-tests.md lists the tests of each
//! promise. With `TRANSFER_UPDATE_DOCS=1` these tests write its lists.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A test that holds a promise.
struct Proof {
    /// Its file and its name.
    test: String,
    seen_to_fail: bool,
}

/// The tests of each promise, in the order of their files and of their lines.
type Proofs = BTreeMap<String, Vec<Proof>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a package lies in the workspace").to_owned()
}

fn page(name: &str) -> String {
    std::fs::read_to_string(root().join("docs").join(name)).expect("it is there")
}

/// Adds the Rust and Python files below a folder, in the order of their names.
fn add_sources(folder: &Path, sources: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()).collect::<BTreeSet<_>>() {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // These are what builds leave behind.
        let is_source = !name.starts_with('.') && !["target", "build", "dist"].contains(&name) && !path.is_symlink();
        if is_source && path.is_dir() {
            add_sources(&path, sources);
        } else if is_source && path.extension().is_some_and(|kind| kind == "rs" || kind == "py") {
            sources.push(path);
        }
    }
}

/// Returns the promise that a comment names, and whether the test was seen to fail.
fn promise(line: &str) -> Option<(&str, bool)> {
    let line = line.trim_start();
    let text = line.strip_prefix("// Promise: ").or_else(|| line.strip_prefix("# Promise: "))?;
    Some(text.strip_suffix(", seen to fail").map_or((text, false), |promise| (promise, true)))
}

/// Returns the name of the function that begins at a line, or of the row in a list of schedules.
fn function(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let line = line.strip_prefix("async ").unwrap_or(line);
    let (name, _) = match line.strip_prefix("fn ").or_else(|| line.strip_prefix("def ")) {
        Some(rest) => rest.split_once(['(', '<'])?,
        None => line.split_once(": ")?,
    };
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_').then_some(name)
}

fn proofs() -> Proofs {
    let mut sources = Vec::new();
    add_sources(&root(), &mut sources);
    let mut proofs = Proofs::new();
    for source in sources {
        let text = std::fs::read_to_string(&source).unwrap_or_default();
        let path = source.strip_prefix(root()).expect("it lies below the root").display();
        let lines: Vec<_> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some((promise, seen_to_fail)) = promise(line) else { continue };
            let name = lines[at..].iter().take_while(|line| !line.is_empty()).find_map(|line| function(line));
            let name = name.unwrap_or_else(|| panic!("{path}: no test follows this: {line}"));
            let proof = Proof { test: format!("{path}::{name}"), seen_to_fail };
            proofs.entry(promise.to_owned()).or_default().push(proof);
        }
    }
    proofs
}

/// Returns the rows of the promises in a page, each with its name.
fn promises(page: &str) -> Vec<(&str, &str)> {
    let named = |row| {
        let (_, link): (_, &str) = str::rsplit_once(row, "](guarantees-tests.md#")?;
        Some((link.split_once(')')?.0, row))
    };
    page.lines().filter(|line| line.starts_with("| ")).filter_map(named).collect()
}

/// Returns the sections of docs/guarantees-tests.md, each with the name of its promise.
fn sections(page: &str) -> Vec<(&str, &str)> {
    page.split("\n### ").skip(1).filter_map(|section| section.split_once('\n')).collect()
}

fn list(proofs: &[Proof]) -> String {
    let mut list = String::new();
    for proof in proofs {
        let bold = if proof.seen_to_fail { "**" } else { "" };
        let _ = writeln!(list, "- {bold}`{}`{bold}", proof.test);
    }
    list
}

/// Returns docs/guarantees-tests.md with the lists of these tests.
fn with_lists(page: &str, proofs: &Proofs) -> String {
    let part = |part: &str| {
        let kept: Vec<_> = part.lines().filter(|line| !line.starts_with("- `") && !line.starts_with("- **`")).collect();
        // The first `#` of a heading was cut off with the line break before it.
        let promise = part.lines().next().and_then(|heading| heading.strip_prefix("## "));
        let tests = promise.and_then(|promise| proofs.get(promise));
        let list = tests.map(|tests| format!("\n{}", list(tests))).unwrap_or_default();
        format!("{}\n{list}", kept.join("\n").trim_end())
    };
    page.split("\n#").map(part).collect::<Vec<_>>().join("\n#")
}

#[test]
fn each_promise_has_a_test_that_exists() {
    let pages_of_promises = page("guarantees.md") + &page("security.md") + &page("python-guarantees.md");
    let (page_of_tests, proofs) = (page("guarantees-tests.md"), proofs());
    let promises: Vec<_> = promises(&pages_of_promises).into_iter().map(|(name, _)| name).collect();
    let sections: Vec<_> = sections(&page_of_tests).into_iter().map(|(name, _)| name).collect();
    assert!(promises.len() > 100, "only {} promises were found", promises.len());
    assert_eq!(promises, sections, "docs/guarantees-tests.md has the same promises in the same order");
    let untested: Vec<_> = promises.iter().filter(|promise| !proofs.contains_key(**promise)).collect();
    assert!(untested.is_empty(), "no test names these promises: {untested:#?}");
    let unknown: Vec<_> = proofs.keys().filter(|promise| !promises.contains(&promise.as_str())).collect();
    assert!(unknown.is_empty(), "tests name these, and no page has such a promise: {unknown:#?}");

    let wanted = with_lists(&page_of_tests, &proofs);
    if std::env::var_os("TRANSFER_UPDATE_DOCS").is_some() {
        std::fs::write(root().join("docs/guarantees-tests.md"), wanted).expect("the page can be written");
        return;
    }
    assert!(
        page_of_tests == wanted,
        "docs/guarantees-tests.md lists other tests than those that name a promise: TRANSFER_UPDATE_DOCS=1 writes it anew"
    );
}

#[test]
fn each_promise_was_broken_on_purpose() {
    let (promises_page, tests_page, proofs) = (page("guarantees.md"), page("guarantees-tests.md"), proofs());
    let sections: BTreeMap<_, _> = sections(&tests_page).into_iter().collect();
    for (promise, _) in promises(&promises_page) {
        let text = sections.get(promise).copied().unwrap_or_default();
        assert!(text.contains("\nBroken: "), "{promise}: docs/guarantees-tests.md does not say how it was broken");
        let seen_to_fail = proofs.get(promise).is_some_and(|proofs| proofs.iter().any(|proof| proof.seen_to_fail));
        assert!(seen_to_fail, "{promise}: no test was seen to fail");
    }
}

/// A list of promises is read only if each is short. Details have a page of their own.
#[test]
fn each_promise_is_one_short_line() {
    let pages = page("guarantees.md") + &page("python-guarantees.md");
    let long: Vec<_> = promises(&pages).into_iter().filter(|(_, row)| row.len() > 300).map(|(name, _)| name).collect();
    assert!(long.is_empty(), "longer than 300 bytes; move details to docs/guarantees-tests.md: {long:#?}");
}
