//! Runs the examples of docs/transferctl.md and docs/transfer-bench.md exactly as the pages show them.

#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use transfer_client::{BlockingClient, BundleTensor, Rank, Shard};
use transfer_tests::{Carrier, Scene, programs};

/// Returns the examples of a page: the section of each, and its lines.
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

/// Returns the examples of a page in docs/.
fn examples_of(page: &str) -> Vec<(String, Vec<String>)> {
    let page = format!("{}/../docs/{page}", env!("CARGO_MANIFEST_DIR"));
    examples(&std::fs::read_to_string(page).unwrap())
}

/// Runs an example in `folder`, with `programs` first on its `PATH`. Lines that begin with `#>` are words that its
/// output must contain.
fn run(section: &str, lines: Vec<String>, folder: &Path, programs: &Path, environment: &[(&str, OsString)]) {
    let (wanted, script): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.starts_with("#>"));
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &script.join("\n")]).current_dir(folder).env("PATH", &path);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRANSFER_")) {
        bash.env_remove(name);
    }
    let output = bash.envs(environment.iter().cloned()).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{section}: {}: {script:#?}\n{said}", output.status);
    for words in wanted {
        let words = words.trim_start_matches("#>").trim();
        assert!(said.contains(words), "{section} says nothing of {words:?}: {said}");
    }
}

#[test]
fn the_examples_of_transfer_bench_do_what_its_page_says() {
    let examples = examples_of("transfer-bench.md");
    let folder = tempfile::tempdir().unwrap();
    let programs = programs::transfer_bench().parent().unwrap().to_owned();
    // transfer-bench starts the `transferd` in its own folder.
    assert_eq!(programs::transferd().parent(), Some(&*programs));
    assert!(examples.len() >= 4, "{}", examples.len());
    for (section, lines) in examples {
        assert!(lines.iter().any(|line| line.starts_with("transfer-bench ")), "{section}: {lines:?}");
        run(&section, lines, folder.path(), &programs, &[]);
    }
}

#[test]
fn the_examples_of_transferctl_do_what_its_page_says() {
    let examples = examples_of("transferctl.md");
    let arguments: &[&str] = &["--listen", "127.0.0.1:0", "--pool-bytes", "16MiB"];
    let copies = tempfile::tempdir().unwrap();
    let more = [arguments, &["--copy-folder", copies.path().to_str().unwrap()]].concat();
    let scene = Scene::over(Carrier::Tcp, &[arguments, &more]);
    let folder = tempfile::tempdir().unwrap();
    let programs = programs::transferctl().parent().unwrap().to_owned();
    let environment = [
        ("TRANSFER_SOCKET", scene.a().socket().into()),
        ("TRANSFER_ADMIN", scene.a().admin_socket().into()),
        ("NODE_B", format!("http://{}", scene.b().address()).into()),
        ("NODE_B_SOCKET", scene.b().socket().into()),
        ("NODE_B_ADMIN_SOCKET", scene.b().admin_socket().into()),
    ];
    // What the example of `layout` shows.
    let trainer = BlockingClient::connect(scene.a().socket()).name("trainer").arena_bytes(1 << 20).call().unwrap();
    let half = || BundleTensor::from_slice([4, 16], &[1.0_f32; 64]).unwrap();
    for rank in 0..2 {
        let shards = [Shard::new("layer0/w", [8, 16], [u64::from(rank) * 4, 0], half())];
        trainer.push_shards("policy", 7, Rank { rank, world_size: 2 }, shards).call().unwrap();
    }
    assert!(examples.len() >= 12, "{}", examples.len());
    for (section, lines) in examples {
        let has_example =
            lines.iter().any(|line| !line.starts_with("#>") && line.contains(&format!("transferctl {section}")));
        assert!(has_example, "{section}: {lines:?}");
        run(&section, lines, folder.path(), &programs, &environment);
    }
}
