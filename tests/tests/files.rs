//! Files through `transferctl`: each file is fetched as it was pushed, whatever its format and target. A failure is
//! reported, and leaves no partial file behind.

#![allow(clippy::unwrap_used)]

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use transfer_tests::{Carrier, Ctl, Scene, poll};

/// Returns bytes that follow from `seed`.
fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 7 + seed * 31) % 251) as u8).collect()
}

/// Writes a file with the format's own library: every element type that this project has, and shapes that are easily
/// forgotten. Returns its tensors.
fn safetensors_file(path: &Path) -> Vec<(String, Dtype, Vec<usize>, Vec<u8>)> {
    let types = [
        Dtype::BOOL,
        Dtype::U8,
        Dtype::I8,
        Dtype::F8_E5M2,
        Dtype::F8_E4M3,
        Dtype::I16,
        Dtype::U16,
        Dtype::F16,
        Dtype::BF16,
        Dtype::I32,
        Dtype::U32,
        Dtype::F32,
        Dtype::C64,
        Dtype::F64,
        Dtype::I64,
        Dtype::U64,
    ];
    let mut tensors = Vec::new();
    for (i, dtype) in types.into_iter().enumerate() {
        let shape = vec![3 + i, 5];
        let len = (3 + i) * 5 * dtype.bitsize() / 8;
        tensors.push((format!("layer.{i}/w"), dtype, shape, bytes(i, len)));
    }
    tensors.push(("scalar".into(), Dtype::F32, vec![], bytes(90, 4)));
    tensors.push(("empty".into(), Dtype::F64, vec![0, 7], vec![]));
    tensors.push(("ü \"quoted\"".into(), Dtype::U8, vec![1_000_003], bytes(91, 1_000_003)));
    tensors.push(("scales".into(), Dtype::F8_E8M0, vec![3, 5], bytes(92, 15)));
    tensors.push(("pairs".into(), Dtype::F4, vec![3, 10], bytes(93, 15)));
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned()), ("note".to_owned(), "ü\n".to_owned())]);
    safetensors::serialize_to_file(views, Some(metadata), path).unwrap();
    tensors
}

/// Checks that the library finds the given tensors in a file.
fn same_tensors(path: &Path, tensors: &[(String, Dtype, Vec<usize>, Vec<u8>)]) {
    let file = fs::read(path).unwrap();
    let read = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(read.len(), tensors.len());
    for (name, dtype, shape, bytes) in tensors {
        let view = read.tensor(name).unwrap();
        assert_eq!((view.dtype(), view.shape(), view.data()), (*dtype, &shape[..], &bytes[..]), "{name}");
    }
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["note"], "ü\n");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns all files below a folder, with their paths relative to it.
fn tree(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let (mut found, mut open) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(at) = open.pop() {
        for entry in at.read_dir().unwrap().map(|e| e.unwrap().path()) {
            match entry.is_dir() {
                true => open.push(entry),
                false => found.push((text(entry.strip_prefix(folder).unwrap()).to_owned(), fs::read(&entry).unwrap())),
            }
        }
    }
    found.sort();
    found
}

fn two() -> Scene {
    two_with("64MiB")
}

/// Two nodes, joined by TCP on every host: these tests are not about the fabric that carries tensors.
fn two_with(pool_bytes: &str) -> Scene {
    let arguments: &[&str] = &["--listen", "127.0.0.1:0", "--pool-bytes", pool_bytes];
    Scene::over(Carrier::Tcp, &[arguments, arguments])
}

fn folder() -> (tempfile::TempDir, impl Fn(&str) -> PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    (folder, move |name: &str| root.join(name))
}

// Promise: fetched-files, seen to fail
#[test]
fn a_safetensors_file_comes_back_whole() {
    let (scene, (_folder, at)) = (two(), folder());
    let (model, digests) = (at("model.safetensors"), at("digests"));
    let tensors = safetensors_file(&model);
    let push = Ctl::of(scene.a(), &["push", text(&model), "--verify", "--write-digests", text(&digests)]);
    let mut holder = push.hold();
    let count = tensors.len() + 1;
    assert!(
        holder.said.iter().any(|line| line.contains(&format!("{count} tensors pushed")) && line.contains("copied="))
    );
    assert!(holder.said[0].contains("verified"), "{:?}", holder.said);
    Ctl::of(scene.a(), &["tensors"])
        .ends(0, &["model/layer.3/w", "model/__metadata__", "c64[15, 5]", "f64[0, 7]", "f4e2m1[3, 10]"]);

    // The pusher's node fetches by reference. The other node fetches the keys that the first one lists.
    let out = at("out.safetensors");
    let fetch = ["fetch", "--prefix", "model", text(&out), "--verify", "--check-digests", text(&digests)];
    let said = Ctl::of(scene.a(), &fetch).ends(0, &["tensors fetched", "copied=0 B", "local", "verified"]);
    assert!(!said.err.contains('\u{1b}'), "no progress where nobody looks: {}", said.err);
    same_tensors(&out, &tensors);
    let admin = scene.a().admin_socket();
    let listed = [&fetch[..], &["--force", "--json", "--admin", text(&admin)]].concat();
    let lines = Ctl::of(scene.b(), &listed).ends(0, &[]).json_lines();
    same_tensors(&out, &tensors);
    let (sum, each) = lines.split_last().unwrap();
    assert_eq!((&sum["done"], &sum["failed"], each.len()), (&count.into(), &0.into(), count));
    let one = each.iter().find(|line| line["key"] == "model/layer.11/w").unwrap();
    assert_eq!((&one["dtype"], &one["fabric"], &one["version"]), (&"f32".into(), &"tcp".into(), &1.into()));
    assert_eq!((&one["bytes"], &one["verified"], &one["shape"]), (&280.into(), &true.into(), &[14, 5].into()));

    // Keys can be named, and then no list is needed.
    let named = at("named.safetensors");
    let few = ["fetch", "--prefix", "model", "--key", "model/scalar", "--key", "model/layer.4/w", text(&named)];
    Ctl::of(scene.b(), &few).ends(0, &["2 tensors fetched"]);
    let file = fs::read(&named).unwrap();
    let read = SafeTensors::deserialize(&file).unwrap();
    let mut names = read.names();
    names.sort_unstable();
    assert_eq!(names, ["layer.4/w", "scalar"]);
    assert_eq!(read.tensor("scalar").unwrap().data(), tensors[16].3);

    // One key now has another value: the fetch is not verified, and the existing file stays.
    assert_eq!(holder.interrupt(), Some(0));
    let mut other = tensors.clone();
    other[16].3[2] ^= 1;
    let changed = at("changed").join("model.safetensors");
    fs::create_dir(changed.parent().unwrap()).unwrap();
    let views = other
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &changed).unwrap();
    let before = fs::read(&out).unwrap();
    let _holder = Ctl::of(scene.a(), &["push", text(&changed)]).hold();
    let said = Ctl::of(scene.a(), &[&fetch[..], &["--force"]].concat())
        .ends(7, &["model/scalar", "digest mismatch", "Do not use it"]);
    assert!(!said.text().contains("tensors fetched"), "{}", said.text());
    assert_eq!(fs::read(&out).unwrap(), before);
    assert_eq!(tree(&at("")).iter().filter(|(name, _)| name.contains(".part")).count(), 0);
    drop(_holder);
    scene.end();
}

// Promise: replaced-files, seen to fail
#[test]
fn a_directory_and_several_files_come_back() {
    let (scene, (_folder, at)) = (two(), folder());
    fs::create_dir_all(at("data/deep/er")).unwrap();
    for (i, name) in ["data/a", "data/deep/b.bin", "data/deep/er/c d"].iter().enumerate() {
        fs::write(at(name), bytes(i, 1000 * i)).unwrap();
    }
    for i in 0..60 {
        fs::write(at(&format!("data/deep/n{i}")), bytes(i, 4096 + i)).unwrap();
    }
    fs::write(at("lone"), b"lone").unwrap();
    let mut holder = Ctl::of(scene.a(), &["push", "set", text(&at("data"))]).hold();
    let admin = scene.a().admin_socket();
    let fetch = ["fetch", "--prefix", "set", "--admin", text(&admin), text(&at("copy"))].map(str::to_owned);
    let fetch: Vec<&str> = fetch.iter().map(String::as_str).collect();
    Ctl::of(scene.b(), &fetch).ends(0, &["63 tensors fetched"]);
    assert_eq!(tree(&at("copy")), tree(&at("data")));
    // An existing file is not replaced without `--force`.
    Ctl::of(scene.b(), &fetch).ends(1, &["exists already", "--force", "63 of 63 failed"]);
    fs::remove_file(at("copy/a")).unwrap();
    Ctl::of(scene.b(), &fetch).ends(9, &["exists already", "62 of 63 failed"]);
    // What was private stays so.
    let private = at("copy/deep/b.bin");
    fs::set_permissions(&private, fs::Permissions::from_mode(0o600)).unwrap();
    Ctl::of(scene.b(), &[&fetch[..], &["--force", "--quiet"]].concat()).ends(0, &[]);
    assert_eq!(tree(&at("copy")), tree(&at("data")));
    assert_eq!(fs::metadata(&private).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(holder.interrupt(), Some(0));

    // Several paths in one push, and a path that is no regular file.
    let several = ["push", "--prefix", "all", text(&at("data")), text(&at("lone"))].map(str::to_owned);
    let several: Vec<&str> = several.iter().map(String::as_str).collect();
    let holder = Ctl::of(scene.a(), &several).hold();
    Ctl::of(scene.b(), &["fetch", "all/lone", "-"]).ends(0, &["lone"]);
    Ctl::of(scene.b(), &["fetch", "all/data/deep/er/c d", "-"]).ends(0, &["2000"]);
    drop(holder);
    std::os::unix::fs::symlink("/etc", at("data/link")).unwrap();
    Ctl::of(scene.a(), &several).ends(1, &["data/link", "symbolic link", "--skip-special"]);
    let holder = Ctl::of(scene.a(), &[&several[..], &["--skip-special", "--hold", "1ms"]].concat());
    holder.ends(0, &["left out", "data/link is a symbolic link", "64 tensors pushed"]);
    scene.end();
}

#[test]
fn push_larger_than_its_arena_goes_in_turns() {
    let (scene, (_folder, at)) = (two(), folder());
    fs::create_dir(at("data")).unwrap();
    for i in 0..24 {
        fs::write(at("data").join(format!("{i:02}")), bytes(i, 300_000 + i)).unwrap();
    }
    let data = at("data");
    let push_from = |arena: &str, more: &[&str]| {
        Ctl::of(scene.a(), &[&["push", "k", text(&data), "--arena-bytes", arena], more].concat())
    };
    let push = |more: &[&str]| push_from("1MiB", more);
    // Without a receiver and without a reader, no tensor would ever leave the arena.
    push(&[]).ends(2, &["do not fit into an arena of 1 MiB", "--until fetched"]);
    push_from("100KiB", &[]).ends(2, &["alone is 293.0 KiB"]);
    // A tensor that has landed at the receiver's node leaves the arena.
    let taker = scene.b().worker("taker");
    push(&["--to", "taker", "--hold", "1ms"]).ends(0, &["24 tensors pushed", "tcp"]);
    // So does a tensor that has been fetched: pusher and reader each need the other one's progress to finish.
    let mut holder = push(&["--until", "fetched:1", "--json"]).hold_until("\"key\"");
    let keys = at("keys");
    fs::write(&keys, (0..24).map(|i| format!("k/{i:02}\n")).collect::<String>()).unwrap();
    let out = at("out");
    Ctl::of(scene.b(), &["fetch", "--prefix", "k", "--keys-from", text(&keys), text(&out)]).ends(0, &["24 tensors"]);
    assert_eq!(tree(&out), tree(&data));
    // The reader may finish before the pusher has learned of it, and an earlier interrupt would interrupt the push.
    holder.until("\"done\"");
    assert_eq!(holder.interrupt(), Some(0));
    // Without a reader the push ends at its timeout.
    push(&["--until", "fetched:1", "--timeout", "300ms"]).ends(9, &["room", "--arena-bytes", "of 24 failed"]);
    assert!(taker.close().success());
    scene.end();
}

#[test]
fn fetch_larger_than_the_landing_pool_goes_in_turns() {
    let (scene, (_folder, at)) = (two_with("1MiB"), folder());
    fs::create_dir(at("data")).unwrap();
    for i in 0..12 {
        fs::write(at("data").join(format!("{i:02}")), bytes(i, 400_000)).unwrap();
    }
    let holder = Ctl::of(scene.a(), &["push", "k", text(&at("data"))]).hold();
    let (admin, out) = (scene.a().admin_socket(), at("out.safetensors"));
    Ctl::of(scene.b(), &["fetch", "--prefix", "k", "--admin", text(&admin), text(&out)])
        .ends(0, &["12 tensors", "tcp"]);
    let file = fs::read(&out).unwrap();
    let read = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(read.tensor("07").unwrap().data(), bytes(7, 400_000));
    drop(holder);
    scene.end();
}

// Promise: large-tensors
#[test]
fn file_larger_than_the_landing_pool_is_fetched() {
    let (scene, (_folder, at)) = (two_with("1MiB"), folder());
    fs::write(at("data"), bytes(3, 3_000_000)).unwrap();
    let holder = Ctl::of(scene.a(), &["push", "k", text(&at("data"))]).hold();
    let out = at("out");
    Ctl::of(scene.b(), &["fetch", "k", text(&out)]).ends(0, &["3000000"]);
    assert!(fs::read(&out).unwrap() == bytes(3, 3_000_000));
    drop(holder);
    scene.end();
}

#[test]
fn standard_input_and_output_serve_as_files() {
    let (scene, (_folder, at)) = (Scene::one(), folder());
    let some = bytes(1, 200_000);
    let push = |more: &[&str]| Ctl::of(scene.a(), &[&["push", "in", "-", "--outlive", "--takeover"], more].concat());
    // The length of the input is unknown until its end, so the input is collected and copied, and the report says so.
    let said = push(&["--verify"]).run_with(&some);
    assert_eq!(said.code, 0, "{}", said.text());
    assert!(said.text().contains("200000 B here") && said.text().contains("verified"), "{}", said.text());
    let said = Ctl::of(scene.a(), &["fetch", "in", "-"]).ends(0, &["fabric=local"]);
    assert_eq!(said.out, some);
    // The length is known, so the input goes straight into the arena.
    let said = push(&["--shape", "500,100", "--dtype", "f32"]).run_with(&some);
    assert_eq!(said.code, 0, "{}", said.text());
    assert!(!said.text().contains("here"), "{}", said.text());
    for (input, words) in [(&some[..100], "only 100 bytes"), (&[&some[..], b"x"].concat(), "more than 200000")] {
        let said = push(&["--shape", "200000"]).run_with(input);
        assert_eq!(said.code, 2, "{}", said.text());
        assert!(said.text().contains(words), "{}", said.text());
    }
    Ctl::of(scene.a(), &["push", "--prefix", "a", "-", text(&at(""))]).ends(2, &["standard input", "push KEY -"]);
    Ctl::of(scene.a(), &["fetch", "--prefix", "a", "-"]).ends(2, &["fetch KEY -"]);
    Ctl::of(scene.a(), &["fetch", "in", "-", "--verify"]).ends(2, &["--verify"]);
}

// Promise: fetched-files, seen to fail
#[test]
fn failures_are_reported_and_leave_no_files() {
    let (scene, (_folder, at)) = (Scene::one(), folder());
    let ctl = |words: &[&str]| Ctl::of(scene.a(), words);
    // Files whose content does not match their name or format.
    let broken = at("broken.safetensors");
    fs::write(&broken, [&u64::MAX.to_le_bytes()[..], b"{}"].concat()).unwrap();
    ctl(&["push", text(&broken)]).ends(1, &["broken.safetensors", "18446744073709551615", "--format raw"]);
    ctl(&["push", text(&broken), "--format", "raw", "--hold", "1ms"]).ends(0, &["\"broken.safetensors\"", "10 B"]);
    let f6 = br#"{"w":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}"#;
    fs::write(&broken, [&(f6.len() as u64).to_le_bytes()[..], f6, &[0; 3]].concat()).unwrap();
    ctl(&["push", text(&broken)]).ends(1, &["\"w\"", "F6_E2M3", "BF16"]);
    ctl(&["push", text(&broken), text(&broken)]).ends(2, &["where the key does", "--prefix"]);
    ctl(&["push", "--prefix", "p", text(&broken), text(&broken), "--format", "raw"]).ends(1, &["two for", "p/broken"]);
    ctl(&["push", text(&broken), "--dtype", "u8"]).ends(2, &["--dtype", "--format raw"]);
    let none = at("none");
    fs::create_dir(&none).unwrap();
    ctl(&["push", "k", text(&none)]).ends(6, &["nothing to publish"]);

    // Keys that would lead out of the target folder.
    let data = at("data");
    fs::write(&data, "data").unwrap();
    let holder = ctl(&["push", "k/../../escape", text(&data)]).hold();
    let out = at("out");
    ctl(&["fetch", "--prefix", "k", text(&out)]).ends(1, &["k/../../escape", "cannot be the name of a file"]);
    assert!(!out.exists() && !at("escape").exists());
    drop(holder);
    poll(|| match ctl(&["tensors"]).run().text().starts_with("0 tensors") {
        true => Ok(()),
        false => Err(()),
    })
    .unwrap();
    ctl(&["fetch", "--prefix", "k", text(&out)]).ends(6, &["no key begins with \"k/\""]);
    ctl(&["fetch", "k", text(&out), "--timeout", "50ms"]).ends(6, &["\"k\"", "--timeout"]);
    assert!(!out.exists());

    // A full disk.
    let holder = ctl(&["push", "k", text(&data)]).hold();
    ctl(&["fetch", "k", "/dev/full"]).ends(1, &["/dev/full", "No space left", "Make room"]);
    drop(holder);

    // A fetch that a signal ends while it waits leaves nothing, also after SIGKILL.
    let waiting = at("waiting");
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::KILL] {
        let mut fetch = spawn(&scene, &["fetch", "never", text(&waiting)]);
        poll(|| if ctl(&["transfers"]).run().text().contains("never") { Ok(()) } else { Err(()) }).unwrap();
        transfer_tests::process::signal(fetch.id(), signal);
        let code = fetch.wait().unwrap().code();
        assert_eq!(code, (signal == rustix::process::Signal::INT).then_some(130));
        assert!(!tree(&at("")).iter().any(|(name, _)| name.contains("waiting")));
        poll(|| if ctl(&["transfers"]).run().text().contains("never") { Err(()) } else { Ok(()) }).unwrap();
    }
    scene.end();
}

fn spawn(scene: &Scene, words: &[&str]) -> std::process::Child {
    let mut command = std::process::Command::new(transfer_tests::programs::transferctl());
    command.args(words).args(["--socket", text(&scene.a().socket())]).spawn().unwrap()
}

#[test]
fn a_key_that_leads_out_of_the_folder_is_skipped_and_the_others_are_fetched() {
    let (scene, (_folder, at)) = (Scene::one(), folder());
    let ctl = |words: &[&str]| Ctl::of(scene.a(), words);
    fs::write(at("data"), "data").unwrap();
    for key in ["k/a", "k/../../escape", "k/deep/b"] {
        ctl(&["push", key, text(&at("data")), "--outlive"]).ends(0, &[]);
    }
    let said = ctl(&["fetch", "--prefix", "k", text(&at("out"))]).ends(9, &["k/../../escape", "1 of 3 failed"]);
    assert!(said.text().contains("cannot be the name of a file"), "{}", said.text());
    assert_eq!(tree(&at("out")), [("a".into(), b"data".to_vec()), ("deep/b".into(), b"data".to_vec())]);
    assert!(!at("escape").exists());

    // A symbolic link in the folder does not lead elsewhere either.
    fs::remove_dir_all(at("out/deep")).unwrap();
    fs::create_dir(at("elsewhere")).unwrap();
    std::os::unix::fs::symlink(at("elsewhere"), at("out/deep")).unwrap();
    let fetch = ["fetch", "--prefix", "k", "--force", text(&at("out"))].map(str::to_owned);
    let fetch: Vec<&str> = fetch.iter().map(String::as_str).collect();
    ctl(&fetch).ends(9, &["out/deep is behind a symbolic link", "Remove it", "2 of 3 failed"]);
    assert_eq!(tree(&at("elsewhere")), []);
    for key in ["k/a", "k/../../escape", "k/deep/b"] {
        ctl(&["delete", key]).ends(0, &[]);
    }
    scene.end();
}

/// The pipe has no reader, so opening it never ends by itself.
#[test]
fn signal_ends_a_fetch_into_a_pipe_without_a_reader() {
    let (scene, (_folder, at)) = (Scene::one(), folder());
    fs::write(at("data"), "data").unwrap();
    Ctl::of(scene.a(), &["push", "k", text(&at("data")), "--outlive"]).ends(0, &[]);
    let (pipe, mode) = (at("pipe"), rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let connected = || match Ctl::of(scene.a(), &["sessions"]).run().text().contains("1 worker") {
        true => Ok(()),
        false => Err(()),
    };
    let mut fetch = spawn(&scene, &["fetch", "k", text(&pipe)]);
    poll(connected).unwrap();
    transfer_tests::process::signal(fetch.id(), rustix::process::Signal::TERM);
    assert_eq!(fetch.wait().unwrap().code(), Some(130));
    // With a reader the pipe is written like any other file.
    let mut fetch = spawn(&scene, &["fetch", "k", text(&pipe)]);
    assert_eq!(fs::read(&pipe).unwrap(), b"data");
    assert!(fetch.wait().unwrap().success());
    Ctl::of(scene.a(), &["delete", "k"]).ends(0, &[]);
    scene.end();
}

#[test]
fn tensors_pushed_with_outlive_stay_after_their_pusher() {
    let (scene, (_folder, at)) = (Scene::one(), folder());
    let model = at("m.safetensors");
    let tensors = safetensors_file(&model);
    Ctl::of(scene.a(), &["push", text(&model), "--outlive", "--name", "giver"]).ends(0, &["tensors pushed"]);
    // The pusher has ended, and the tensors stay.
    let out = at("out.safetensors");
    Ctl::of(scene.a(), &["fetch", "--prefix", "m", text(&out)]).ends(0, &["local"]);
    same_tensors(&out, &tensors);
    // The keys belong to another worker. They can be taken over.
    Ctl::of(scene.a(), &["push", text(&model), "--hold", "1ms"]).ends(1, &["--takeover", "giver"]);
    Ctl::of(scene.a(), &["push", text(&model), "--hold", "1ms", "--takeover"]).ends(0, &["tensors pushed"]);
}
