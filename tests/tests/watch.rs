//! Fetches of versions that are not pushed yet, on the host of the worker that pushes them. That worker wakes them
//! without the sidecar, and they are as safe as if the sidecar had answered.

use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc::channel;
use std::time::Duration;
use transfer_client::{BlockingClient, DType, Tensor};
use transfer_core::op::MAX_NOTICES;
use transfer_tests::http::get;
use transfer_tests::status::{Seen, operations_of};
use transfer_tests::{Scene, Sidecar, Spec, Worker, poll};

const LEN: u64 = 100_000;

/// The number of the system call `futex_waitv`, on all machines.
const FUTEX_WAITV: &str = "449";

fn metric(sidecar: &Sidecar, name: &str) -> f64 {
    let body = get(&sidecar.http(), "/metrics").body;
    let samples = body.lines().filter_map(|line| line.rsplit_once(' '));
    let samples: BTreeMap<_, f64> = samples.filter_map(|(name, value)| Some((name, value.parse().ok()?))).collect();
    samples[name]
}

fn blobs(n: u64) -> impl Fn(&Seen) -> bool {
    move |s| s.counters.as_ref().is_some_and(|c| c.blobs == n)
}

/// Returns whether a thread of this worker sleeps in `futex_waitv`, until something changes in shared memory.
fn sleeps(worker: &Worker) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", worker.process_id())).expect("it lives");
    let calls = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("syscall")).ok());
    calls.into_iter().any(|call| call.split(' ').next() == Some(FUTEX_WAITV))
}

/// Starts a giver, and takers that have waited for its first versions at the sidecar. The giver announces later
/// versions, and the takers wait for them on its notice.
fn watched<const N: usize>(scene: &Scene) -> (Worker, [Worker; N]) {
    let mut giver = scene.a().worker("giver");
    let mut takers: [Worker; N] = std::array::from_fn(|i| scene.a().worker(&format!("taker-{i}")));
    for version in 1..=2 {
        let waiting: Vec<_> = takers.iter_mut().map(|taker| taker.fetch("k").at_least(version).start()).collect();
        for taker in &takers {
            let asks = |s: &Seen| operations_of(s, taker.name()) == 1;
            scene.a().until("it asks", asks);
        }
        // The giver learns of the waiters with the first version, and announces the second.
        giver.push("k", Spec::bytes(LEN, version)).get();
        for waits in waiting {
            assert_eq!(waits.get().version, version);
        }
    }
    (giver, takers)
}

fn until_it_sleeps(worker: &Worker) {
    let seen = poll(|| if sleeps(worker) { Ok(()) } else { Err("no thread of it waits for a notice") });
    assert_eq!(seen, Ok(()), "worker {}", worker.name());
}

// Promise: woken-waiters, seen to fail
#[test]
fn waiter_is_woken_by_the_owner_without_the_sidecar() {
    let scene = Scene::with(&[&["--http-listen", "127.0.0.1:0"]]);
    let (mut giver, [mut taker]) = watched(&scene);
    for version in 3..=102 {
        let waits = taker.fetch("k").at_least(version).start();
        until_it_sleeps(&taker);
        giver.push("k", Spec::bytes(LEN, version)).get();
        let found = waits.get();
        assert_eq!((found.sum, found.version), (Spec::bytes(LEN, version).sum(), version));
        assert_eq!((found.report.fabric.as_str(), found.report.copied, found.report.bytes), ("local", 0, LEN));
        assert!(!found.place.expect("in a mapping").writable);
    }
    let hits = poll(|| match metric(scene.a(), "transfer_board_hits_total") {
        100.0 => Ok(()),
        hits => Err(hits),
    });
    assert_eq!(hits, Ok(()), "somebody was asked");
    scene.a().until("only the newest is there", blobs(1));
    drop((giver, taker));
    scene.end();
}

/// A worker that has announced as many keys as it has notices. Further keys get the notices of those that it pushes no more, and nobody
/// finds their versions under the old keys.
// Promise: reused-notices, seen to fail
#[test]
fn notices_go_to_the_keys_that_are_waited_for() {
    let scene = Scene::with(&[&["--board-entries", "16384"]]);
    let connect = |name: &str| {
        let connect = BlockingClient::connect(scene.a().socket()).name(name).arena_bytes(8 << 20);
        connect.call().expect("a session")
    };
    let (giver, taker) = (connect("giver"), connect("taker"));
    let push = |key: &str, value: u64| {
        let mut tensor = giver.allocate(DType::U64, [1]).expect("there is room");
        tensor.as_mut_bytes().copy_from_slice(&value.to_le_bytes());
        giver.push_tensor(key, tensor).version(value % 1000).call().expect("it is published");
    };
    let value = |tensor: &Tensor| u64::from_le_bytes(tensor.as_bytes().try_into().expect("eight bytes"));
    // The giver learns with each key's first version that somebody waits, and announces the second.
    let wait_and_push = |keys: &[(String, u64)]| {
        std::thread::scope(|scope| {
            for (key, of) in keys {
                let (taker, value) = (&taker, &value);
                scope.spawn(move || {
                    let found = taker.fetch(key).at_least(1).timeout(Duration::from_secs(30)).call();
                    assert_eq!(found.map(|found| value(&found)).ok(), Some(of + 1), "{key}");
                });
            }
            scene.a().until("they ask", |s: &Seen| operations_of(s, "taker") == keys.len() as u64);
            keys.iter().for_each(|(key, of)| push(key, of + 1));
        });
        keys.iter().for_each(|(key, of)| push(key, of + 2));
    };
    let old: Vec<_> = (0..u64::from(MAX_NOTICES)).map(|i| (format!("old/{i}"), i * 1000)).collect();
    old.chunks(64).for_each(wait_and_push);
    let new = 9_999_000;
    wait_and_push(&[("new".to_owned(), new)]);
    // Each of these asks for a notice, and some notices are looked at for each.
    (3..=400).for_each(|version| push("new", new + version));
    std::thread::scope(|scope| {
        let (say, said) = channel();
        let taker = &taker;
        let waits = scope.spawn(move || {
            say.send(rustix::thread::gettid()).expect("it is heard");
            taker.fetch("new").at_least(401).timeout(Duration::from_secs(30)).call()
        });
        let thread = said.recv().expect("it runs").as_raw_nonzero();
        let asleep = || {
            let call = fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap_or_default();
            if call.split(' ').next() == Some(FUTEX_WAITV) { Ok(()) } else { Err(call) }
        };
        let seen = poll(asleep);
        push("new", new + 401);
        assert_eq!(seen, Ok(()), "it does not wait on a notice");
        assert_eq!(waits.join().expect("no panic").map(|found| value(&found)).ok(), Some(new + 401));
    });
    for (key, of) in &old {
        let found = taker.fetch(key).call().expect("it is there");
        assert_eq!((value(&found), found.version()), (of + 2, 2), "{key}");
    }
    drop((giver, taker));
    scene.end();
}

/// After a worker has found a version in a notice, a later fetch on another node returns no older version.
// Promise: versions-from-notices
#[test]
fn later_fetches_return_nothing_older() {
    let scene = Scene::two();
    let (mut giver, [mut taker]) = watched(&scene);
    let mut far = scene.b().worker("far");
    far.fetch("k").get();
    for version in (3..=150).step_by(2) {
        let waits = taker.fetch("k").at_least(version).start();
        until_it_sleeps(&taker);
        // Two pushes at once, so that both may be under way when the second version is found.
        let pushing = [0, 1].map(|_| giver.push("k", Spec::bytes(LEN, 7)).start());
        let found = waits.get().version;
        // The pushes may not be answered yet.
        let there = far.fetch("k").get();
        assert!(there.version >= found, "{} is fetched elsewhere after {found} was found here", there.version);
        for pushed in pushing {
            pushed.get();
        }
    }
    drop((giver, taker, far));
    scene.end();
}

// Promise: woken-waiters, seen to fail
#[test]
fn timed_out_wait_names_its_version() {
    let scene = Scene::one();
    let (giver, [mut taker]) = watched(&scene);
    let trouble = taker.fetch("k").at_least(9).timeout(Duration::from_millis(100)).trouble();
    trouble.expect("Deadline", &["key \"k\" is at v2", "at least v9", "100ms"]);
    drop((giver, taker));
    scene.end();
}

/// A key is deleted, or taken over, while a worker sleeps on its owner's notice. The worker then asks the sidecar, and
/// gets the next version.
// Promise: woken-waiters
#[test]
fn waiter_gets_the_next_version_after_the_key_ends() {
    let scene = Scene::one();
    let (mut giver, [mut taker]) = watched(&scene);
    let waits = taker.fetch("k").at_least(5).start();
    until_it_sleeps(&taker);
    giver.delete("k").expect("it is its own");
    scene.a().until("it asks", |s| operations_of(s, "taker-0") == 1);
    giver.push("k", Spec::bytes(LEN, 7)).version(7).get();
    assert_eq!(waits.get().version, 7);

    let (mut giver, [mut taker]) = {
        drop((giver, taker));
        scene.a().until("all have left", |s| s.sessions.is_empty());
        watched(&scene)
    };
    let waits = taker.fetch("k").at_least(5).start();
    until_it_sleeps(&taker);
    // Another worker takes the key over, and the old owner's next push is refused.
    let mut heir = scene.a().worker("heir");
    heir.push("k", Spec::bytes(LEN, 6)).version(6).takeover().get();
    assert_eq!(waits.get().version, 6);
    giver.push("k", Spec::bytes(LEN, 7)).version(7).trouble().expect("KeyOwned", &["heir"]);
    let waits = taker.fetch("k").at_least(8).start();
    giver.kill();
    heir.push("k", Spec::bytes(LEN, 8)).version(8).get();
    assert_eq!(waits.get().version, 8);
    drop((taker, heir));
    scene.end();
}

// Promise: woken-waiters, seen to fail
#[test]
fn waiter_asks_the_sidecar_after_the_owner_dies() {
    let scene = Scene::one();
    let (giver, [mut taker, mut other]) = watched(&scene);
    let waits = [taker.fetch("k").at_least(5).start(), other.fetch("k").at_least(5).start()];
    until_it_sleeps(&taker);
    until_it_sleeps(&other);
    giver.kill();
    scene.a().until("both ask", |s| operations_of(s, "taker-0") + operations_of(s, "taker-1") == 2);
    let mut next = scene.a().worker("next");
    next.push("k", Spec::bytes(LEN, 5)).version(5).get();
    for waits in waits {
        assert_eq!(waits.get().sum, Spec::bytes(LEN, 5).sum());
    }
    drop((taker, other, next));
    scene.end();
}

// Promise: woken-waiters, seen to fail
#[test]
fn waiter_fails_if_the_sidecar_dies() {
    let mut scene = Scene::one();
    let (giver, [mut taker, mut other, mut third]) = watched(&scene);
    let waits = [&mut taker, &mut other, &mut third].map(|taker| taker.fetch("k").at_least(5).start());
    for taker in [&taker, &other, &third] {
        until_it_sleeps(taker);
    }
    scene.nodes[0].kill();
    for waits in waits {
        waits.trouble().expect("SidecarGone", &[]);
    }
    scene.nodes[0].restart();
    drop((giver, taker, other, third));
    scene.note_idle_of(0);
    scene.end();
}

/// A version keeps its memory while it is read. A reader that is killed keeps nothing.
// Promise: versions-from-notices, seen to fail
#[test]
fn version_from_a_notice_stays_while_it_is_read() {
    let scene = Scene::one();
    let (mut giver, [mut taker]) = watched(&scene);
    let waits = taker.fetch("k").at_least(3).hold("three").start();
    until_it_sleeps(&taker);
    giver.push("k", Spec::bytes(LEN, 3)).get();
    waits.get();
    for version in 4..=30 {
        giver.push("k", Spec::bytes(LEN, version)).get();
    }
    scene.a().until("the newest, and the one that is read", blobs(2));
    assert_eq!(taker.read("three"), Spec::bytes(LEN, 3).sum());
    taker.kill();
    scene.a().until("its memory is back", blobs(1));
    drop(giver);
    scene.end();
}

// Promise: woken-waiters
#[test]
fn waiter_fails_if_the_sidecar_drains() {
    let mut scene = Scene::one();
    let (giver, [mut taker]) = watched(&scene);
    let waits = taker.fetch("k").at_least(5).start();
    until_it_sleeps(&taker);
    assert!(scene.nodes[0].terminate().success());
    let trouble = waits.trouble();
    assert!(["Draining", "SidecarGone"].contains(&trouble.kind.as_str()), "{trouble}");
    drop((giver, taker));
}
