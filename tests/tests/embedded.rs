//! A sidecar inside the process that uses it: it has the same sockets, sessions and rules, and leaves nothing behind
//! when it stops.

mod registered;

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_client::{BlockingClient, DType, Error, FabricKind, FailureCode, NodeConfig, embedded_addresses};
use transfer_core::tensor::Name;
use transfer_server::Sidecar;
use transfer_tests::{Carrier, Scene, Spec, programs, sidecar_of_this_process};

#[test]
fn embedded_sidecar_serves_its_own_process_and_leaves_nothing() {
    let sidecar = Sidecar::embedded(Name::new("here").expect("a name")).expect("a sidecar");
    let socket = sidecar.addresses().socket.clone();
    let connect =
        |name: &str| BlockingClient::connect(&socket).name(name).arena_bytes(1 << 20).call().expect("a session");
    let (giver, taker) = (connect("giver"), connect("taker"));
    let mut w = giver.allocate(DType::F32, [100, 10]).expect("room");
    w.as_mut_slice::<f32>().expect("f32").fill(0.5);
    giver.push_tensor("w", w).version(3).call().expect("a push");
    let w = taker.fetch("w").at_least(3).call().expect("a fetch");
    assert!(w.as_slice::<f32>().expect("f32").iter().all(|x| *x == 0.5));
    assert_eq!((w.version(), w.report().copied), (3, 0));
    let nowhere = taker.fetch("nowhere").timeout(Duration::from_secs(2)).call().map(|_| ());
    assert_eq!(nowhere.expect_err("nobody pushes it").failure_code(), Some(FailureCode::UnknownKey));
    sidecar.stop();
    assert!(!socket.exists() && !socket.parent().is_some_and(std::path::Path::exists), "the folder is removed");
    // Calls fail as with any sidecar that has ended.
    let gone = giver.fetch("w").call().map(|_| ()).expect_err("it is gone");
    assert!(matches!(gone, Error::SidecarGone(_)), "{gone}");
    assert!(w.as_slice::<f32>().expect("f32").iter().all(|x| *x == 0.5), "what was fetched stays readable");
}

/// A process with a sidecar inside, and a program that it has started.
struct Inside {
    process: Child,
    socket: PathBuf,
}

impl Inside {
    fn start(temporary_files: &Path) -> Inside {
        let mut command = Command::new(programs::worker());
        command.args(["embedded", &std::process::id().to_string()]).env("TMPDIR", temporary_files);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
        let mut socket = String::new();
        BufReader::new(process.stdout.as_mut().expect("a pipe")).read_line(&mut socket).expect("it says its socket");
        Inside { process, socket: PathBuf::from(socket.trim_end()) }
    }

    fn folder(&self) -> PathBuf {
        self.socket.parent().expect("a folder").to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it runs");
    }

    /// Ends the program, and with it the sidecar.
    fn end(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().expect("it is a child").success());
    }
}

// Promise: process-with-sidecar, seen to fail
#[test]
fn next_embedded_sidecar_removes_the_folders_of_killed_processes_and_no_others() {
    let place = tempfile::tempdir().expect("a folder");
    let (mut killed, stopped) = (Inside::start(place.path()), Inside::start(place.path()));
    assert!(killed.folder().starts_with(place.path()) && killed.folder() != stopped.folder());
    killed.process.kill().expect("it runs");
    // The program that it had started still runs, until its stdin ends.
    let stdin = killed.process.stdin.take();
    killed.process.wait().expect("it is a child");
    assert!(killed.folder().exists(), "nobody is there to remove it");
    stopped.signal(Signal::STOP);

    let next = Inside::start(place.path());
    assert!(!killed.folder().exists(), "{:?} is left", killed.folder());
    assert!(stopped.socket.exists() && next.socket.exists());
    drop(stdin);
    stopped.signal(Signal::CONT);
    for living in [&stopped, &next] {
        let worker = BlockingClient::connect(&living.socket).name("w").arena_bytes(1 << 20).call();
        worker.unwrap_or_else(|e| panic!("{:?}: {e}", living.socket));
    }
    stopped.end();
    next.end();
    assert_eq!(std::fs::read_dir(place.path()).expect("it is there").count(), 0);
}

/// The configuration of a node inside this process that joins the scene's directory, with the scene's fabric.
fn node_of(scene: &Scene, carrier: Carrier) -> NodeConfig {
    let mut config = NodeConfig::new("inside").set("listen", "127.0.0.1:0").set("pool_bytes", "16MiB");
    // Where the others meet.
    config = config.set("shm_dir", scene.a().folder().display());
    config = config.set("directory", format!("http://{}", scene.a().address()));
    for pair in carrier.arguments().chunks_exact(2) {
        config = config.set(pair[0].trim_start_matches("--").replace('-', "_"), pair[1]);
    }
    config
}

/// One test for all of it, because a process has one such sidecar.
// Promise: embedded-sidecar, seen to fail
#[test]
fn sidecar_of_a_process_is_a_node_beside_others() {
    let _turn = sidecar_of_this_process();
    for (carrier, fabric) in [(Carrier::Tcp, FabricKind::Tcp), (Carrier::Shm, FabricKind::Shm)] {
        let scene = Scene::over(carrier, &[&["--pool-bytes", "16MiB", "--listen", "127.0.0.1:0"]]);
        let mut outside = scene.a().worker("outside");
        let config = node_of(&scene, carrier);
        let inside = BlockingClient::embedded_with(config.clone()).name("inside").arena_bytes(1 << 20);
        let inside = inside.call().expect("a session");
        assert_eq!(inside.node(), "inside");

        // Both ways, fetched and pushed.
        let spec = Spec::bytes(100_000, 7);
        outside.push("out", spec.clone()).get();
        let fetched = inside.fetch("out").call().expect("a fetch");
        assert_eq!((fetched.report().fabric, fetched.as_bytes().len()), (fabric, 100_000));
        inside.push_slice("in", [4], &[1.0_f32, 2.0, 3.0, 4.0]).call().expect("a push");
        assert_eq!(outside.fetch("in").get().report.fabric, carrier.name());
        let pushed = inside.push_slice("to", [4], &[1.0_f32; 4]).to("outside").call().expect("a push to a worker");
        assert_eq!(pushed.report.fabric, fabric);
        outside.push("to-inside", spec.clone()).to("inside").get();
        assert_eq!(inside.fetch("to-inside").call().expect("a fetch").report().fabric, FabricKind::Local);

        let config_of_all = config.clone();
        // Everyone of this process shares it, with the same configuration or with none; and nobody has another one.
        let again = BlockingClient::embedded_with(config.clone()).name("again").call().expect("the same");
        let any = BlockingClient::embedded().name("any").call().expect("whichever runs");
        assert_eq!((again.node(), any.node()), ("inside", "inside"));
        let other = BlockingClient::embedded_with(config.set("pool_bytes", "32MiB")).call().map(|_| ());
        let other = other.expect_err("it runs with another one").to_string();
        assert!(other.contains(r#"its pool_bytes is "16MiB", not "16MiB, 32MiB""#), "{other}");

        many_wait(&config_of_all, &scene.a().socket());
        nobody_waits(&config_of_all, &scene.a().socket());
        one_only_begins(&config_of_all, &scene.a().socket());

        let address = embedded_addresses().and_then(|addresses| addresses.grpc).expect("it listens");
        assert!(address.ip().is_loopback() && address.port() != 0, "{address}");
        drop((fetched, inside, again, any));
        assert_eq!(embedded_addresses(), None);
        drop(outside);
        scene.end();
    }
    let wrong =
        BlockingClient::embedded_with(NodeConfig::new("inside").set("listne", "127.0.0.1:0")).call().map(|_| ());
    let wrong = wrong.expect_err("there is no such key").to_string();
    assert!(wrong.contains(r#"the key "listne" is none that transferd knows; "listen" is one"#), "{wrong}");
    assert_eq!(embedded_addresses(), None);
}

/// The tensors of each worker of [`many_wait`].
const ROUNDS: u64 = 200;

/// Several threads of this process wait at the same time, and one by an async client; each for a worker of another node that
/// answers it. So the engine goes from hand to hand.
fn many_wait(config: &NodeConfig, outside: &std::path::Path) {
    let time = Duration::from_secs(60);
    let connect = |name: &str| BlockingClient::embedded_with(config.clone()).name(name).arena_bytes(1 << 20).call();
    let ping = |n: usize| format!("many/ping/{n}");
    let pong = |n: usize| format!("many/pong/{n}");
    // They stay until all is fetched: what a worker has published ends with it.
    let others = [0, 1, 2, 3].map(|n| {
        let there = BlockingClient::connect(outside).name(format!("there-{n}")).arena_bytes(1 << 20).call();
        there.expect("a session")
    });
    std::thread::scope(|scope| {
        for (n, there) in others.iter().enumerate() {
            scope.spawn(move || {
                for version in 1..=ROUNDS {
                    let got = there.fetch(ping(n)).exactly(version).timeout(time).call().expect("a ping");
                    let (name, bytes) = (format!("here-{n}"), got.as_bytes().to_vec());
                    let push = there.push_slice(pong(n), [bytes.len() as u64], &bytes).version(version).timeout(time);
                    // Half of them are fetched, half pushed.
                    let push = if n % 2 == 0 { push.to(name) } else { push };
                    push.call().expect("a pong");
                }
            });
        }
        for n in 0..3 {
            let here = connect(&format!("here-{n}")).expect("a session");
            scope.spawn(move || {
                for version in 1..=ROUNDS {
                    let values = [version, n as u64];
                    here.push_slice(ping(n), [2], &values).version(version).timeout(time).call().expect("a ping");
                    let got = here.fetch(pong(n)).exactly(version).timeout(time).call().expect("a pong");
                    assert_eq!(got.as_slice::<u8>().expect("bytes"), bytes_of(&values));
                    if version % 50 == 0 {
                        // It stays away, and the others still get theirs.
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let here = transfer_client::Client::embedded_with(config.clone()).name("here-3").arena_bytes(1 << 20);
            let here = here.await.expect("a session");
            for version in 1..=ROUNDS {
                let values = [version, 3];
                here.push_slice(ping(3), [2], &values).version(version).timeout(time).await.expect("a ping");
                let got = here.fetch(pong(3)).exactly(version).timeout(time).await.expect("a pong");
                assert_eq!(got.as_slice::<u8>().expect("bytes"), bytes_of(&values));
            }
        });
    });
}

fn bytes_of(values: &[u64; 2]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A push that is begun reaches a worker that waits for it at another node, though no thread of this process waits: the
/// engine's own thread learns of it, in whichever way the last waiter has left the engine.
fn nobody_waits(config: &NodeConfig, outside: &std::path::Path) {
    let time = Duration::from_secs(60);
    let here =
        BlockingClient::embedded_with(config.clone()).name("here").arena_bytes(1 << 20).call().expect("a session");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let there = BlockingClient::connect(outside).name("there").call().expect("a session");
            for version in 1..=50 {
                tell.send(()).expect("it listens");
                there.fetch("late").exactly(version).timeout(time).call().expect("what was begun");
                tell.send(()).expect("it listens");
            }
        });
        for version in 1..=50 {
            told.recv_timeout(time).expect("the other one fetches");
            // It may wait by now. This takes turns in the engine.
            for n in 0..10 * (version % 3) {
                here.push_slice("early", [1], &[n]).timeout(time).call().expect("a push");
            }
            let values = [version];
            let mut push = here.push_slice("late", [1], &values).version(version).begin();
            let _ = push.poll(std::task::Waker::noop());
            told.recv_timeout(time).expect("what was begun is there");
            push.wait(time).map_or(Ok(()), |pushed| pushed.map(drop)).expect("a push");
        }
    });
}

/// A thread begins one thing after the other and waits for none. What it has begun before is done meanwhile.
fn one_only_begins(config: &NodeConfig, outside: &std::path::Path) {
    let time = Duration::from_secs(60);
    let here = BlockingClient::embedded_with(config.clone()).name("beginner").arena_bytes(1 << 20).call();
    let here = here.expect("a session");
    let there = BlockingClient::connect(outside).name("listener").arena_bytes(1 << 20).call().expect("a session");
    // These waits follow each other at once, and the keeper rests meanwhile.
    for version in 0..300 {
        let push = here.push_slice("only/before", [1], &[7_u8]).version(version).to("listener").timeout(time);
        push.call().expect("a push");
    }
    let has_come = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            there.fetch("only/pushed").timeout(time).call().expect("what was begun first");
            has_come.store(true, Ordering::SeqCst);
        });
        let mut push = here.push_slice("only/pushed", [1], &[7_u8]).to("listener").timeout(time).begin();
        let _ = push.poll(Waker::noop());
        let until = Instant::now() + time;
        while !has_come.load(Ordering::SeqCst) {
            assert!(Instant::now() < until, "a push is not sent while its thread begins other things");
            // It is given up at once, which is a request as well.
            let _ = here.fetch("only/nowhere").timeout(time).begin().poll(Waker::noop());
        }
        push.wait(time).expect("in time").expect("a push");
    });
}
