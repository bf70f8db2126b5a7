//! The examples of docs/transferctl.md, run as they stand there.

#![allow(clippy::unwrap_used)]

use std::process::Command;
use transfer_tests::{Carrier, Scene, programs};

/// The examples: the section that each is in, and its lines.
fn examples(page: &str) -> Vec<(String, Vec<String>)> {
    let (mut examples, mut section, mut inside) = (Vec::new(), String::new(), false);
    for line in page.lines() {
        match (line, inside) {
            ("```sh", false) => {
                inside = true;
                examples.push((section.clone(), Vec::new()));
            }
            ("```", true) => inside = false,
            (line, true) => examples.last_mut().unwrap().1.push(line.to_owned()),
            (line, false) => {
                if let Some(name) = line.strip_prefix("## ") {
                    section = name.to_owned();
                }
            }
        }
    }
    assert!(!inside, "an example has no end");
    examples
}

#[test]
fn the_examples_of_the_page_do_what_it_says() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/transferctl.md");
    let examples = examples(&std::fs::read_to_string(page).unwrap());
    let arguments: &[&str] = &["--listen", "127.0.0.1:0", "--pool-bytes", "16MiB"];
    let scene = Scene::over(Carrier::Tcp, &[arguments, arguments]);
    let folder = tempfile::tempdir().unwrap();
    let programs = programs::transferctl().parent().unwrap().to_owned();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    assert!(examples.len() >= 12, "{}", examples.len());
    for (section, lines) in examples {
        let (wanted, script): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.starts_with("#>"));
        assert!(script.iter().any(|line| line.contains(&format!("transferctl {section}"))), "{section}: {script:?}");
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", &script.join("\n")]).current_dir(folder.path()).env("PATH", &path);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRANSFER_")) {
            bash.env_remove(name);
        }
        bash.env("TRANSFER_SOCKET", scene.a().socket()).env("TRANSFER_ADMIN", scene.a().admin_socket());
        bash.env("NODE_B", format!("http://{}", scene.b().address())).env("NODE_B_SOCKET", scene.b().socket());
        bash.env("NODE_B_ADMIN_SOCKET", scene.b().admin_socket());
        let output = bash.output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{section}: {}: {script:#?}\n{said}", output.status);
        for words in wanted {
            let words = words.trim_start_matches("#>").trim();
            assert!(said.contains(words), "{section} says nothing of {words:?}: {said}");
        }
    }
}
