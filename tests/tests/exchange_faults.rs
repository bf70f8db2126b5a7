//! Exchanges whose workers and sidecars are killed, at one node and between two.

use std::time::Duration;
use transfer_client::BlockingClient;
use transfer_exchange::ExchangeExt;
use transfer_tests::calls::{Pending, done};
use transfer_tests::order::{Answer, Order, ShuffleOrder};
use transfer_tests::{Scene, Sidecar, Worker, poll};

const PARTITIONS: u32 = 3;
const TASKS: u32 = 3;
const ROWS: u64 = 999;
const SOON: Duration = Duration::from_secs(60);

/// A sidecar ends what has outlived its worker once it has not found the exchange for 10 s.
const LONGER_THAN_AN_END_TAKES: Duration = Duration::from_secs(15);

/// A worker that takes part in the exchange "x".
struct Part(Worker);

impl Part {
    fn at(sidecar: &Sidecar, name: &str) -> Part {
        Part(sidecar.worker(name))
    }

    fn order(&mut self, order: ShuffleOrder) -> Pending<()> {
        self.0.order(Order::Shuffle(order), done)
    }

    fn open(&mut self) {
        self.order(ShuffleOrder::Open { name: "x".into(), partitions: PARTITIONS, tasks: TASKS, deadline: None }).get();
    }

    fn join(&mut self) {
        self.order(ShuffleOrder::Join("x".into())).get();
    }

    fn write(&mut self, task: u32, attempt: u32) {
        self.order(ShuffleOrder::Write { name: "x".into(), task, attempt, rows: ROWS }).get();
    }

    fn commit(&mut self, task: u32, attempt: u32) {
        self.order(ShuffleOrder::Commit { name: "x".into(), task, attempt }).get();
    }

    fn run(&mut self, task: u32, attempt: u32) {
        self.write(task, attempt);
        self.commit(task, attempt);
    }

    fn read(&mut self, partition: u32, hold: bool) -> Pending<Vec<(u32, u32, u64)>> {
        let read = ShuffleOrder::Read { name: "x".into(), partition, hold, timeout: SOON };
        self.0.order(Order::Shuffle(read), |answer| match answer {
            Answer::Rows(rows) => Some(rows),
            _ => None,
        })
    }

    /// Reads all partitions, and expects the rows of these attempts of tasks 0 and so on.
    #[track_caller]
    fn expect(&mut self, attempts: [u32; TASKS as usize]) {
        for partition in 0..PARTITIONS {
            let expected: Vec<_> = (0..TASKS)
                .flat_map(|task| (0..ROWS).map(move |n| (task, attempts[task as usize], n)))
                .filter(|(_, _, n)| (*n % u64::from(PARTITIONS)) as u32 == partition)
                .collect();
            assert!(self.read(partition, false).get() == expected, "partition {partition}");
        }
    }
}

fn scenes() -> [Scene; 2] {
    [Scene::one().with_bystanders(), Scene::two().with_bystanders()]
}

/// Waits until the whole arena is free again.
#[track_caller]
fn until_free(part: &mut Part, free: u64) {
    let seen = poll(|| match part.0.arena_free() {
        now if now == free => Ok(()),
        now => Err(now),
    });
    assert_eq!(seen, Ok(()), "all of {free} bytes come back");
}

// Promise: rows-of-dead-workers, seen to fail
#[test]
fn killed_task_leaves_nothing_and_a_committed_one_outlives_its_worker() {
    for mut scene in scenes() {
        let mut opener = Part::at(scene.a(), "opener");
        let mut reader = Part::at(scene.b(), "reader");
        let free = opener.0.arena_free();
        opener.open();
        reader.join();
        // Before its commit: nobody has seen it, and another attempt goes on.
        let mut victim = Part::at(scene.b(), "victim");
        victim.join();
        victim.write(0, 0);
        victim.0.kill();
        opener.run(0, 1);
        // After its commit: its rows stay, for those that have read some of them, and for others.
        let mut victim = Part::at(scene.b(), "victim");
        victim.join();
        victim.run(1, 0);
        victim.run(2, 0);
        reader.expect([1, 0, 0]);
        victim.0.kill();
        scene.b().until("the victim is gone", |s| s.sessions.iter().all(|s| s.worker != "victim"));
        reader.expect([1, 0, 0]);
        opener.expect([1, 0, 0]);
        // No other attempt can take its place, not even one of a worker of this name.
        let mut heir = Part::at(scene.b(), "victim");
        heir.join();
        for part in [&mut opener, &mut heir] {
            part.order(ShuffleOrder::Write { name: "x".into(), task: 1, attempt: 9, rows: 1 })
                .trouble()
                .expect("Committed", &["attempt 0 has committed task 1", "attempt 9"]);
        }
        // They stay longer than it takes to notice that an exchange is over, and with it nothing is left of them.
        if scene.nodes.len() > 1 {
            std::thread::sleep(LONGER_THAN_AN_END_TAKES);
        }
        heir.expect([1, 0, 0]);
        scene.others_go_on();
        opener.order(ShuffleOrder::Release("x".into())).get();
        until_free(&mut opener, free);
        until_free(&mut heir, free);
        drop((opener, reader, heir));
        scene.end();
    }
}

// Promise: rows-of-dead-workers
#[test]
fn what_a_killed_worker_has_committed_ends_with_the_opener() {
    for mut scene in scenes() {
        let mut opener = Part::at(scene.a(), "opener");
        let mut victim = Part::at(scene.b(), "victim");
        opener.open();
        victim.join();
        victim.run(0, 0);
        opener.run(1, 0);
        victim.0.kill();
        opener.0.kill();
        scene.others_go_on();
        scene.end();
    }
}

// Promise: rows-of-dead-workers
#[test]
fn reader_waits_for_a_task_that_is_lost_and_runs_again() {
    for mut scene in scenes() {
        let (mut opener, mut reader) = (Part::at(scene.a(), "opener"), Part::at(scene.b(), "reader"));
        opener.open();
        reader.join();
        opener.run(0, 0);
        opener.run(2, 0);
        let waiting = reader.read(1, false);
        // An attempt that dies before it commits is not noticed by readers.
        let mut victim = Part::at(scene.b(), "victim");
        victim.join();
        victim.write(1, 0);
        victim.0.kill();
        let mut heir = Part::at(scene.b(), "heir");
        heir.join();
        heir.run(1, 1);
        let rows = waiting.get();
        assert_eq!(rows.len() as u64, ROWS / u64::from(PARTITIONS) * u64::from(TASKS));
        scene.others_go_on();
        opener.order(ShuffleOrder::Release("x".into())).get();
        drop((opener, reader, heir));
        scene.end();
    }
}

// Promise: rows-of-dead-workers
#[test]
fn killed_reader_leaves_nothing() {
    for mut scene in scenes() {
        let (mut opener, mut reader) = (Part::at(scene.a(), "opener"), Part::at(scene.b(), "reader"));
        let free = opener.0.arena_free();
        opener.open();
        reader.join();
        (0..TASKS).for_each(|task| opener.run(task, 0));
        assert!(!reader.read(0, true).get().is_empty());
        reader.0.kill();
        let mut other = Part::at(scene.b(), "other");
        other.join();
        other.expect([0, 0, 0]);
        scene.others_go_on();
        opener.order(ShuffleOrder::Release("x".into())).get();
        until_free(&mut opener, free);
        drop((opener, other));
        scene.end();
    }
}

// Promise: end-of-an-exchange, seen to fail
#[test]
fn killed_opener_ends_the_exchange() {
    for mut scene in scenes() {
        let (mut opener, mut other) = (Part::at(scene.a(), "opener"), Part::at(scene.b(), "other"));
        let free = other.0.arena_free();
        opener.open();
        other.join();
        other.run(0, 0);
        let waiting = other.read(0, false);
        opener.0.kill();
        waiting.trouble().expect("Over", &["\"x\"", "opened it is gone"]);
        until_free(&mut other, free);
        // The name is free, and the next one has nothing of it.
        other.open();
        (0..TASKS).for_each(|task| other.run(task, 3));
        other.expect([3, 3, 3]);
        scene.others_go_on();
        other.order(ShuffleOrder::Release("x".into())).get();
        until_free(&mut other, free);
        drop(other);
        scene.end();
    }
}

// Promise: lost-tasks, seen to fail
#[test]
fn killed_sidecar_loses_its_tasks_and_no_others() {
    let mut scene = Scene::two();
    let (mut opener, mut victim) = (Part::at(scene.a(), "opener"), Part::at(scene.b(), "victim"));
    let free = opener.0.arena_free();
    opener.open();
    victim.join();
    opener.run(0, 0);
    victim.run(1, 0);
    opener.run(2, 0);
    opener.expect([0, 0, 0]);
    scene.nodes[1].kill();
    opener.read(0, false).trouble().expect("Lost", &["\"x\"", "what task 1 wrote"]);
    opener.run(1, 1);
    opener.expect([0, 1, 0]);
    scene.nodes[1].restart();
    let mut other = Part::at(scene.b(), "other");
    other.join();
    other.expect([0, 1, 0]);
    opener.order(ShuffleOrder::Release("x".into())).get();
    until_free(&mut opener, free);
    drop((opener, victim, other));
    scene.note_idle_of(1);
    scene.end();
}

// Promise: lost-tasks
#[test]
fn tasks_of_a_sidecar_that_comes_back_are_there_again() {
    let mut scene = Scene::two();
    let mut opener = Part::at(scene.a(), "opener");
    let mut back = Part(Worker::of(scene.b(), "back").that_comes_back().start());
    opener.open();
    back.join();
    (0..TASKS).for_each(|task| back.run(task, task));
    opener.expect([0, 1, 2]);
    scene.nodes[1].kill();
    scene.nodes[1].restart();
    scene.b().until("it is back", |s| s.sessions.iter().any(|s| s.worker == "back"));
    let read = poll(|| match opener.read(0, false).wait() {
        Err(trouble) if trouble.can_retry => Err(trouble),
        read => Ok(read),
    });
    assert!(read.is_ok_and(|read| read.is_ok()));
    opener.expect([0, 1, 2]);
    back.expect([0, 1, 2]);
    opener.order(ShuffleOrder::Release("x".into())).get();
    drop((opener, back));
    scene.end();
}

// Promise: end-of-an-exchange
#[test]
fn exchange_ends_with_its_home_and_nobody_wins_twice() {
    let mut scene = Scene::two();
    let mut opener = Part(Worker::of(scene.b(), "opener").that_comes_back().start());
    let mut other = Part::at(scene.a(), "other");
    let free = other.0.arena_free();
    opener.open();
    other.join();
    other.run(0, 0);
    other.write(1, 0);
    scene.nodes[1].kill();
    scene.nodes[1].restart();
    scene.b().until("it is back", |s| s.sessions.iter().any(|s| s.worker == "opener"));
    // The words are lost, and no attempt can commit any more: neither one whose word this worker knew...
    let order = ShuffleOrder::Commit { name: "x".into(), task: 1, attempt: 0 };
    let trouble = other.order(order).trouble();
    assert!(trouble.kind == "Over" || trouble.can_retry, "{trouble}");
    // ... nor one whose word is made anew.
    let order = ShuffleOrder::Write { name: "x".into(), task: 2, attempt: 0, rows: ROWS };
    other.order(order).trouble().expect("Over", &["\"x\""]);
    until_free(&mut other, free);
    other.read(0, false).trouble().expect("Over", &["\"x\""]);
    // Another exchange of this name can be opened, by another worker.
    poll(|| {
        let open = ShuffleOrder::Open { name: "x".into(), partitions: PARTITIONS, tasks: TASKS, deadline: None };
        other.order(open).wait()
    })
    .expect("the name becomes free");
    (0..TASKS).for_each(|task| other.run(task, 0));
    other.expect([0, 0, 0]);
    other.order(ShuffleOrder::Release("x".into())).get();
    until_free(&mut other, free);
    drop((opener, other));
    scene.end();
}

/// Only root can be another user.
// Promise: exchange-tenants, seen to fail
#[test]
fn exchange_of_another_tenant_is_out_of_reach() {
    if !crate::other_user::can_be_others() {
        return;
    }
    for node in [0, 1] {
        let arguments = ["--socket-mode", "666", "--pool-bytes", "4MiB", "--listen", "127.0.0.1:0"];
        let scene = Scene::with(&[&arguments, &arguments]);
        let program = transfer_tests::programs::worker_for_all(scene.folder());
        let mut opener = Part::at(scene.a(), "opener");
        let mut stranger =
            Part(Worker::of(&scene.nodes[node], "stranger").user(crate::other_user::UID, program).start());
        opener.open();
        (0..TASKS).for_each(|task| opener.run(task, 0));
        stranger.order(ShuffleOrder::Join("x".into())).trouble().expect("PermissionDenied", &["user id 0"]);
        let open = ShuffleOrder::Open { name: "x".into(), partitions: 1, tasks: 1, deadline: None };
        stranger.order(open).trouble().expect("Exists", &["\"x\"", "opener"]);
        let open = ShuffleOrder::Open { name: "y".into(), partitions: PARTITIONS, tasks: TASKS, deadline: None };
        stranger.order(open).get();
        opener.order(ShuffleOrder::Join("y".into())).trouble().expect("PermissionDenied", &["another tenant"]);
        opener.expect([0; 3]);
        opener.order(ShuffleOrder::Release("x".into())).get();
    }
}

// Promise: end-of-an-exchange
#[test]
fn leaving_worker_ends_its_session_at_once() {
    let scene = Scene::one();
    let client = BlockingClient::connect(scene.a().socket()).name("one").call().expect("connected");
    let exchange = client.exchange("x").open().call().expect("opened");
    let joined = client.exchange("x").join().call().expect("joined");
    drop((joined, exchange, client));
    scene.a().until("nobody is connected", |s| s.sessions.is_empty());
    scene.end();
}
