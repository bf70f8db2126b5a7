//! How a sidecar starts, what it reports, and how it ends.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output, Stdio};
use transfer_proto::v1::Fabric;
use transfer_tests::process::{Process, Start};
use transfer_tests::{Scene, Spec, WAIT_LIMIT, poll, programs};

/// Runs a `transferd` that must refuse to start, and returns its output.
fn refused(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("worker.sock");
    let output = Command::new(programs::transferd()).arg("--socket").arg(&socket).args(arguments).output();
    let Output { status, stderr, .. } = output.expect("transferd can be started");
    let text = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(2), "{arguments:?}: {text}");
    assert!(!socket.exists(), "nothing is left");
    text
}

#[test]
fn listening_beyond_loopback_needs_insecure() {
    for arguments in [&["--listen", "0.0.0.0:0"][..], &["--listen", "127.0.0.1:0", "--data-listen", "0.0.0.0:0"]] {
        let text = refused(arguments);
        for word in ["--insecure", "0.0.0.0:0", "127.0.0.1", arguments[arguments.len() - 2]] {
            assert!(text.contains(word), "{word:?} is missing in {text}");
        }
    }
    let text = refused(&["--listen", "127.0.0.1:0", "--verbs", "off", "--require", "verbs"]);
    assert!(text.contains("--require verbs") && text.contains("--verbs off"), "{text}");
    // With `--insecure`, the sidecar listens there, and it advertises the addresses at which others find it.
    let scene = Scene::with(&[&[
        "--pool-bytes",
        "1MiB",
        "--listen",
        "0.0.0.0:0",
        "--insecure",
        "--advertise",
        "localhost:1",
        "--data-advertise",
        "127.0.0.1",
    ]]);
    assert!(scene.a().address().starts_with("0.0.0.0:"), "{}", scene.a().address());
    scene.end();
}

/// With rustix's own way to find the vDSO, the program ends by SIGSEGV before it is ready.
#[test]
fn sidecar_runs_under_valgrind() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let log = std::fs::File::create(path("log")).expect("a log");
    let mut sidecar = Command::new("valgrind")
        .args(["--tool=none", "--quiet"])
        .arg(programs::transferd())
        .args(["--node", "n", "--pool-bytes", "1MiB", "--socket"])
        .arg(path("worker.sock"))
        .arg("--admin-socket")
        .arg(path("admin.sock"))
        .arg("--ready-file")
        .arg(path("ready"))
        .stderr(log)
        .spawn()
        .expect("scripts/test-tools.sh installs valgrind");
    let said = || std::fs::read_to_string(path("log")).unwrap_or_default();
    poll(|| match std::fs::read_to_string(path("ready")) {
        Ok(text) if !text.is_empty() => Ok(()),
        _ => {
            assert_eq!(sidecar.try_wait().expect("a child"), None, "{}", said());
            Err(())
        }
    })
    .unwrap_or_else(|()| panic!("it becomes ready: {}", said()));
    kill_process(Pid::from_child(&sidecar), Signal::TERM).expect("it runs");
    let ended = sidecar.wait().expect("a child");
    assert!(ended.success(), "{ended}: {}", said());
}

/// Starts the sidecar as systemd does with Type=notify.
#[test]
fn systemd_hears_when_it_is_ready_and_when_it_stops() {
    let folder = tempfile::tempdir().expect("a folder");
    let notify = folder.path().join("notify");
    let socket = UnixDatagram::bind(&notify).expect("a socket can be bound");
    socket.set_read_timeout(Some(WAIT_LIMIT)).expect("a socket has a timeout");
    let hear = || {
        let mut message = [0; 256];
        let len = socket.recv(&mut message).expect("systemd is told");
        String::from_utf8_lossy(&message[..len]).trim().to_owned()
    };
    let mut child = Command::new(programs::transferd());
    let child = child.arg("--socket").arg(folder.path().join("worker.sock")).env("NOTIFY_SOCKET", &notify);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    assert_eq!(hear(), "READY=1");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert_eq!(hear(), "STOPPING=1");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn second_sidecar_on_one_socket_is_refused() {
    let scene = Scene::one();
    let socket = scene.a().socket();
    let output = Command::new(programs::transferd()).arg("--socket").arg(&socket).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("a.sock"), "{text}");
    // The first sidecar still works.
    assert!(scene.a().worker("worker").close().success());
    scene.end();
}

/// The socket file that a killed sidecar left behind does not keep the next one from starting.
#[test]
fn killed_sidecar_can_be_restarted() {
    let mut scene = Scene::one();
    let mut worker = scene.a().worker("worker");
    let waiting = worker.fetch("w").start();
    scene.a().until("it waits", |s| s.sessions.iter().any(|s| s.operations == 1));
    scene.nodes[0].kill();
    waiting.trouble().expect("SidecarGone", &["closed the connection", "connect again"]);
    assert!(scene.a().socket().exists(), "it had no chance to remove it");
    scene.nodes[0].restart();
    scene.note_idle_of(0);
    let mut again = scene.a().worker("worker");
    assert!(again.incarnation() > worker.incarnation());
    again.push("w", Spec::bytes(10, 1)).get();
    drop((worker, again));
    scene.end();
}

/// SIGTERM ends a sidecar with connected workers, waiting operations and a link. Every waiting operation fails,
/// fetched tensors stay readable, and nothing is left behind.
#[test]
fn sigterm_ends_a_sidecar_cleanly() {
    let entries = |folder: &str| -> BTreeSet<_> {
        std::fs::read_dir(folder).map(|d| d.filter_map(|f| Some(f.ok()?.file_name())).collect()).unwrap_or_default()
    };
    let transfers = |names: BTreeSet<std::ffi::OsString>| -> BTreeSet<_> {
        names.into_iter().filter(|n| n.to_string_lossy().contains("transfer")).collect()
    };
    assert_eq!(transfers(entries("/dev/shm")), BTreeSet::new(), "before");
    let mut scene = Scene::two();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    let spec = Spec::bytes(1 << 20, 1);
    giver.push("w", spec.clone()).get();
    taker.fetch("w").hold("far").get();
    giver.fetch("w").hold("near").get();
    let waiting = [giver.fetch("later").start(), taker.fetch("w").at_least(2).start()];
    scene.a().until("the far one waits, too", |s| s.links.iter().any(|l| l.serves == 1));
    assert_eq!(transfers(entries("/dev/shm")), BTreeSet::new(), "while it runs");
    assert_eq!(scene.nodes[0].terminate().code(), Some(0));
    let [here, there] = waiting;
    let trouble = here.trouble();
    assert!(["SidecarGone", "ShuttingDown"].contains(&trouble.kind.as_str()), "{trouble}");
    there.trouble().expect("PeerLost", &["\"w\"", "node \"a\""]);
    assert_eq!((giver.read("near"), taker.read("far")), (spec.sum(), spec.sum()), "what was fetched stays");
    giver.push("w", spec).trouble().expect("SidecarGone", &["connect again"]);
    let left = entries(scene.folder().to_str().expect("a path"));
    let of_a: Vec<_> =
        left.iter().map(|n| n.to_string_lossy()).filter(|n| n.starts_with("a.") || n.starts_with("a-")).collect();
    assert!(of_a.iter().all(|n| n.ends_with(".log")), "{of_a:?}");
    drop((giver, taker));
    assert_eq!(scene.nodes[1].terminate().code(), Some(0));
    assert_eq!(transfers(entries("/dev/shm")), BTreeSet::new(), "afterwards");
}

#[test]
fn health_and_reflection_answer() {
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let scene = Scene::one();
    let admin = scene.a().admin();
    for service in ["", "transfer.v1.Admin", "transfer.v1.Peering", "transfer.v1.Directory"] {
        let request = HealthCheckRequest { service: service.into() };
        let health = admin.call(|channel| async move { HealthClient::new(channel).check(request).await });
        let status = health.unwrap_or_else(|e| panic!("{service}: {e}")).into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{service}");
    }
    let ask = MessageRequest::ListServices(String::new());
    let listed = admin.call(|channel| async move {
        let request =
            tonic_reflection::pb::v1::ServerReflectionRequest { host: String::new(), message_request: Some(ask) };
        let mut answers = ServerReflectionClient::new(channel)
            .server_reflection_info(tokio_stream::once(request))
            .await
            .expect("reflection answers")
            .into_inner();
        answers.message().await.expect("an answer").expect("one at least").message_response
    });
    let Some(MessageResponse::ListServicesResponse(list)) = listed else { panic!("{listed:?}") };
    let names: Vec<_> = list.service.iter().map(|s| s.name.as_str()).collect();
    for name in ["transfer.v1.Admin", "transfer.v1.Peering", "transfer.v1.Directory", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{names:?}");
    }
    scene.end();
}

#[test]
fn status_and_tensors_show_the_state() {
    let scene = Scene::two();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    giver.push("layer0/w", Spec { dtype: "bf16".into(), shape: vec![3, 4], seed: 1 }).version(7).get();
    giver.push("layer1/w", Spec::bytes(100, 2)).get();
    taker.fetch("layer0/w").hold("w").get();
    let status = scene.b().status();
    assert_eq!((status.node.as_str(), status.sessions.len(), status.links.len()), ("b", 1, 1));
    assert_eq!((status.links[0].peer.as_str(), status.links[0].fabric()), ("a", Fabric::Tcp));
    assert_eq!((status.sessions[0].worker.as_str(), status.sessions[0].leases), ("taker", 1));
    assert!(status.pinned_bytes > 0 && status.pinned_bytes <= status.pinned_limit_bytes, "{status:?}");
    assert!(status.uptime_ns > 0 && status.incarnation > 0 && !status.version.is_empty());
    let directory = scene.a().status().status.directory.expect("a directory");
    assert_eq!((directory.keys, directory.workers, directory.nodes, directory.hosted_here), (2, 2, 2, true));
    let tensors = scene.a().admin().tensors("layer").expect("tensors");
    let shown: Vec<_> = tensors.iter().map(|t| (t.key.as_str(), t.owner.as_str(), t.version, t.len_bytes)).collect();
    assert_eq!(shown, [("layer0/w", "giver", 7, 24), ("layer1/w", "giver", 1, 100)]);
    assert_eq!(tensors[0].tensor.as_ref().map(|t| t.shape.clone()), Some(vec![3, 4]));
    assert_eq!(scene.a().admin().tensors("layer1").expect("tensors").len(), 1);
    drop((giver, taker));
    scene.end();
}

#[test]
fn program_ends_with_the_thread_that_started_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (leash, sleep) = (programs::worker(), std::path::PathBuf::from("/bin/sleep"));
    let started = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let arguments = Process::tied(&sleep, ["1000".as_ref()]);
            let log = folder.path().join("log");
            let process = Process::start(Start { leash: &leash, arguments, mode: "tied", log, uid: None });
            // The process may not be tied until it has become the other program.
            let name = format!("/proc/{}/comm", process.id());
            let tied = transfer_tests::poll(|| match std::fs::read_to_string(&name) {
                Ok(text) if text.trim() == "sleep" => Ok(()),
                other => Err(other),
            });
            tied.expect("it runs");
            process
        });
        thread.join()
    });
    let mut process = started.expect("the thread ends well");
    assert!(!process.wait().success(), "the kernel killed it");
}

/// Runs `transferctl`, and returns its output.
fn transferctl(arguments: &[&str]) -> String {
    let output = Command::new(programs::transferctl()).args(arguments).output().expect("transferctl can be started");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{err}");
    out.into_owned()
}

#[test]
fn transferctl_shows_a_sidecar() {
    let scene = Scene::one();
    let mut giver = scene.a().worker("giver");
    giver.push("layer0/w", Spec::bytes(4096, 1)).version(7).get();
    let admin = scene.a().admin_socket();
    let admin = admin.to_str().expect("a path");
    let status = transferctl(&["status", "--admin", admin]);
    for word in ["1 connected", "node", "a"] {
        assert!(status.contains(word), "{word:?} is missing in {status}");
    }
    let tensors = transferctl(&["tensors", "--admin", admin]);
    for word in ["layer0/w", "giver", "7", "u8"] {
        assert!(tensors.contains(word), "{word:?} is missing in {tensors}");
    }
    drop(giver);
    scene.end();
}
