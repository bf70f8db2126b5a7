//! Workers that break the protocol: each harms only itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use transfer_core::op::{Command, Fetch, OpId};
use transfer_core::tensor::{Key, Name, Select};
use transfer_core::wire::Writer;
use transfer_core::wire::session::write_command;
use transfer_memory::ring::MAX_RECORD_BYTES;
use transfer_memory::session::{WorkerEnd, WorkerOptions};
use transfer_proto::v1::StatusResponse;
use transfer_tests::calls::{done, number};
use transfer_tests::order::Order;
use transfer_tests::status::operations_of;
use transfer_tests::{Scene, Sidecar, Spec, WAIT_LIMIT, poll};

const LEN: u64 = 3 << 20;

/// Returns one scene with one sidecar, and one with two.
fn scenes() -> [Scene; 2] {
    [Scene::one().with_bystanders(), Scene::two().with_bystanders()]
}

fn until_gone(sidecar: &Sidecar, worker: &str) {
    sidecar.until("it is gone", |s| s.sessions.iter().all(|s| s.worker != worker));
}

/// Returns a worker whose rings the test uses directly.
fn bare(sidecar: &Sidecar) -> WorkerEnd {
    let name = Name::new("bare").expect("a name");
    let options = WorkerOptions { name, arena_bytes: 1 << 20, timeout: WAIT_LIMIT };
    WorkerEnd::connect(&sidecar.socket(), &options).expect("it may come in")
}

/// The worker overwrites its arena, the submission ring and the completion ring, including the index words, while all
/// of them are in use.
// Promise: hostile-workers, seen to fail
// Promise: attacker-as-worker
#[test]
fn worker_that_scribbles_over_its_arena_and_rings_harms_only_itself() {
    for mut scene in scenes() {
        for seed in 1..=4 {
            let (mut vandal, mut taker) = (scene.a().worker("vandal"), scene.b().worker("taker"));
            let mut victim = scene.b().worker("victim");
            // Each round has keys of its own, because the keys of the round before may end a little later.
            let key = |what: &str| format!("{what} {seed}");
            victim.push(&key("safe"), Spec::bytes(LEN, seed)).get();
            taker.fetch(&key("safe")).hold("safe").get();
            vandal.push(&key("its own"), Spec::bytes(LEN, seed)).get();
            taker.fetch(&key("its own")).hold("its own").get();
            let storms = [
                vandal.push(&key("far"), Spec::bytes(LEN, seed)).to("taker").storm(),
                vandal.push(&key("near"), Spec::bytes(100, seed)).storm(),
                vandal.fetch(&key("safe")).storm(),
            ];
            // The storms complete a few rounds.
            scene.others_go_on();
            for _ in 0..3 {
                // The side that notices ends it: the sidecar ends the session for a bad record, or the client fails its
                // calls for a bad reply. Either side may also overwrite the nonsense with its own index before the
                // other one reads it.
                vandal.order(Order::Scribble(seed), done).get();
                scene.others_go_on();
            }
            assert_eq!(taker.read("safe"), Spec::bytes(LEN, seed).sum(), "another worker's tensor has changed");
            // The worker's published tensor lies in its own memory: it can be read, and may hold anything.
            taker.read("its own");
            vandal.kill();
            for storm in storms {
                let kind = storm.trouble().kind;
                assert!(["SidecarGone", "NoAnswer", "Deadline"].contains(&kind.as_str()), "{kind}");
            }
            drop((taker, victim));
            until_gone(scene.a(), "vandal");
            for name in ["taker", "victim"] {
                until_gone(scene.b(), name);
            }
            scene.others_go_on();
        }
        scene.end();
    }
}

/// The worker rings its doorbell without pause, with nothing in the ring.
// Promise: hostile-workers
#[test]
fn doorbell_flood_stops_no_other_worker() {
    for mut scene in scenes() {
        let flooder = bare(scene.a());
        let (is_over, rings) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    flooder.socket.ring().expect("it is no offence");
                    rings.fetch_add(1, Ordering::Relaxed);
                }
            });
            while rings.load(Ordering::Relaxed) < 100_000 {
                scene.others_go_on();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        drop(flooder);
        until_gone(scene.a(), "bare");
        scene.end();
    }
}

/// The worker submits fetches without pause, and takes neither doorbells nor replies: its rings fill up, and the
/// sidecar takes no further command.
// Promise: hostile-workers, seen to fail
#[test]
fn worker_that_never_reads_fills_only_its_own_rings() {
    for mut scene in scenes() {
        let mut giver = scene.b().worker("giver");
        giver.push("w", Spec::bytes(1000, 1)).get();
        let mut silent = bare(scene.a());
        let mut record = Writer::new();
        let mut submitted = 0_u64;
        let mut fill = || {
            let op = OpId(submitted + 1);
            let key = Key::new("w").expect("a key");
            record = Writer::reusing(std::mem::take(&mut record).into_vec());
            let fetch = Fetch {
                key,
                select: Select::Latest,
                timeout: WAIT_LIMIT,
                require: None,
                trace: None,
                watches: false,
                excerpt: None,
                base: None,
            };
            write_command(&mut record, op, &Command::Fetch(fetch));
            let fits = silent.submission.try_push(record.as_slice()).expect("the sidecar keeps to the rules");
            silent.submission.publish();
            if silent.submission.should_wake() {
                silent.socket.ring().expect("the session goes on");
            }
            submitted += u64::from(fits);
            fits
        };
        // The submission ring is full for a whole second: the sidecar takes no further command.
        let (until, mut full_since) = (Instant::now() + WAIT_LIMIT, None);
        while full_since.is_none_or(|since: Instant| since.elapsed() < Duration::from_secs(1)) {
            assert!(Instant::now() < until, "commands are taken from it without end");
            full_since = if fill() { None } else { full_since.or(Some(Instant::now())) };
        }
        scene.others_go_on();
        assert_eq!(giver.fetch("w").get().sum, Spec::bytes(1000, 1).sum());
        // The worker gets all replies as soon as it reads.
        let mut buffer = [0; MAX_RECORD_BYTES];
        let mut replies = 0;
        let read = poll(|| {
            while silent.completion.try_pop(&mut buffer).expect("the sidecar keeps to the rules").is_some() {
                replies += 1;
            }
            if silent.completion.should_wake() {
                silent.socket.ring().expect("the session goes on");
            }
            if replies == submitted { Ok(()) } else { Err(replies) }
        });
        assert_eq!(read, Ok(()), "of {submitted} replies");
        // The worker leaves with all these leases.
        drop(silent);
        until_gone(scene.a(), "bare");
        scene.others_go_on();
        drop(giver);
        scene.end();
    }
}

/// The child keeps the socket open after the worker's death. The sidecar watches the process.
// Promise: worker-that-is-hard-to-watch, seen to fail
#[test]
fn worker_s_death_is_noticed_while_its_child_keeps_the_socket() {
    for mut scene in scenes() {
        let (mut forker, mut taker) = (scene.a().worker("forker"), scene.b().worker("taker"));
        forker.push("w", Spec::bytes(LEN, 1)).get();
        taker.fetch("w").hold("w").get();
        let child = forker.order(Order::LeaveChild, number).get();
        let child = i32::try_from(child).ok().and_then(rustix::process::Pid::from_raw).expect("a process id");
        forker.kill();
        until_gone(scene.a(), "forker");
        assert!(rustix::process::test_kill_process(child).is_ok(), "the child should live still");
        assert_eq!(taker.read("w"), Spec::bytes(LEN, 1).sum());
        scene.others_go_on();
        // The worker's name and key are free while the child lives.
        let mut heir = scene.a().worker("forker");
        heir.push("w", Spec::bytes(10, 2)).get();
        assert_eq!(taker.fetch("w").get().sum, Spec::bytes(10, 2).sum());
        rustix::process::kill_process(child, rustix::process::Signal::KILL).expect("the child is there");
        drop((heir, taker));
        scene.end();
    }
}

/// The worker is stopped while it is busy, gets many replies meanwhile, and is killed without having run again.
// Promise: stopped-worker, seen to fail
#[test]
fn worker_killed_while_stopped_harms_only_itself() {
    for mut scene in scenes() {
        let (mut giver, mut stopped) = (scene.a().worker("giver"), scene.b().worker("stopped"));
        giver.push("w", Spec::bytes(LEN, 1)).get();
        stopped.fetch("w").hold("w").get();
        let storms = [
            stopped.push("theirs", Spec::bytes(LEN, 2)).to("giver").storm(),
            stopped.fetch("w").storm(),
            stopped.push("own", Spec::bytes(100, 3)).storm(),
        ];
        let waiting = stopped.fetch("w").at_least(1_000_000).start();
        let transfers =
            |s: &StatusResponse| s.counters.iter().flat_map(|c| &c.finished).map(|path| path.transfers).sum::<u64>();
        let before = transfers(&scene.b().status());
        scene.b().until("it is busy", |s| operations_of(s, "stopped") >= 1 && transfers(s) > before + 20);
        stopped.freeze();
        // The pushes fill all slots: the sidecar answers for its worker, and holds the newest version.
        for seed in 2..8 {
            giver.push("w", Spec::bytes(LEN, seed)).get();
            giver.push("for it", Spec::bytes(LEN, seed)).to("stopped").get();
        }
        scene.others_go_on();
        stopped.kill();
        drop((storms, waiting));
        until_gone(scene.b(), "stopped");
        scene.others_go_on();
        drop(giver);
        scene.end();
    }
}
