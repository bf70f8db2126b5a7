//! Versions with digests: what has moved is compared with what was pushed.

use arrow_array::RecordBatch;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use transfer_client::{
    BlockingClient, BundleMut, BundleTensor, Client, DType, Digest, DigestError, Digested, Error, FailureCode,
    FetchedBundle, Frozen, Landing, Until, s,
};
use transfer_tests::http::get;
use transfer_tests::{Carrier, Ctl, Scene, Sidecar, poll};

const CHUNK: u32 = 64 << 10;

fn connect(sidecar: &Sidecar, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(sidecar.socket()).name(name).arena_bytes(40 << 20);
    connect.call().expect("the sidecar takes workers")
}

/// A tensor of the arena, of these many elements that rise.
fn tensor(client: &BlockingClient, len: u64) -> Frozen {
    let mut tensor = client.allocate(DType::U64, [len]).expect("room");
    for (n, element) in (0..).zip(tensor.as_mut_slice::<u64>().expect("its type")) {
        *element = n * 7;
    }
    tensor.freeze()
}

/// Two tensors of 100,000 and 200,040 bytes, each up to a multiple of 64 in the body.
fn two_tensors(client: &BlockingClient) -> [(&'static str, Frozen); 2] {
    [("a", tensor(client, 12_500)), ("b", tensor(client, 25_005))]
}
const BODY: u64 = 100_032 + 200_064;

fn named(tensors: &[(&'static str, Frozen)]) -> impl Iterator<Item = (&'static str, BundleTensor<'static>)> {
    tensors.iter().map(|(name, tensor)| (*name, tensor.into()))
}

/// Turns a bit of this process's memory over, as a fault of the memory does: the tensor is frozen, and no code can write it.
pub(super) fn damage(tensor: &Frozen, at: u64) {
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem").expect("this process's memory");
    let at = tensor.as_bytes().as_ptr() as u64 + at;
    let mut byte = [0];
    memory.read_exact_at(&mut byte, at).expect("it is mapped");
    memory.write_all_at(&[byte[0] ^ 4], at).expect("it is mapped");
}

fn wrong(fetched: Result<FetchedBundle, Error>) -> (String, DigestError) {
    let error = fetched.expect_err("a byte is wrong");
    let text = error.to_string();
    match error {
        Error::Digest(error) => (text, *error),
        other => panic!("{other}"),
    }
}

// Promise: digests, seen to fail
#[test]
fn bundle_that_moves_is_compared_with_the_digests_of_its_push() {
    let scene = Scene::two();
    let (pusher, near, far) = (connect(scene.a(), "pusher"), connect(scene.a(), "near"), connect(scene.b(), "far"));
    for (digest, version) in [(Digest::Xxh3, 7), (Digest::Blake3, 8)] {
        let tensors = two_tensors(&pusher);
        let push = pusher.push_bundle("k", named(&tensors)).version(version).digest(digest).chunk_bytes(CHUNK);
        assert_eq!(push.call().expect("pushed").report.copied, 0);
        let report = *near.fetch_bundle("k").require_digest().call().expect("it has digests").report();
        assert_eq!((report.copied, report.verified), (0, 0), "nothing has moved");
        let bundle = far.fetch_bundle("k").verify().call().expect("it is right");
        assert_eq!((bundle.report().verified, bundle.report().fabric.name()), (BODY, Carrier::chosen().name()));
        assert_eq!(bundle.get("b").expect("there").as_bytes(), tensors[1].1.as_bytes());
        assert_eq!(far.fetch_bundle("k").call().expect("not compared").report().verified, 0);
        // In the second of two tensors, in the third chunk of the body.
        let (at, chunk) = (60_000, 2);
        damage(&tensors[1].1, at);
        let (text, error) = wrong(far.fetch_bundle("k").verify().call());
        let (start, end) = (chunk * u64::from(CHUNK), (chunk + 1) * u64::from(CHUNK));
        assert!((start..end).contains(&(100_032 + at)));
        let what = Digested::Chunk { index: chunk, start, end };
        assert_eq!(error, DigestError::WrongDigest { key: "k".into(), version, what, digest });
        assert!(text.contains("chunk 2, bytes 131072 to 196608, of version") && text.contains(digest.name()), "{text}");
        let bundle = far.fetch_bundle("k").call().expect("nobody has asked for a proof");
        assert_ne!(bundle.get("b").expect("there").as_slice::<u64>().expect("its type")[at as usize / 8], at / 8 * 7);
        // The last, shorter chunk; and again as it was.
        damage(&tensors[1].1, at);
        damage(&tensors[1].1, 200_039);
        let what = Digested::Chunk { index: 4, start: 4 * u64::from(CHUNK), end: BODY };
        let expected = DigestError::WrongDigest { key: "k".into(), version, what, digest };
        assert_eq!(wrong(far.fetch_bundle("k").require_digest().call()).1, expected);
        // Into memory of the reader, it is compared before a byte is written there, and without that it lands there.
        let into = || {
            let mut tensor = far.allocate(DType::U64, [25_005]).expect("room");
            tensor.as_mut_bytes().fill(0);
            BundleMut::from_iter([("b".to_owned(), tensor)])
        };
        let (error, kept) = far.fetch_bundle("k").verify().into(into()).call().expect_err("it is wrong").into_parts();
        assert!(matches!(error, Error::Digest(_)), "{error}");
        let kept = kept.expect("they are the caller's");
        assert!(kept.iter().all(|(_, tensor)| tensor.as_bytes().iter().all(|byte| *byte == 0)));
        far.fetch_bundle("k").into(kept).call().expect("nobody has asked for a proof");
        damage(&tensors[1].1, 200_039);
        assert_eq!(far.fetch_bundle("k").verify().call().expect("it is right").report().verified, BODY);
        let fetched = far.fetch_bundle("k").verify().into(into()).call().expect("it is right");
        assert_eq!((fetched.landing(), fetched.report().verified), (Landing::Verified, BODY));
    }
    drop((pusher, near, far));
    scene.end();
}

// Promise: digests, seen to fail
#[test]
fn buckets_are_compared_with_the_digests_of_the_push() {
    let scene = Scene::two_with(&["--pool-bytes", "4MiB"]);
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    let tensors = [("small", tensor(&pusher, 1)), ("large", tensor(&pusher, 1 << 20))];
    let body = 64 + (8 << 20);
    pusher.push_bundle("k", named(&tensors)).digest(Digest::Xxh3).chunk_bytes(1 << 20).call().expect("pushed");
    let bundle = far.fetch_bundle("k").bucket_bytes(1 << 20).require_digest().call().expect("in buckets");
    assert_eq!(bundle.report().verified, body);
    damage(&tensors[1].1, 5 << 20);
    let (_, error) = wrong(far.fetch_bundle("k").verify().call());
    let what = Digested::Chunk { index: 5, start: 5 << 20, end: 6 << 20 };
    assert_eq!(error, DigestError::WrongDigest { key: "k".into(), version: 1, what, digest: Digest::Xxh3 });
    let bundle = far.fetch_bundle("k").call().expect("nobody has asked for a proof");
    assert_eq!(bundle.report().verified, 0);
    pusher.push_bundle("none", named(&tensors)).call().expect("pushed");
    let (text, error) = wrong(far.fetch_bundle("none").require_digest().call());
    assert_eq!(error, DigestError::NoDigest { key: "none".into(), version: 1 });
    assert!(text.contains("digest() at the push"), "{text}");
    drop((bundle, pusher, far));
    scene.end();
}

/// Bytes that lie on this node may have come from another one: by the fetch of another worker, or by the push.
// Promise: digests, seen to fail
#[test]
fn what_others_have_brought_to_this_node_is_compared_too() {
    let scene = Scene::two();
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let tensors = two_tensors(&pusher);
    let to = pusher.push_bundle("landed", named(&tensors)).to("far").digest(Digest::Blake3);
    to.call().expect("it has landed");
    runtime.block_on(async {
        let client = Client::connect(scene.b().socket()).name("async").await.expect("a session");
        for _ in 0..3 {
            let bundle = client.fetch_bundle("landed").require_digest().await.expect("it is right");
            assert_eq!((bundle.report().verified, bundle.report().fabric.name()), (BODY, "local"));
        }
    });
    // Memory that is updated in place has new digests with each push.
    for version in 1..=2 {
        let bundle: BundleMut = match version {
            1 => {
                pusher
                    .push_bundle("in place", named(&two_tensors(&pusher)))
                    .digest(Digest::Xxh3)
                    .call()
                    .expect("pushed");
                pusher.take_back_bundle("in place").call().expect("nobody reads it")
            }
            _ => pusher.take_back_bundle("in place").call().expect("nobody reads it"),
        };
        let mut bundle = bundle;
        for (_, tensor) in bundle.iter_mut() {
            tensor.as_mut_bytes()[0] = version;
        }
        pusher.push_bundle("in place", bundle).keep(Until::Replaced).digest(Digest::Xxh3).call().expect("pushed");
        let fetched = far.fetch_bundle("in place").require_digest().call().expect("it is right");
        assert_eq!((fetched.report().verified, fetched.get("b").expect("there").as_bytes()[0]), (BODY, version));
    }
    drop((pusher, far));
    scene.end();
}

// Promise: digests, seen to fail
#[test]
fn tensors_and_batches_are_compared_with_the_digests_of_their_pushes() {
    let scene = Scene::two();
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    let frozen = tensor(&pusher, 12_501);
    let expected = |key: &str, index: u64, end: u64| {
        let what = Digested::Chunk { index, start: index * u64::from(CHUNK), end };
        DigestError::WrongDigest { key: key.into(), version: 1, what, digest: Digest::Xxh3 }
    };
    for (key, from) in [("frozen", &frozen), ("empty", &tensor(&pusher, 0))] {
        let pushed = pusher.push_frozen(key, from).digest(Digest::Xxh3).chunk_bytes(CHUNK).call().expect("pushed");
        assert_eq!(pushed.report.copied, 0);
        let fetched = far.fetch(key).require_digest().call().expect("it is right");
        assert_eq!((fetched.meta(), fetched.as_bytes()), (from.meta(), from.as_bytes()));
        assert_eq!(fetched.report().verified, from.as_bytes().len() as u64);
        let here = pusher.fetch(key).require_digest().call().expect("it has digests");
        assert_eq!((here.as_bytes(), here.report().verified), (from.as_bytes(), 0));
        let many = far.fetch_many([key]).call().remove(0).expect("nobody has asked for a proof");
        assert_eq!((many.meta(), many.report().verified), (from.meta(), 0));
    }
    damage(&frozen, 100_007);
    let error = far.fetch("frozen").verify().call().expect_err("a byte is wrong");
    assert_eq!(error, expected("frozen", 1, 100_008).into());
    damage(&frozen, 100_007);
    pusher.push_slice("slice", [3], &[1_u32, 2, 3]).digest(Digest::Blake3).call().expect("pushed");
    let fetched = far.fetch("slice").require_digest().call().expect("it is right");
    assert_eq!((fetched.as_slice::<u32>().expect("its type"), fetched.report().verified), (&[1, 2, 3][..], 12));
    drop(fetched);
    // Record batches: the buffers of the columns are ranges of the arena.
    let column = frozen.to_array().expect("an array");
    let batch = RecordBatch::try_from_iter([("n", column.clone()), ("m", column)]).expect("a batch");
    let push = pusher.push_batch("batch", &batch).digest(Digest::Xxh3).chunk_bytes(CHUNK);
    assert_eq!(push.call().expect("pushed").report.copied, 0);
    let body = 2 * 100_032;
    let fetched = far.fetch_batch("batch").require_digest().call().expect("it is right");
    assert_eq!((fetched.batch(), fetched.report().verified), (&batch, body));
    assert_eq!(far.fetch_table("batch").verify().call().expect("it is right").report().verified, body);
    assert_eq!(pusher.fetch_batch("batch").require_digest().call().expect("it has digests").report().verified, 0);
    damage(&frozen, 70_000);
    let error = far.fetch_batch("batch").verify().call().expect_err("a byte is wrong");
    assert_eq!(error, expected("batch", 1, 131_072).into());
    assert_eq!(far.fetch_batch("batch").call().expect("nobody has asked for a proof").report().verified, 0);
    drop((batch, frozen, fetched));
    // A tensor with digests comes back to its owner: by a push that fails, and when it is taken back.
    let writable = pusher.allocate(DType::U64, [100]).expect("room");
    let failed = pusher.push_tensor("slice", writable).version(1).digest(Digest::Xxh3).call().expect_err("not above 1");
    let (error, writable) = failed.into_parts();
    assert_eq!(error.failure_code(), Some(FailureCode::VersionNotRising), "{error}");
    let mut writable = writable.expect("nobody else has it");
    for round in 1..4_u64 {
        writable.as_mut_slice::<u64>().expect("its type").fill(round);
        pusher.push_tensor("in place", writable).digest(Digest::Xxh3).call().expect("pushed");
        let fetched = far.fetch("in place").require_digest().call().expect("it is right");
        assert_eq!(fetched.as_slice::<u64>().expect("its type"), [round; 100]);
        drop(fetched);
        far.take_answers();
        writable = pusher.take_back("in place").call().expect("nobody reads it");
        assert_eq!(writable.meta().to_string(), "u64[100]");
    }
    drop((writable, pusher, far));
    scene.end();
}

// Promise: digests, seen to fail
#[test]
fn batches_of_pushes_have_digests() {
    let scene = Scene::two();
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    let filled = |client: &BlockingClient, value: u64| {
        let mut tensor = client.allocate(DType::U64, [12_500]).expect("room");
        tensor.as_mut_slice::<u64>().expect("its type").fill(value);
        tensor
    };
    let compare = |key: &str, value: u64| {
        let fetched = far.fetch(key).require_digest().call().expect("it is right");
        assert_eq!(
            (fetched.report().verified, fetched.as_slice::<u64>().expect("its type")),
            (100_000, &[value; 12_500][..])
        );
        fetched.version()
    };
    // Two of one key, in their order; and one that is refused, and is its caller's again.
    let keys = ["one", "two", "", "one"];
    let tensors: Vec<_> = (0..).zip(keys).map(|(n, key)| (key, filled(&pusher, n))).collect();
    let mut pushed = pusher.push_many(tensors).digest(Digest::Blake3).call();
    let (error, tensor) = pushed.remove(2).expect_err("a key has a name").into_parts();
    assert!(tensor.is_some_and(|tensor| tensor.as_slice::<u64>().is_ok_and(|all| all[0] == 2)), "{error}");
    let versions: Vec<_> = pushed.into_iter().map(|pushed| pushed.expect("pushed").version).collect();
    assert_eq!((versions, compare("one", 3), compare("two", 1)), (vec![1, 1, 2], 2, 1));
    // Many, of which each version takes the place of the one before.
    for round in 0..3 {
        let tensors: Vec<_> = (0..100).map(|n| (format!("many-{n}"), filled(&pusher, n + round))).collect();
        let pushed = pusher.push_many(tensors).digest(Digest::Xxh3).version(round + 1).call();
        assert!(pushed.into_iter().all(|pushed| pushed.is_ok_and(|pushed| pushed.version == round + 1)));
        assert_eq!(compare("many-99", 99 + round), round + 1);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect(scene.a().socket()).name("async").await.expect("a session");
        let tensor = client.allocate(DType::U64, [12_500]).expect("room");
        let pushed = client.push_many([("async", tensor)]).digest(Digest::Xxh3).await;
        assert_eq!(pushed[0].as_ref().expect("pushed").version, 1);
    });
    drop((pusher, far));
    scene.end();
}

// Promise: digests
#[test]
fn what_cannot_be_proved_is_refused_and_named() {
    let scene = Scene::one();
    let client = connect(scene.a(), "client");
    let tensors = two_tensors(&client);
    client.push_bundle("k", named(&tensors)).digest(Digest::Xxh3).call().expect("pushed");
    client.push_frozen("tensor", &tensors[0].1).digest(Digest::Xxh3).call().expect("pushed");
    client.push_bundle("none", named(&tensors)).call().expect("pushed");
    let refused = |error: Error, says: &str| {
        assert!(matches!(&error, Error::Digest(e) if matches!(**e, DigestError::NotProvable { .. })), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    };
    refused(
        client.fetch_bundle("k").verify().only(["a"]).call().expect_err("a part"),
        "key \"k\": a part of a version",
    );
    refused(client.fetch("tensor").verify().slice(s![1..]).call().expect_err("a part"), "a part of a version");
    let e = client.fetch("tensor").slice(s![1..]).call().expect_err("it has digests");
    assert!(e.to_string().contains("which is no tensor"), "{e}");
    let into = client.allocate(DType::U64, [12_500]).expect("room");
    let (e, into) = client.fetch("tensor").into(into).call().expect_err("it has digests").into_parts();
    assert!(into.is_some() && e.to_string().contains("destination is u64[12500]"), "{e}");
    client.push_slice("plain", [1], &[1_u8]).call().expect("pushed");
    let e = client.fetch("plain").require_digest().call().expect_err("it has none");
    assert_eq!(e, DigestError::NoDigest { key: "plain".into(), version: 1 }.into());
    let e = client.push_bundle("k", named(&tensors)).chunk_bytes(100).call().expect_err("too short");
    assert!(e.to_string().contains("a chunk cannot have 100 bytes: a multiple of 64 from 65536"), "{e}");
    assert_eq!(
        wrong(client.fetch_bundle("none").require_digest().call()).1,
        DigestError::NoDigest { key: "none".into(), version: 1 }
    );
    assert_eq!(client.fetch_bundle("none").verify().call().expect("there is nothing to compare").report().verified, 0);
    drop(client);
    scene.end();
}

/// A replica whose memory is damaged is found by its operator, too.
// Promise: digests, seen to fail
#[test]
fn operators_are_told_of_wrong_bytes() {
    let scene = Scene::two_with(&["--http-listen", "127.0.0.1:0"]);
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    let doctor = || Ctl::of(scene.b(), &["doctor", "--bytes", "0"]).run().text();
    assert!(!doctor().contains("digest of their push"), "{}", doctor());
    let tensors = two_tensors(&pusher);
    pusher.push_bundle("k", named(&tensors)).digest(Digest::Xxh3).chunk_bytes(CHUNK).call().expect("pushed");
    let shard = transfer_client::Shard::new("w", [12_500], [0], &tensors[0].1);
    let rank = transfer_client::Rank { rank: 0, world_size: 1 };
    pusher.push_shards("state", 1, rank, [shard]).digest(Digest::Xxh3).call().expect("pushed");
    damage(&tensors[0].1, 70_000);
    far.fetch_bundle("k").verify().call().expect_err("a byte is wrong");
    far.fetch_sharded("state").verify().call().expect_err("a byte is wrong");
    far.fetch_bundle("k").call().expect("nobody has asked for a proof");
    let wrong = |told: String, words: &str| if told.contains(words) { Ok(()) } else { Err(told) };
    let status = || Ctl::of(scene.b(), &["status", "--json"]).ends(0, &[]).text();
    poll(|| wrong(status(), "\"wrong_digests\": 2")).unwrap_or_else(|status| panic!("{status}"));
    let metrics = get(&scene.b().http(), "/metrics").body;
    wrong(metrics, "transfer_failures_total{code=\"WrongDigest\"} 2").unwrap_or_else(|metrics| panic!("{metrics}"));
    let events = Ctl::of(scene.b(), &["events", "--after", "0", "--json"]);
    let mut events = events.hold_until("from rank 0 at node");
    let said: Vec<_> = events.said.iter().filter(|line| line.contains("WrongDigest")).collect();
    assert!(said.iter().all(|line| line.contains("worker far")), "{said:?}");
    assert!(said[0].contains("chunk 1, bytes 65536 to 131072, of version 1 of key \\\"k\\\""), "{said:?}");
    assert!(
        said.len() == 2 && said[1].contains("[0:12500] of tensor \\\"w\\\", from rank 0 at node \\\"a\\\""),
        "{said:?}"
    );
    events.interrupt();
    let text = doctor();
    assert!(
        text.contains("2 fetches of workers here brought bytes that do not have the digest of their push"),
        "{text}"
    );
    drop((pusher, far));
    scene.end();
}

/// The command compares with the same digests as programs do, also a file that is pushed in pieces.
// Promise: digests
#[test]
fn transferctl_publishes_digests_and_compares_with_them() {
    let scene = Scene::two_with(&["--max-arena-bytes", "1MiB"]);
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(at("file"), &bytes).expect("written");
    std::fs::write(at("large"), bytes.repeat(10)).expect("written");
    for (key, digest) in [("file", "--digest"), ("large", "--digest=blake3")] {
        let mut holder = Ctl::of(scene.a(), &["push", key, &at(key), digest, "--verify"]).hold();
        let fetch = ["fetch", key, &at("out"), "--require-digest", "--verify", "--json", "--force"];
        let line = Ctl::of(scene.b(), &fetch).ends(0, &[]).json_lines().remove(0);
        let len = std::fs::metadata(at(key)).expect("it is there").len();
        // A file in pieces has a list of them, which is compared, too.
        assert!(line["verified_bytes"].as_u64().is_some_and(|verified| verified >= len), "{key}: {line}");
        assert!(std::fs::read(at("out")).expect("it is there") == std::fs::read(at(key)).expect("it is there"));
        assert_eq!(holder.interrupt(), Some(0));
    }
    let mut holder = Ctl::of(scene.a(), &["push", "none", &at("file")]).hold();
    Ctl::of(scene.b(), &["fetch", "none", &at("none"), "--require-digest"]).ends(7, &["has no digests", "--digest"]);
    assert!(!std::path::Path::new(&at("none")).exists());
    assert_eq!(holder.interrupt(), Some(0));
    Ctl::of(scene.a(), &["push", "none", &at("file"), "--digest=md5"]).ends(2, &["xxh3 or blake3"]);
    scene.end();
}
