//! `transferctl` as a process: exit codes, messages, and files through a real sidecar.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn transferctl(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transferctl"));
    // The tests do not depend on the caller's environment.
    command.args(arguments).env_remove("TRANSFER_ADMIN").env_remove("TRANSFER_SOCKET");
    command
}

#[track_caller]
fn ends_with(arguments: &[&str], code: i32, words: &[&str]) -> String {
    let Output { status, stdout, stderr } = transferctl(arguments).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!(status.code(), Some(code), "{arguments:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{arguments:?} says nothing of {word:?}: {said}");
    }
    said
}

#[test]
fn wrong_use_ends_with_2() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("data");
    std::fs::write(&file, [0u8; 10]).unwrap();
    let file = file.to_str().unwrap();
    ends_with(&[], 2, &["Usage"]);
    ends_with(&["juggle"], 2, &["juggle"]);
    ends_with(&["status", "--admin", "ftp://x"], 2, &["--admin", "ftp://x", "http://HOST:PORT"]);
    ends_with(&["push", "k", file, "--dtype", "f33"], 2, &["f33", "bf16"]);
    ends_with(&["push", "k", file, "--dtype", "f32"], 2, &["10 bytes", "f32", "--shape"]);
    ends_with(&["push", "k", file, "--dtype", "f32", "--shape", "2,2"], 2, &["10 bytes", "f32[2, 2]", "16"]);
    ends_with(&["fetch", "k", "-", "--timeout", "soon"], 2, &["soon", "10s"]);
    ends_with(&["poll", "busy", "--for-us", "5"], 2, &["--for-us 5", "adaptive"]);
    ends_with(&["poll", "adaptive", "--for-us", "2000000"], 2, &["--for-us", "1000000"]);
}

#[test]
fn error_names_the_environment_variable_and_not_the_flag() {
    let Output { status, stderr, .. } = transferctl(&["status"]).env("TRANSFER_ADMIN", "ftp://x").output().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.starts_with("transferctl: TRANSFER_ADMIN=\"ftp://x\": it is neither http://"), "{said}");
}

/// The kernel would end the program by SIGXFSZ.
// Promise: file-size-limit, seen to fail
#[test]
fn a_file_beyond_the_limit_of_file_sizes_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let under = |blocks: u32, arguments: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -f {blocks}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_transferctl")]);
        let Output { status, stderr, .. } = command.args(arguments).output().unwrap();
        (status, String::from_utf8_lossy(&stderr).into_owned())
    };
    let out = directory.path().join("certs");
    let (status, said) = under(0, &["certs", "--out", out.to_str().unwrap(), "--node", "a"]);
    assert_eq!(status.code(), Some(1), "{status}: {said}");
    assert!(said.contains(out.to_str().unwrap()) && said.contains("File too large"), "{said}");
    let (status, said) = under(0, &["man", directory.path().to_str().unwrap()]);
    assert_eq!(status.code(), Some(1), "{status}: {said}");
    assert!(said.contains(directory.path().to_str().unwrap()) && said.contains("File too large"), "{said}");
}

#[test]
fn too_long_key_is_reported_as_such() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("data");
    std::fs::write(&file, [0u8; 10]).unwrap();
    let said = ends_with(&["push", &"k".repeat(513), file.to_str().unwrap()], 2, &["512 bytes", "has 513", "--prefix"]);
    assert!(!said.contains("its own name"), "{said}");
}

#[test]
fn unreachable_sidecar_ends_with_3() {
    let directory = tempfile::tempdir().unwrap();
    let nobody = directory.path().join("nobody.sock");
    let nobody = nobody.to_str().unwrap();
    ends_with(
        &["status", "--admin", nobody],
        3,
        &[nobody, ": No such file or directory (os error 2)\n", "--admin-socket"],
    );
    ends_with(&["poll", "busy", "--admin", nobody], 3, &[nobody]);
    let refused = ["http://127.0.0.1:1", "http://127.0.0.1:1: Connection refused (os error 111)\n", "--listen"];
    ends_with(&["tensors", "--admin", "http://127.0.0.1:1"], 3, &refused);
    ends_with(&["fetch", "--socket", nobody, "k", "-"], 3, &[nobody, "transferd"]);
    let file = env!("CARGO_BIN_EXE_transferctl");
    ends_with(&["push", "--socket", nobody, "k", file], 3, &[nobody]);
}

#[test]
fn a_missing_file_ends_with_1() {
    ends_with(&["push", "k", "/nowhere/data"], 1, &["/nowhere/data", "No such file"]);
    ends_with(&["push", "k", "/dev/null"], 1, &["/dev/null", "a device", "push KEY - <"]);
}

/// A sidecar in a directory of its own; ended when dropped.
struct Sidecar {
    directory: tempfile::TempDir,
    child: Child,
}

impl Sidecar {
    /// `None` if the sidecar's program has not been built: `cargo test` of this package alone does not build it.
    fn start(arguments: &[&str]) -> Option<Sidecar> {
        Sidecar::start_with(arguments, None)
    }

    /// `libraries` is the first folder in which the loader looks.
    fn start_with(arguments: &[&str], libraries: Option<&Path>) -> Option<Sidecar> {
        let program: PathBuf = Path::new(env!("CARGO_BIN_EXE_transferctl")).with_file_name("transferd");
        if !program.is_file() {
            eprintln!("skipped: there is no {}; `cargo build` builds it", program.display());
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut command = Command::new(&program);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TRANSFER_")) {
            command.env_remove(name);
        }
        command.args(arguments).envs(libraries.map(|folder| ("LD_LIBRARY_PATH", folder)));
        command.arg("--socket").arg(path("worker.sock")).arg("--admin-socket").arg(path("admin.sock"));
        command.arg("--ready-file").arg(path("ready")).args(["--pool-bytes", "1MiB"]);
        if !arguments.contains(&"--node") {
            command.args(["--node", "test"]);
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let sidecar = Sidecar { directory, child };
        sidecar.wait_for(|| sidecar.path("ready").is_file());
        Some(sidecar)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    #[track_caller]
    fn wait_for(&self, mut done: impl FnMut() -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !done() {
            assert!(Instant::now() < until, "nothing has happened");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A `push` that holds its tensor; ended when dropped.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn pushed_file_is_fetched_unchanged() {
    let Some(sidecar) = Sidecar::start(&[]) else { return };
    let (socket, admin) = (sidecar.text("worker.sock"), sidecar.text("admin.sock"));
    let (from, to) = (sidecar.text("from"), sidecar.text("to"));
    let bytes: Vec<u8> = (0..64 * 128 * 4u32).map(|i| (i * 7 % 251) as u8).collect();
    std::fs::write(&from, &bytes).unwrap();

    let push =
        ["push", "--socket", &socket, "--name", "holder", "layer0/w", &from, "--dtype", "f32", "--shape", "64,128"];
    let push = [&push[..], &["--version", "7"]].concat();
    let holder = transferctl(&push).stdout(Stdio::null()).spawn().unwrap();
    let holder = Holder(holder);

    let fetch = ["fetch", "--socket", &socket, "layer0/w"];
    ends_with(
        &[&fetch[..], &[&to, "--at-least", "7"]].concat(),
        0,
        &["version 7", "f32[64, 128]", "32 KiB", "copied=0 B"],
    );
    assert_eq!(std::fs::read(&to).unwrap(), bytes);

    let Output { status, stdout, stderr } = transferctl(&[&fetch[..], &["-"]].concat()).output().unwrap();
    assert_eq!((status.code(), stdout), (Some(0), bytes));
    assert!(String::from_utf8_lossy(&stderr).contains("fabric=local"));

    ends_with(&["status", "--admin", &admin], 0, &["test", "1 connected", "1 published"]);
    let json = ends_with(&["status", "--admin", &admin, "--json"], 0, &[]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["counters"]["tensors"], 1);
    ends_with(&["sessions", "--admin", &admin], 0, &["holder", "1 worker"]);
    ends_with(&["tensors", "--admin", &admin], 0, &["layer0/w", "holder", "f32[64, 128]", "1 tensor, 32 KiB"]);
    let line = ends_with(&["tensors", "--admin", &admin, "--json", "--prefix", "layer"], 0, &[]);
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["version"], &line["dtype"]), (&7.into(), &"f32".into()));
    ends_with(&["tensors", "--admin", &admin, "--prefix", "other"], 0, &["0 tensors"]);

    // A version that is never published, a name that is taken, and a tensor that ends with its worker.
    ends_with(&[&fetch[..], &[&to]].concat(), 1, &["exists already", "--force"]);
    ends_with(&[&fetch[..], &[&to, "--force", "--exactly", "3"]].concat(), 6, &["layer0/w", "--at-least"]);
    ends_with(&["push", "--socket", &socket, "--name", "holder", "k", &from], 1, &["holder"]);
    drop(holder);
    sidecar.wait_for(|| {
        let said = transferctl(&["tensors", "--admin", &admin]).output().unwrap();
        String::from_utf8_lossy(&said.stdout).starts_with("0 tensors")
    });
    ends_with(&[&fetch[..], &[&to, "--force", "--timeout", "100ms"]].concat(), 6, &["layer0/w", "--timeout"]);
}

#[test]
fn push_ends_after_its_hold_time() {
    let Some(sidecar) = Sidecar::start(&[]) else { return };
    let (socket, empty) = (sidecar.text("worker.sock"), sidecar.text("empty"));
    std::fs::write(&empty, []).unwrap();
    ends_with(&["push", "--socket", &socket, "nothing", &empty, "--hold", "50ms"], 0, &["u8[0]", "0 B"]);
}

/// The processor time of the data plane's thread so far, in clock ticks, and its state.
fn data_plane(sidecar: &Sidecar) -> (u64, char) {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", sidecar.child.id())).unwrap();
    let stats = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default());
    let stat = stats.into_iter().find(|stat| stat.contains("(transfer-data)")).unwrap();
    // The third field, and the 14th and 15th: utime and stime (proc(5)).
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap(), fields[0].chars().next().unwrap())
}

#[test]
fn poll_strategy_changes_at_once() {
    let Some(sidecar) = Sidecar::start(&["--poll", "event"]) else { return };
    let admin = sidecar.text("admin.sock");
    ends_with(&["poll", "--admin", &admin], 0, &["event: sleeps"]);
    let asleep = || data_plane(&sidecar).1 == 'S';
    sidecar.wait_for(asleep);

    ends_with(&["poll", "busy", "--admin", &admin], 0, &["busy: never sleeps (before: event"]);
    // The sidecar has no work, and polls nevertheless.
    let before = data_plane(&sidecar).0;
    sidecar.wait_for(|| data_plane(&sidecar).0 > before + 5);
    ends_with(&["status", "--admin", &admin], 0, &["poll       busy"]);

    let said = ends_with(&["poll", "adaptive", "--for-us", "50", "--json", "--admin", &admin], 0, &[]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["before"]["strategy"], &said["now"]["poll_for_ns"]), (&"busy".into(), &50_000.into()));
    sidecar.wait_for(asleep);
    ends_with(&["status", "--admin", &admin], 0, &["adaptive: polls for 50"]);
    let json = ends_with(&["status", "--admin", &admin, "--json"], 0, &[]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["poll"]["poll_for_ns"], 50_000);
}

#[test]
fn reason_for_missing_rdma_is_the_same_everywhere() {
    let Some(sidecar) = Sidecar::start(&["--listen", "127.0.0.1:0", "--verbs", "off", "--shm", "off"]) else { return };
    let admin = sidecar.text("admin.sock");
    let why = "it was started with --verbs off";
    ends_with(&["status", "--admin", &admin], 0, &["verbs   NOT there:", why]);
    let json = ends_with(&["status", "--admin", &admin, "--json"], 0, &[]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["fabrics"], serde_json::json!(["tcp"]));
    let verbs = json["fabric_states"].as_array().unwrap().iter().find(|state| state["fabric"] == "verbs").unwrap();
    assert_eq!(verbs["why_not"], why);
    ends_with(&["doctor", "--admin", &admin], 0, &["ok    sidecar        node test", why, "locked memory"]);
    let json = ends_with(&["doctor", "--admin", &admin, "--json"], 0, &[]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let checks = json["checks"].as_array().unwrap();
    let verbs = checks.iter().find(|check| check["check"] == "verbs").unwrap();
    assert_eq!(verbs["verdict"], "warn");
    assert!(verbs["found"].as_str().unwrap().contains(why), "{verbs}");
}

#[test]
fn doctor_without_a_sidecar_reports_that_and_continues() {
    let directory = tempfile::tempdir().unwrap();
    let nobody = directory.path().join("nobody.sock");
    ends_with(
        &["doctor", "--admin", nobody.to_str().unwrap()],
        8,
        &["FAIL  sidecar", "--admin-socket", "checks failed"],
    );
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// The contents of the files of a folder, by name.
fn contents(folder: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let read = |entry: std::fs::DirEntry| std::fs::read(entry.path()).unwrap();
    entries.map(|entry| (entry.file_name().into_string().unwrap(), read(entry))).collect()
}

// Promise: made-certificates, seen to fail
#[test]
fn certificates_are_made_once_and_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("new/certs");
    let to = ["certs", "--out", out.to_str().unwrap()];
    let certs = |more: &[&str], code, words: &[&str]| ends_with(&[&to[..], more].concat(), code, words);
    certs(
        &["--node", "a=127.0.0.1", "--node", "b"],
        0,
        &["a new authority", "a at 127.0.0.1, for 30 days", "b.key: b,"],
    );
    let first = contents(&out);
    assert_eq!(first.keys().collect::<Vec<_>>(), ["a.key", "a.pem", "b.key", "b.pem", "ca.key", "ca.pem"]);
    for name in first.keys() {
        // The umask may remove rights of other users, so they are not compared.
        let wanted = if name.ends_with(".key") { 0o600 } else { 0o644 };
        assert_eq!(mode(&out.join(name)) & !0o044, wanted & !0o044, "{name}");
        assert!(!name.ends_with(".key") || mode(&out.join(name)) == wanted, "{name}");
    }
    // If one of the files exists, none is made.
    for existing in ["b.pem", "b.key"] {
        let path = out.join(existing);
        certs(
            &["--node", "c", "--node", "b"],
            1,
            &[path.to_str().unwrap(), "exists already", "Nothing was overwritten"],
        );
        std::fs::remove_file(path).unwrap();
    }
    assert_eq!(contents(&out).len(), 4);
    // The same authority signs again.
    certs(&["--node", "b", "--days", "1"], 0, &["the authority, which was there", "b, for 1 day\n"]);
    let second = contents(&out);
    assert!(["ca.pem", "ca.key", "a.pem", "a.key"].iter().all(|&name| first[name] == second[name]));
    assert_ne!(first["b.pem"], second["b.pem"]);
    certs(&["--node", "d", "--node", "d=127.0.0.1"], 2, &["--node d is given twice"]);
    // A symbolic link is not followed.
    std::os::unix::fs::symlink(directory.path().join("elsewhere"), out.join("e.key")).unwrap();
    certs(&["--node", "e"], 1, &["e.key exists already"]);
    assert!(!directory.path().join("elsewhere").exists());
}

// Promise: made-certificates
#[test]
fn an_authority_that_cannot_sign_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let to = ["certs", "--out", directory.path().to_str().unwrap(), "--node", "b"];
    let makes = |folder: &str| ends_with(&["certs", "--out", path(folder).to_str().unwrap(), "--node", "a"], 0, &[]);
    makes("one");
    makes("two");
    let place = |from: &str, to: &str| std::fs::copy(path(from), path(to)).unwrap();
    place("one/ca.pem", "ca.pem");
    ends_with(&to, 1, &["ca.pem is there, and", "ca.key is not", "--out"]);
    place("two/ca.key", "ca.key");
    ends_with(&to, 1, &["cannot sign", "ca.key is the key of another certificate"]);
    place("one/a.pem", "ca.pem");
    place("one/a.key", "ca.key");
    ends_with(&to, 1, &["cannot sign", "is not that of an authority"]);
    std::fs::write(path("ca.pem"), "nothing").unwrap();
    ends_with(&to, 1, &["cannot sign", "ca.pem", "the file has none"]);
    std::fs::write(path("ca.key"), "nothing").unwrap();
    ends_with(&to, 1, &["cannot sign", "ca.key", "its key cannot be read"]);
    std::fs::remove_file(path("ca.pem")).unwrap();
    ends_with(&to, 1, &["ca.key is there, and", "ca.pem is not"]);
    assert!(!path("b.pem").exists() && !path("b.key").exists());
}

/// Two sidecars with certificates of one call. The second one attaches to the directory of the first one and fetches
/// from it.
// Promise: made-certificates
#[test]
fn sidecars_link_with_certificates_of_transferctl() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    ends_with(&["certs", "--out", out, "--node", "a=127.0.0.1", "--node", "b_0"], 0, &[]);
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let tls =
        |node: &str| ["--tls-ca", &file("ca.pem"), "--tls-cert", &file(&format!("{node}.pem"))].map(str::to_owned);
    let key = |node: &str| ["--tls-key".to_owned(), file(&format!("{node}.key"))];
    let start = |node: &str, more: &[&str]| {
        let own = tls(node).into_iter().chain(key(node)).collect::<Vec<_>>();
        let own = own.iter().map(String::as_str).chain(["--listen", "127.0.0.1:0", "--node", node]);
        Sidecar::start(&own.chain(more.iter().copied()).collect::<Vec<_>>())
    };
    let Some(a) = start("a", &[]) else { return };
    let ready = std::fs::read_to_string(a.path("ready")).unwrap();
    let address = ready.split_whitespace().find_map(|word| word.strip_prefix("grpc=")).unwrap();
    let url = format!("https://{address}");
    let b = start("b_0", &["--directory", &url]).unwrap();
    std::fs::write(a.path("data"), [7; 1000]).unwrap();
    ends_with(&["push", "--socket", &a.text("worker.sock"), "k", &a.text("data"), "--outlive"], 0, &[]);
    ends_with(&["fetch", "--socket", &b.text("worker.sock"), "k", &b.text("copy")], 0, &["fabric=tcp"]);
    assert_eq!(std::fs::read(b.path("copy")).unwrap(), [7; 1000]);
    ends_with(&["peers", "--admin", &b.text("admin.sock")], 0, &["a"]);
    // A tool can use such a certificate as a client.
    let [tls, key] = [tls("b_0").to_vec(), key("b_0").to_vec()];
    let tool = ["status", "--admin", &url].into_iter().chain(tls.iter().chain(&key).map(String::as_str));
    ends_with(&tool.collect::<Vec<_>>(), 0, &["TLS 1.3"]);
}

/// On a host with a device, it is listed.
#[test]
fn devices_are_listed_or_their_absence_is_explained() {
    let Output { status, stdout, stderr } = transferctl(&["devices", "--json"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&stdout).unwrap();
    match json["why_none"].as_str() {
        None => {
            assert_eq!(status.code(), Some(0));
            assert!(json["devices"][0]["ports"][0]["mtu_active"].is_number(), "{json}");
        }
        Some(why) => {
            assert_eq!(status.code(), Some(4));
            assert!(String::from_utf8_lossy(&stderr).contains(why), "{why}");
            ends_with(&["devices"], 4, &["no RDMA on this host", why]);
        }
    }
}

/// A folder with invalid libraries, which the loader finds first. They have the effect of a missing libibverbs on every
/// host: a program that was linked with it would not start.
fn no_libibverbs() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    folder
}

#[test]
fn programs_start_without_libibverbs_and_report_why_rdma_is_missing() {
    let folder = no_libibverbs();
    let run = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).env("LD_LIBRARY_PATH", folder.path()).env_remove("TRANSFER_ADMIN");
        let Output { status, stdout, stderr } = command.output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        (status.code(), said)
    };
    let transferctl = Path::new(env!("CARGO_BIN_EXE_transferctl"));
    let (code, said) = run(transferctl, &["devices"]);
    assert_eq!(code, Some(4), "{said}");
    let why = said.lines().find_map(|line| line.strip_prefix("transferctl: no RDMA on this host: ")).unwrap();
    assert!(why.contains("libibverbs.so.1") && said.contains("rdma-core"), "{said}");

    let arguments = ["--listen", "127.0.0.1:0", "--verbs", "auto"];
    let Some(sidecar) = Sidecar::start_with(&arguments, Some(folder.path())) else { return };
    let admin = sidecar.text("admin.sock");
    for command in ["status", "doctor"] {
        let (code, said) = run(transferctl, &[command, "--admin", &admin]);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains(why), "{command} says nothing of {why:?}: {said}");
    }
    let transferd = transferctl.with_file_name("transferd");
    for what in [["--require", "verbs"], ["--verbs", "on"]] {
        let socket = sidecar.text("other.sock");
        let (code, said) = run(&transferd, &[&what[..], &["--socket", &socket, "--listen", "127.0.0.1:0"]].concat());
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(&what.join(" ")) && said.contains(why), "{said}");
    }
}

/// The reader of the standard output has gone, as in `transferctl devices | head -0`.
#[test]
fn closed_output_pipe_causes_no_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let Output { status, stderr, .. } = transferctl(&["doctor", "--json"]).stdout(writer).output().unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!((status.code(), said.as_ref()), (Some(141), ""));
}
