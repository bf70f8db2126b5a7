//! Sharded states with digests: shards that come whole are compared with what was pushed, and ranks that have the same box with each other.

use super::digests::damage;
use super::sharded::{COLUMNS, ROWS, connect, elements, four_ranks, numbers, quarter};
use transfer_client::{
    BlockingClient, Client, DType, Digest, DigestError, Digested, Error, Frozen, PushedShards, Rank, Shard,
    ShardedError, Slice, s,
};
use transfer_tests::programs;

/// The quarter of a rank, in its arena.
fn frozen(client: &BlockingClient, rank: u32, version: u64) -> Frozen {
    let (rows, columns) = quarter(rank);
    let dims = [rows.end - rows.start, columns.end - columns.start];
    let mut tensor = client.allocate(DType::U32, dims).expect("room");
    tensor.as_mut_slice::<u32>().expect("u32").copy_from_slice(&numbers(rows, columns, version));
    tensor.freeze()
}

fn push(
    client: &BlockingClient,
    rank: u32,
    version: u64,
    digest: Option<Digest>,
    shards: Vec<Shard<'_>>,
) -> Result<PushedShards, Error> {
    let push = client.push_shards("policy", version, Rank { rank, world_size: 4 }, shards);
    match digest {
        Some(digest) => push.digest(digest).call(),
        None => push.call(),
    }
}

fn shard(rank: u32, tensor: &Frozen) -> Shard<'static> {
    let (rows, columns) = quarter(rank);
    Shard::new("w", [ROWS, COLUMNS], [rows.start, columns.start], tensor)
}

fn wrong(error: &Error) -> &DigestError {
    match error {
        Error::Digest(error) => error,
        other => panic!("{other}"),
    }
}

// Promise: sharded-digests, seen to fail
#[test]
fn shards_that_come_whole_are_compared_with_the_digests_of_their_pushes() {
    let (scene, ranks) = four_ranks();
    let readers = [connect(scene.a().socket(), "near"), connect(scene.b().socket(), "far")];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for (digest, version) in [(Digest::Xxh3, 1), (Digest::Blake3, 2)] {
        let tensors: Vec<_> = (0..4).zip(&ranks).map(|(rank, client)| frozen(client, rank, version)).collect();
        for ((rank, client), tensor) in (0..).zip(&ranks).zip(&tensors) {
            let pushed = push(client, rank, version, Some(digest), vec![shard(rank, tensor)]).expect("pushed");
            assert_eq!((pushed.pushed.report.copied, pushed.unproved), (0, (rank == 3).then_some(0)));
        }
        let all = ROWS * COLUMNS * 4;
        for reader in &readers {
            let fetch = || reader.fetch_sharded("policy").at_least(version);
            // Whole in one request, and in pieces.
            for bucket_bytes in [32 << 20, 64 << 10] {
                let found = fetch().bucket_bytes(bucket_bytes).require_digest().call().expect("it is right");
                assert_eq!((elements(&found), found.report().verified), (numbers(0..ROWS, 0..COLUMNS, version), all));
                assert_eq!(found.get("w").expect("there").report().verified, all);
            }
            let verified = |slice: Slice| {
                let found = fetch().slices([("w", slice)]).verify().call().expect("it is right");
                (found.report().bytes, found.report().verified)
            };
            assert_eq!(verified(s![0..200]), (all / 2, all / 2), "two shards");
            assert_eq!(verified(s![200..400, 0..300]), (all / 4, all / 4), "one");
            assert_eq!(verified(s![0..201]), (201 * COLUMNS * 4, all / 2), "and a row of two others");
            assert_eq!(verified(s![.., 10..20]), (ROWS * 40, 0), "a part of each");
            assert_eq!(fetch().call().expect("not compared").report().verified, 0);
        }
        let verified = runtime.block_on(async {
            let client = Client::connect(scene.b().socket()).name("async").await.expect("a session");
            let found = client.fetch_sharded("policy").verify().await.expect("it is right");
            found.report().verified
        });
        assert_eq!(verified, all);
        damage(&tensors[1], 70_000);
        for reader in &readers {
            let fetch = || reader.fetch_sharded("policy").at_least(version);
            for slice in [s![0..400], s![0..200, 300..600], s![0..200]] {
                let e = fetch().slices([("w", slice)]).verify().call().expect_err("a byte is wrong");
                let (range, node) = ("[0:200, 300:600]".into(), scene.a().name().to_owned());
                let what = Digested::Shard { rank: 1, node, name: "w".into(), range };
                assert_eq!(wrong(&e), &DigestError::WrongDigest { key: "policy".into(), version, what, digest });
                assert!(
                    e.to_string()
                        .starts_with("[0:200, 300:600] of tensor \"w\", from rank 1 at node \"a\", of version")
                );
                assert!(e.can_retry());
            }
            let others = fetch().slices([("w", s![200..400])]).verify().call().expect("they are right");
            assert_eq!(others.report().verified, all / 2);
            assert_ne!(elements(&fetch().call().expect("not compared")), numbers(0..ROWS, 0..COLUMNS, version));
        }
    }
    // A rank that makes none.
    for (rank, client) in (0..).zip(&ranks) {
        let tensor = frozen(client, rank, 3);
        push(client, rank, 3, (rank != 2).then_some(Digest::Xxh3), vec![shard(rank, &tensor)]).expect("pushed");
    }
    let found = readers[1].fetch_sharded("policy").at_least(3).verify().call().expect("nothing is wrong");
    assert_eq!(found.report().verified, ROWS * COLUMNS * 3);
    let e = readers[1].fetch_sharded("policy").at_least(3).require_digest().call().expect_err("rank 2 has none");
    assert_eq!(wrong(&e), &DigestError::ShardsWithoutDigest { key: "policy".into(), version: 3, rank: 2 });
    let some = readers[1].fetch_sharded("policy").slices([("w", s![0..200])]).require_digest().call();
    assert_eq!(some.expect("not of rank 2").report().verified, ROWS * COLUMNS * 2);
    let e = push(&ranks[0], 0, 4, None, vec![Shard::new("__digests__", [1], [0], &frozen(&ranks[0], 0, 4))]);
    assert!(e.expect_err("a name of ours").to_string().contains("cannot have the name \"__digests__\""));
    drop((ranks, readers, found));
    scene.end();
}

/// All ranks have the same bias beside their quarter, and the first one another tensor: so their bundles differ.
fn push_with_bias(
    ranks: &[BlockingClient],
    version: u64,
    digests: [Option<Digest>; 4],
    biases: [u32; 4],
) -> Result<PushedShards, Error> {
    let mut last = None;
    for (rank, client) in (0..).zip(ranks) {
        let (tensor, bias) = (frozen(client, rank, version), [biases[rank as usize]; 100]);
        let bias = || transfer_client::BundleTensor::from_slice([100], &bias).expect("its length");
        let mut shards = vec![shard(rank, &tensor), Shard::new("bias", [100], [0], bias())];
        if rank == 0 {
            shards.insert(0, Shard::new("first", [100], [0], bias()));
        }
        last = Some(push(client, rank, version, digests[rank as usize], shards));
    }
    last.expect("four ranks")
}

// Promise: sharded-digests, seen to fail
#[test]
fn last_commit_compares_the_ranks_that_have_the_same_box() {
    let (scene, ranks) = four_ranks();
    let (some, other) = (Some(Digest::Xxh3), Some(Digest::Blake3));
    let unproved = |version, digests, biases| {
        let pushed = push_with_bias(&ranks, version, digests, biases).expect("they are the same");
        let shown = ranks[1].sharded_layout("policy").call().expect("it is whole").unproved;
        assert_eq!(pushed.unproved, Some(shown));
        shown
    };
    assert_eq!(unproved(1, [some; 4], [7; 4]), 0);
    assert_eq!(unproved(2, [None; 4], [7, 8, 7, 7]), 4, "nobody can know");
    assert_eq!(unproved(3, [some, None, some, None], [7, 8, 7, 9]), 2);
    assert_eq!(unproved(4, [some, other, other, None], [7, 6, 6, 7]), 2);
    let text = |arguments: &[&str]| {
        let mut transferctl = std::process::Command::new(programs::transferctl());
        let shown = transferctl.arg("layout").arg("policy").args(arguments).arg("--socket").arg(scene.b().socket());
        String::from_utf8(shown.output().expect("it runs").stdout).expect("text")
    };
    assert!(
        text(&[]).contains("2 of the shards in boxes of several ranks were compared with no other one"),
        "{}",
        text(&[])
    );
    let json: serde_json::Value = serde_json::from_str(&text(&["--json"])).expect("json");
    assert_eq!(json["unproved"], 2);
    for (version, digests, biases, differ) in
        [(5, [some; 4], [7, 7, 7, 8], (0, 3)), (6, [None, some, some, some], [7, 7, 9, 7], (1, 2))]
    {
        let e = push_with_bias(&ranks, version, digests, biases).expect_err("one differs");
        let Error::Sharded(error) = &e else { panic!("{e}") };
        let digest = Digest::Xxh3;
        let (name, range, (first_rank, second_rank)) = ("bias".to_owned(), "[0:100]".to_owned(), differ);
        assert_eq!(**error, ShardedError::ReplicasDiffer { name, range, first_rank, second_rank, digest });
        assert!(!e.can_retry());
        let found = ranks[0].fetch_sharded("policy").call().expect("the one before");
        assert_eq!(found.version(), 4, "nobody has seen it");
    }
    // The rank that differs makes its commit again.
    let (tensor, bias) = (frozen(&ranks[3], 3, 6), [7_u32; 100]);
    let bias = transfer_client::BundleTensor::from_slice([100], &bias).expect("its length");
    let again = push(&ranks[3], 3, 5, some, vec![shard(3, &tensor), Shard::new("bias", [100], [0], bias)]);
    let again = again.expect("all are the same");
    assert_eq!((again.is_whole, again.unproved), (true, Some(0)));
    drop(ranks);
    scene.end();
}
