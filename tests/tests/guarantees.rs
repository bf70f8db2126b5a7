//! docs/guarantees.md and docs/security.md name tests that hold their promises: all of these tests exist.

use std::path::Path;

#[test]
fn each_promise_has_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("docs/guarantees.md")).expect("it is there");
    let (promised, _) = text.split_once("## What is not promised").expect("two parts");
    let mut missing = Vec::new();
    let mut named = 0;
    for row in promised.lines().filter(|line| line.starts_with("| ") && !line.contains("tested by")) {
        let tests: Vec<_> = row.split('`').filter_map(|word| word.split_once(".rs::")).collect();
        assert!(!tests.is_empty(), "no test holds this: {row}");
        for (path, name) in tests {
            named += 1;
            let source = std::fs::read_to_string(root.join(format!("{path}.rs"))).unwrap_or_default();
            // The name is that of a test, of a case of the conformance suite, which is generic over the fabric, or of a
            // row in a list of schedules.
            let forms = [format!("fn {name}("), format!("fn {name}<"), format!("\n    {name}: Play")];
            let forms = forms
                .into_iter()
                .chain(["USUAL", "CALM", "RAILS", "RESTARTS"].map(|how| format!("\n    {name}: {how}")));
            if !forms.into_iter().any(|form| source.contains(&form)) {
                missing.push(format!("{path}.rs::{name}"));
            }
        }
    }
    assert!(missing.is_empty(), "named and not there: {missing:#?}");
    assert!(named > 50, "only {named} tests were found in the page");
}

/// The last table has a row for each promise, in the same order, and names tests that hold the promise.
#[test]
fn each_promise_was_broken_on_purpose() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("docs/guarantees.md")).expect("it is there");
    let (promised, rest) = text.split_once("## What is not promised").expect("two parts");
    let (_, broken) = rest.split_once("## How each promise was broken on purpose").expect("three parts");
    let rows = |head: &str, text: &str| -> Vec<String> {
        let rows = text.lines().filter(|line| line.starts_with("| ") && !line.contains(head));
        rows.map(str::to_owned).collect()
    };
    let (promised, broken) = (rows("tested by", promised), rows("what failed", broken));
    assert_eq!(promised.len(), broken.len(), "one line for each promise");
    for (promise, broken) in promised.iter().zip(&broken) {
        let (_, failed) = broken.trim_end_matches(" |").rsplit_once(" | ").expect("three columns");
        let names: Vec<_> = failed.split('`').skip(1).step_by(2).collect();
        assert!(failed == "all of them" || !names.is_empty(), "nothing failed: {broken}");
        for name in names {
            assert!(promise.contains(&format!("::{name}`")), "{name} does not hold this: {promise}");
        }
    }
}

#[test]
fn each_test_that_the_trust_model_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("docs/security.md")).expect("it is there");
    let named: Vec<_> = text.split('`').filter_map(|word| word.split_once(".rs::")).collect();
    assert!(named.len() > 10, "only {} tests were found in the page", named.len());
    for (path, name) in named {
        let source = std::fs::read_to_string(root.join(format!("{path}.rs"))).unwrap_or_default();
        assert!(source.contains(&format!("fn {name}(")), "{path}.rs::{name} is named and not there");
    }
}
