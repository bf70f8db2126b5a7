//! Nodes that cannot reach the directory, because its host is dead or stopped. Their local work continues, and the
//! directory resolves conflicts when it is back.

use transfer_tests::{Change, Scene, Sidecar, Spec, Worker, poll};

const LEN: u64 = 1 << 20;

fn small(seed: u64) -> Spec {
    Spec::bytes(1000, seed)
}

fn is_attached(sidecar: &Sidecar) {
    sidecar.until("it is attached", |s| s.directory.as_ref().is_some_and(|d| d.attached));
}

fn is_cut_off(sidecar: &Sidecar) {
    sidecar.until("it is cut off", |s| s.directory.as_ref().is_some_and(|d| !d.attached));
}

/// Does the operations that need only the node's own sidecar, and returns the two workers.
fn works_alone(node: &Sidecar, key: &str) -> [Worker; 2] {
    let (mut giver, mut taker) = (node.worker(&format!("{key}-giver")), node.worker(&format!("{key}-taker")));
    let early = taker.fetch(key).start();
    giver.push(key, Spec::bytes(LEN, 1)).get();
    assert_eq!(early.get().sum, Spec::bytes(LEN, 1).sum(), "a fetch that came first waits for it");
    giver.push(key, Spec::bytes(LEN, 2)).get();
    assert_eq!(taker.fetch(key).get().sum, Spec::bytes(LEN, 2).sum());
    giver.push(&format!("{key}-to"), small(3)).to(&format!("{key}-taker")).get();
    assert_eq!(taker.fetch(&format!("{key}-to")).get().sum, small(3).sum());
    giver.push("short-lived", small(4)).get();
    giver.delete("short-lived").expect("it is the giver's");
    taker.push("short-lived", small(5)).get();
    taker.delete("short-lived").expect("it is the taker's");
    taker.push(key, small(6)).trouble().expect("KeyOwned", &[key, "giver"]);
    [giver, taker]
}

/// The directory's host dies. Workers connect to their own sidecar, push new keys, fetch and count. When the directory
/// is back, other nodes find all of it.
// Promise: node-alone, seen to fail
#[test]
fn local_work_goes_on_while_the_directory_is_dead() {
    let mut scene = Scene::two().with_bystanders_at([1, 1]);
    let mut counting = scene.b().worker("counting");
    assert_eq!(counting.open("steps").get(), "b");
    scene.nodes[0].kill();
    let mut workers = works_alone(scene.b(), "new");
    scene.others_go_on();
    is_cut_off(scene.b());
    // A counter whose home is this node works, also for a worker that opens it now. A new name is refused, because it
    // could be granted twice.
    counting.count("steps", Change::Add(2), 10).get();
    assert_eq!(workers[0].open("steps").get(), "b");
    assert_eq!(workers[0].count("steps", Change::Get, 1).get().old, 20);
    let new = counting.open("other").trouble();
    new.expect("DirectoryUnreachable", &["\"other\"", "cannot be reached"]);
    assert!(new.can_retry, "{new}");
    // A worker leaves and connects again.
    drop(counting);
    scene.b().until("it has left", |s| s.sessions.iter().all(|s| s.worker != "counting"));
    let mut again = scene.b().worker("counting");
    again.push("again", small(7)).get();
    scene.nodes[0].restart();
    is_attached(scene.b());
    let mut far = scene.a().worker("far");
    assert_eq!(far.fetch("new").get().sum, Spec::bytes(LEN, 2).sum());
    assert_eq!(far.fetch("again").get().sum, small(7).sum());
    assert_eq!(far.count("steps", Change::Get, 1).get().old, 20);
    far.push("new", small(8)).trouble().expect("KeyOwned", &["new-giver"]);
    far.push("for", small(9)).to("new-taker").get();
    assert_eq!(workers[1].fetch("for").get().sum, small(9).sum());
    scene.others_go_on();
    drop((far, again, workers));
    scene.note_idle_of(0);
    scene.end();
}

/// The directory's host is stopped, so its connections stay open and no node is told that it is gone.
// Promise: node-alone, seen to fail
#[test]
fn local_work_goes_on_while_the_directory_is_silent() {
    let mut scene = Scene::two().with_bystanders_at([1, 1]);
    scene.a().freeze();
    let workers = works_alone(scene.b(), "new");
    scene.others_go_on();
    scene.a().go_on();
    let mut far = scene.a().worker("far");
    assert_eq!(far.fetch("new").get().sum, Spec::bytes(LEN, 2).sum());
    is_attached(scene.b());
    drop((far, workers));
    scene.end();
}

/// A sidecar starts while there is no directory.
// Promise: node-alone, seen to fail
#[test]
fn a_sidecar_starts_without_the_directory_and_serves_what_is_local() {
    let mut scene = Scene::two();
    for node in [0, 1] {
        scene.nodes[node].kill();
    }
    scene.nodes[1].restart();
    is_cut_off(scene.b());
    let workers = works_alone(scene.b(), "new");
    scene.nodes[0].restart();
    let mut far = scene.a().worker("far");
    assert_eq!(far.fetch("new").get().sum, Spec::bytes(LEN, 2).sum());
    drop((far, workers));
    for node in [0, 1] {
        scene.nodes[node].until("all have left", |s| s.sessions.is_empty());
        scene.note_idle_of(node);
    }
    scene.end();
}

/// Pushes at both workers until one push fails. Returns the index of the winner, whose pushes succeed, and of the
/// loser.
fn winner_and_loser(workers: [&mut Worker; 2], keys: [&str; 2], words: &[&str]) -> (usize, usize) {
    let mut workers = workers;
    let loser = poll(|| {
        for (i, worker) in workers.iter_mut().enumerate() {
            if let Err(trouble) = worker.push(keys[i], small(20 + i as u64)).start().wait() {
                trouble.expect("KeyOwned", words);
                return Ok(i);
            }
        }
        Err("both may push")
    });
    let loser = loser.expect("one of them hears of the other");
    let winner = 1 - loser;
    workers[winner].push(keys[winner], small(20 + winner as u64)).get();
    // The result does not change afterwards.
    workers[loser].push(keys[loser], small(30)).trouble().expect("KeyOwned", words);
    workers[winner].push(keys[winner], small(20 + winner as u64)).get();
    (winner, loser)
}

/// b and c publish one key while neither can ask for its owner. The owner that the directory enters first keeps the
/// key. The other one gets `KeyOwned`, and its readers keep their tensors.
// Promise: key-at-two-nodes, seen to fail
#[test]
fn directory_decides_which_of_two_owners_keeps_a_key() {
    let two = ["--listen", "127.0.0.1:0"];
    let mut scene = Scene::with(&[&two, &two, &two]);
    scene.nodes[0].kill();
    let mut givers = [1, 2].map(|node| scene.nodes[node].worker(&format!("giver-{node}")));
    let mut readers = [1, 2].map(|node| scene.nodes[node].worker(&format!("reader-{node}")));
    for i in 0..2 {
        givers[i].push("k", Spec::bytes(LEN, i as u64)).get();
        assert_eq!(readers[i].fetch("k").hold("old").get().sum, Spec::bytes(LEN, i as u64).sum(), "each has its own");
    }
    scene.nodes[0].restart();
    is_attached(&scene.nodes[1]);
    is_attached(&scene.nodes[2]);
    let [first, second] = &mut givers;
    let (winner, loser) = winner_and_loser([first, second], ["k", "k"], &["\"k\"", "giver-"]);
    let mut far = scene.a().worker("far");
    let won = small(20 + winner as u64).sum();
    assert_eq!(far.fetch("k").get().sum, won);
    // Readers at the loser's node get the winner's version, too. Tensors that were fetched before do not change.
    assert_eq!(readers[loser].fetch("k").get().sum, won);
    for (i, reader) in readers.iter_mut().enumerate() {
        assert_eq!(reader.read("old"), Spec::bytes(LEN, i as u64).sum());
    }
    drop((far, givers, readers));
    for node in 0..3 {
        scene.nodes[node].until("all have left", |s| s.sessions.is_empty());
        scene.note_idle_of(node);
    }
    scene.end();
}

/// Two workers with one name connect at b and at c without the directory. One keeps the name. The other one can no
/// longer publish, keeps its fetched tensors, and can connect under another name.
// Promise: name-at-two-nodes, seen to fail
#[test]
fn directory_decides_which_of_two_workers_keeps_a_name() {
    let two = ["--listen", "127.0.0.1:0"];
    let mut scene = Scene::with(&[&two, &two, &two]);
    scene.nodes[0].kill();
    let mut same = [1, 2].map(|node| scene.nodes[node].worker("same"));
    let mut others = [1, 2].map(|node| scene.nodes[node].worker(&format!("other-{node}")));
    for i in 0..2 {
        others[i].push(&format!("of-{i}"), Spec::bytes(LEN, i as u64)).get();
        same[i].fetch(&format!("of-{i}")).hold("held").get();
        same[i].push("shared", small(i as u64)).get();
        same[i].push(&format!("own-{i}"), small(i as u64)).get();
        others[i].fetch(&format!("own-{i}")).hold("held").get();
    }
    scene.nodes[0].restart();
    is_attached(&scene.nodes[1]);
    is_attached(&scene.nodes[2]);
    let [first, second] = &mut same;
    let (winner, loser) = winner_and_loser([first, second], ["own-0", "own-1"], &["own-", "\"same\""]);
    // The winner owns everything under the name.
    let mut far = scene.a().worker("far");
    same[winner].push("shared", small(40)).get();
    assert_eq!(far.fetch("shared").get().sum, small(40).sum());
    same[loser].push("elsewhere", small(41)).to("far").trouble().expect("KeyOwned", &["\"same\"", "connect again"]);
    far.push("for", small(42)).to("same").get();
    assert_eq!(same[winner].fetch("for").get().sum, small(42).sum());
    for i in 0..2 {
        assert_eq!(same[i].read("held"), Spec::bytes(LEN, i as u64).sum());
        assert_eq!(others[i].read("held"), small(i as u64).sum());
    }
    // The loser can still fetch.
    assert_eq!(same[loser].fetch("shared").get().sum, small(40).sum());
    let mut renamed = scene.nodes[loser + 1].worker("renamed");
    renamed.push("elsewhere", small(43)).get();
    assert_eq!(far.fetch("elsewhere").get().sum, small(43).sum());
    drop((far, renamed, same, others));
    for node in 0..3 {
        scene.nodes[node].until("all have left", |s| s.sessions.is_empty());
        scene.note_idle_of(node);
    }
    scene.end();
}
