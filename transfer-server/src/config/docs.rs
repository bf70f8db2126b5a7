//! Generates the tables of docs/configuration.md from the flags.

use super::source::{command, keys};
use crate::reload;
use clap::Arg;
use std::collections::BTreeMap;
use std::fmt::Write;

const BEGIN: &str =
    "<!-- Made of the flags, by TRANSFER_UPDATE_DOCS=1 cargo test -p transfer-server --lib every_key -->\n";

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn values(arg: &Arg) -> String {
    let possible: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    match (&possible[..], arg.get_value_names()) {
        ([_, ..], _) => possible.join(", "),
        (_, Some(names)) => names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        _ => String::new(),
    }
}

fn row(key: &str, arg: &Arg) -> String {
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let reloaded = if reload::can_change(key) { "yes" } else { "" };
    let (values, default) = (cell(&values(arg)), cell(&defaults.join(",")));
    format!("| `{key}` | {values} | {default} | {reloaded} | {} |\n", cell(&help))
}

fn tables() -> String {
    let command = command();
    // The sections have the order of the help. Settings without a heading come first.
    let (mut order, mut sections) = (Vec::new(), BTreeMap::<&str, String>::new());
    for (key, arg) in keys(&command) {
        let heading = arg.get_help_heading().unwrap_or("The sidecar");
        if !order.contains(&heading) {
            order.push(heading);
        }
        sections.entry(heading).or_default().push_str(&row(&key, arg));
    }
    let mut text = BEGIN.to_owned();
    for heading in order {
        let head = "| key | value | default | reloaded | description |\n|---|---|---|---|---|\n";
        let _ = write!(text, "\n## {heading}\n\n{head}{}", sections[heading]);
    }
    text
}

#[test]
fn every_key_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (before, _) = page.split_once(BEGIN).expect("the page has the line where the tables begin");
    let wanted = format!("{before}{}", tables());
    if std::env::var_os("TRANSFER_UPDATE_DOCS").is_some() {
        std::fs::write(path, wanted).unwrap();
        return;
    }
    assert!(page == wanted, "docs/configuration.md is not what the flags say: TRANSFER_UPDATE_DOCS=1 writes it anew");
}

/// A setting has one name on the command line, in the environment and in the file.
#[test]
fn names_are_the_same_everywhere() {
    for (key, arg) in keys(&command()) {
        let env = format!("TRANSFER_{}", key.to_uppercase());
        assert_eq!(arg.get_env().map(|env| env.to_string_lossy().into_owned()), Some(env), "{key}");
    }
    for key in reload::RELOADED {
        assert!(keys(&command()).any(|(known, _)| known == *key), "{key} is none");
    }
}
