//! Certificates, names and roles, with real sidecars and real certificates.

use rustix::process::Signal;
use std::process::{Command, Output};
use std::time::{Duration, UNIX_EPOCH};
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use transfer_proto::v1;
use transfer_tests::calls::done;
use transfer_tests::order::{Order, ShuffleOrder};
use transfer_tests::stranger::{Attached, worker_up};
use transfer_tests::{Authority, Carrier, Ctl, Identity, Scene, Sidecar, Spec, Validity, poll, programs};
use v1::directory_client::DirectoryClient;
use v1::directory_item::Item;
use v1::peering_client::PeeringClient;

/// The address at which the sidecars of these tests listen. A sidecar that calls a directory at this address requires
/// the address in the directory's certificate.
const HERE: &str = "127.0.0.1";

struct World {
    folder: tempfile::TempDir,
    authority: Authority,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().expect("a folder");
        let authority = Authority::new(folder.path(), "ca");
        World { folder, authority }
    }

    fn node(&self, name: &str) -> Identity {
        self.authority.identity(&[name, HERE])
    }

    /// Starts two sidecars with certificates and with these additional arguments.
    fn two_with(&self, more: &[&str]) -> Scene {
        let (a, b) = (self.node("a"), self.node("b"));
        let common = ["--pool-bytes", "16MiB", "--listen", "127.0.0.1:0"];
        let [a, b] = [&a, &b].map(|own| [&common[..], &own.arguments()[..], more].concat());
        Scene::over(Carrier::Tcp, &[&a, &b])
    }

    fn two(&self) -> Scene {
        self.two_with(&[])
    }
}

/// Runs `transferctl` or `transferd`, and returns its exit code and its output.
fn run(program: std::path::PathBuf, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(program).args(arguments).output().expect("it can be started");
    let Output { status, stdout, stderr } = output;
    (status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

/// Runs `transferctl` against a sidecar's address, with the certificate of `identity`.
fn transferctl(command: &[&str], sidecar: &Sidecar, identity: &Identity) -> (Option<i32>, String) {
    let url = format!("https://{}", sidecar.address());
    let at = ["--admin", &url];
    run(programs::transferctl(), &[command, &at[..], &identity.arguments()[..]].concat())
}

/// Returns a connection with this TLS configuration. A refusal may only show at the first call.
fn connected(url: &str, tls: Option<ClientTlsConfig>) -> (tokio::runtime::Runtime, Channel) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let endpoint = Endpoint::from_shared(url.to_owned()).expect("an address").timeout(Duration::from_secs(20));
    let endpoint = match tls {
        Some(tls) => endpoint.tls_config(tls).expect("certificates"),
        None => endpoint,
    };
    let channel = {
        let _entered = runtime.enter();
        endpoint.connect_lazy()
    };
    (runtime, channel)
}

fn tls(identity: &Identity, shown: bool) -> ClientTlsConfig {
    let read = |path| std::fs::read(path).expect("a file");
    let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&identity.ca)));
    match shown {
        true => config.identity(tonic::transport::Identity::from_pem(read(&identity.cert), read(&identity.key))),
        false => config,
    }
}

/// Calls the Peering service in the name of `node`, and returns the status of the refusal.
fn connect(url: &str, tls: Option<ClientTlsConfig>, node: &str) -> tonic::Status {
    let (runtime, channel) = connected(url, tls);
    let request = v1::ConnectRequest { node: node.into(), protocol_version: 3, ..Default::default() };
    runtime.block_on(PeeringClient::new(channel).connect(request)).expect_err("nothing of it is right")
}

fn log_of(scene: &Scene, node: &str) -> String {
    std::fs::read_to_string(scene.folder().join(format!("{node}.log"))).expect("a log")
}

/// Waits until one line of a node's log contains all these words.
#[track_caller]
fn until_logged(scene: &Scene, node: &str, words: &[&str]) {
    let found = transfer_tests::poll(|| {
        let log = log_of(scene, node);
        let said = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
        if said { Ok(()) } else { Err(log) }
    });
    if let Err(log) = found {
        panic!("no line with {words:?}: {log}");
    }
}

/// Transfers work as without certificates: in both directions, large and small, fetched and pushed. The report counts
/// the additional copies.
#[test]
fn nodes_with_certificates_exchange_tensors() {
    let world = World::new();
    let scene = world.two().with_bystanders();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    let large = Spec::bytes(3 << 20, 1);
    giver.push("w", large.clone()).get();
    let fetched = taker.fetch("w").get();
    assert_eq!(fetched.sum, large.sum());
    // Three copies at the sender, four or five at the receiver.
    let copied = fetched.report.copied;
    assert!((7 * (3 << 20)..=8 * (3 << 20) + 4096).contains(&copied), "{copied}");
    taker.push("back", Spec::bytes(1000, 2)).to("giver").get();
    assert_eq!(giver.fetch("back").get().sum, Spec::bytes(1000, 2).sum());
    for node in &scene.nodes {
        let states = node.status().fabric_states.clone();
        let settings = states.iter().flat_map(|state| &state.settings).find(|s| s.name == "encryption");
        assert!(settings.is_some_and(|s| s.value.contains("TLS 1.3")), "{states:?}");
    }
    drop((giver, taker));
    scene.end();
}

#[test]
fn plaintext_data_needs_both_nodes() {
    let world = World::new();
    let scene = world.two_with(&["--data-plaintext"]);
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    giver.push("w", Spec::bytes(1000, 1)).get();
    let fetched = taker.fetch("w").get();
    assert!(fetched.report.copied <= 4 * 1000, "{}", fetched.report.copied);
    drop((giver, taker));
    scene.end();

    let (a, b) = (world.node("a"), world.node("b"));
    let common = ["--pool-bytes", "1MiB", "--listen", "127.0.0.1:0"];
    let a = [&common[..], &a.arguments()[..]].concat();
    let b = [&common[..], &b.arguments()[..], &["--data-plaintext"]].concat();
    let scene = Scene::over(Carrier::Tcp, &[&a, &b]);
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    giver.push("w", Spec::bytes(1000, 1)).get();
    let trouble = taker.fetch("w").trouble();
    trouble.expect("PeerUnreachable", &["encrypts its data links", "--data-plaintext"]);
    drop((giver, taker));
    scene.end();
}

/// Callers without a valid certificate are refused, and both sides are told why.
// Promise: certificates, seen to fail
// Promise: attacker-without-certificate
#[test]
fn strangers_are_refused() {
    let world = World::new();
    let scene = world.two_with(&["--http-listen", "127.0.0.1:0"]);
    let url = format!("https://{}", scene.a().address());
    let others = Authority::new(world.folder.path(), "others");
    let good = world.authority.identity(&["x"]);
    let expired = world.authority.identity_at("expired", &["x"], Validity::Expired);
    let foreign = Identity { ca: good.ca.clone(), ..others.identity_at("foreign", &["x"], Validity::Now) };
    for (what, tls, logged) in [
        ("no certificate", tls(&good, false), "it showed no certificate"),
        ("expired", tls(&expired, true), "has expired"),
        ("another authority", tls(&foreign, true), "no authority of --tls-ca has signed"),
    ] {
        let status = connect(&url, Some(tls), "x");
        assert!(matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled), "{what}: {status:?}");
        until_logged(&scene, "a", &["a connection for gRPC was refused", logged]);
    }
    // `transferctl` reports an expired certificate before it calls the sidecar.
    let [ca, cert, key] = [&expired.ca, &expired.cert, &expired.key].map(|path| path.to_str().expect("a path"));
    let status = ["status", "--admin", &url, "--tls-ca", ca, "--tls-cert", cert, "--tls-key", key];
    Ctl::new(&status).ends(2, &["--tls-cert", "expired.crt", "has expired", "give a new one"]);
    // The sidecar counts refused handshakes, and shows when its own certificate expires.
    let told = poll(|| {
        let tls = scene.a().status().tls.expect("it has certificates");
        if tls.refused_handshakes >= 3 { Ok(tls) } else { Err(tls) }
    });
    let (told, now) = (told.expect("each is counted"), UNIX_EPOCH.elapsed().expect("it is later").as_secs());
    assert!(told.expires_unix_s > now, "{told:?}");
    Ctl::of(scene.a(), &["status"]).ends(0, &["its certificate expires in", "handshakes refused since the start"]);
    // What the metrics show is up to 100 ms old.
    let shown = poll(|| {
        let metrics = transfer_tests::http::get(&scene.a().http(), "/metrics").body;
        let shown = |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        let refused = shown("transfer_tls_handshakes_refused_total ").is_some_and(|n| n >= 3.0);
        let expires = shown("transfer_tls_certificate_expiry_seconds ").is_some_and(|s| s > now as f64);
        if refused && expires { Ok(()) } else { Err(metrics) }
    });
    shown.expect("the metrics show both");
    // A plaintext call to a sidecar that requires TLS.
    let status = connect(&format!("http://{}", scene.a().address()), None, "x");
    // The client may read the final TLS message as invalid HTTP/2.
    let broken = [Code::Unavailable, Code::Unknown, Code::Cancelled, Code::Internal];
    assert!(broken.contains(&status.code()), "{status:?}");
    until_logged(&scene, "a", &["a connection for gRPC was refused", "does not speak TLS"]);
    let (code, said) = run(programs::transferctl(), &["status", "--admin", &format!("http://{}", scene.a().address())]);
    assert!(code == Some(3) && said.contains("https://127.0.0.1"), "{code:?} {said}");
    // The sidecar still serves its workers.
    let mut giver = scene.a().worker("giver");
    giver.push("w", Spec::bytes(1000, 1)).get();
    drop(giver);
    scene.end();
}

/// A node with a valid certificate cannot call in another node's name.
// Promise: name-of-a-node, seen to fail
// Promise: certificates, seen to fail
// Promise: attacker-with-another-name
// Promise: item-hello
// Promise: item-prepare-buffers
#[test]
fn certificate_of_another_node_is_refused() {
    let world = World::new();
    let scene = world.two_with(&["--peers", "a,b,x-*"]);
    let url = format!("https://{}", scene.a().address());
    let as_x = || Some(tls(&world.authority.identity(&["x-1"]), true));
    let status = connect(&url, as_x(), "b");
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert!(status.message().contains("\"b\"") && status.message().contains("certificate for x-1"), "{status:?}");
    // In its own name the node passes the check of its certificate, and only the rest of the call is refused. A name
    // in a URI works as well.
    for (name, node) in [("x-1", "x-1"), ("transfer://node/x-2", "x-2")] {
        let identity = world.authority.identity(&[name]);
        let status = connect(&url, Some(tls(&identity, true)), node);
        assert!(!matches!(status.code(), Code::PermissionDenied | Code::Unavailable | Code::Unknown), "{status:?}");
    }
    let status = connect(&url, Some(tls(&world.authority.identity(&["y"]), true)), "y");
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert!(status.message().contains("--peers") && status.message().contains("x-*"), "{status:?}");
    // The calls for landing slots and for the directory are refused, too.
    let (runtime, channel) = connected(&url, as_x());
    let request = v1::PrepareBuffersRequest { node: "b".into(), ..Default::default() };
    let status = runtime.block_on(PeeringClient::new(channel.clone()).prepare_buffers(request)).expect_err("refused");
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    let (node, address, incarnation) = ("b".into(), "127.0.0.1:1".into(), u64::MAX);
    let hello = v1::Hello { node, address, incarnation, version: 5, replace: true, ..v1::Hello::default() };
    let item = v1::NodeItem { item: Some(v1::node_item::Item::Hello(hello)) };
    let update = tokio_stream::once(v1::NodeUpdate { items: vec![item] });
    let attached = runtime.block_on(DirectoryClient::new(channel).attach(update));
    assert_eq!(attached.expect_err("refused").code(), Code::PermissionDenied);
    // b still works under its name.
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    giver.push("w", Spec::bytes(1000, 1)).get();
    taker.fetch("w").get();
    drop((giver, taker));
    scene.end();
}

/// A sidecar advertises the address of another one. The caller notices that the certificate does not match.
// Promise: worker-names
// Promise: item-worker-up
#[test]
fn node_enters_only_workers_of_its_tenants() {
    let world = World::new();
    let scene = world.two_with(&["--peer-tenants", "x=1234", "--peer-tenants", "a=*", "--peer-tenants", "b=*"]);
    let x = world.node("x");
    let (runtime, channel) = connected(&format!("https://{}", scene.a().address()), Some(tls(&x, true)));
    let _attached = runtime.block_on(async {
        let mut attached = Attached::to(channel, "x").await.expect("it has a certificate");
        let denied = attached.ask(worker_up("trainer-0", 0)).await.expect("an answer");
        let Item::WorkerDenied(why) = denied else { panic!("{denied:?}") };
        assert!(["\"x\"", "tenant 0", "--peer-tenants"].iter().all(|part| why.why.contains(part)), "{why:?}");
        // A worker of that name of its own tenant is another worker.
        let entered = attached.ask(worker_up("trainer-0", 1234)).await.expect("an answer");
        assert!(matches!(entered, Item::WorkerAdmitted(_)), "{entered:?}");
        attached
    });
    let (mut trainer, mut far) = (scene.b().worker("trainer-0"), scene.a().worker("far"));
    trainer.push("weights", Spec::bytes(1000, 1)).get();
    assert_eq!(far.fetch("weights").get().sum, Spec::bytes(1000, 1).sum());
    far.push("to", Spec::bytes(1000, 2)).to("trainer-0").get();
    assert_eq!(trainer.fetch("to").get().sum, Spec::bytes(1000, 2).sum());
}

// Promise: certificates, seen to fail
// Promise: attacker-with-another-name
// Promise: item-address
#[test]
fn dialled_peer_must_prove_its_name() {
    let world = World::new();
    let (scene, c) = (world.two(), world.node("c"));
    let common = ["--pool-bytes", "1MiB", "--listen", "127.0.0.1:0"];
    // c advertises b's address.
    let url = format!("https://{}", scene.a().address());
    let advertise = scene.b().address();
    let more = ["--directory", &url, "--advertise", &advertise];
    let mut c = Sidecar::start(scene.folder(), "c", &[&common[..], &c.arguments()[..], &more[..]].concat());
    let (mut giver, mut taker) = (c.worker("giver"), scene.a().worker("taker"));
    giver.push("w", Spec::bytes(1000, 1)).get();
    let trouble = taker.fetch("w").timeout(Duration::from_secs(4)).trouble();
    let said = trouble.to_string();
    let logged = transfer_tests::poll(|| {
        let log = log_of(&scene, "a");
        if log.contains("its certificate is for b") { Ok(()) } else { Err(log) }
    });
    assert!(said.contains("its certificate is for b") || logged.is_ok(), "{said}");
    drop((giver, taker));
    assert!(c.terminate().success());
    scene.end();
}

// Promise: certificates, seen to fail
// Promise: attacker-of-another-authority
#[test]
fn node_of_another_authority_is_refused() {
    let world = World::new();
    let scene = world.two();
    let others = Authority::new(world.folder.path(), "others");
    // c's certificate is signed by another authority, and c trusts both authorities.
    let both = world.folder.path().join("both.pem");
    let read = |path| std::fs::read_to_string(path).expect("a file");
    let own = others.identity_at("c", &["c", HERE], Validity::Now);
    std::fs::write(&both, read(&own.ca) + &read(&world.node("x").ca)).expect("written");
    let own = Identity { ca: both, ..own };
    let url = format!("https://{}", scene.a().address());
    let arguments = ["--pool-bytes", "1MiB", "--listen", "127.0.0.1:0", "--directory", &url];
    let mut c = Sidecar::start(scene.folder(), "c", &[&arguments[..], &own.arguments()[..]].concat());
    let told = |why: &str| why.contains("UnknownCA") || why.contains("DecryptError");
    c.until("it knows why", |s| s.directory.as_ref().is_some_and(|d| !d.attached && told(&d.why_not)));
    // A sidecar without certificates is also told why it is refused.
    let url = format!("http://{}", scene.a().address());
    let mut d =
        Sidecar::start(scene.folder(), "d", &["--pool-bytes", "1MiB", "--listen", "127.0.0.1:0", "--directory", &url]);
    d.until("it knows why", |s| s.directory.as_ref().is_some_and(|d| !d.attached && d.why_not.contains("--tls-cert")));
    assert_eq!(scene.a().status().directory.clone().expect("a directory").nodes, 2);
    assert!(c.terminate().success() && d.terminate().success());
    scene.end();
}

/// A sidecar with certificates calls a sidecar without.
#[test]
fn tls_to_a_plaintext_sidecar_fails_with_a_reason() {
    let world = World::new();
    let scene = Scene::over(Carrier::Tcp, &[&["--pool-bytes", "1MiB", "--listen", "127.0.0.1:0"]]);
    let (own, url) = (world.node("c"), format!("https://{}", scene.a().address()));
    let arguments = ["--pool-bytes", "1MiB", "--listen", "127.0.0.1:0", "--directory", &url];
    let mut c = Sidecar::start(scene.folder(), "c", &[&arguments[..], &own.arguments()[..]].concat());
    c.until("it knows why", |s| s.directory.as_ref().is_some_and(|d| d.why_not.contains("does not speak TLS")));
    let (code, said) = transferctl(&["status"], scene.a(), &own);
    assert_eq!(code, Some(3), "{said}");
    assert!(c.terminate().success());
    scene.end();
}

// Promise: readers-change-nothing, seen to fail
// Promise: attacker-as-tool
// Promise: item-admin-others
#[test]
fn reader_and_admin_roles_are_enforced() {
    let world = World::new();
    let scene = world.two_with(&["--admins", "ops-*", "--readers", "dash"]);
    let [ops, dash, peer] =
        ["ops-1", "dash", "b"].map(|name| world.authority.identity_at(&format!("as-{name}"), &[name], Validity::Now));
    for (who, reads, administers) in [(&ops, true, true), (&dash, true, false), (&peer, false, false)] {
        let (code, said) = transferctl(&["status"], scene.a(), who);
        assert_eq!(code == Some(0), reads, "{said}");
        assert!(reads || said.contains("--readers"), "{said}");
        let (code, said) = transferctl(&["poll", "event"], scene.a(), who);
        assert_eq!(code == Some(0), administers, "{said}");
        assert!(administers || (said.contains("--admins") && said.contains("ops-*")), "{said}");
    }
    until_logged(&scene, "a", &["an administrator's call", "ops-1", "SetPoll"]);
    until_logged(&scene, "a", &["a call was refused", "dash", "SetPoll"]);
    // An https address needs `--tls-ca`.
    let url = format!("https://{}", scene.a().address());
    let (code, said) = run(programs::transferctl(), &["status", "--admin", &url]);
    assert!(code == Some(2) && said.contains("--tls-ca"), "{said}");
    // The certificate names the node, so `--tls-name` may name the node instead of the host.
    let named = [&["status", "--admin", &url, "--tls-name", "a"][..], &ops.arguments()[..]].concat();
    assert_eq!(run(programs::transferctl(), &named).0, Some(0));
    let misnamed = [&["status", "--admin", &url, "--tls-name", "z"][..], &ops.arguments()[..]].concat();
    assert_eq!(run(programs::transferctl(), &misnamed).0, Some(3));
    scene.end();
}

/// The administrator of one tenant sees and changes only what belongs to that tenant, and nothing of the sidecar
/// itself.
// Promise: exchange-lists
// Promise: attacker-as-tool
// Promise: item-admin-tenants
#[test]
fn tenant_admin_is_confined_to_its_tenant() {
    if !crate::other_user::can_be_others() {
        return;
    }
    let world = World::new();
    let uid = crate::other_user::UID.to_string();
    let rule = format!("ops-theirs={uid}");
    let scene = world.two_with(&["--tenant-admins", &rule, "--socket-mode", "666"]);
    let program = programs::worker_for_all(scene.folder());
    let mut ours = scene.a().worker("ours");
    let mut theirs = transfer_tests::Worker::of(scene.a(), "theirs").user(crate::other_user::UID, program).start();
    ours.push("our/k", Spec::bytes(1000, 1)).get();
    theirs.push("their/k", Spec::bytes(1000, 2)).get();
    let mut there = scene.b().worker("ours-there");
    let ops = world.authority.identity_at("as-ops-theirs", &["ops-theirs"], Validity::Now);
    there.push("our/k-there", Spec::bytes(1000, 3)).get();
    for (worker, name) in [(&mut ours, "our-shuffle"), (&mut theirs, "their-shuffle")] {
        let open = ShuffleOrder::Open { name: name.into(), partitions: 2, tasks: 1, deadline: None };
        worker.order(Order::Shuffle(open), done).get();
    }
    let (code, said) = transferctl(&["exchanges", "--cluster"], scene.a(), &world.node("a"));
    assert!(code == Some(0) && said.contains("their-shuffle") && said.contains("our-shuffle"), "{code:?} {said}");
    let (code, said) = transferctl(&["exchanges", "--cluster"], scene.a(), &ops);
    assert!(code == Some(0) && said.contains("their-shuffle") && !said.contains("our-shuffle"), "{code:?} {said}");
    // `--cluster` asks all nodes, and each of them checks the caller.
    let (code, said) = transferctl(&["tensors", "--cluster"], scene.a(), &ops);
    assert!(code == Some(0) && said.contains("their/k") && !said.contains("our/"), "{code:?} {said}");
    let (code, said) = transferctl(&["tensors", "--cluster"], scene.b(), &world.node("a"));
    assert!(code == Some(0) && said.contains("their/k") && said.contains("our/k-there"), "{code:?} {said}");
    for (list, sees, sees_not) in [
        ("tensors", "their/k", "our/k"),
        ("sessions", "theirs", "ours"),
        ("segments", uid.as_str(), "headers"),
        ("transfers", "", "ours"),
        ("exchanges", "their-shuffle", "our-shuffle"),
    ] {
        let (code, said) = transferctl(&[list], scene.a(), &ops);
        assert_eq!(code, Some(0), "{list}: {said}");
        assert!(said.contains(sees) && !said.contains(sees_not), "{list}: {said}");
    }
    for refused in [&["status"][..], &["peers"], &["links"], &["poll", "event"], &["drain"]] {
        let (code, said) = transferctl(refused, scene.a(), &ops);
        assert_eq!(code, Some(1), "{refused:?}: {said}");
    }
    let (code, said) = transferctl(&["delete", "our/k"], scene.a(), &ops);
    assert!(code != Some(0) && said.contains("not published"), "{said}");
    assert_eq!(ours.fetch("our/k").get().sum, Spec::bytes(1000, 1).sum());
    let (code, said) = transferctl(&["delete", "their/k"], scene.a(), &ops);
    assert_eq!(code, Some(0), "{said}");
    drop((ours, theirs, there));
}

// Promise: readers-change-nothing, seen to fail
// Promise: attacker-as-tool
// Promise: item-admin-others
#[test]
fn plaintext_admin_is_read_only() {
    let scene = Scene::over(Carrier::Tcp, &[&["--listen", "127.0.0.1:0", "--pool-bytes", "1MiB"]]);
    let url = format!("http://{}", scene.a().address());
    let at = |command: &[&str], admin: &str| run(programs::transferctl(), &[command, &["--admin", admin]].concat());
    assert_eq!(at(&["status"], &url).0, Some(0));
    let (code, said) = at(&["poll", "event"], &url);
    assert!(code == Some(1) && said.contains("admin socket") && said.contains("--tls-cert"), "{code:?} {said}");
    let socket = scene.a().admin_socket();
    let (code, said) = at(&["poll", "event"], socket.to_str().expect("a path"));
    assert_eq!(code, Some(0), "{said}");
    scene.end();
    let scene = Scene::over(Carrier::Tcp, &[&["--listen", "127.0.0.1:0", "--pool-bytes", "1MiB", "--insecure"]]);
    let (code, said) = at(&["poll", "event"], &format!("http://{}", scene.a().address()));
    assert_eq!(code, Some(0), "{said}");
    scene.end();
}

/// SIGHUP makes a running sidecar read its roles again. An invalid file changes nothing.
// Promise: reload, seen to fail
#[test]
fn roles_are_reloaded_on_sighup() {
    let world = World::new();
    let file = world.folder.path().join("roles.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("written");
    write("readers = ['dash']\n");
    let scene = world.two_with(&["--config", file.to_str().expect("a path")]);
    let dash = world.authority.identity_at("as-dash", &["dash"], Validity::Now);
    let reads = || transferctl(&["status"], scene.a(), &dash);
    let (code, said) = reads();
    assert_eq!(code, Some(0), "{said}");
    for (text, told) in
        [("readers = ['ops']\n", "was read again"), ("readers = ['dash'\n", "everything stays as it was")]
    {
        write(text);
        scene.a().signal(Signal::HUP);
        until_logged(&scene, "a", &[told]);
        let (code, said) = reads();
        assert!(code != Some(0) && said.contains("--readers"), "{text:?}: {said}");
    }
    scene.end();
}

/// Certificates are replaced while the sidecars run. Links stay, new connections show the new certificate, and an
/// invalid one changes nothing.
// Promise: reload, seen to fail
#[test]
fn certificates_are_reloaded_while_links_stay() {
    let world = World::new();
    let scene = world.two();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    giver.push("w", Spec::bytes(1000, 1)).get();
    taker.fetch("w").get();
    let link = scene.a().status().links[0].link;
    // The tool asks for a name that only the new certificate has.
    let url = format!("https://{}", scene.a().address());
    let tool = world.authority.identity(&["tool"]);
    let named = |name: &str| {
        let arguments = [&["status", "--admin", &url, "--tls-name", name][..], &tool.arguments()[..]].concat();
        run(programs::transferctl(), &arguments).0
    };
    assert_eq!(named("renewed"), Some(3));
    // A certificate of another node is refused, and the previous one stays.
    let _ = world.authority.identity_at("a", &["z", HERE], Validity::Now);
    until_logged(&scene, "a", &["the new certificates cannot be used", "this is node a"]);
    assert_eq!(named("a"), Some(0));
    let _ = world.authority.identity_at("a", &["a", "renewed", HERE], Validity::Now);
    until_logged(&scene, "a", &["the certificates were read again"]);
    assert_eq!(named("renewed"), Some(0));
    // The link is unaffected.
    giver.push("w", Spec::bytes(1000, 2)).get();
    assert_eq!(taker.fetch("w").at_least(2).get().sum, Spec::bytes(1000, 2).sum());
    assert_eq!(scene.a().status().links[0].link, link);
    drop((giver, taker));
    scene.end();
}
