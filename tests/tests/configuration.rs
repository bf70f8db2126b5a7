//! The configuration of a real process: file, environment, command line, `--check`, `--print-config`, SIGHUP.

use rustix::process::Signal;
use std::path::Path;
use std::process::{Command, Output};
use transfer_tests::{Authority, Scene, Validity, programs};

/// Runs a `transferd` that ends by itself. Returns its exit code, its stdout and its stderr.
fn transferd(arguments: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(programs::transferd());
    command.args(arguments).envs(environment.iter().copied());
    let Output { status, stdout, stderr } = command.output().expect("transferd can be started");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

fn write(folder: &Path, text: &str) -> String {
    let path = folder.join("transferd.toml");
    std::fs::write(&path, text).expect("the file can be written");
    path.to_str().expect("a path").to_owned()
}

#[test]
fn command_line_overrides_environment_and_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = write(folder.path(), "node = 'n'\npoll = 'busy'\nlock = 'no'\npool_bytes = '1MiB'\n");
    let environment = [("TRANSFER_POLL", "event"), ("TRANSFER_LOCK", "require")];
    let (code, printed, _) = transferd(&["--config", &file, "--print-config", "--lock", "try"], &environment);
    assert_eq!(code, Some(0));
    for line in [
        "lock = \"try\" # the command line".to_owned(),
        "poll = \"event\" # TRANSFER_POLL".to_owned(),
        format!("pool_bytes = \"1MiB\" # {file}:4"),
        "tcp_rails = 1 # default".to_owned(),
    ] {
        assert!(printed.lines().any(|l| l == line), "{line:?} is missing in {printed}");
    }
    // The printed configuration, read as a file without the flags and the environment, gives the same values.
    let again = write(folder.path(), &printed);
    let (code, second, _) = transferd(&["--config", &again, "--print-config"], &[]);
    let values = |text: &str| text.lines().map(|l| l.split(" # ").next().unwrap_or(l).to_owned()).collect::<Vec<_>>();
    assert_eq!((code, values(&second)), (Some(0), values(&printed)));
}

/// What Compose and Helm make of values that nobody gave, and Kubernetes of Services named `transfer` and `transfer-verbs`.
// Promise: environment, seen to fail
#[test]
fn variables_that_are_no_settings_are_ignored() {
    let service = ["TRANSFER", "TRANSFER_VERBS"].map(|name| {
        [("SERVICE_HOST", "10.0.0.1"), ("PORT", "tcp://10.0.0.1:7471"), ("PORT_7471_TCP_PORT", "7471")]
            .map(|(what, value)| (format!("{name}_{what}"), value))
    });
    let empty = ["LISTEN", "NODE", "SOCKET_MODE", "POLL", "HUGE_PAGES", "VERBS_DEVICE", "LIMITS", "CONFIG", "LOG"];
    let mut around: Vec<_> = empty.iter().map(|name| (format!("TRANSFER_{name}"), "")).collect();
    around.extend(service.into_iter().flatten());
    let around: Vec<(&str, &str)> = around.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let (code, printed, said) = transferd(&["--print-config"], &around);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert_eq!(printed, transferd(&["--print-config"], &[]).1);
    assert_eq!(transferd(&["--check", "--node", "n"], &around).0, Some(0));

    let tool = |around: &[(&str, &str)]| {
        let mut command = Command::new(programs::transferctl());
        command.args(["sessions"]).env_remove("TRANSFER_ADMIN").envs(around.iter().copied());
        let Output { status, stderr, .. } = command.output().expect("transferctl can be started");
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    };
    let empty = ["TRANSFER_ADMIN", "TRANSFER_TLS_CA", "TRANSFER_TLS_CERT", "TRANSFER_TLS_NAME"].map(|name| (name, ""));
    assert_eq!(tool(&empty), tool(&[]));
}

#[test]
fn check_reports_each_mistake_and_starts_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new(folder.path(), "ca");
    let (good, other) = (authority.identity(&["n"]), Authority::new(folder.path(), "other"));
    let expired = authority.identity_at("expired", &["n"], Validity::Expired);
    let socket = folder.path().join("never.sock");
    let head = format!(
        "node = 'n'\nsocket = '{}'\nlisten = '0.0.0.0:0'\nadvertise = 'n:1'\ndata_advertise = '127.0.0.1'\n",
        socket.display()
    );
    let tls = |cert: &Path, key: &Path, ca: &Path| {
        format!("{head}tls_cert = '{}'\ntls_key = '{}'\ntls_ca = '{}'\n", cert.display(), key.display(), ca.display())
    };
    let check = |text: &str| {
        let file = write(folder.path(), text);
        let (code, out, err) = transferd(&["--config", &file, "--check"], &[]);
        assert!(!socket.exists(), "nothing is started");
        (code, out + &err)
    };
    let (code, said) = check(&tls(&good.cert, &good.key, &good.ca));
    assert_eq!(code, Some(0), "{said}");
    let nowhere = folder.path().join("nowhere.pem");
    let stranger = other.identity_at("stranger", &["n"], Validity::Now);
    let of_b = authority.identity(&["b", "transfer://node/c"]);
    let no_directory =
        format!("listen = '127.0.0.1:0'\nshm = 'on'\nshm_dir = '{}'", folder.path().join("transferd.toml").display());
    let cases: [(String, &[&str]); 16] = [
        ("pool_byte = 1".into(), &["transferd.toml:1", "\"pool_byte\"", "\"pool_bytes\""]),
        ("require = 'tcp'".into(), &["--require tcp", "--listen", "--data-listen"]),
        ("require = 'shm'".into(), &["--require shm", "without --listen"]),
        ("require = 'shm'\nlisten = '127.0.0.1:0'\nshm = 'off'".into(), &["--require shm", "--shm off"]),
        ("require = 'verbs'\nlisten = '127.0.0.1:0'\nverbs = 'off'".into(), &["--require verbs", "--verbs off"]),
        (no_directory, &["--shm on", "transferd.toml", "Not a directory"]),
        ("log = 'loud'".into(), &["--log", "loud", "debug"]),
        (head.clone(), &["--listen 0.0.0.0:0", "--tls-cert", "--insecure", "transferd.toml:3"]),
        (format!("{head}tls_cert = 'x'\n"), &["--tls-cert is given", "--tls-key is not"]),
        (tls(&nowhere, &good.key, &good.ca), &["--tls-cert", "nowhere.pem", "No such file"]),
        (tls(&good.key, &good.key, &good.ca), &["--tls-cert", "n.key", "BEGIN CERTIFICATE"]),
        (tls(&good.cert, &good.cert, &good.ca), &["--tls-key", "n.crt", "BEGIN PRIVATE KEY"]),
        (tls(&good.cert, &expired.key, &good.ca), &["--tls-cert", "n.crt", "does not belong to the key"]),
        (tls(&expired.cert, &expired.key, &good.ca), &["--tls-cert", "expired.crt", "has expired"]),
        (tls(&stranger.cert, &stranger.key, &good.ca), &["--tls-cert", "stranger.crt", "no authority of --tls-ca"]),
        (tls(&of_b.cert, &of_b.key, &good.ca), &["b.crt", "b, c", "this is node n", "transfer://node/n"]),
    ];
    for (text, words) in cases {
        let (code, said) = check(&text);
        assert_eq!(code, Some(2), "{text}: {said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is missing in {said}");
        }
    }
}

#[test]
fn errors_name_the_source_of_the_mistake() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, _, said) = transferd(&["--check"], &[("TRANSFER_POOL_BYTES", "much")]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("TRANSFER_POOL_BYTES=\"much\": a size is") && !said.contains("--pool-bytes"), "{said}");
    let file = write(folder.path(), "node = 'n'\n[server]\nlisten = '127.0.0.1:0'\n");
    let (code, _, said) = transferd(&["--check", "--config", &file], &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(":2: [server] begins a table") && !said.contains("verbs_retry"), "{said}");
    let (socket, ready) = (folder.path().join("w.sock"), "/nowhere/ready");
    let (code, _, said) = transferd(&["--socket", &socket.display().to_string(), "--ready-file", ready], &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("--ready-file /nowhere/ready: ") && said.contains("No such file"), "{said}");
}

/// `--check` finds errors in paths and addresses that a start would run into.
#[test]
fn check_tests_the_configured_paths_and_addresses() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let check = |words: &[&str], code: i32, says: &[&str]| {
        let (found, out, err) = transferd(&[words, &["--check"]].concat(), &[]);
        let said = out + &err;
        assert_eq!(found, Some(code), "{words:?}: {said}");
        says.iter().for_each(|word| assert!(said.contains(word), "{words:?} says nothing of {word:?}: {said}"));
    };
    std::fs::write(at("file"), "").expect("written");
    let (file, below) = (at("file"), at("file/worker.sock"));
    let good = at("worker.sock");
    check(&["--socket", &good, "--admin-socket", &at("admin.sock"), "--listen", "127.0.0.1:0"], 0, &["is good"]);
    check(&["--socket", &file], 2, &["--socket", "file", "is no socket"]);
    check(&["--socket", &below], 2, &["--socket", "worker.sock", "Not a directory"]);
    check(&["--socket", &good, "--admin-socket", &file], 2, &["--admin-socket", "file", "is no socket"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).expect("it has an address");
    for flags in [
        &["--listen", &taken.1][..],
        &["--http-listen", &taken.1],
        &["--listen", "127.0.0.1:0", "--data-listen", &taken.1],
    ] {
        check(
            &[&["--socket", &good], flags].concat(),
            2,
            &[flags[flags.len() - 2], &taken.1, "Address already in use"],
        );
    }
    check(&["--socket", &good, "--pinned-limit", "100TiB"], 0, &["--pinned-limit 100TiB", "this host has", "is good"]);
    // A path is too long for a socket. `--check` and a start both refuse it, before any folder is created.
    let long = at(&format!("made/{}", "x".repeat(108)));
    check(&["--socket", &long], 2, &["--socket", "107 bytes at most"]);
    let (code, _, said) = transferd(&["--socket", &long], &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(!folder.path().join("made").exists());
    // The addresses of a running sidecar are in use. `--check` says so, and accepts the configuration.
    let scene = Scene::one();
    let (socket, address) = (scene.a().socket().display().to_string(), scene.a().admin_socket().display().to_string());
    check(&["--socket", &socket, "--admin-socket", &address], 0, &["listens at --socket", "is good"]);
    scene.end();
}

/// The least limit that the error advises is enough for a worker with default options.
#[test]
fn worker_fits_into_the_advised_pinned_limit() {
    let (code, _, said) = transferd(&["--check", "--pinned-limit", "1"], &[]);
    assert_eq!(code, Some(2), "{said}");
    let advised = said.split("give ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a size");
    let scene = Scene::with(&[&["--pinned-limit", advised]]);
    let socket = scene.a().socket();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = runtime.block_on(async { transfer_client::Client::connect(&socket).await });
    drop(client.expect("a worker has room"));
    scene.end();
}

/// Settings that can change at run time change, the others are named, and a file with a mistake changes nothing.
// Promise: reload, seen to fail
#[test]
fn sighup_reads_the_file_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = write(folder.path(), "poll = 'event'\npool_bytes = '1MiB'\n");
    let scene = Scene::with(&[&["--config", &file]]);
    let log = || std::fs::read_to_string(scene.folder().join("a.log")).expect("a log");
    let reload = |text: &str, says: &str| {
        write(folder.path(), text);
        let before = log().len();
        scene.a().signal(Signal::HUP);
        let heard = transfer_tests::poll(|| if log()[before..].contains(says) { Ok(()) } else { Err(log()) });
        heard.unwrap_or_else(|log| panic!("{says:?} is missing in {log}"));
        log()[before..].to_owned()
    };
    let poll = || scene.a().status().poll.expect("a strategy").strategy();
    use transfer_proto::v1::PollStrategy;
    assert_eq!(poll(), PollStrategy::Event);
    let said = reload("poll = 'busy'\npool_bytes = '2MiB'\nlog = 'info,transferd=debug'\n", "was read again");
    assert_eq!(poll(), PollStrategy::Busy);
    assert!(said.contains("needs a restart") || said.contains("only after a restart"), "{said}");
    assert!(said.contains("pool_bytes") && said.contains("poll") && said.contains("log"), "{said}");
    for (bad, words) in [("poll = 'never'\n", "poll = 'never'"), ("poll = 'event'\nxyzzy = 1", "xyzzy")] {
        let said = reload(bad, "everything stays as it was");
        assert!(said.contains(words), "{said}");
        assert_eq!(poll(), PollStrategy::Busy, "{bad:?} changed it");
    }
    reload("poll = 'adaptive'\n", "was read again");
    assert_eq!(poll(), PollStrategy::Adaptive);
    scene.end();
}
