//! Sharded states: ranks push boxes of tensors, and readers take them in other layouts.

use std::time::Duration;
use transfer_client::{
    BlockingClient, Client, DType, Error, FailureCode, FetchedBundle, PushedShards, Rank, Shard, ShardedError, Slice, s,
};
use transfer_tests::status::Seen;
use transfer_tests::{Carrier, Ctl, Scene, poll, programs};

pub(super) const ROWS: u64 = 400;
pub(super) const COLUMNS: u64 = 600;

pub(super) fn connect(socket: std::path::PathBuf, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(socket).name(name).arena_bytes(16 << 20);
    connect.call().expect("the sidecar takes workers")
}

/// The elements of a box of a tensor of `COLUMNS` columns: their own numbers, plus that of the version.
pub(super) fn numbers(rows: std::ops::Range<u64>, columns: std::ops::Range<u64>, version: u64) -> Vec<u32> {
    let row = |row: u64| columns.clone().map(move |column| (row * COLUMNS + column + version) as u32);
    rows.flat_map(row).collect()
}

/// A shard of "w" in the arena of a client.
fn shard(
    client: &BlockingClient,
    rows: std::ops::Range<u64>,
    columns: std::ops::Range<u64>,
    version: u64,
) -> Shard<'static> {
    let dims = [rows.end - rows.start, columns.end - columns.start];
    let offset = [rows.start, columns.start];
    let mut tensor = client.allocate(DType::U32, dims).expect("room");
    tensor.as_mut_slice::<u32>().expect("u32").copy_from_slice(&numbers(rows, columns, version));
    Shard::new("w", [ROWS, COLUMNS], offset, tensor)
}

/// The quarter of "w" that a rank of four has.
pub(super) fn quarter(rank: u32) -> (std::ops::Range<u64>, std::ops::Range<u64>) {
    let (row, column) = (u64::from(rank) / 2 * (ROWS / 2), u64::from(rank) % 2 * (COLUMNS / 2));
    (row..row + ROWS / 2, column..column + COLUMNS / 2)
}

fn push(client: &BlockingClient, rank: u32, version: u64) -> Result<PushedShards, Error> {
    let (rows, columns) = quarter(rank);
    let shards = [shard(client, rows, columns, version)];
    client.push_shards("policy", version, Rank { rank, world_size: 4 }, shards).timeout(Duration::from_secs(20)).call()
}

pub(super) fn push_all(ranks: &[BlockingClient], version: u64) {
    for (rank, client) in (0..).zip(ranks) {
        let pushed = push(client, rank, version).expect("pushed");
        assert_eq!((pushed.is_whole, pushed.pushed.report.copied), (rank == 3, 0));
    }
}

fn slice(client: &BlockingClient, slice: Slice) -> FetchedBundle {
    let fetch = client.fetch_sharded("policy").slices([("w", slice.clone())]);
    fetch.call().unwrap_or_else(|e| panic!("{slice}: {e}"))
}

pub(super) fn elements(bundle: &FetchedBundle) -> Vec<u32> {
    bundle.get("w").expect("it has w").as_slice::<u32>().expect("u32").to_vec()
}

/// Two sidecars, and four ranks of which each has two.
pub(super) fn four_ranks() -> (Scene, Vec<BlockingClient>) {
    let scene = Scene::two();
    let ranks = (0..4).map(|rank| connect(scene.nodes[rank / 2].socket(), &format!("rank-{rank}"))).collect();
    (scene, ranks)
}

fn sharded(error: &Error) -> Option<&ShardedError> {
    match error {
        Error::Sharded(error) => Some(error),
        _ => None,
    }
}

fn failure(error: &Error) -> Option<FailureCode> {
    error.failure_code()
}

// Promise: any-layout
#[test]
fn sharded_state_is_fetched_in_any_layout_and_each_byte_moves_once() {
    let (scene, ranks) = four_ranks();
    push_all(&ranks, 1);
    let readers = [connect(scene.a().socket(), "near"), connect(scene.b().socket(), "far")];
    let moved = |scene: &Scene| scene.b().status().links.iter().map(|link| link.bytes_in).sum::<u64>();
    for reader in &readers {
        let all = reader.fetch_sharded("policy").call().expect("fetched");
        assert_eq!((all.len(), all.version()), (1, 1));
        assert_eq!(elements(&all), numbers(0..ROWS, 0..COLUMNS, 1));
        assert_eq!(all.report().bytes, ROWS * COLUMNS * 4);
        assert_eq!(elements(&slice(reader, s![150..250])), numbers(150..250, 0..COLUMNS, 1));
        assert_eq!(elements(&slice(reader, s![.., 290..310])), numbers(0..ROWS, 290..310, 1));
        let row = slice(reader, s![399, -1..]);
        assert_eq!(row.get("w").map(|w| w.shape()), Some(&[1][..]));
        assert_eq!(elements(&row), numbers(399..400, 599..600, 1));
        let steps: Vec<u32> = (0..ROWS)
            .step_by(7)
            .flat_map(|row| (5..COLUMNS).step_by(299).map(move |c| (row * COLUMNS + c + 1) as u32))
            .collect();
        assert_eq!(elements(&slice(reader, s![..; 7, 5..; 299])), steps);
    }
    // The rows 0 to 200 lie at a. Each of these is fetched by b for the first time.
    let before = moved(&scene);
    slice(&readers[1], s![10..20, 100..400]);
    let landed = moved(&scene) - before;
    assert!((12_000..14_000).contains(&landed), "12,000 bytes of shards, and the manifest: {landed}");
    let e = readers[0].fetch_sharded("policy").slices([("w", s![401..])]).call().expect_err("it has 400 rows");
    assert_eq!(failure(&e), Some(FailureCode::Invalid));
    assert!(e.to_string().contains("tensor \"w\" of state \"policy\" has u32[400, 600]"), "{e}");
    let e = readers[0].fetch_sharded("policy").only(["v"]).call().expect_err("it has w");
    assert!(e.to_string().contains("\"v\""), "{e}");
    drop((ranks, readers));
    scene.end();
}

// Promise: any-layout
#[test]
fn shard_that_has_all_that_is_asked_for_is_not_copied_on_its_host() {
    let (scene, ranks) = four_ranks();
    push_all(&ranks, 1);
    let near = connect(scene.a().socket(), "near");
    let own = slice(&near, s![0..200, 0..300]);
    assert_eq!((elements(&own), own.report().copied), (numbers(0..200, 0..300, 1), 0));
    assert_eq!(own.report().fabric.name(), "local");
    let rows = slice(&near, s![50..60, 0..300]);
    assert_eq!((elements(&rows), rows.report().copied), (numbers(50..60, 0..300, 1), 0));
    let columns = slice(&near, s![0..200, 10..20]);
    assert_eq!((elements(&columns), columns.report().copied), (numbers(0..200, 10..20, 1), 200 * 10 * 4));
    let far = slice(&near, s![200..400, 300..600]);
    assert_eq!(elements(&far), numbers(200..400, 300..600, 1));
    assert_eq!(far.report().fabric.name(), Carrier::chosen().name());
    drop((ranks, near, own, rows, columns, far));
    scene.end();
}

// Promise: whole-versions
#[test]
fn version_is_seen_when_it_is_whole_and_not_before() {
    let (scene, ranks) = four_ranks();
    let reader = connect(scene.b().socket(), "reader");
    push_all(&ranks, 6);
    for rank in [0, 1, 3] {
        assert!(!push(&ranks[rank as usize], rank, 7).expect("committed").is_whole);
    }
    let all = reader.fetch_sharded("policy").call().expect("6 is the newest");
    assert_eq!((all.version(), elements(&all)), (6, numbers(0..ROWS, 0..COLUMNS, 6)));
    let late = reader.fetch_sharded("policy").at_least(7).timeout(Duration::from_millis(300)).call();
    let e = late.expect_err("rank 2 is missing");
    let Some(ShardedError::NotWhole { version: 7, world_size: 4, count: 1, first, .. }) = sharded(&e) else {
        panic!("{e}")
    };
    assert_eq!(first, &[2]);
    let waiting = reader.fetch_sharded("policy").at_least(7).begin();
    let waiting = {
        let mut waiting = waiting;
        assert!(waiting.wait(Duration::from_millis(50)).is_none());
        assert!(push(&ranks[2], 2, 7).expect("the last").is_whole);
        waiting.wait(Duration::from_secs(20)).expect("it is whole").expect("fetched")
    };
    assert_eq!((waiting.version(), elements(&waiting)), (7, numbers(0..ROWS, 0..COLUMNS, 7)));
    drop((ranks, reader, all, waiting));
    scene.end();
}

// Promise: whole-versions
#[test]
fn push_can_wait_until_its_version_is_whole() {
    let (scene, ranks) = four_ranks();
    std::thread::scope(|scope| {
        for (rank, client) in (0..).zip(&ranks) {
            scope.spawn(move || {
                for version in 1..6 {
                    let (rows, columns) = quarter(rank);
                    let shards = [shard(client, rows, columns, version)];
                    let push = client.push_shards("policy", version, Rank { rank, world_size: 4 }, shards).whole();
                    assert!(push.call().expect("pushed").is_whole);
                    let all = client.fetch_sharded("policy").at_least(version).call().expect("fetched");
                    assert_eq!(elements(&all), numbers(0..ROWS, 0..COLUMNS, all.version()));
                }
            });
        }
    });
    drop(ranks);
    scene.end();
}

// Promise: whole-versions
#[test]
fn hole_and_conflict_fail_the_last_commit_by_name_and_it_can_be_made_again() {
    let (scene, ranks) = four_ranks();
    for rank in 0..3 {
        push(&ranks[rank as usize], rank, 1).expect("committed");
    }
    let last = |shards| ranks[3].push_shards("policy", 1, Rank { rank: 3, world_size: 4 }, shards).call();
    let hole = last(vec![shard(&ranks[3], 200..400, 300..599, 1)]).expect_err("a column is missing");
    assert_eq!(hole.to_string(), "no rank has [200:400, 599:600] of tensor \"w\", u32[400, 600]");
    let other = ranks[3].allocate(DType::F32, [200, 300]).expect("room");
    let conflict = last(vec![Shard::new("w", [400, 600], [200, 300], other)]).expect_err("another type");
    assert!(conflict.to_string().contains("u32[400, 600] at rank 0, and f32[400, 600] at rank 3"), "{conflict}");
    let outside = ranks[3].allocate(DType::U32, [200, 301]).expect("room");
    let outside = last(vec![Shard::new("w", [400, 600], [200, 300], outside)]).expect_err("too long");
    assert!(outside.to_string().contains("ends behind the end of its tensor"), "{outside}");
    assert!(push(&ranks[3], 3, 1).expect("the right one").is_whole);
    assert_eq!(elements(&slice(&ranks[0], s![399..])), numbers(399..400, 0..COLUMNS, 1));
    drop(ranks);
    scene.end();
}

// Promise: one-rank-one-commit
#[test]
fn second_worker_of_a_rank_gets_an_error_that_names_the_first() {
    let (scene, ranks) = four_ranks();
    push(&ranks[0], 0, 1).expect("committed");
    let impostor = connect(scene.b().socket(), "impostor");
    let e = push(&impostor, 0, 1).expect_err("rank 0 has committed");
    assert_eq!(failure(&e), Some(FailureCode::KeyOwned));
    assert!(
        e.to_string().contains("rank 0 of version 1 of state \"policy\" was committed by worker \"rank-0\""),
        "{e}"
    );
    // A worker of its name takes the place of one that is gone.
    let mut ranks = ranks;
    drop(ranks.remove(0));
    let again = connect(scene.a().socket(), "rank-0");
    push(&again, 0, 1).expect("committed anew");
    for (rank, client) in (1..).zip(&ranks) {
        push(client, rank, 1).expect("committed");
    }
    assert_eq!(elements(&slice(&impostor, s![])), numbers(0..ROWS, 0..COLUMNS, 1));
    drop((ranks, again, impostor));
    scene.end();
}

// Promise: unfinished-versions
#[test]
fn rank_that_is_ahead_waits_and_unfinished_versions_end_with_a_newer_one() {
    let (scene, ranks) = four_ranks();
    for version in [1, 2] {
        push(&ranks[0], 0, version).expect("committed");
    }
    let (rows, columns) = quarter(0);
    let shards = [shard(&ranks[0], rows, columns, 3)];
    let ahead = ranks[0].push_shards("policy", 3, Rank { rank: 0, world_size: 4 }, shards);
    let e = ahead.timeout(Duration::from_millis(300)).call().expect_err("two are unfinished");
    assert_eq!(failure(&e), Some(FailureCode::Deadline), "{e}");
    Ctl::of(scene.a(), &["status"]).ends(0, &["not whole", "1 of 4", "1, 2, 3"]);
    for (rank, client) in (0..).zip(&ranks).skip(1) {
        push(client, rank, 2).expect("committed");
    }
    let e = push(&ranks[1], 1, 1).expect_err("2 is whole");
    assert!(e.to_string().contains("version 1 of state \"policy\" is not newer than version 2"), "{e}");
    push_all(&ranks, 3);
    drop(ranks);
    scene.end();
}

// Promise: lost-ranks, seen to fail
#[test]
fn rank_that_is_gone_is_named_and_a_replica_takes_its_place() {
    let (scene, mut ranks) = four_ranks();
    let spare = connect(scene.a().socket(), "spare");
    // Five ranks: the last has the box of rank 2, too.
    let of = |rank| Rank { rank, world_size: 5 };
    for (rank, client) in (0..).zip(&ranks) {
        let (rows, columns) = quarter(rank);
        client.push_shards("policy", 1, of(rank), [shard(client, rows, columns, 1)]).call().expect("committed");
    }
    let (rows, columns) = quarter(2);
    spare.push_shards("policy", 1, of(4), [shard(&spare, rows, columns, 1)]).call().expect("whole");
    drop(ranks.remove(2));
    let reader = connect(scene.b().socket(), "reader");
    // Sooner than what nobody publishes counts as gone.
    let fetched = reader.fetch_sharded("policy").timeout(Duration::from_secs(4)).call().expect("the replica has it");
    assert_eq!(elements(&fetched), numbers(0..ROWS, 0..COLUMNS, 1));
    // Nobody else has the box of rank 3, which is the last of `ranks` now.
    drop(ranks.pop());
    assert_eq!(elements(&slice(&reader, s![0..200])), numbers(0..200, 0..COLUMNS, 1));
    let e = reader.fetch_sharded("policy").call().expect_err("rank 3 is gone");
    let Some(ShardedError::RankGone(lost)) = sharded(&e) else { panic!("{e}") };
    assert_eq!((lost.rank, lost.version), (3, 1));
    assert_eq!((lost.node.as_str(), lost.range.as_str()), (scene.b().name(), "[200:400, 300:600]"));
    drop((ranks, spare, reader));
    scene.end();
}

// Promise: whole-versions
#[test]
fn trainer_that_is_faster_than_its_readers_starves_and_mixes_nothing() {
    let (scene, ranks) = four_ranks();
    push_all(&ranks, 1);
    let readers = [connect(scene.a().socket(), "near"), connect(scene.b().socket(), "far")];
    std::thread::scope(|scope| {
        let readers: Vec<_> = readers
            .iter()
            .map(|reader| {
                scope.spawn(move || {
                    let mut last = 0;
                    for _ in 0..20 {
                        // Many requests for each version.
                        let fetch = reader.fetch_sharded("policy").bucket_bytes(64 << 10);
                        let all = fetch.call().expect("fetched");
                        assert_eq!(elements(&all), numbers(0..ROWS, 0..COLUMNS, all.version()));
                        assert!(all.version() >= last, "{} after {last}", all.version());
                        last = all.version();
                    }
                })
            })
            .collect();
        let mut version = 2;
        while readers.iter().any(|reader| !reader.is_finished()) {
            push_all(&ranks, version);
            version += 1;
        }
    });
    drop((ranks, readers));
    scene.end();
}

// Promise: whole-versions, seen to fail
#[test]
fn version_that_is_fetched_is_held_at_the_next_home_when_the_first_one_dies() {
    let arguments = ["--pool-bytes", "16MiB", "--listen", "127.0.0.1:0"];
    let mut scene = Scene::with(&[&arguments, &arguments, &arguments]);
    let at = |scene: &Scene, node: usize, name: &str| connect(scene.nodes[node].socket(), name);
    let push = |client: &BlockingClient, rank: u32, version: u64| {
        // Ranks 0 and 2 have the same half.
        let columns = if rank == 1 { COLUMNS / 2..COLUMNS } else { 0..COLUMNS / 2 };
        let of = Rank { rank, world_size: 3 };
        client.push_shards("policy", version, of, [shard(client, 0..ROWS, columns, version)]).call().expect("pushed")
    };
    let (first, slow, last) = (at(&scene, 1, "rank-2"), at(&scene, 2, "rank-1"), at(&scene, 0, "rank-0"));
    // The home is where the first commit was made.
    push(&first, 2, 1);
    push(&slow, 1, 1);
    push(&last, 0, 1);
    let reader = at(&scene, 0, "reader");
    scene.nodes[2].freeze();
    let fetch = std::thread::spawn(move || reader.fetch_sharded("policy").call());
    scene.a().until("the fetch waits for rank 1", |s| s.links.iter().any(|link| link.peer == "c" && link.pulls > 0));
    drop(first);
    scene.nodes[1].kill();
    scene.a().until("its hold is at another home", |s| s.status.counters.as_ref().is_some_and(|c| c.named == 1));
    let others = [at(&scene, 0, "rank-1-again"), at(&scene, 0, "rank-2-again")];
    let kept = |scene: &Scene| scene.a().admin().tensors("policy/rank-0/").expect("listed").len();
    let push_three = |version| {
        for (client, rank) in [(&others[0], 1), (&others[1], 2), (&last, 0)] {
            push(client, rank, version);
        }
    };
    (2..=4).for_each(push_three);
    assert_eq!(kept(&scene), 4, "others may be held as well, and not have come to this home yet");
    scene.nodes[2].go_on();
    let fetched = fetch.join().expect("no panic").expect("fetched");
    assert_eq!((fetched.version(), elements(&fetched)), (1, numbers(0..ROWS, 0..COLUMNS, 1)));
    // There is no place for the last one until the home is settled.
    (5..=9).for_each(push_three);
    assert_eq!(kept(&scene), 2, "nothing is held any longer");
    drop((slow, last, others, fetched));
    scene.nodes[1].restart();
    scene.note_idle_of(1);
    scene.end();
}

#[test]
fn reader_waits_for_a_silent_home_no_longer_than_for_a_rank() {
    let arguments = ["--pool-bytes", "16MiB", "--listen", "127.0.0.1:0"];
    let scene = Scene::with(&[&arguments, &arguments]);
    let at = |node: usize, name: &str| connect(scene.nodes[node].socket(), name);
    // The home is where the first commit was made, and the manifest where the last one was.
    let ranks = [at(1, "rank-0"), at(0, "rank-1")];
    let reader = at(0, "reader");
    for (client, rank) in ranks.iter().zip(0..) {
        let rows = u64::from(rank) * ROWS / 2..u64::from(rank + 1) * ROWS / 2;
        let shards = [shard(client, rows, 0..COLUMNS, 1)];
        client.push_shards("policy", 1, Rank { rank, world_size: 2 }, shards).call().expect("pushed");
    }
    scene.nodes[1].freeze();
    // Less than the time after which the link is lost.
    let fetch = reader.fetch_sharded("policy").slices([("w", s![ROWS / 2..])]).timeout(Duration::from_secs(12));
    assert_eq!(elements(&fetch.call().expect("fetched")), numbers(ROWS / 2..ROWS, 0..COLUMNS, 1));
    scene.nodes[1].go_on();
    drop((ranks, reader));
    scene.end();
}

// Promise: lost-homes, seen to fail
#[test]
fn version_that_is_half_committed_becomes_whole_when_its_home_dies() {
    let arguments = ["--pool-bytes", "16MiB", "--listen", "127.0.0.1:0"];
    let mut scene = Scene::with(&[&arguments, &arguments, &arguments]);
    // The home is where the first commit is made. Its node has one rank.
    let ranks: Vec<_> =
        (0..4).map(|rank| connect(scene.nodes[[0, 0, 2, 1][rank]].socket(), &format!("rank-{rank}"))).collect();
    for rank in [3, 0, 1, 2] {
        push(&ranks[rank as usize], rank, 1).expect("pushed");
    }
    for rank in [1, 2] {
        push(&ranks[rank as usize], rank, 2).expect("committed");
    }
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let (rows, columns) = quarter(0);
            let shards = [shard(&ranks[0], rows, columns, 2)];
            ranks[0].push_shards("policy", 2, Rank { rank: 0, world_size: 4 }, shards).whole().call()
        });
        let three_of_four = |s: &Seen| s.status.unfinished_versions.iter().any(|v| (v.version, v.committed) == (2, 3));
        scene.nodes[1].until("3 of 4 ranks have committed", three_of_four);
        scene.nodes[1].kill();
        // Rank 2 asks nothing, and its node recites all the same.
        poll(|| {
            let next = [0, 2].map(|node| scene.nodes[node].status());
            if next.iter().any(three_of_four) { Ok(()) } else { Err(Box::new(next)) }
        })
        .unwrap_or_else(|seen| panic!("no home knows of 3 ranks: {seen:#?}"));
        let again = connect(scene.a().socket(), "rank-3-again");
        assert!(push(&again, 3, 2).expect("pushed").is_whole);
        assert!(waits.join().expect("no panic").expect("pushed").is_whole);
        assert_eq!(elements(&slice(&again, s![])), numbers(0..ROWS, 0..COLUMNS, 2));
    });
    drop(ranks);
    scene.nodes[1].restart();
    scene.note_idle_of(1);
    scene.end();
}

// Promise: sharded-restart, seen to fail
#[test]
fn restart_begins_the_versions_again_and_ranks_of_an_earlier_one_are_refused() {
    let (scene, ranks) = four_ranks();
    push_all(&ranks, 100);
    let reader = connect(scene.b().socket(), "reader");
    assert_eq!(slice(&reader, s![0..1]).version(), 100);
    let e = push(&ranks[0], 0, 90).expect_err("100 is whole");
    assert_eq!(failure(&e), Some(FailureCode::VersionNotRising), "{e}");
    let attempt = |rank: u32, version: u64, attempt: u64| {
        let ((rows, columns), client) = (quarter(rank), &ranks[rank as usize]);
        let shards = [shard(client, rows, columns, version)];
        client.push_shards("policy", version, Rank { rank, world_size: 4 }, shards).restart(attempt).call()
    };
    for rank in 0..3 {
        attempt(rank, 90, 2).expect("pushed");
    }
    for old in [0, 1] {
        let e = attempt(3, 90, old).expect_err("it is left over");
        assert_eq!(failure(&e), Some(FailureCode::VersionGone), "{e}");
        assert!(
            e.to_string().contains(&format!("restart {old} of rank 3")) && e.to_string().contains("restart 2"),
            "{e}"
        );
    }
    assert!(attempt(3, 90, 2).expect("pushed").is_whole);
    let again = reader.fetch_sharded("policy").after(100).call().expect("90 is new");
    assert_eq!((again.version(), elements(&again)), (90, numbers(0..ROWS, 0..COLUMNS, 90)));
    for rank in 0..4 {
        attempt(rank, 91, 2).expect("pushed");
    }
    assert_eq!(reader.fetch_sharded("policy").after(90).call().expect("91").version(), 91);
    // The rank whose worker has published the manifest of 91 is the last again, and the first of the next attempt.
    for rank in 0..4 {
        attempt(rank, 5, 3).expect("pushed");
    }
    assert_eq!(elements(&reader.fetch_sharded("policy").after(91).call().expect("5")), numbers(0..ROWS, 0..COLUMNS, 5));
    drop((ranks, reader, again));
    scene.end();
}

// Promise: sharded-restart
#[test]
fn versions_begin_again_when_all_ranks_are_gone() {
    let (scene, ranks) = four_ranks();
    push_all(&ranks, 100);
    drop(ranks);
    let ranks: Vec<_> = (0..4).map(|rank| connect(scene.b().socket(), &format!("next-{rank}"))).collect();
    push_all(&ranks, 1);
    assert_eq!(elements(&slice(&ranks[0], s![])), numbers(0..ROWS, 0..COLUMNS, 1));
    drop(ranks);
    scene.end();
}

// Promise: whole-versions
#[test]
fn key_of_another_kind_is_not_taken_away_and_is_no_sharded_state() {
    let scene = Scene::two();
    let (owner, rank) = (connect(scene.a().socket(), "owner"), connect(scene.b().socket(), "rank-0"));
    owner.push_slice("plain", [3], &[1_u8, 2, 3]).call().expect("pushed");
    let whole = |client: &BlockingClient| {
        let tensor = client.allocate(DType::U8, [3]).expect("room");
        let shards = [Shard::new("w", [3], [0], tensor)];
        client.push_shards("plain", 1, Rank { rank: 0, world_size: 1 }, shards).call()
    };
    let e = whole(&rank).expect_err("it is a tensor's key");
    assert_eq!(failure(&e), Some(FailureCode::KeyOwned), "{e}");
    assert_eq!(owner.fetch("plain").call().expect("it is there").as_bytes(), [1, 2, 3]);
    let e = rank.fetch_sharded("plain").call().expect_err("a tensor");
    assert!(matches!(sharded(&e), Some(ShardedError::NotSharded { .. })), "{e}");
    drop((owner, rank));
    scene.end();
}

// Promise: any-layout
#[test]
fn async_client_pushes_and_fetches_shards() {
    let scene = Scene::two();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(push_and_fetch(&scene));
    scene.end();
}

async fn push_and_fetch(scene: &Scene) {
    let connect =
        async |socket, name| Client::connect(socket).name(name).arena_bytes(4 << 20).await.expect("connected");
    let ranks = [connect(scene.a().socket(), "rank-0").await, connect(scene.b().socket(), "rank-1").await];
    let push = async |rank: u32| {
        let values: Vec<f32> = (0..50).map(|n| (n + 50 * rank) as f32).collect();
        let tensor = transfer_client::BundleTensor::from_slice([50], &values).expect("a tensor");
        let shards = [Shard::new("w", [100], [u64::from(rank) * 50], tensor)];
        ranks[rank as usize]
            .push_shards("policy", 1, Rank { rank, world_size: 2 }, shards)
            .whole()
            .await
            .expect("whole")
    };
    let (first, second) = tokio::join!(push(0), push(1));
    assert!(first.is_whole && second.is_whole);
    let all = ranks[0].fetch_sharded("policy").slices([("w", s![25..75])]).await.expect("fetched");
    let expected: Vec<f32> = (25..75).map(|n| n as f32).collect();
    assert_eq!(all.get("w").expect("w").as_slice::<f32>().expect("f32"), expected);
}

#[test]
fn layout_of_a_state_is_shown() {
    let (scene, ranks) = four_ranks();
    push_all(&ranks, 3);
    let layout = ranks[0].sharded_layout("policy").call().expect("it is whole");
    let w = &layout.tensors[0];
    assert_eq!((layout.version, layout.nodes.len(), layout.tensors.len()), (3, 4, 1));
    assert_eq!((w.name.as_str(), w.meta.to_string().as_str(), w.boxes.len()), ("w", "u32[400, 600]", 4));
    assert_eq!(
        (&w.boxes[3].offset[..], &w.boxes[3].shape[..], &w.boxes[3].ranks[..]),
        (&[200, 300][..], &[200, 300][..], &[3][..])
    );
    let socket = scene.b().socket();
    let show = |arguments: &[&str]| {
        let mut transferctl = std::process::Command::new(programs::transferctl());
        let shown = transferctl.arg("layout").args(arguments).arg("--socket").arg(&socket).output().expect("it runs");
        (shown.status.code(), String::from_utf8_lossy(&[shown.stdout, shown.stderr].concat()).into_owned())
    };
    let (code, text) = show(&["policy"]);
    assert_eq!(code, Some(0), "{text}");
    let last = format!("3 at {}", scene.b().name());
    for words in ["version 3: 1 tensor, 4 ranks at 2 nodes", "u32[400, 600]", "[200:400, 300:600]", &last] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (_, text) = show(&["policy", "--limit", "3"]);
    assert!(text.contains("and 1 box more") && !text.contains("[200:400, 300:600]"), "{text}");
    let (_, text) = show(&["policy", "--prefix", "v"]);
    assert!(text.contains("0 tensors") && !text.contains("u32"), "{text}");
    let (_, text) = show(&["policy", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).expect("json");
    assert_eq!(
        json["tensors"][0]["boxes"][3],
        serde_json::json!({ "offset": [200, 300], "shape": [200, 300], "ranks": [3] })
    );
    ranks[0].push_slice("plain", [1], &[1_u8]).call().expect("pushed");
    let (code, text) = show(&["plain"]);
    assert!(code == Some(1) && text.contains("is no sharded state"), "{code:?}: {text}");
    drop(ranks);
    scene.end();
}
